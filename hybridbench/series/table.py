"""Tables as text: from lines and cells to columns of numbers with their times."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from hybridbench.analysis.record import FloatArray
from hybridbench.errors import ConfigError
from hybridbench.series.times import (
    BadTimeError,
    Times,
    looks_like_time,
    parse_times,
    scaled,
)

_TIME_NAMES = re.compile(
    r"^#?\s*(t|time|ts|timestamp|date|datetime|elapsed|when|wall|epoch|seconds|sec|"
    r"(elapsed|wall|unix|sample|date)[_ ]?time(stamp)?|time[_ ]?stamp|elapsed_seconds)"
    r"([_ ]?[(\[]?(s|sec|ms|us|ns|min|h|utc|seconds)[)\]]?)?$",
    re.I,
)
_NOTHING = frozenset({"", "-", "--", "null", "none", "n/a", "na", "nan", "nil", "undefined"})
_WITH_UNIT = re.compile(r"([+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*([A-Za-z%]+)?(?:\s*/.*)?")
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
_CELL_UNITS = {
    "b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12,
    "kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30, "tib": 2.0**40,
    # top shortens to one letter and counts in powers of 2.
    "k": 2.0**10, "m": 2.0**20, "g": 2.0**30, "t": 2.0**40,
}  # fmt: skip
_NUMERIC_SHARE = 0.9
_BAD_ROWS_SHARE = 0.01
_BAD_ROWS_LEAST = 3


@dataclass(frozen=True)
class TableOptions:
    """What the caller said about the file."""

    source: str
    time_column: str | None = None


@dataclass(frozen=True)
class RawColumn:
    """One column as it was written: times in the file's order, numbers in the file's unit.

    ``in_bytes`` says that the cells told their unit and were converted; ``text_at`` is the line and
    cell of the first thing that is no number, where there was one.
    """

    name: str
    t_s: FloatArray
    value: FloatArray
    absolute: bool
    group: int = 0
    in_bytes: bool = False
    text_at: tuple[int, str] | None = None
    is_text: bool = False


@dataclass
class RawTable:
    """Columns as far as they were read, and what has to be said about them."""

    columns: list[RawColumn] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Grid:
    """Cells with the lines that they stand in; every row has a cell for each name."""

    names: Sequence[str]
    rows: Sequence[Sequence[str]]
    lines: Sequence[int]


def delimited(text: str, options: TableOptions) -> RawTable:
    """A CSV, TSV, semicolon or blank separated table with a heading."""
    notes: list[str] = []
    grid = _grid(text, options, notes)
    return table_of(grid, options, notes)


def mprof(text: str, options: TableOptions) -> RawTable:
    """The ``MEM <MiB> <epoch>`` lines of memory_profiler."""
    pairs = [line.split()[1:3] for line in text.splitlines() if line.startswith("MEM ")]
    try:
        numbers = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    except ValueError as error:
        raise ConfigError(
            f"{options.source}: a MEM line is damaged ({error}); write MEM <MiB> <epoch>."
        ) from error
    times = scaled(numbers[:, 1])
    column = RawColumn("MEM (MiB)", times.t_s, numbers[:, 0], times.absolute)
    return RawTable([column], [])


def table_of(grid: Grid, options: TableOptions, notes: list[str]) -> RawTable:
    """Columns of ``grid``: its time column first found, then the numbers of each other one."""
    if not grid.rows:
        raise ConfigError(f"{options.source}: has a heading and no rows; nothing can be judged.")
    at = _time_index(grid, options)
    columns = list(zip(*grid.rows, strict=True))
    try:
        times = parse_times(columns[at], grid.names[at])
    except BadTimeError as error:
        line = grid.lines[error.index]
        if 0 < error.index == len(grid.rows) - 1:
            notes.append(f"the last line ({line}) is cut short: left out")
            return table_of(Grid(grid.names, grid.rows[:-1], grid.lines[:-1]), options, notes)
        raise ConfigError(f"{options.source}:{line}: column {grid.names[at]}: {error}.") from error
    return RawTable(
        [
            _column(name, times, columns[index], grid.lines)
            for index, name in enumerate(grid.names)
            if index != at
        ],
        notes,
    )


def _grid(text: str, options: TableOptions, notes: list[str]) -> Grid:
    rows = _all_rows(text, options)
    if not rows:
        raise ConfigError(f"{options.source}: has no lines but comments; give a table.")
    (head_line, head), *body = rows
    names = [name.strip() for name in head]
    if all(_number(name) is not None for name in names):
        raise ConfigError(
            f"{options.source}:{head_line}: the first line has numbers only; write a heading with "
            "the names of the columns above it."
        )
    good = [(line, row) for line, row in body if len(row) == len(names)]
    # A heading again: somebody appended a second recording.
    repeated = [line for line, row in good if [cell.strip() for cell in row] == names]
    good = [(line, row) for line, row in good if line not in set(repeated)]
    _tell_bad_rows(options, len(names), body, notes)
    if repeated:
        notes.append(f"the heading stands again in line {repeated[0]}: skipped")
    return Grid(names, [row for _, row in good], [line for line, _ in good])


def _all_rows(text: str, options: TableOptions) -> list[tuple[int, list[str]]]:
    rows: list[tuple[int, list[str]]] = []
    try:
        rows.extend(_rows(text))
    except csv.Error as error:
        line = rows[-1][0] + 1 if rows else 1
        raise ConfigError(
            f"{options.source}:{line}: is no table ({error}); is a quote left open?"
        ) from error
    return rows


def _rows(text: str) -> Iterator[tuple[int, list[str]]]:
    """Lines with cells, comments left out; psrecord's heading hides behind a ``#``."""
    lines = text.splitlines()
    head = next((i for i, line in enumerate(lines) if _is_heading(line)), None)
    if head is None:
        return
    delimiter = _delimiter(lines[head])
    if delimiter is None:
        yield head + 1, re.split(r"\s{2,}|\t", lines[head].lstrip("# ").strip())
        for number, line in enumerate(lines[head + 1 :], head + 2):
            if line.strip() and not line.lstrip().startswith("#"):
                yield number, line.split()
        return
    reader = csv.reader(lines[head:], delimiter=delimiter, skipinitialspace=True)
    for row in reader:
        comment = bool(row) and row[0].lstrip().startswith("#") and reader.line_num > 1
        if not comment and any(cell.strip() for cell in row):
            yield head + reader.line_num, row


