"""Build hybridbench-core: the same source without the engine's dependencies; ``make wheel``.

Its metadata is that of pyproject.toml under another name.  The descriptions of the defects are
written into the wheel, because only the engine's classes can provide them.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import msgspec

ROOT: Final = Path(__file__).parents[1]
SOURCES: Final = ("hybridbench", "profiles", "LICENSE")
# Packages that only the engine imports.
LEFT_OUT: Final = ("torch", "safetensors")


def core_project(text: str) -> str:
    """Derive hybridbench-core's pyproject.toml from that of hybridbench.

    Raises:
        ValueError: a line to replace is not found exactly once.
    """
    changes = [(r'^name = "hybridbench"$', 'name = "hybridbench-core"')]
    changes += [(rf'^    "{name}\b.*\n', "") for name in LEFT_OUT]
    for pattern, replacement in changes:
        text, count = re.subn(pattern, replacement, text, flags=re.MULTILINE)
        if count != 1:
            raise ValueError(f"pyproject.toml has {count} lines like {pattern}")
    return text


def build(target: Path) -> None:
    """Write the wheel of hybridbench-core into the directory ``target``."""
    from hybridbench.defects.described import DESCRIPTIONS, described_catalog

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for name in SOURCES:
            source = ROOT / name
            if source.is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(source, place / name, ignore=ignored)
            else:
                shutil.copy(source, place / name)
        text = core_project((ROOT / "pyproject.toml").read_text("utf-8"))
        (place / "pyproject.toml").write_text(text, "utf-8")
        stored = msgspec.json.encode(described_catalog())
        (place / DESCRIPTIONS.relative_to(ROOT)).write_bytes(stored)
        pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index"]
        words = ["--no-build-isolation", "--disable-pip-version-check", "--wheel-dir"]
        subprocess.run([*pip, *words, str(target), str(place)], check=True)


if __name__ == "__main__":
    build(Path(sys.argv[1]).resolve())
