"""Convert a grid of text cells to numeric columns: find times, row owners and units.

Each reader of a text shape produces a ``Grid``; the steps after that are the same for all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from hybridbench.analysis.findings import words
from hybridbench.analysis.record import FloatArray
from hybridbench.foundation.errors import ConfigError, ErrorCode, UsageError
from hybridbench.foundation.metrics import Unit
from hybridbench.foundation.units import format_duration
from hybridbench.series.cells import (
    converted,
    favours_groups,
    is_nothing,
    is_number,
    last_digit,
    may_be_grouped,
    number_in,
    ungrouped,
    units_of,
    written,
)
from hybridbench.series.owners import (
    TextColumn,
    keys_of,
    labels,
    levels_in_turn,
    may_own,
    parts_of,
    rounds_of,
    takes_turns,
)
from hybridbench.series.source import Line, Source
from hybridbench.series.times import (
    UNITS_S,
    BadTimeError,
    Times,
    is_moment,
    is_since_1970,
    is_unit_unsure,
    looks_like_time,
    names_epoch,
    names_time,
    parse_times,
    span_s,
    unit_in,
)
from hybridbench.series.units import (
    BYTE_FACTORS,
    PROCESS_ID,
    WHOLE_UNITS,
    Role,
    is_memory,
    meaning_of,
    unit_word,
    usual_units,
)

_PARTS_MAX = 256
_NAMES_MAX = 8
_ROWS_OF_START = 20  # least rows with each time, if these are the times of starts
_FOOT_MAX = 5  # lines below a table, such as its average and its maximum
_NUMERIC_SHARE = 0.9
# In ps and top, these columns are processor time or a process start time, not the sample time.
_NOT_OF_SAMPLE = frozenset({"TIME", "TIME+", "ZEIT+", "START", "STARTED"})
# Beside `minor_gc_count`, Ruby's GC.stat has a `time`: milliseconds spent in its collector.
_OF_RUBY, _OF_COLLECTOR = frozenset({"count", "minor_gc_count"}), "time"


@dataclass(frozen=True)
class RawColumn:
    """One column: its times, its numbers in the file's unit, and restart times (``starts_s``).

    Its rows are in the file's order; ``files.py`` then sorts them by time.
    ``in_bytes`` means that the cells had a unit and were converted.  ``usual_unit`` is the unit
    that the program usually writes, used if nothing else gives one.  ``text_at`` is the line and
    text of the first cell that is not a number, if any; ``is_fixed`` means that all cells are the
    same.  ``step`` is the value of one unit in the last digit written.  ``counts`` is True if the
    file declares the column a counter.
    """

    name: str
    t_s: FloatArray
    value: FloatArray
    absolute: bool
    group: int = 0
    in_bytes: bool = False
    usual_unit: str = ""
    text_at: tuple[int, str] | None = None
    is_text: bool = False
    is_fixed: bool = False
    step: float = 0.0
    counts: bool = False
    starts_s: tuple[float, ...] = ()


# Long format, as from pandas' melt or InfluxDB: one row per reading, with the name in one cell and
# the value in another.
METRIC_NAME = re.compile(
    r"_*(metric|name|label|measurement|counter|series|field|key|variable)"
    r"([_ ]?name|[.]type|[.]value)?_*",
    re.I,
)
VALUE = re.compile(
    r"_?((counter|cntr|metric)?_?value|val|v|y|reading|asint|asdouble|mean/increment)([.](int64|double)value)?",
    re.I,
)


# Statistics of such a reading, perhaps with its unit, as CloudWatch and Azure give them.
_STATISTIC_OF = re.compile(r"(average|maximum|minimum|sum|total)(| \(.*\))", re.I)
# Cells and the line that they are on.
Row = tuple[Line, list[str]]


@dataclass(frozen=True)
class Grid:
    """A table as text, before its numbers are parsed; every row has one cell per name."""

    names: Sequence[str]
    rows: Sequence[Row]
    heading: int = 0  # line number of the names, if there are any
    units: Mapping[str, str] = field(default_factory=dict)  # by name, if the reader knows them
    owners: Sequence[str] = ()  # columns that identify a row's owner, if the reader knows them
    of_tool: bool = False  # columns separated by spaces, as in the output of ps and similar tools
    groups: str = ""  # marks that separate thousands: the comma, if it also separates cells
    unsure: str = ","  # marks that may separate thousands or be the decimal point
    counters: Set[str] = frozenset()  # columns that the file declares counters
    before: str = ""  # begins the name of each column, if the file has several tables

    @classmethod
    def of_records(cls, records: Sequence[tuple[Line, Mapping[str, str]]]) -> Grid:
        """Build one row per record; names are in order of first appearance, gaps are empty."""
        names = list(dict.fromkeys(name for _, record in records for name in record))
        return cls(names, [(line, [one.get(name, "") for name in names]) for line, one in records])

    @cached_property
    def columns(self) -> Sequence[TextColumn]:
        """The columns; compare them by identity, because two may have the same name."""
        # Unpacking hundreds of thousands of rows into zip takes ten times as long.
        rows = [cells for _, cells in self.rows]
        return [TextColumn(n, [row[i] for row in rows]) for i, n in enumerate(self.names) if rows]

    def stamped(self) -> Grid:
        """Add the times printed above the rows as a column, unless the table has its own times.

        Rows before the first of those times are dropped.
        """
        own = any(names_time(name) and name not in _NOT_OF_SAMPLE for name in self.names)
        if (own and not self.of_tool) or "Timestamp" in self.names:
            return self
        rows = [(line, [line.at, *cells]) for line, cells in self.rows if line.at]
        return replace(self, names=["time", *self.names], rows=rows) if rows else self


def table_of(grid: Grid, source: Source) -> list[RawColumn]:
    """Return the numeric columns of ``grid``, after finding its time column.

    Raises:
        ConfigError: no rows, no times, or rows of several processes that cannot be told apart.
    """
    if not grid.rows:
        raise source.wrong("has a heading and no rows of numbers below it.")
    grid, time, times = _timed(_with_whole_times(grid.stamped()), source)
    others = [column for column in grid.columns if column is not time]
    keys = keys_of(others, times, grid.owners)
    parts = parts_of(keys, len(grid.rows))
    of_nobody = times is None and not keys
    times = times or _counted_times(parts, len(grid.rows), source)
    parts = _lasting(parts, source)
    metric, units = _metric_columns(others, keys)
    if len(parts) > _PARTS_MAX and keys != [metric]:
        raise source.wrong(
            f"rows of {len(parts)} series, such as {next(iter(parts))}; keep "
            f"those that matter, {_PARTS_MAX} at most (`ps -p PID`, `top -p PID`)."
        )
    beside = dict.fromkeys((*grid.names, *(() if metric is None else metric.cells)))
    usual = {**usual_units(list(beside), of_tool=grid.of_tool), **grid.units}
    found: list[RawColumn] = []
    for group, rows in enumerate(parts.values()):
        own = Times(times.t_s[rows], times.absolute)
        lines = [grid.rows[row][0].number for row in rows]
        first = {column: column.cells[rows[0]].strip() for column in others}
        names, label = grid.names, labels((key.name, first[key]) for key in keys if key != metric)
        if metric is not None:
            unit = f" ({first[units]})" if units is not None and first[units] else ""
            names = [_named(name, first[metric], unit) for name in names]
        for name, column in zip(names, grid.columns, strict=True):
            if column in (time, metric, units, *keys):
                continue
            raw = [column.cells[row] for row in rows]
            cells = _ungrouped(name, raw, grid, lines[0], source)
            numbers = _column(name, own, cells, lines, usual.get(name, ""))
            whole, counts = grid.before + name + label, column.name in grid.counters
            found.append(replace(numbers, name=whole, group=group, counts=counts))
    if of_nobody and not any(map(PROCESS_ID.fullmatch, grid.names)):
        _refuse_turns(found, source)
    return found


def _lasting(parts: Mapping[str, Sequence[int]], source: Source) -> Mapping[str, Sequence[int]]:
    """Drop series of one row, such as the grep that each sample of `ps aux | grep x` shows."""
    once = [label for label, rows in parts.items() if len(rows) == 1]
    if not 0 < len(once) < len(parts):
        return parts
    source.notes.append(f"{len(once)} series of one row left out, first {once[0]}")
    return {label: rows for label, rows in parts.items() if len(rows) > 1}


def _metric_columns(
    columns: Sequence[TextColumn], keys: Sequence[TextColumn]
) -> tuple[TextColumn | None, TextColumn | None]:
    """Find the column that names the value in each row, and the column of units, if any."""
    texts = [c for c in columns if METRIC_NAME.fullmatch(c.name) and number_in(c.cells[0]) is None]
    texts = [c for c in texts if c in keys or len(set(c.cells)) == 1]
    values = sum(bool(VALUE.fullmatch(c.name)) for c in columns)
    statistics = any(_STATISTIC_OF.fullmatch(c.name) for c in columns)
    if not texts or values != (not statistics):
        return None, None
    units = (c for c in columns if c.name.lower() == "unit")
    # InfluxDB's _field is more specific than its _measurement.
    return min(texts, key=lambda c: "measurement" in c.name), next(units, None)


def _named(name: str, metric: str, unit: str) -> str:
    """Return the name of a column that holds the values of ``metric``; else ``name``."""
    if VALUE.fullmatch(name):
        return metric + unit
    statistic = _STATISTIC_OF.fullmatch(name)
    return f"{metric}{statistic[2]} ({statistic[1]})" if statistic else name


def columns_few(names: Sequence[str]) -> str:
    """Return a short list of column names for a message."""
    return ", ".join(names[:_NAMES_MAX]) + (", ..." if len(names) > _NAMES_MAX else "")


def _with_whole_times(grid: Grid) -> Grid:
    """Merge a day and the time of day beside it into one column, if ``grid`` has both."""
    beside = ((i, a, b) for i, (a, b) in enumerate(pairwise(grid.rows[0][1])) if ":" in b[1:3])
    at = next((i for i, a, b in beside if ":" not in a and is_moment(f"{a} {b}")), None)
    if at is None:
        return grid
    rows = [
        (line, [*cells[:at], f"{cells[at]} {cells[at + 1]}", *cells[at + 2 :]])
        for line, cells in grid.rows
    ]
    return replace(grid, names=[*grid.names[:at], "time", *grid.names[at + 2 :]], rows=rows)


def _timed(grid: Grid, source: Source) -> tuple[Grid, TextColumn | None, Times | None]:
    """Return the rows of ``grid`` that have times, the column of times, and the times.

    Both are None if an interval is given instead.
    """
    column, unit = _time_column(grid, source)
    if column is None:
        return grid, None, None
    at = grid.columns.index(column)
    grid, times = _with_times(grid, at, unit, source)
    if source.interval_s is not None:
        raise UsageError(
            f"{format_duration(source.interval_s)}: {source.name} already has times; leave the "
            "option out.",
            code=ErrorCode.OPTION_CONFLICT,
            option="--interval",
        )
    return grid, grid.columns[at], times


def _with_times(grid: Grid, at: int, unit: str, source: Source) -> tuple[Grid, Times]:
    """Drop a torn last row and duplicate rows from ``grid``; return it with its times."""
    rows = grid.rows
    try:
        times = parse_times([row[at] for _, row in rows], unit, of_ps=grid.names[at] == "ELAPSED")
    except BadTimeError as error:
        last = rows[error.index :]
        after = (cells[at] for _, cells in last[1:])
        is_foot = error.index > 0 and not any(is_number(c) or looks_like_time(c) for c in after)
        refusal = f"column {grid.names[at]}: {error}."
        if not is_foot:
            raise source.wrong(refusal, last[0][0].number) from error
        every = [line for line, _ in rows]
        source.leave_out(
            [line for line, _ in last], every, "without a time", refusal, few=_FOOT_MAX
        )
        return _with_times(replace(grid, rows=rows[: error.index]), at, unit, source)
    if not unit and number_in(rows[0][1][at]) and is_unit_unsure(times):
        raise _no_unit(grid.names[at], source)
    # A duplicate row equals an earlier one in every cell; without a date, the one above, because a
    # time of day comes again the next day.
    seen, kept = set[tuple[str, ...]](), list[int]()
    for index, (_, cells) in enumerate(rows):
        row = tuple(cells)
        if row not in seen:
            kept.append(index)
        if not times.absolute:
            seen.clear()
        seen.add(row)
    if len(kept) < len(rows):
        source.notes.append(f"{words.times(len(rows) - len(kept), 'row')} skipped as duplicates")
    rows = [rows[index] for index in kept]
    return replace(grid, rows=rows), replace(times, t_s=times.t_s[kept])


def _time_column(grid: Grid, source: Source) -> tuple[TextColumn | None, str]:
    """Return the time column and its unit; None for the column if an interval is used instead."""
    if source.time_column is not None:
        return _chosen_time(grid, source, source.time_column)
    columns = [column for column in grid.columns if _may_be_of_sample(column, grid)]
    dates = [column for column in columns if looks_like_time(column.cells[0])]
    since = [c for c in columns if names_time(c.name) or names_epoch(c.name)]
    epochs = [column for column in since if is_since_1970(column.cells)]
    counts = [c for c in columns if _counts(c.name) and c not in epochs]
    named = [c for c in columns if names_time(c.name) and c not in counts]
    # Uptime: 3h
    spans = [c for c in columns if names_time(f"{c.name} s") and span_s(c.cells[0]) is not None]
    named = named or spans * (not grid.of_tool)
    # A date is more certain than a number that counts from a start, and goes on after a restart.
    certain = [column for column in named if column in (*dates, *epochs)]
    certain += [column for column in dates if len(set(column.cells)) == len(grid.rows)]
    for column in (*certain, *named, *dates, *(c for c in epochs if names_epoch(c.name))):
        if not _never_passes(column, columns):
            return column, unit_in(column.name)
    if source.interval_s is not None:
        return None, ""
    several = f"no column is a time (columns: {columns_few(grid.names)}); name one with "
    several += "--time-column, or give"
    raise source.wrong(
        f"{several if len(grid.names) > 1 else 'the numbers have no times; give'} the time between "
        "two samples with --interval 10s.",
        grid.rows[0][0].number,
        ErrorCode.OPTION_CONFLICT,
    )


def _may_be_of_sample(column: TextColumn, grid: Grid) -> bool:
    """Return whether a column that looks like a time may be that of the sample."""
    of_ruby = _OF_RUBY.issubset(grid.names) and column.name == _OF_COLLECTOR
    of_tool = grid.of_tool and column.name in _NOT_OF_SAMPLE
    # Ollama prints when a model will expire, which is later than the sample.
    return not (of_ruby or of_tool or "expire" in column.name.lower())


def _never_passes(times: TextColumn, columns: Sequence[TextColumn]) -> bool:
    """Return whether times are the same or recur, as the start times of processes do.

    Those of many series recur as well, but each owner has each of them once.
    """
    moments, rows = len(set(times.cells)), len(times.cells)
    if _ROWS_OF_START * moments > rows or not takes_turns(times.cells):
        return moments == 1 < rows
    owners = (c.cells for c in columns if may_own(c) and 2 * len(set(c.cells)) <= rows)
    return not any(len(set(zip(cells, times.cells, strict=True))) == rows for cells in owners)


def _chosen_time(grid: Grid, source: Source, chosen: str) -> tuple[TextColumn, str]:
    """Find the column that --time-column NAME or NAME:UNIT names."""
    folded = [name.strip("# ").casefold() for name in grid.names]
    wanted, unit = chosen.casefold(), ""
    if wanted not in folded and wanted.rpartition(":")[2] in UNITS_S:
        wanted, _, unit = wanted.rpartition(":")
    if wanted not in folded:
        raise source.wrong(
            f"--time-column {chosen}: no such column; there are {columns_few(grid.names)}.",
            code=ErrorCode.UNKNOWN_NAME,
        )
    column = grid.columns[folded.index(wanted)]
    unit = unit or unit_in(column.name)
    counted = number_in(column.cells[0].strip()) and not is_since_1970(column.cells)
    if counted and not unit and (_counts(wanted) or not names_time(wanted)):
        raise _no_unit(column.name, source)
    return column, unit


def _no_unit(name: str, source: Source) -> ConfigError:
    return source.wrong(
        f"column {name}: the unit of its numbers is unknown; write --time-column '{name}:s' "
        "(or ms, min, h, d).",
        code=ErrorCode.OPTION_CONFLICT,
    )


def _counts(name: str) -> bool:
    """Return whether small numbers under ``name`` are counts: a training epoch is not a time."""
    return name.strip("# _").casefold() == "epoch"


def _counted_times(parts: Mapping[str, Sequence[int]], row_count: int, source: Source) -> Times:
    """Assign times to a table without any: a new sample starts when one of its parts repeats."""
    assert source.interval_s is not None, "a table without times was refused"
    part = {row: label for label, rows in parts.items() for row in rows}
    begins = np.zeros(row_count)
    begins[rounds_of([part[row] for row in range(row_count)])[1:]] = 1.0
    return Times(source.interval_s * np.cumsum(begins), absolute=False)


def _refuse_turns(found: Sequence[RawColumn], source: Source) -> None:
    """Refuse memory that alternates between several levels; without memory, any such number.

    Raises:
        ConfigError: a column alternates, as the rows of several processes do.
    """
    # The eden of a Java heap alternates as well, but is not judged.
    judged = [column for column in found if meaning_of(column.name).role is not Role.SHOWN]
    numbers = [column for column in judged if not column.is_text]
    # Ignore constant columns: swap that is always 0 says nothing about the memory beside it.
    changing = [column for column in numbers if np.unique(column.value).size > 1]
    named = [c.name for c in changing if is_memory(c.name) or meaning_of(c.name).unit is Unit.BYTES]
    memory = [c for c in changing if c.in_bytes or c.usual_unit or c.name in named]
    for column in memory or numbers:
        if count := levels_in_turn(column.value):
            raise source.wrong(
                f"column {column.name}: the rows take turns between {count} levels, "
                "as those of several processes do; add a column that says whose row it is (`ps -o "
                "pid=,rss=`), or a time to each row."
            )


def _ungrouped(
    name: str, raw: Sequence[str], grid: Grid, line: int, source: Source
) -> Sequence[str]:
    """Remove thousands separators from a column's cells; note which reading of 1,800 was chosen.

    Raises:
        ConfigError: nothing shows whether a level's 1,800 is 1800 or 1.8.
    """
    unit = unit_word(name)
    known = grid.groups + grid.unsure * (unit in WHOLE_UNITS)
    cells = ungrouped(raw, known, grid.unsure, unit)
    unsure = any(mark in raw[0] for mark in grid.unsure)
    if not (unsure or (cells != raw and "." in raw[0])) or not may_be_grouped(raw):
        return cells
    # Between semicolons, the comma is the decimal point.
    is_open = grid.unsure == "," and cells == raw and not favours_groups(raw[0], ",", unit)
    if is_open and meaning_of(name).role is Role.LEVEL:
        whole, decimal = raw[0].replace(",", ""), raw[0].replace(",", ".")
        raise source.wrong(
            f"column {name}: is {raw[0]} {whole} or {decimal}? write the numbers without commas.",
            line,
        )
    source.notes.append(
        f"{name}: {raw[0]} is read as {cells[0].replace(',', '.')}; if that is "
        "wrong, write the numbers without separators of thousands"
    )
    return cells


def _column(
    name: str, times: Times, cells: Sequence[str], lines: Sequence[int], usual: str
) -> RawColumn:
    value, in_bytes = np.full(len(cells), np.nan), np.zeros(len(cells), dtype=bool)
    column = RawColumn(name, times.t_s, value, times.absolute, usual_unit=usual)
    with suppress(ValueError):
        numbers = np.array(cells, dtype=np.float64)
        step = 10.0 ** -max(len(cell.partition(".")[2]) for cell in cells)
        return replace(column, value=np.where(np.isfinite(numbers), numbers, np.nan), step=step)
    # amd-smi writes MB and means MiB.
    unit = unit_word(name) or {"MiB": "mb"}.get(usual, "")
    texts = [cell.strip() for cell in cells]
    filled = {i: written(text) for i, text in enumerate(texts) if not is_nothing(text)}
    # A KB of memory is 1024 bytes, as in ps.
    units = units_of(filter(None, filled.values()), kb=1024.0 if is_memory(name) else 1000.0)
    first, step = None, 0.0
    for index, one in filled.items():
        number = None if one is None else converted(float(one[0]), one[1], unit, units)
        if one is None or number is None:
            first = first or (lines[index], texts[index])
            continue
        value[index], in_bytes[index] = number
        step = max(step, last_digit(one[0], number[0]) if number[1] else 0.0)
    read = np.isfinite(value)
    value[~read] = np.nan
    if in_bytes.any():
        # top omits the unit for KiB values with few digits, and 0 never has one.
        value[~in_bytes] *= BYTE_FACTORS.get(usual.lower(), 1.0)
    is_text = first is not None and int(read.sum()) < _NUMERIC_SHARE * len(filled)
    return replace(
        column,
        in_bytes=bool(in_bytes.any()),
        step=step,
        text_at=first,
        is_text=is_text,
        is_fixed=len(set(cells)) == 1,
    )
