"""docs/engine.md says which class, profile, defect and test hold each mechanism: all must exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from hybridbench.defects.catalog import DEFECTS
from hybridbench.workload.catalog import list_profiles

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`([^`]+)`")


def rows() -> list[tuple[str, ...]]:
    """The table lines of mechanisms that are not missing, cell by cell."""
    text = (ROOT / "docs" / "engine.md").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    cells = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines]
    return [row for row in cells if row[0] != "symbol there" and not row[1].startswith("missing")]


ROWS = rows()


def methods() -> set[str]:
    """``Class.method`` for every class of ours, those of its bases in the same package included."""
    own: dict[str, set[str]] = {}
    bases: dict[str, list[str]] = {}
    for path in (ROOT / "hybridbench").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                functions = (n for n in node.body if isinstance(n, ast.FunctionDef))
                own.setdefault(node.name, set()).update(f.name for f in functions)
                bases[node.name] = [base.id for base in node.bases if isinstance(base, ast.Name)]

    def inherited(name: str) -> Iterator[str]:
        yield from own.get(name, ())
        for base in bases.get(name, ()):
            yield from inherited(base)

    return {f"{name}.{method}" for name in own for method in inherited(name)}


def known_tests() -> set[str]:
    return {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }


METHODS, TESTS = methods(), known_tests()


def test_the_page_has_its_tables() -> None:
    assert len(ROWS) > 20


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_what_holds_a_mechanism_exists(row: tuple[str, ...]) -> None:
    _, carrier, profile, defect, test = row

    assert set(NAMED.findall(carrier)) <= METHODS
    assert NAMED.findall(carrier)
    assert set(NAMED.findall(profile)) <= set(list_profiles())
    assert set(NAMED.findall(defect)) <= {known.slug for known in DEFECTS}
    assert set(NAMED.findall(test)) <= TESTS
    assert NAMED.findall(test)
