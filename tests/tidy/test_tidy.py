"""The style page, as far as a machine can hold it: sizes, forbidden calls, dangling files."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.tidy.sources import ROOT, SOURCES, TESTS, Function, relative, source

FUNCTION_LINES_MAX = 65
HOST_BOOKKEEPING = ("scheduler", "memory", "cache", "sessions")


def test_there_is_something_to_check() -> None:
    assert len(SOURCES) > 40
    assert len(TESTS) > 20


def test_a_file_says_what_it_is_for() -> None:
    assert [relative(path) for path in SOURCES if not ast.get_docstring(source(path).tree)] == []


def test_a_function_fits_a_screen() -> None:
    def code_lines(function: Function) -> int:
        doc = function.body[0]
        is_doc = isinstance(doc, ast.Expr) and isinstance(doc.value, ast.Constant)
        start = doc.end_lineno if is_doc else function.lineno
        return (function.end_lineno or 0) - (start or 0)

    long = [
        f"{relative(path)}: {function.name} has {code_lines(function)} lines"
        for path in SOURCES
        for function in source(path).functions()
        if code_lines(function) > FUNCTION_LINES_MAX
    ]
    assert long == []


def test_no_attribute_is_reached_by_a_string() -> None:
    strings = [
        f"{relative(path)}:{line}"
        for path in SOURCES
        for line, name, call in source(path).calls()
        if name == "hasattr"
        or (name == "getattr" and len(call.args) > 1 and isinstance(call.args[1], ast.Constant))
    ]
    assert strings == []


def test_only_the_command_line_and_the_worker_read_the_environment() -> None:
    readers = {
        relative(path)
        for path in SOURCES
        if re.search(r"os\.environ\b|os\.getenv", source(path).text)
    }
    beyond = {name for name in readers if not name.startswith("hybridbench/cli/")}
    assert beyond <= {"hybridbench/worker/__main__.py"}


def test_host_bookkeeping_makes_no_tensor_calls_one_by_one() -> None:
    folders = [ROOT / "hybridbench" / "engine" / name for name in HOST_BOOKKEEPING]
    assert all(folder.is_dir() for folder in folders)

    found = [
        f"{relative(path)}:{line}"
        for path in SOURCES
        if any(path.is_relative_to(folder) for folder in folders)
        for line, name, call in source(path).calls()
        if name == "item" and not call.args
    ]

    assert found == []


def test_no_test_sleeps() -> None:
    """Scenarios may: they wait for real processes."""
    sleepers = [
        relative(path)
        for path in TESTS
        if "scenarios" not in path.parts
        and re.search(r"\btime\.sleep\(", path.read_text(encoding="utf-8"))
    ]
    assert sleepers == []


def test_no_destructor_frees_anything() -> None:
    engine = [source(path) for path in SOURCES if "engine" in path.parts]

    assert [s.name for s in engine if any(f.name == "__del__" for f in s.functions())] == []
    assert [s.name for s in engine if "weakref.finalize" in s.text] == []
    gc_import = re.compile(r"^\s*(import|from) gc\b", re.MULTILINE)
    assert [s.name for s in engine if gc_import.search(s.text)] == []


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
