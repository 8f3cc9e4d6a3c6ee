"""report.md: the report without its charts, for a pull request, a step summary or a mail."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final
from urllib.parse import quote

from hybridbench.report.document import Document, Fact, FindingText, Table
from hybridbench.report.quantity import Text

# The last alternative begins a character reference, such as &lt; in a log line.
_SPECIAL: Final = re.compile(r"([\\`*_\[\]<>|#~]|&(?=#?\w+;))")
# GitHub drops a step summary over 1 MiB completely, so evidence is limited.
_EVIDENCE_MAX: Final = 20
_LINE_MAX: Final = 600


def render_markdown(document: Document) -> str:
    """Return the page in GitHub's Markdown."""
    lines = [line for part in markdown_lines(document) for line in part]
    return "\n".join(lines).rstrip() + "\n"


def markdown_lines(document: Document) -> list[list[str]]:
    """Return the lines of the page by part, the most important part first."""
    parts = (_answer, _tables, _findings, _diagnosis, _numbers, _how)
    return [list(part(document)) for part in parts]


def _answer(doc: Document) -> Iterator[str]:
    yield f"# {doc.badge.glyph} {doc.badge.word}: {markdown_text(doc.headline)}"
    yield ""
    end = "so far; run in progress" if doc.so_far else f"exit code {doc.exit_code}"
    yield f"{markdown_text(doc.subtitle)} · {end}"
    yield ""
    yield markdown_text(doc.meaning)
    yield ""
    yield from _facts(doc.answer)
    if doc.ruling:
        yield f"> **{doc.ruling_label}**: {markdown_text(doc.ruling)}"
        yield ""


def _tables(doc: Document) -> Iterator[str]:
    for table in doc.tables:
        yield from _section(table.title, table)


def _findings(doc: Document) -> Iterator[str]:
    if doc.findings:
        yield "## Findings"
        yield ""
    for finding in doc.findings:
        yield from _finding(finding, doc.data_file)


def _finding(finding: FindingText, data_file: str) -> Iterator[str]:
    yield f"### {finding.badge.word}: {markdown_text(finding.title)}"
    yield ""
    yield f"{_code(finding.subject)} ({markdown_text(finding.kind)})"
    yield ""
    yield from _facts(finding.facts)
    shown = finding.evidence[:_EVIDENCE_MAX]
    yield from _list(shown)
    left = len(finding.evidence) - len(shown)
    if left:
        lines = "line of evidence is" if left == 1 else "lines of evidence are"
        yield f"{left} more {lines} in {data_file}."
        yield ""


def _diagnosis(doc: Document) -> Iterator[str]:
    found = doc.diagnosis
    if found is None:
        return
    yield "## Diagnosis"
    yield ""
    # Never truncated, so that it can be copied.
    yield _SPECIAL.sub(r"\\\1", found.paragraph)
    yield ""
    for table in found.tables:
        yield from _section(table.title, table, level="###")
    if found.cycles:
        yield "### Cycles"
        yield ""
        yield from _list(found.cycles)
    yield from _list(found.notes)


def _numbers(doc: Document) -> Iterator[str]:
    yield from _section(doc.bounds.title, doc.bounds)
    yield from _section("Coverage", doc.coverage)
    for title, texts in (("What could not be seen", doc.not_seen), ("Notes", doc.notes)):
        if texts:
            yield f"## {title}"
            yield ""
            yield from _list(texts)


def _how(doc: Document) -> Iterator[str]:
    if doc.command or doc.provenance:
        yield "## How this was run"
        yield ""
    if doc.command:
        yield from _block(doc.command)
    for table in doc.provenance:
        rows = "; ".join(f"{markdown_text(row[0])} {markdown_text(row[1])}" for row in table.rows)
        yield f"- **{markdown_text(table.title)}**: {rows}"
    yield ""
    curves = "Curves are in `report.html`. " if doc.charts else ""
    yield f"{curves}Written by hybridbench {markdown_text(doc.tool_version)}."


def _section(title: str, table: Table, level: str = "##") -> Iterator[str]:
    if not table.rows and not table.empty:
        return
    yield f"{level} {title}"
    yield ""
    if not table.rows:
        yield table.empty
        yield ""
        return
    if table.note:
        yield markdown_text(table.note)
        yield ""
    yield markdown_row(table.columns)
    yield markdown_row("--:" if i in table.numeric else "---" for i in range(len(table.columns)))
    for index, row in enumerate(table.rows):
        cells = [markdown_text(cell) for cell in row]
        if table.links and table.links[index]:
            cells[0] = f"[{cells[0]}](<{quote(table.links[index])}>)"
        yield markdown_row(cells)
    yield ""


def _facts(facts: Iterable[Fact]) -> Iterator[str]:
    for fact in facts:
        yield f"- **{markdown_text(fact.label)}**: {markdown_text(fact.text)}"
        if fact.code:
            yield ""
            yield from (f"  {line}".rstrip() for line in _block(fact.code))
    yield ""


def _list(texts: Iterable[Text]) -> Iterator[str]:
    yield from (f"- {markdown_text(text)}" for text in texts)
    yield ""


def _block(text: str) -> Iterator[str]:
    # The text cannot close a fence that is longer than all its runs of backticks.
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    yield f"{fence}sh"
    yield text.replace("\n", " ")
    yield fence
    yield ""


def markdown_row(cells: Iterable[str]) -> str:
    """Return a table row of cells that are already Markdown."""
    return f"| {' | '.join(cells)} |"


def _code(text: str) -> str:
    return f"`{text}`" if "`" not in text and "\n" not in text else markdown_text(text)


def markdown_text(text: Text) -> str:
    """Return ``text`` on one line, escaping everything that Markdown or HTML would interpret."""
    flat = " ".join(str(text).split())
    if len(flat) > _LINE_MAX:
        flat = flat[: _LINE_MAX - 1] + "…"
    return _SPECIAL.sub(r"\\\1", flat)
