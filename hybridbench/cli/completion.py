"""Shell completion of option values and arguments.

Defect names are read from source text: importing the modules would load torch, which is slow.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import hybridbench

_PACKAGE = Path(hybridbench.__file__).parent
_SLUG = re.compile(r'(?:slug=|^DEFECT = \w+\(\s*)"([a-z0-9-]+)"', re.MULTILINE)
_STORE = Path("results")


def complete_profile(incomplete: str) -> list[str]:
    """Complete shipped profiles."""
    from hybridbench.workload.catalog import list_profiles

    return _beginning(incomplete, list_profiles())


def complete_defect(incomplete: str) -> list[str]:
    """Complete defects, controls and injected slowdowns."""
    sources = (path.read_text("utf-8") for path in (_PACKAGE / "defects").rglob("*.py"))
    return _beginning(incomplete, (slug for text in sources for slug in _SLUG.findall(text)))


def complete_model(incomplete: str) -> list[str]:
    """Complete model presets."""
    from hybridbench.workload.catalog import list_models

    return _beginning(incomplete, list_models())


def complete_result(incomplete: str) -> list[str]:
    """Complete stored results, by path or by name in ``results``; without any, directories."""
    from hybridbench.rundir.layout import MARKERS

    stored = [
        str(path)
        for path in _directories(_STORE)
        if any((path / marker).exists() for marker in MARKERS)
        and (str(path).startswith(incomplete) or path.name.startswith(incomplete))
    ]
    above = Path(incomplete) if incomplete.endswith("/") else Path(incomplete).parent
    return stored or _beginning(incomplete, (f"{path}/" for path in _directories(above)))


def _directories(place: Path) -> list[Path]:
    try:
        return sorted(path for path in place.iterdir() if path.is_dir())
    except OSError:
        return []


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete))
