"""The style page, as far as a machine can hold it: sizes, forbidden calls, dangling files."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(p for room in ("hybridbench", "benchmarks") for p in (ROOT / room).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))

FUNCTION_LINES_MAX = 65


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def calls(path: Path) -> Iterator[tuple[int, str, ast.Call]]:
    """Line, called name, call: ``torch.cat(...)`` gives ``cat``."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name):
                yield node.lineno, node.func.id, node
            elif isinstance(node.func, ast.Attribute):
                yield node.lineno, node.func.attr, node


def test_there_is_something_to_check() -> None:
    assert len(SOURCES) > 40
    assert len(TESTS) > 20


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_a_file_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(tree_of(path)), "the top line says what the file is for"


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_a_function_fits_a_screen(path: Path) -> None:
    def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
        doc = function.body[0]
        is_doc = isinstance(doc, ast.Expr) and isinstance(doc.value, ast.Constant)
        start = doc.end_lineno if is_doc else function.lineno
        return (function.end_lineno or 0) - (start or 0)

    long = {f.name: code_lines(f) for f in functions(path) if code_lines(f) > FUNCTION_LINES_MAX}
    assert not long


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_no_attribute_is_reached_by_a_string(path: Path) -> None:
    strings = [
        line
        for line, name, call in calls(path)
        if name == "hasattr"
        or (name == "getattr" and len(call.args) > 1 and isinstance(call.args[1], ast.Constant))
    ]
    assert not strings


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_only_the_command_line_and_the_worker_read_the_environment(path: Path) -> None:
    if (
        relative(path).startswith("hybridbench/cli/")
        or relative(path) == "hybridbench/worker/__main__.py"
    ):
        pytest.skip("allowed here")
    assert not re.search(r"os\.environ\b|os\.getenv", path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "folder", ["engine/scheduler", "engine/memory", "engine/cache", "engine/sessions"]
)
def test_host_bookkeeping_makes_no_tensor_calls_one_by_one(folder: str) -> None:
    found = [
        (relative(path), line, name)
        for path in sorted((ROOT / "hybridbench" / folder).rglob("*.py"))
        for line, name, call in calls(path)
        if name == "item" and not call.args
    ]
    assert not found


@pytest.mark.parametrize("path", TESTS, ids=relative)
def test_no_test_sleeps(path: Path) -> None:
    if "scenarios" in path.parts:
        pytest.skip("scenarios wait for real processes")
    assert not re.search(r"\btime\.sleep\(", path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", [p for p in SOURCES if "engine" in p.parts], ids=relative)
def test_no_destructor_frees_anything(path: Path) -> None:
    names = {function.name for function in functions(path)}
    text = path.read_text(encoding="utf-8")

    assert "__del__" not in names
    assert "weakref.finalize" not in text
    assert not re.search(r"^\s*(import|from) gc\b", text, re.MULTILINE)


def test_nothing_committed_names_a_machine_or_an_index() -> None:
    suspicious = re.compile(r"(?:^|[\s\"'=(])/(?:root|home|work)/|index-" r"url")
    folders = ["hybridbench", "benchmarks", "tests", "docs", "profiles", ".github"]
    files = [p for folder in folders for p in (ROOT / folder).rglob("*") if p.is_file()]
    files += [p for p in ROOT.iterdir() if p.is_file() and p.suffix in {".md", ".toml", ".txt"}]
    found = []
    for path in files:
        if path.suffix in {".pyc", ".png", ".gz"} or path.name == Path(__file__).name:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if suspicious.search(line):
                found.append(f"{relative(path)}:{number}: {line.strip()[:80]}")
    assert not found
