"""Judged series as text on a terminal, as Markdown, as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hybridbench.analysis.thresholds import finite
from hybridbench.metrics import Unit
from hybridbench.records.json_value import JsonValue
from hybridbench.records.verdict import EXIT_CODE, Rate, VerdictKind
from hybridbench.report.wording import BADGES, NO_RATE
from hybridbench.safe_output import one_line
from hybridbench.series.column import JudgedSeries
from hybridbench.series.judge import FileVerdict, worst
from hybridbench.units import format_bytes, format_count, format_duration

SCHEMA = "hybridbench.judge/1"
_STYLE = {VerdictKind.CLEAN: "green", VerdictKind.INCONCLUSIVE: "yellow"}
_LEFT_OUT_MAX = 12
_HEADING = ("verdict", "metric", "rate", "95 % interval", "judged", "model")


def series_console(files: Sequence[FileVerdict]) -> RenderableType:
    """All files, the worst verdict first."""
    kind = worst([file.kind for file in files])
    parts: list[RenderableType] = [
        Text.assemble(
            (f"{BADGES[kind].glyph} {kind.value}", f"bold {_ink(kind)}"),
            f"  {one_line(_summary(files))}",
        )
    ]
    for file in files:
        parts.append(
            Padding(Text(one_line(file.source), style="bold", overflow="fold"), (1, 0, 0, 0))
        )
        parts.append(_table(file.rows))
        parts += [Padding(Text(f"· {one_line(line)}"), (0, 0, 0, 1)) for line in _said(file)]
    return Group(*parts)


def series_markdown(files: Sequence[FileVerdict]) -> str:
    """The same as a Markdown document."""
    kind = worst([file.kind for file in files])
    lines = [f"# {kind.value}: {one_line(_summary(files))}", ""]
    for file in files:
        lines += [f"## {one_line(file.source)}", "", "| " + " | ".join(_HEADING) + " |"]
        lines.append("|" + "---|" * len(_HEADING))
        for row in file.rows:
            cells = (cell.replace("|", "\\|") for cell in _cells(row))
            lines.append("| " + " | ".join(cells) + " |")
        lines += ["", *(f"- {one_line(line)}" for line in _said(file)), ""]
    return "\n".join(lines)


def series_json(files: Sequence[FileVerdict]) -> str:
    """The same for programs; rates in base units per hour, signed as the level moves."""
    kind = worst([file.kind for file in files])
    document: dict[str, JsonValue] = {
        "schema": SCHEMA,
        "verdict": kind.value,
        "exit_code": int(EXIT_CODE[kind]),
        "files": [_file_json(file) for file in files],
    }
    return json.dumps(document, indent=2, allow_nan=False)


def _file_json(file: FileVerdict) -> JsonValue:
    return {
        "file": file.source,
        "verdict": file.kind.value,
        "metrics": [_row_json(row) for row in file.rows],
        "findings": [
            {"kind": f.kind, "verdict": f.verdict.value, "subject": f.subject, "title": f.title}
            for f in file.findings
        ],
        "notes": list(file.notes),
        "not_judged": list(file.not_judged),
    }


def _row_json(row: JudgedSeries) -> JsonValue:
    result, hour = row.result, row.result.rate_per_hour
    start, end = result.window_s
    return {
        "metric": row.name,
        "verdict": row.verdict.value,
        "reason": result.reason,
        "model": result.model,
        "window_s": [start, end],
        "rate_per_hour": None if hour is None else _rate_json(_shown(hour, row)),
        "per_work": [_rate_json(_shown(rate, row)) for rate in row.per_work],
        "threshold_per_hour": result.promise_per_hour,
        "needed_s": result.needed_s,
        "lower_is_worse": row.falls_are_bad,
        "notes": list(row.notes),
    }


def _rate_json(rate: Rate) -> JsonValue:
    return {
        "value": rate.value,
        "lower": finite(rate.lower),
        "upper": finite(rate.upper),
        "unit": rate.unit,
        "per": rate.per,
    }


def _summary(files: Sequence[FileVerdict]) -> str:
    judged = sum(len(file.rows) for file in files)
    of_files = f" in {len(files)} files" if len(files) > 1 else ""
    if len(files) == 1 and files[0].headline:
        return files[0].headline
    bad = [row for file in files for row in file.rows if row.verdict is not VerdictKind.CLEAN]
    if not bad:
        return f"{judged} series{of_files}, each with its growth bounded"
    names = ", ".join(dict.fromkeys(row.name for row in bad[:3]))
    return f"{len(bad)} of {judged} series{of_files} not clean: {names}" + ", ..." * (len(bad) > 3)


def _table(rows: Sequence[JudgedSeries]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in _HEADING:
        table.add_column(column, overflow="fold")
    for row in rows:
        verdict, *cells = _cells(row)
        table.add_row(Text(verdict, style=_ink(row.verdict)), *(Text(cell) for cell in cells))
    return table


def _cells(row: JudgedSeries) -> tuple[str, ...]:
    result = row.result
    start, end = result.window_s
    growth, interval = NO_RATE, "none"
    if result.rate_per_hour is not None:
        rate = _shown(result.rate_per_hour, row)
        growth = _amount(rate.value, rate, row) + "/h"
        interval = f"{_amount(rate.lower, rate, row)} to {_amount(rate.upper, rate, row)}"
    return (
        row.verdict.value,
        one_line(row.name),
        growth,
        interval,
        format_duration(end - start),
        result.model,
    )


def _said(file: FileVerdict) -> Iterator[str]:
    """What the table has no room for."""
    for finding in file.findings:
        yield f"{finding.verdict.value}: {finding.title}"
    for row in file.rows:
        yield f"{row.name}: {row.result.reason}"
        for rate in row.per_work:
            shown = _shown(rate, row)
            yield (
                f"{row.name}: {_amount(shown.value, shown, row)} per {shown.per} "
                f"[{_amount(shown.lower, shown, row)}, {_amount(shown.upper, shown, row)}]"
            )
        if row.result.needed_s is not None and row.verdict is VerdictKind.INCONCLUSIVE:
            start, end = row.result.window_s
            missing = format_duration(max(row.result.needed_s - (end - start), 1.0))
            yield f"{row.name}: about {missing} more of steady samples would decide"
        for note in row.notes:
            yield f"{row.name}: {note}"
    yield from file.notes
    if file.not_judged:
        names = ", ".join(file.not_judged[:_LEFT_OUT_MAX])
        more = len(file.not_judged) - _LEFT_OUT_MAX
        yield f"not judged: {names}" + (f" and {more} more" if more > 0 else "")


def _shown(rate: Rate, row: JudgedSeries) -> Rate:
    """As the level moves: the analysis counts worsening, here a fall is negative."""
    if not row.falls_are_bad:
        return rate
    return Rate(-rate.value, -rate.upper, -rate.lower, rate.unit, rate.per, rate.confidence)


def _amount(value: float, rate: Rate, row: JudgedSeries) -> str:
    sign = "+" if value > 0 else ""
    if rate.unit == Unit.BYTES.value:
        return sign + format_bytes(value)
    unit = f" {rate.unit}" if row.unit_known and rate.unit != Unit.COUNT.value else ""
    return f"{sign}{format_count(value)}{unit}"


def _ink(kind: VerdictKind) -> str:
    return _STYLE.get(kind, "red")
