"""The healthy twin of ``foreign_leak.py``: it creates the same objects and keeps none."""

from __future__ import annotations

import importlib.util
from pathlib import Path

_spec = importlib.util.spec_from_file_location(
    "foreign_leak", Path(__file__).with_name("foreign_leak.py")
)
assert _spec is not None
assert _spec.loader is not None
_leak = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_leak)

DEFECT = _leak.planted("planted-twin", keeps=False)
