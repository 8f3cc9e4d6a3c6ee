"""Classes, profiles, defects and tests that tables of the docs name must exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from hybridbench.defects.catalog import DEFECTS
from hybridbench.workload.catalog import list_profiles
from tests.tidy.sources import PACKAGE, ROOT, TESTS, source

NAMED = re.compile(r"`([^`]+)`")


def rows() -> list[tuple[str, ...]]:
    """Return the cells of each table row whose mechanism is not missing."""
    text = (ROOT / "docs" / "explanation" / "historic-bugs.md").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    cells = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines]
    return [row for row in cells if row[0] != "symbol there" and not row[1].startswith("missing")]


def methods() -> set[str]:
    """Return ``Class.method`` for all classes here, including methods of bases in the package."""
    own: dict[str, set[str]] = {}
    bases: dict[str, list[str]] = {}
    for path in PACKAGE:
        for node in source(path).nodes:
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
        for path in TESTS
        if path.name.startswith("test_")
        for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }


def test_what_holds_a_mechanism_exists() -> None:
    known = {
        "carrier": methods(),
        "profile": set(list_profiles()),
        "defect": {defect.slug for defect in DEFECTS},
        "test": known_tests(),
    }
    table = rows()

    assert len(table) > 20
    for mechanism, *cells in table:
        named = {
            column: set(NAMED.findall(cell)) for column, cell in zip(known, cells, strict=True)
        }
        unknown = {column: names - known[column] for column, names in named.items()}
        assert not any(unknown.values()), (mechanism, unknown)
        assert named["carrier"], mechanism
        assert named["test"], mechanism


def test_the_moved_cases_of_the_shim_page_exist() -> None:
    text = (ROOT / "docs" / "reference" / "sglang-shim.md").read_text(encoding="utf-8")
    table = text.partition("| case there | here |")[2].partition("These cannot be moved")[0]
    ours = [
        NAMED.findall(line.strip("|").split("|")[1]) for line in table.splitlines() if "`" in line
    ]

    assert len(ours) > 20
    assert {name for names in ours for name in names} <= known_tests()