def _is_heading(line: str) -> bool:
    stripped = line.strip()
    if not stripped.startswith("#"):
        return bool(stripped)
    # A comment, unless it names columns beside a time.
    words = re.split(r"\s{2,}|[,;\t]", stripped.lstrip("# "))
    return len(words) > 1 and bool(_TIME_NAMES.match(words[0].strip()))


def _delimiter(heading: str) -> str | None:
    counts = {mark: heading.count(mark) for mark in ("\t", ";", ",")}
    best = max(counts, key=lambda mark: counts[mark])
    return best if counts[best] else None


def _tell_bad_rows(
    options: TableOptions, width: int, body: Sequence[tuple[int, list[str]]], notes: list[str]
) -> None:
    bad = [(line, len(row)) for line, row in body if len(row) != width]
    if not bad:
        return
    line, cells = bad[0]
    if len(bad) == 1 and line == body[-1][0]:
        notes.append(f"the last line ({line}) is cut short: left out")
    elif len(bad) <= max(_BAD_ROWS_LEAST, _BAD_ROWS_SHARE * len(body)) and len(bad) < len(body):
        notes.append(f"{len(bad)} lines with too few or too many cells left out, first {line}")
    else:
        raise ConfigError(
            f"{options.source}:{line}: {cells} cells where the heading has {width}; quote cells "
            "that hold the delimiter, or keep the columns that matter."
        )


def _time_index(grid: Grid, options: TableOptions) -> int:
    names = list(grid.names)
    if options.time_column is not None:
        for index, name in enumerate(names):
            if name.strip("# ").casefold() == options.time_column.casefold():
                return index
        raise ConfigError(
            f"{options.source}: --time-column {options.time_column}: no such column; there are "
            f"{', '.join(names)}."
        )
    named = [index for index, name in enumerate(names) if _TIME_NAMES.match(name)]
    if named:
        return named[0]
    dated = [i for i, cell in enumerate(grid.rows[0]) if looks_like_time(cell)]
    if dated:
        return dated[0]
    raise ConfigError(
        f"{options.source}:{grid.lines[0] - 1}: no column is a time; there are {', '.join(names)}: "
        "name one with --time-column."
    )


def _column(name: str, times: Times, cells: Sequence[str], lines: Sequence[int]) -> RawColumn:
    try:
        value = np.array(cells, dtype=np.float64)
        value[~np.isfinite(value)] = np.nan
        return RawColumn(name, times.t_s, value, times.absolute)
    except ValueError:
        pass
    value = np.full(len(cells), np.nan)
    in_bytes, filled, read = False, 0, 0
    first: tuple[int, str] | None = None
    for index, cell in enumerate(cells):
        if cell.strip().lower() in _NOTHING:
            continue
        filled += 1
        number = _number(cell)
        if number is None:
            first = first or (lines[index], cell.strip())
            continue
        value[index], bytes_told = number
        in_bytes |= bytes_told
        read += 1
    value[~np.isfinite(value)] = np.nan
    is_text = filled > 0 and read < _NUMERIC_SHARE * filled
    return RawColumn(
        name, times.t_s, value, times.absolute, in_bytes=in_bytes, text_at=first, is_text=is_text
    )


def _number(cell: str) -> tuple[float, bool] | None:
    """The number in a cell, and whether it told bytes: ``12.3MiB / 2GiB`` is 12.3 * 2^20."""
    text = cell.strip()
    if _DECIMAL_COMMA.fullmatch(text):
        text = text.replace(",", ".")
    try:
        return float(text), False
    except ValueError:
        match = _WITH_UNIT.fullmatch(text)
    if match is None:
        return None
    unit = (match.group(2) or "").lower()
    if unit in ("", "%"):
        return float(match.group(1)), False
    if unit not in _CELL_UNITS:
        return None
    return float(match.group(1)) * _CELL_UNITS[unit], True
