"""Which engine really ran: a hash of the source files that this process imported."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

_PACKAGES = ("hybridbench.engine", "hybridbench.kernels")


def imported_engine_files() -> tuple[str, int]:
    """SHA-256 over names and contents of all imported engine modules, and their number."""
    digest = hashlib.sha256()
    files = 0
    for name in sorted(sys.modules):
        source = sys.modules[name].__file__ if _is_engine(name) else None
        if source is None:
            continue
        content = Path(source).read_bytes()
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
        files += 1
    return digest.hexdigest(), files


def _is_engine(name: str) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in _PACKAGES)
