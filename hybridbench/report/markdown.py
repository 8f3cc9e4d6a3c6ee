"""report.md: the report without its charts, for a pull request, a step summary or a mail."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final
from urllib.parse import quote

from hybridbench.report.document import Document, Fact, FindingText, Table

_SPECIAL: Final = re.compile(r"([\\`*_\[\]<>|#~])")
# A step summary over 1 MiB is dropped whole, so that endless evidence ends here.
_EVIDENCE_MAX: Final = 20
_LINE_MAX: Final = 600


def render_markdown(document: Document) -> str:
    """The page in GitHub's Markdown."""
    lines = [
        *_answer(document),
        *_tables(document),
        *_findings(document),
        *_diagnosis(document),
        *_numbers(document),
        *_how(document),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _answer(doc: Document) -> Iterator[str]:
    yield f"# {doc.badge.glyph} {doc.badge.word}: {_safe(doc.headline)}"
    yield ""
    yield f"{_safe(doc.subtitle)} · exit code {doc.exit_code}"
    yield ""
    yield _safe(doc.meaning)
    yield ""
    yield from _facts(doc.answer)
    if doc.ruling:
        yield f"> {_safe(doc.ruling)}"
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
    yield f"### {finding.badge.word}: {_safe(finding.title)}"
    yield ""
    yield f"{_code(finding.subject)} ({_safe(finding.kind)})"
    yield ""
    yield from _facts(finding.facts)
    shown = finding.evidence[:_EVIDENCE_MAX]
    yield from _list(shown)
    left = len(finding.evidence) - len(shown)
    if left:
        yield f"{left} more lines of evidence are in {data_file}."
        yield ""


def _diagnosis(doc: Document) -> Iterator[str]:
    found = doc.diagnosis
    if found is None:
        return
    yield "## Diagnosis"
    yield ""
    # Whole, however long: it is there to be copied.
    yield _SPECIAL.sub(r"\\\1", found.paragraph)
    yield ""
    for table in (found.split, found.holders, found.rungs):
        yield from _section(table.title, table, level="###")
    if found.cycles:
        yield "### Cycles"
        yield ""
        yield from _list(found.cycles)
    yield from _list(found.notes)


def _numbers(doc: Document) -> Iterator[str]:
    yield from _section("Bounds", doc.bounds)
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
        rows = "; ".join(f"{_safe(row[0])} {_safe(row[1])}" for row in table.rows)
        yield f"- **{_safe(table.title)}**: {rows}"
    yield ""
    curves = "Curves are in `report.html`. " if doc.charts else ""
    yield f"{curves}Written by hybridbench {_safe(doc.tool_version)}."


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
        yield _safe(table.note)
        yield ""
    yield _row(table.columns)
    yield _row("--:" if i in table.numeric else "---" for i in range(len(table.columns)))
    for index, row in enumerate(table.rows):
        cells = [_safe(cell) for cell in row]
        if table.links and table.links[index]:
            cells[0] = f"[{cells[0]}](<{quote(table.links[index])}>)"
        yield _row(cells)
    yield ""


def _facts(facts: Iterable[Fact]) -> Iterator[str]:
    for fact in facts:
        yield f"- **{_safe(fact.label)}**: {_safe(fact.text)}"
        if fact.code:
            yield ""
            yield from (f"  {line}".rstrip() for line in _block(fact.code))
    yield ""


def _list(texts: Iterable[str]) -> Iterator[str]:
    yield from (f"- {_safe(text)}" for text in texts)
    yield ""


def _block(text: str) -> Iterator[str]:
    # A fence longer than any run of backticks inside cannot be closed by the text.
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    yield f"{fence}sh"
    yield text.replace("\n", " ")
    yield fence
    yield ""


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _code(text: str) -> str:
    return f"`{text}`" if "`" not in text and "\n" not in text else _safe(text)


def _safe(text: str) -> str:
    """``text`` on one line, with nothing in it that Markdown or HTML would act on."""
    flat = " ".join(text.split())
    if len(flat) > _LINE_MAX:
        flat = flat[: _LINE_MAX - 1] + "…"
    return _SPECIAL.sub(r"\\\1", flat)
