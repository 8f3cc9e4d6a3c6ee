"""Files named in architecture.md, CONTRIBUTING and the engine's README exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "hybridbench"
PAGE = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
# Names in backquotes with a folder or a source suffix; files of a run directory have neither.
PATHS = sorted(set(re.findall(r"`([a-z_]+/[\w/]*(?:\.\w+)?|\w+\.(?:py|toml))`", PAGE)))
SOURCES = sorted(set(re.findall(r"`([a-z_]+/[\w/]+\.py)`", CONTRIBUTING)))
ENGINE = PACKAGE / "engine"
ENGINE_PAGE = (ENGINE / "README.md").read_text(encoding="utf-8")
ENGINE_FILES = sorted(set(re.findall(r"`([./]*[a-z_]\w*(?:/\w+)*(?:/|\.py))`", ENGINE_PAGE)))
ROOMS = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))


@pytest.mark.parametrize(
    ("paths", "folders"),
    [(PATHS, (PACKAGE, ROOT)), (SOURCES, (PACKAGE, ROOT)), (ENGINE_FILES, (ENGINE, ROOT))],
    ids=["architecture.md", "CONTRIBUTING.md", "engine/README.md"],
)
def test_the_files_that_a_page_names_exist(paths: list[str], folders: tuple[Path, ...]) -> None:
    assert len(paths) > 30
    assert [path for path in paths if not any((here / path).exists() for here in folders)] == []


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_has_a_row(room: str) -> None:
    assert f"\n| `{room}/` |" in PAGE
