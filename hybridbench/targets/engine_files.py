"""Identify the engine: hash the files that a process imported, or all that are installed."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable
from pathlib import Path

import hybridbench

_ENGINE = "hybridbench.engine"
_CONFIG = "hybridbench.foundation.engine_config"


def imported_engine_files() -> tuple[str, int]:
    """Hash the names and contents of all imported engine modules; return SHA-256 and count."""
    sources = (
        (name, sys.modules[name].__file__) for name in sorted(sys.modules) if _is_engine(name)
    )
    files = [(name, Path(source)) for name, source in sources if source is not None]
    return _hash(files), len(files)


def installed_engine_files() -> str:
    """Hash the names and contents of all engine source files (SHA-256); import none."""
    root = Path(hybridbench.__file__).parent
    files = [*sorted((root / "engine").rglob("*.py")), root / "foundation" / "engine_config.py"]
    return _hash((path.relative_to(root).as_posix(), path) for path in files)


def _hash(files: Iterable[tuple[str, Path]]) -> str:
    digest = hashlib.sha256()
    for name, path in files:
        content = path.read_bytes()
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def _is_engine(name: str) -> bool:
    return name in {_CONFIG, _ENGINE} or name.startswith(f"{_ENGINE}.")
