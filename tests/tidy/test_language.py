"""Text for users uses the field's terms and contains no phrase of ``phrases.yaml``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import yaml

from tests.tidy.sources import PACKAGE, ROOT, relative, source

PHRASES = yaml.safe_load(Path(__file__).with_name("phrases.yaml").read_text(encoding="utf-8"))
BANNED = [
    (re.compile(rf"\b(?:{entry['phrase']})\b", re.IGNORECASE), entry["use"])
    for entry in PHRASES["banned"]
]
PAGES = [
    *ROOT.glob("*.md"),
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "profiles").glob("*.yaml"),
    *(ROOT / "profiles").glob("*.md"),
    *(ROOT / "hybridbench").rglob("*.j2"),
    *(ROOT / "hybridbench").rglob("*.md"),
]

Text = tuple[int, str]


def messages(nodes: Iterable[ast.AST], *, has_help: bool) -> Iterator[Text]:
    """Yield line and text of every string in a module's nodes, except docstrings.

    With ``has_help``, docstrings of public functions are help texts and are included.
    """
    nodes = list(nodes)
    internal = {id(text) for text in _docstrings(nodes, has_help=has_help)}
    for node in nodes:
        if not isinstance(node, ast.Constant) or id(node) in internal:
            continue
        if isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value


def _docstrings(nodes: Iterable[ast.AST], *, has_help: bool) -> Iterator[ast.Constant]:
    for node in nodes:
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        # A command's docstring is its help text.
        if has_help and not isinstance(node, ast.Module | ast.ClassDef) and node.name[0] != "_":
            continue
        first = node.body[0] if node.body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            yield first.value


def prose(page: str) -> Iterator[Text]:
    """Yield the lines of a page without code blocks and inline code."""
    quoted = False
    for number, line in enumerate(page.splitlines(), 1):
        quoted ^= line.lstrip().startswith("```")
        if not quoted:
            yield number, re.sub(r"`[^`]*`", "", line)


def banned_in(texts: Iterator[Text]) -> list[str]:
    return [
        f"line {line}: {match.group()!r}; write: {use}"
        for line, text in texts
        for phrase, use in BANNED
        for match in phrase.finditer(text)
    ]


def test_a_page_has_no_banned_phrase() -> None:
    found = [
        f"{relative(path)}, {banned}"
        for path in PAGES
        for banned in banned_in(prose(path.read_text(encoding="utf-8")))
    ]

    assert found == []


def test_messages_and_help_have_no_banned_phrase() -> None:
    found = [
        f"{relative(path)}, {banned}"
        for path in PACKAGE
        for banned in banned_in(messages(source(path).nodes, has_help=path.parent.name == "cli"))
    ]

    assert found == []


def test_a_banned_phrase_is_found_in_a_message_and_in_help_and_not_in_a_docstring() -> None:
    text = 'def run():\n    """Nobody knows."""\n    print(f"looking held {1} engine")\n'
    nodes = list(ast.walk(ast.parse(text)))

    assert len(banned_in(messages(nodes, has_help=False))) == 1
    assert len(banned_in(messages(nodes, has_help=True))) == 2


def test_every_phrase_has_a_meaning_and_a_replacement_and_every_exception_a_reason() -> None:
    assert all({"phrase", "meaning", "use"} == set(entry) for entry in PHRASES["banned"])
    assert all({"word", "reason"} == set(entry) for entry in PHRASES["allowed"])
    for entry in PHRASES["allowed"]:
        assert not any(phrase.search(entry["word"]) for phrase, _ in BANNED)
