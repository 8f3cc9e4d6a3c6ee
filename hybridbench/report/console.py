"""The summary at the end of a run on a terminal: the verdict first, complete at 80 columns.

Rich drops colours if NO_COLOR is set; nothing here is expressed by colour alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from rich import box
from rich.console import (
    Console,
    ConsoleOptions,
    Group,
    JustifyMethod,
    OverflowMethod,
    RenderableType,
    RenderResult,
)
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table as RichTable
from rich.text import Text

from hybridbench.foundation.safe_output import one_line
from hybridbench.report.document import (
    DiagnosisText,
    Document,
    Fact,
    Table,
    Tone,
)
from hybridbench.report.quantity import Text as Shown
from hybridbench.report.wording import BADGES, metric_label

_STYLE: Final = {
    Tone.GOOD: "green",
    Tone.BAD: "red",
    Tone.OPEN: "yellow",
    Tone.VOID: "magenta",
}
_EVIDENCE_MAX: Final = 3
# In characters: the longest word in a table that is not folded, and the gap between columns.
_LONGEST_WORD: Final = 32
_PADDING: Final = 3
_FINDINGS_MAX: Final = 5
_LABEL_WIDTH: Final = 20


def render_console(
    document: Document, report: Path | None = None, *, verbose: bool = False
) -> RenderableType:
    """Return what to print when the run is over; ``report`` is the page to open.

    ``verbose`` shows everything on the page except the charts: every finding with all facts and
    evidence, every counter, the whole diagnosis, and how the run was made.
    """
    parts = [
        _panel(document),
        *_tables(document),
        *_findings(document, whole=verbose),
        *_diagnosis(document, whole=verbose),
        *_bounds(document),
        *_coverage(document, whole=verbose),
    ]
    for title, texts in (("Not seen", document.not_seen), ("Notes", document.notes)):
        if texts:
            parts += [_heading(title), *(_bullet(text) for text in texts)]
    parts += _provenance(document) if verbose else ()
    if report is not None:
        # On its own line, and folded rather than cut, so that it can be copied.
        parts += [_heading("Report"), _shown(str(report), overflow="fold")]
    return Group(*parts)


def _panel(document: Document) -> RenderableType:
    style = _STYLE[document.badge.tone]
    body: list[RenderableType] = [_shown(document.headline, style="bold")]
    if document.subtitle:
        body.append(_shown(document.subtitle, style="dim"))
    if document.answer:
        body += [_shown(), _facts(document.answer)]
    if document.ruling:
        body += [_shown(), _shown(f"{document.ruling_label}: {document.ruling}")]
    return Panel(
        Group(*body),
        title=_shown(f" {document.badge.glyph} {document.badge.word} ", style=f"bold {style}"),
        title_align="left",
        subtitle=_shown(f" exit code {document.exit_code} ", style="dim"),
        subtitle_align="right",
        border_style=style,
        box=box.ROUNDED,
        padding=(1, 2),
    )


def _facts(facts: tuple[Fact, ...], label_width: int = _LABEL_WIDTH) -> RichTable:
    grid = RichTable.grid(padding=(0, 2, 0, 0))
    # Folded rather than cut: labels may differ only at their ends, as the names of cells do.
    grid.add_column(style="dim", max_width=label_width, overflow="fold")
    grid.add_column(overflow="fold")
    for fact in facts:
        grid.add_row(_shown(fact.label), _shown(fact.text))
        if fact.code:
            grid.add_row(_shown(), _shown(fact.code, style="cyan"))
    return grid


def _tables(document: Document) -> Iterator[RenderableType]:
    for table in document.tables:
        if table.rows or table.empty:
            yield _heading(table.title)
            if table.rows:
                yield _Fitted(table)
            empty = "" if table.rows else table.empty
            yield from (_shown(text, style="dim") for text in (empty, table.note) if text)


@dataclass(frozen=True)
class _Fitted:
    """A table with as many numeric columns as fit the terminal: split numbers are unreadable."""

    table: Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        keep = list(range(len(self.table.columns)))
        for column in sorted(self.table.optional, reverse=True):
            if _width(self.table, keep) > options.max_width:
                keep.remove(column)
        while keep[-1] in self.table.numeric and _width(self.table, keep) > options.max_width:
            keep.pop()
        fits = _width(self.table, keep) <= options.max_width
        widths = _widths(self.table, keep, options.max_width) if fits else {}
        yield _table(self.table, tuple(keep), widths)
        left = [name for i, name in enumerate(self.table.columns) if i not in keep]
        if left:
            yield _shown(f"omitted at this width: {', '.join(left)}", style="dim")


def _width(table: Table, keep: Sequence[int]) -> int:
    """Return the smallest width at which no number, answer or word is split; lines may fold."""
    return sum(_column_width(table, column) for column in keep) + _PADDING * (len(keep) - 1)


def _widths(table: Table, keep: Sequence[int], room: int) -> dict[int, int]:
    """Return each column's width: the minimum, plus what is left of ``room`` from left to right.

    Rich would shrink all columns, including numbers.
    """
    widths = {column: _column_width(table, column) for column in keep}
    spare = room - sum(widths.values()) - _PADDING * (len(keep) - 1)
    for column in keep:
        longest = max(len(cell) for cell in (table.columns[column], *_cells(table, column)))
        more = min(spare, max(0, longest - widths[column]))
        widths[column] += more
        spare -= more
    return widths


def _cells(table: Table, column: int) -> Iterator[str]:
    return (str(row[column]) for row in table.rows)


def _column_width(table: Table, column: int) -> int:
    cells = [table.columns[column], *_cells(table, column)]
    if column in table.numeric or _has_answers(table, column):
        return max(map(len, cells))
    words = (word for cell in cells for word in cell.split())
    return min(max(map(len, words), default=0), _LONGEST_WORD)


def _has_answers(table: Table, column: int) -> bool:
    return any(cell in BADGES for cell in _cells(table, column))


def _findings(document: Document, *, whole: bool = False) -> Iterator[RenderableType]:
    """Show the worst findings with rates and first evidence; if ``whole``, all as on the page."""
    if not document.findings:
        return
    yield _heading("Findings")
    shown = document.findings if whole else document.findings[:_FINDINGS_MAX]
    for position, finding in enumerate(shown, 1):
        line = _shown(finding.badge.word, style=f"bold {_STYLE[finding.badge.tone]}")
        line.append(f"  {one_line(finding.title)}", style="not bold default")
        yield _item(f"{position}.", line)
        if whole:
            of = (Fact("Subject", finding.subject), Fact("Kind", finding.kind))
            facts = (*of, *finding.facts)
        else:
            facts = tuple(f for f in finding.facts if f.label in {"Growth", "Per event"})
        if facts:
            yield Padding(_facts(facts), (0, 0, 0, 3))
        for text in finding.evidence if whole else finding.evidence[:_EVIDENCE_MAX]:
            yield _bullet(text, indent=3)
    left = len(document.findings) - len(shown)
    if left > 0:
        yield _bullet(f"{left} more in the report")


def _provenance(document: Document) -> Iterator[RenderableType]:
    if document.command or document.provenance:
        yield _heading("How this was run")
    if document.command:
        yield _shown(document.command, overflow="fold")
    for table in (table for table in document.provenance if table.rows):
        yield _heading(table.title)
        if table.columns == ("", ""):
            rows = tuple(Fact(str(label), text) for label, text in table.rows)
            yield _facts(rows, max(len(fact.label) for fact in rows))
        else:
            yield _Fitted(table)


def render_diagnosis(found: DiagnosisText) -> RenderableType:
    """Render the diagnosis alone, in full."""
    return Group(*_whole_diagnosis(found))


def _whole_diagnosis(found: DiagnosisText) -> list[RenderableType]:
    parts: list[RenderableType] = [_shown(found.paragraph)]
    for table in found.tables:
        if table.rows:
            parts += [_heading(table.title), _table(table, tuple(range(len(table.columns))))]
            parts += [_shown(table.note, style="dim")] if table.note else []
    if found.cycles:
        parts += [_heading("Cycles"), *(_bullet(text) for text in found.cycles)]
    return [*parts, *(_bullet(text) for text in found.notes)]


def _diagnosis(document: Document, *, whole: bool) -> Iterator[RenderableType]:
    """Show the paragraph and the split; chains and stages only if ``whole``."""
    found = document.diagnosis
    if found is None:
        return
    yield _heading("Diagnosis")
    if whole:
        yield from _whole_diagnosis(found)
    else:
        yield _shown(found.paragraph)
        if found.split.rows:
            yield _table(found.split, keep=(0, 1, 2))
        yield from (_bullet(text) for text in found.notes)


def _bounds(document: Document) -> Iterator[RenderableType]:
    bounds = document.bounds
    if bounds.rows:
        yield _heading(bounds.title)
        keep = (1, 2, 3, 5)
        columns = (bounds.columns[0], *(bounds.columns[i] for i in keep))
        rows = tuple((metric_label(str(row[0])), *(row[i] for i in keep)) for row in bounds.rows)
        yield _Fitted(Table(bounds.title, columns, rows, frozenset({2, 3, 4})))
        if bounds.note:
            yield _shown(bounds.note, style="dim")


def _coverage(document: Document, *, whole: bool) -> Iterator[RenderableType]:
    table = document.coverage
    asserted = () if whole else tuple(row for row in table.rows if row[1])
    if asserted:
        # Counters without a requirement are in the report; a terminal has few lines.
        table = replace(table, rows=asserted)
    if table.rows:
        yield _heading(table.title)
        yield _table(table, keep=(0, 1, 2, 3) if asserted or whole else (0, 2))
        if table.note:
            yield _shown(table.note, style="dim")


def _table(
    table: Table, keep: tuple[int, ...], widths: Mapping[int, int] = MappingProxyType({})
) -> RichTable:
    rich = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in keep:
        side: JustifyMethod = "right" if column in table.numeric else "left"
        # A verdict split over two lines is hard to find, and a split number is unreadable.
        whole = (bool(widths) and column in table.numeric) or _has_answers(table, column)
        heading, width = _shown(table.columns[column]), widths.get(column)
        rich.add_column(heading, justify=side, overflow="fold", no_wrap=whole, width=width)
    for row in table.rows:
        rich.add_row(*(_shown(row[column]) for column in keep))
    return rich


def _shown(text: Shown = "", style: str = "", overflow: OverflowMethod | None = None) -> Text:
    """Format ``text`` on one line, even if it is foreign."""
    return Text(one_line(str(text)), style=style, overflow=overflow)


def _heading(title: str) -> RenderableType:
    return Padding(_shown(title, style="bold"), (1, 0, 0, 0))


def _bullet(text: Shown, indent: int = 0) -> RenderableType:
    return Padding(_item("·", _shown(text)), (0, 0, 0, indent))


def _item(sign: str, text: Text) -> RenderableType:
    grid = RichTable.grid(padding=(0, 1, 0, 0))
    grid.add_column(width=len(sign))
    grid.add_column(overflow="fold")
    grid.add_row(_shown(sign), text)
    return grid
