"""Count the files that mention each kind of finding.

    python -m tools.finding_files

A finding that is defined in one file is cheap to add and to change; each further file that names
its code must be kept in step.
"""

from __future__ import annotations

import argparse
import ast
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PACKAGE: Final = Path(__file__).parents[1] / "hybridbench"
# A defect declares its expected finding; that is data, not a place to keep in sync.
EXPECTATIONS: Final = "defects/"


@dataclass(frozen=True)
class Module:
    """One file of the package, by its path below the package."""

    name: str
    tree: ast.Module


def modules(package: Path) -> list[Module]:
    """All files below ``package``, sorted by name."""
    return [
        Module(path.relative_to(package).as_posix(), ast.parse(path.read_text("utf-8")))
        for path in sorted(package.rglob("*.py"))
    ]


def declared_kinds(files: Iterable[Module]) -> dict[str, str]:
    """Return the classes that declare a ``kind``, and its value, in the order of the files."""
    found: dict[str, str] = {}
    for file in files:
        for node in ast.walk(file.tree):
            if isinstance(node, ast.ClassDef):
                found.update((node.name, value) for value in _declared(node))
    return found


def files_of_kinds(files: Sequence[Module]) -> dict[str, list[str]]:
    """For each kind of finding, the files that contain its class name or its string value.

    Docstrings and the expectations of defects do not count.
    """
    kinds = declared_kinds(files)
    found: dict[str, list[str]] = {value: [] for value in kinds.values()}
    for file in files:
        if file.name.startswith(EXPECTATIONS):
            continue
        names, strings = _spelled(file.tree)
        for name, value in kinds.items():
            if name in names or value in strings:
                found[value].append(file.name)
    return found


def _declared(node: ast.ClassDef) -> Iterator[str]:
    for part in node.body:
        match part:
            case ast.Assign(
                targets=[ast.Name(id="kind")], value=ast.Constant(value=str() as value)
            ) if value:
                yield value


def _spelled(tree: ast.Module) -> tuple[set[str], set[str]]:
    """Return all names, including those of classes, and all strings except docstrings."""
    names, strings = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            strings.add(node.value)
    return names, strings - _docstrings(tree)


def _docstrings(tree: ast.Module) -> set[str]:
    return {
        node.value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    }


def lines(files: Sequence[Module]) -> Iterator[str]:
    """The report."""
    spread = files_of_kinds(files)
    counts = [len(names) for names in spread.values()]
    yield (
        f"files per kind of finding: mean {statistics.mean(counts):.1f}, "
        f"median {statistics.median(counts):g}, most {max(counts)} ({len(counts)} kinds)"
    )
    for kind, names in sorted(spread.items(), key=lambda item: (-len(item[1]), item[0])):
        yield f"  {len(names):2d}  {kind}: {', '.join(names)}"


def main() -> None:
    """Print the report of a package."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("package", nargs="?", type=Path, default=PACKAGE)
    for line in lines(modules(parser.parse_args().package)):
        print(line)


if __name__ == "__main__":
    main()
