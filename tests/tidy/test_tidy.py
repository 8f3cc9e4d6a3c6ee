"""Rules of style that a machine can check: sizes, forbidden calls, dangling files."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.tidy.sources import PACKAGE, ROOT, SOURCES, TESTS, Function, relative, source

FUNCTION_LINES_MAX = 65
HOST_BOOKKEEPING = ("scheduler", "memory", "cache", "sessions")
SENTENCES = {"title", "headline", "said", "news", "waived", "why_not", "cause", "meaning", "reason"}
CUTS = {
    "startswith", "endswith", "partition", "rpartition", "split", "rsplit", "removeprefix",
    "removesuffix", "find", "index",
}  # fmt: skip
# In verdict.json the verdict precedes the headline.
READERS_OF_SENTENCES = {"hybridbench/records/stored_verdict.py"}


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


def test_only_the_command_line_the_worker_and_the_probe_read_the_environment() -> None:
    readers = {
        relative(path)
        for path in SOURCES
        if re.search(r"os\.environ\b|os\.getenv", source(path).text)
    }
    beyond = {name for name in readers if not name.startswith("hybridbench/cli/")}
    assert beyond <= {
        "hybridbench/worker/__main__.py",
        "hybridbench/probe/sitecustomize.py",
        "hybridbench/probe/hybridbench_probe/__init__.py",
    }


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
    """Scenarios may sleep, because they wait for real processes."""
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


def _is_sentence(node: ast.AST) -> bool:
    """Return whether ``node`` reads a sentence for users, such as ``finding.title``."""
    return isinstance(node, ast.Attribute) and node.attr in SENTENCES


def _cuts(node: ast.AST) -> bool:
    """Return whether ``node`` searches a sentence or takes it apart."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in CUTS and _is_sentence(node.func.value)
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
        return _is_sentence(node.comparators[0])
    return False


@pytest.mark.parametrize(
    ("code", "cuts"),
    [
        ("verdict.headline.removeprefix('LEAK: ')", True),
        ("entry.finding.title not in verdict.headline", True),
        ("entry.news.startswith('new')", True),
        ("metric.name.startswith('pool.')", False),
        ("f'{finding.title}; waived'", False),
    ],
)
def test_a_look_into_a_sentence_is_told_from_other_code(code: str, cuts: bool) -> None:
    assert any(map(_cuts, ast.walk(ast.parse(code)))) is cuts


def test_no_sentence_is_read_back_as_data() -> None:
    """The data in a sentence must be passed in a field of its own."""
    found = [
        f"{relative(path)}:{getattr(node, 'lineno', 0)}"
        for path in PACKAGE
        if relative(path) not in READERS_OF_SENTENCES
        for node in source(path).nodes
        if _cuts(node)
    ]

    assert found == []


def test_an_error_names_an_option_where_it_can_be_asked_for() -> None:
    """An error must have the wrong option in a field, which the code that shows it reads."""
    in_words = [
        f"{relative(path)}:{line}"
        for path in PACKAGE
        for line, name, call in source(path).calls()
        if name == "UsageError" and call.args and _first_words(call.args[0]).startswith("-" * 2)
    ]

    assert in_words == []


def _first_words(sentence: ast.expr) -> str:
    """Return the beginning of a sentence, as far as it is a literal."""
    if isinstance(sentence, ast.Call) and sentence.args:
        return _first_words(sentence.args[0])
    if isinstance(sentence, ast.JoinedStr):
        return _first_words(sentence.values[0])
    return str(sentence.value) if isinstance(sentence, ast.Constant) else ""
