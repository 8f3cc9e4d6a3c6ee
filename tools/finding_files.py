"""Count the files that mention each kind of finding, and the reads of its data by string keys.

    python -m tools.finding_files

A finding that is defined in one file is cheap to add and to change; each further file that names
its code must be kept in step.  Type checkers cannot check a value that is read by a string key.
"""

from __future__ import annotations

import argparse
import ast
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PACKAGE: Final = Path(__file__).parents[1] / "hybridbench"
READING: Final = "analysis/reading.py"
# A defect declares its expected finding; that is data, not a place to keep in sync.
EXPECTATIONS: Final = "defects/"
_DATA: Final = "data"


@dataclass(frozen=True)
class Module:
    """One file of the package, by its path below the package."""

    name: str
    tree: ast.Module


@dataclass(frozen=True)
class Read:
    """A read of a mapping's value by a string key; ``how`` names the function or form."""

    file: str
    line: int
    how: str


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


def keyed_reads(files: Iterable[Module]) -> list[Read]:
    """Return every read by a string key.

    These are calls of the functions in ``analysis/reading.py``, and items of anything called
    ``data``.
    """
    files = list(files)
    readers = _readers(files)
    found: list[Read] = []
    for file in files:
        if file.name != READING:
            found += _reads(file, _imported(file.tree, readers))
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


def _readers(files: Iterable[Module]) -> set[str]:
    """The public functions of ``analysis/reading.py``; empty if there is no such file."""
    return {
        node.name
        for file in files
        if file.name == READING
        for node in file.tree.body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    }


def _imported(tree: ast.Module, readers: set[str]) -> Mapping[str, str]:
    """Map the names by which a file can call ``readers`` to the functions."""
    room, _, module = READING.removesuffix(".py").rpartition("/")
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom):
            continue
        for alias in node.names:
            name = alias.asname or alias.name
            if f".{node.module}".endswith(f".{room}.{module}") and alias.name in readers:
                found[name] = alias.name
            elif f".{node.module}".endswith(f".{room}") and alias.name == module:
                found |= {f"{name}.{reader}": reader for reader in readers}
    return found


def _reads(file: Module, readers: Mapping[str, str]) -> Iterator[Read]:
    for node in ast.walk(file.tree):
        if isinstance(node, ast.Call):
            how = _call_that_reads(node, readers)
            if how:
                yield Read(file.name, node.lineno, how)
        elif (
            isinstance(node, ast.Subscript)
            and isinstance(node.ctx, ast.Load)
            and _is_data(node.value)
        ):
            yield Read(file.name, node.lineno, "data[...]")


def _call_that_reads(call: ast.Call, readers: Mapping[str, str]) -> str:
    """Return how ``call`` reads, ``number(...)`` or ``data.get(...)``; empty for other calls."""
    function = call.func
    called = ast.unparse(function)
    if called in readers:
        return f"{readers[called]}(...)"
    if isinstance(function, ast.Attribute) and function.attr == "get" and _is_data(function.value):
        return "data.get(...)"
    return ""


def _is_data(node: ast.expr) -> bool:
    return (isinstance(node, ast.Attribute) and node.attr == _DATA) or (
        isinstance(node, ast.Name) and node.id == _DATA
    )


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
    reads = keyed_reads(files)
    yield f"reads by a string: {len(reads)}"
    for title, names in (
        ("form", [read.how for read in reads]),
        ("file", [read.file for read in reads]),
    ):
        yield f"  by {title}"
        for name in sorted(set(names), key=lambda name: (-names.count(name), name)):
            yield f"    {names.count(name):3d}  {name}"


def main() -> None:
    """Print the report of a package."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("package", nargs="?", type=Path, default=PACKAGE)
    for line in lines(modules(parser.parse_args().package)):
        print(line)


if __name__ == "__main__":
    main()
