"""Judged series from other programs, as a document and as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from hybridbench.analysis.recorded import JudgedSeries
from hybridbench.foundation.metrics import Unit
from hybridbench.records.codec import to_json
from hybridbench.records.finding import Rate, VerdictKind
from hybridbench.records.json_value import JsonValue
from hybridbench.records.verdict import EXIT_CODE
from hybridbench.report.advice import MEANING
from hybridbench.report.document import Document, DocumentKind, FindingText, Table
from hybridbench.report.quantity import (
    Form,
    Quantity,
    Text,
    joined,
    length,
    of_rate,
    phrase,
)
from hybridbench.report.wording import BADGES, NO_RATE, limit_of
from hybridbench.series.judge import FileVerdict, worst

SCHEMA = "hybridbench.judge/1"
_COLUMNS = ("metric", "verdict", "rate", "95% interval", "limit", "judged", "model")
_NUMERIC = frozenset({2, 3, 4, 5})
_OPTIONAL = frozenset({4, 6})
_NOT_JUDGED_MAX = 12
_NAMED_MAX = 3
_WORSE = (VerdictKind.LEAK, VerdictKind.DEGRADED)


def series_document(files: Sequence[FileVerdict]) -> Document:
    """Return all files in one document, with a table for each."""
    kind = worst([file.kind for file in files])
    judged = Quantity("judged series", sum(len(file.rows) for file in files))
    return Document(
        kind=DocumentKind.SERIES,
        run_id=files[0].source,
        subtitle=phrase(judged, " series in ", ", ".join(file.source for file in files)),
        badge=BADGES[kind],
        meaning=MEANING[kind],
        exit_code=int(EXIT_CODE[kind]),
        headline=_headline(files),
        answer=(),
        gates=(),
        tables=tuple(
            Table(file.source, _COLUMNS, _rows(file, files), _NUMERIC, optional=_OPTIONAL)
            for file in files
        ),
        findings=tuple(
            FindingText(BADGES[found.verdict.value], found.kind, found.subject, found.title)
            for file in files
            for found in file.findings
        ),
        notes=tuple(dict.fromkeys(note for file in files for note in _notes(file, files))),
    )


def series_json(files: Sequence[FileVerdict]) -> str:
    """Return JSON; rates are in base units per hour, negative if the level falls."""
    kind = worst([file.kind for file in files])
    document: dict[str, JsonValue] = {
        "schema": SCHEMA,
        "verdict": kind.value,
        "exit_code": int(EXIT_CODE[kind]),
        "files": [_file_json(file) for file in files],
    }
    return json.dumps(document, indent=2, allow_nan=False)


def _headline(files: Sequence[FileVerdict]) -> Text:
    """Say what grows and how fast, then what is undecided; otherwise that all is bounded."""
    if len(files) == 1 and files[0].headline:
        return files[0].headline
    rows = [(_name(row, file, files), row) for file in files for row in file.rows]
    worse = [(name, row) for name, row in rows if row.verdict in _WORSE]
    open_ = [(name, row) for name, row in rows if row.verdict not in (*_WORSE, VerdictKind.CLEAN)]
    parts: list[Text] = [_movement(name, row) for name, row in worse[:_NAMED_MAX]]
    if len(worse) > _NAMED_MAX:
        parts.append(f"{len(worse) - _NAMED_MAX} more")
    if len(open_) == 1 == len(rows):
        name, row = open_[0]
        parts.append(f"{name} is undecided: {_reason(row)}")
    elif open_:
        names = ", ".join(name for name, _ in open_[:_NAMED_MAX])
        more = f" and {len(open_) - _NAMED_MAX} more" if len(open_) > _NAMED_MAX else ""
        parts.append(f"undecided: {names}{more}")
    if parts:
        return joined("; ", parts)
    of_files = f" in {len(files)} files" if len(files) > 1 else ""
    which = "the series" if len(rows) == 1 else f"all {len(rows)} series"
    return f"Growth is below the limit in {which}{of_files}"


def _name(row: JudgedSeries, file: FileVerdict, files: Sequence[FileVerdict]) -> str:
    """Name the row; several files may have columns of the same name."""
    return f"{row.name} ({Path(file.source).name})" if len(files) > 1 else row.name


def _reason(row: JudgedSeries) -> str:
    """Return the reason; the analysis negates a level that must not fall, so its fall is growth."""
    said = row.result.reason
    is_turned = row.falls_are_bad and re.search(r"\bgrow", said)
    return f"{said} (its fall counts as growth)" if is_turned else said


def _movement(name: str, row: JudgedSeries) -> Text:
    rate = row.result.rate_per_hour
    moves = "fall" if row.falls_are_bad else "growth"
    if rate is None:
        return f"{name} {'falls' if row.falls_are_bad else 'grows'}"
    quantity = of_rate(f"{moves} of {name}", _unit_if_known(rate, row), row.result.window_s)
    verb = "falls" if row.falls_are_bad else "grows"
    # The table has the interval; a headline has room only for what moves, and how fast.
    return phrase(f"{name} {verb} by ", replace(quantity, signed=False).narrow)


def _rows(file: FileVerdict, files: Sequence[FileVerdict]) -> tuple[tuple[Text, ...], ...]:
    rows: list[tuple[Text, ...]] = []
    for row in file.rows:
        hour = row.result.rate_per_hour
        rate = None if hour is None else _rate(hour, row, _name(row, file, files))
        rows.append(
            (
                row.name,
                row.verdict.value,
                NO_RATE if rate is None else rate.narrow,
                "none" if rate is None else rate.shown(Form.INTERVAL),
                limit_of(row.result, _name(row, file, files)),
                _judged(row, _name(row, file, files)),
                row.result.model,
            )
        )
    return tuple(rows)


def _judged(row: JudgedSeries, name: str) -> Quantity:
    start, end = row.result.window_s
    return length(f"judged of {name}", end - start, row.result.window_s)


def _notes(file: FileVerdict, files: Sequence[FileVerdict]) -> Iterator[Text]:
    """Yield what the table has no room for."""
    for row in file.rows:
        name = _name(row, file, files)
        yield f"{name}: {_reason(row)}"
        for rate in row.per_work:
            yield phrase(f"{name}: ", _rate(rate, row, name))
        if row.result.needed_s is not None and row.verdict is VerdictKind.INCONCLUSIVE:
            missing_s = max(row.result.needed_s - _judged(row, name).value, 1.0)
            missing = length(f"missing of {name}", missing_s)
            yield phrase(f"{name}: about ", missing, " more of steady samples would decide")
        yield from (f"{name}: {note}" for note in row.notes)
    yield from file.notes
    if file.not_judged:
        names = ", ".join(file.not_judged[:_NOT_JUDGED_MAX])
        more = len(file.not_judged) - _NOT_JUDGED_MAX
        yield f"not judged: {names}" + (f" and {more} more" if more > 0 else "")


def _as_moved(rate: Rate, row: JudgedSeries) -> Rate:
    """Use the sign of the level's movement: the analysis counts worsening as positive."""
    if not row.falls_are_bad:
        return rate
    return replace(rate, value=-rate.value, lower=-rate.upper, upper=-rate.lower)


def _rate(rate: Rate, row: JudgedSeries, name: str) -> Quantity:
    moves = _as_moved(_unit_if_known(rate, row), row)
    # For a level that must not fall, growth is the fall with its sign inverted.
    return of_rate(f"growth of {name}", moves, row.result.window_s)


def _unit_if_known(rate: Rate, row: JudgedSeries) -> Rate:
    """Drop the unit if the column has none, or only counts."""
    bare = not row.unit_known or rate.unit == Unit.COUNT.value
    return replace(rate, unit="") if bare else rate


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
    return {
        "metric": row.name,
        "verdict": row.verdict.value,
        "code": None if result.why is None else result.why.code,
        "reason": result.reason,
        "model": result.model,
        "window_s": list(result.window_s),
        "rate_per_hour": None if hour is None else _rate_json(_as_moved(hour, row)),
        "per_work": [_rate_json(_as_moved(rate, row)) for rate in row.per_work],
        "threshold_per_hour": result.limit_per_hour,
        "needed_s": result.needed_s,
        "lower_is_worse": row.falls_are_bad,
        "notes": list(row.notes),
    }


def _rate_json(rate: Rate) -> JsonValue:
    stored = to_json(rate)
    del stored["confidence"]
    return stored
