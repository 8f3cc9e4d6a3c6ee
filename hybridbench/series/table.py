"""Tables as text: from lines and cells to columns of numbers with their times."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from hybridbench.analysis.record import FloatArray
from hybridbench.errors import ConfigError, ErrorCode
from hybridbench.series.times import (
    BadTimeError,
    Times,
    looks_like_time,
    parse_times,
    scaled,
)
from hybridbench.series.units import BYTE_FACTORS, PROCESS_ID, bare_name, bracket_unit

_TIME_NAMES = re.compile(
    r"^#?\s*_?(t|time|ts|timestamp|date|datetime|elapsed|when|wall|epoch|seconds|sec|"
    r"(elapsed|wall|unix|sample|date)[_ ]?time(stamp)?|time[_ ]?stamp|elapsed_seconds)"
    r"([_ ]?[(\[]?(s|sec|ms|us|ns|min|h|utc|seconds)[)\]]?)?$",
    re.I,
)
_NOTHING = frozenset({"", "-", "--", "null", "none", "n/a", "na", "nan", "nil", "undefined"})
# nvidia-smi says so of what a GPU cannot tell: [N/A], [Not Supported], [Unknown Error].
_NOTHING_IN_BRACKETS = re.compile(r"\[[A-Za-z/ ]+\]")
_WITH_UNIT = re.compile(r"([+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*([A-Za-z%]+)?(?:\s*/.*)?")
_WIDE_BLANKS = re.compile(r"\s{2,}|\t")
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
# top shortens to one letter and counts in powers of 2.
_CELL_UNITS = {**BYTE_FACTORS, "k": 2.0**10, "m": 2.0**20, "g": 2.0**30, "t": 2.0**40}
# What a row is about, where rows of several processes or GPUs take turns.
_GPU = re.compile(r"index|(gpu_)?uuid|(gpu_|pci\.)bus_id|(gpu_)?serial", re.I)
# Text that tells whose row it is, in tables of containers, pods or several series.
_OWNER = re.compile(
    r"names?|series|(pod|container|process)([ _]?(id|name))?|instance|host(name)?|namespace|group|"
    r"device|service|metric|_field",
    re.I,
)
_OF_NVIDIA_SMI = re.compile(
    r"(memory|utilization|temperature|clocks|power|fan|pcie|ecc)\.[a-z._]+|used_(gpu_)?memory", re.I
)
_MOST_PARTS = 256
_OF_PS = frozenset(
    {
        *("%CPU", "%MEM", "ARGS", "CMD", "COMMAND", "ELAPSED", "GID", "NI", "NLWP", "PGID", "PID"),
        *("PPID", "PRI", "PSR", "RSS", "START", "STARTED", "STAT", "SZ", "TID", "TIME", "TTY"),
        *("UID", "USER", "VSZ"),
    }
)
# Others use the rest of these words as well.
_OF_PS_ALONE = frozenset({"PID", "RSS", "VSZ"})
_OF_PS_COMMAND = frozenset({"ARGS", "CMD", "COMMAND"})
_UNITS_OF_PS = {"RSS": "KiB", "VSZ": "KiB", "SZ": "pages", "memory": "bytes"}
_PAGE_BYTES = 4096
_READ_AS = "read as the output of {}: RSS and VSZ are in KiB"
_READ_AS_BYTES = (
    "every number is a multiple of 4096: read as bytes, as memory.current of a cgroup; if they are "
    "KiB, use --unit KiB"
)
# The first line of pidstat and its kin.
_OF_SYSSTAT = re.compile(r"Linux \S+ \(.*\)\s+\S+")
# The kernel's own limit, on any machine.
_PS_DIGITS_MAX = 18
_PID_MAX = 2**22
_EPOCH_S = 10**9
_NUMERIC_SHARE = 0.9
_BAD_ROWS_SHARE = 0.01
_BAD_ROWS_LEAST = 3


@dataclass(frozen=True)
class TableOptions:
    """What the caller said about the file; ``interval_s`` is for one that has no times."""

    source: str
    time_column: str | None = None
    interval_s: float | None = None


@dataclass(frozen=True)
class RawColumn:
    """One column as it was written: times in the file's order, numbers in the file's unit.

    ``in_bytes`` says that the cells had a unit and were converted; ``usual_unit`` is what the
    program that wrote it counts in, where nothing else tells; ``text_at`` is the line and cell of
    the first thing that is no number, where there was one.
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


@dataclass
class RawTable:
    """Columns as far as they were read, and what has to be said about them."""

    columns: list[RawColumn] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    has_times: bool = True


@dataclass(frozen=True)
class Grid:
    """Cells with the lines that they stand in; every row has a cell for each name."""

    names: Sequence[str]
    rows: Sequence[Sequence[str]]
    lines: Sequence[int]
    of_ps: bool = False


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
        raise ConfigError(f"{options.source}: has a header and no rows.")
    columns = list(zip(*grid.rows, strict=True))
    at = _time_index(grid, options)
    try:
        told = None if at is None else parse_times(columns[at], grid.names[at])
    except BadTimeError as error:
        line = grid.lines[error.index]
        if 0 < error.index == len(grid.rows) - 1:
            notes.append(f"the last line ({line}) is cut short: left out")
            whole = replace(grid, rows=grid.rows[:-1], lines=grid.lines[:-1])
            return table_of(whole, options, notes)
        name = "" if at is None else grid.names[at]
        raise ConfigError(f"{options.source}:{line}: column {name}: {error}.") from error
    keys = _keys(grid, columns, told)
    parts = _parts(grid, keys)
    times = _counted_times(parts, len(grid.rows), options) if told is None else told
    table = RawTable([], notes, has_times=told is not None)
    for group, (label, rows) in enumerate(parts.items()):
        own = Times(times.t_s[rows], times.absolute)
        lines = [grid.lines[row] for row in rows]
        for index, name in enumerate(grid.names):
            if index == at or index in keys:
                continue
            column = _column(name, own, [columns[index][row] for row in rows], lines)
            unit = _UNITS_OF_PS.get(name, "") if grid.of_ps else ""
            table.columns.append(replace(column, name=name + label, group=group, usual_unit=unit))
    return table


def labels(pairs: Iterable[tuple[str, str]]) -> str:
    """What follows the name of a series to tell it from others; empty without ``pairs``."""
    labels = ", ".join(f'{key}="{value}"' for key, value in pairs)
    return f"{{{labels}}}" if labels else ""


def _keys(grid: Grid, columns: Sequence[Sequence[str]], times: Times | None) -> Sequence[int]:
    """The columns that tell whose row it is, where rows of several take turns."""
    # Elsewhere an index counts the rows.
    of_gpus = any(_OF_NVIDIA_SMI.fullmatch(bare_name(name)) for name in grid.names)
    turns = [index for index, cells in enumerate(columns) if _takes_turns(cells)]
    processes = [index for index in turns if PROCESS_ID.fullmatch(grid.names[index])]
    gpus = [index for index in turns if of_gpus and _GPU.fullmatch(grid.names[index])]
    if gpus or processes:
        # One name of a GPU is enough, and a process is one of its parent's.
        return [*gpus[:1], *processes[:1]]
    owners: list[int] = []
    # A name says more than an id.
    for index in sorted(
        range(len(columns)), key=lambda i: not grid.names[i].lower().endswith("name")
    ):
        if not _OWNER.fullmatch(grid.names[index]) or any(
            _number(cell) is not None for cell in columns[index]
        ):
            continue
        if index in turns or (times is not None and _begins_anew(columns[index], times)):
            # Of the name and the id of a container either says it.
            before, after = (
                len(set(zip(*(columns[i] for i in chosen), strict=True)))
                for chosen in (owners, [*owners, index])
            )
            if after > max(before, 1):
                owners.append(index)
    return owners


def _takes_turns(cells: Sequence[str]) -> bool:
    """Whether a value comes back after another; a process that follows another does not."""
    different = set(cells)
    if not 1 < len(different) <= _MOST_PARTS or not all(different):
        return False
    return 1 + sum(a != b for a, b in pairwise(cells)) > len(different)


def _begins_anew(cells: Sequence[str], times: Times) -> bool:
    """Whether the times begin again with each new value, and with nothing else."""
    new = np.array([a != b for a, b in pairwise(cells)], dtype=bool)
    return bool(new.any() and np.array_equal(new, np.diff(times.t_s) < 0))


def _parts(grid: Grid, keys: Sequence[int]) -> Mapping[str, Sequence[int]]:
    """The rows of each process or GPU by its labels; all rows by none if there are no ``keys``."""
    parts: dict[str, list[int]] = {}
    for row, cells in enumerate(grid.rows):
        label = labels((grid.names[index], cells[index].strip()) for index in keys)
        parts.setdefault(label, []).append(row)
    return parts


def _counted_times(
    parts: Mapping[str, Sequence[int]], row_count: int, options: TableOptions
) -> Times:
    """Times of a table that has none: a sample ends where one of its parts comes again."""
    assert options.interval_s is not None, "a table without times was refused"
    part = {row: label for label, rows in parts.items() for row in rows}
    moment = np.zeros(row_count)
    # The next sample begins with whatever was in this one already.
    seen: set[str] = set()
    for row in range(row_count):
        new = part[row] in seen
        seen = {part[row]} if new else seen | {part[row]}
        moment[row] = (moment[row - 1] if row else 0.0) + new
    return Times(options.interval_s * moment, absolute=False)


def _grid(text: str, options: TableOptions, notes: list[str]) -> Grid:
    lines = text.splitlines()
    if lines and _OF_SYSSTAT.match(lines[0]):
        return _grid_of_sysstat(lines, options, notes)
    first = next((i for i, line in enumerate(lines) if _is_heading(line)), None)
    if first is None:
        raise ConfigError(f"{options.source}: has only comments; pass a table.")
    delimiter = _delimiter(lines[first])
    rows = _all_rows(lines, first, delimiter, options)
    head = [name.strip() for name in rows[0][1]]
    names, body, of_ps = head, rows[1:], _is_of_ps(head)
    if all(_number(name) is not None for name in head):
        names, body, of_ps = _names_of_ps(rows) if delimiter is None else [], rows, True
    elif head == ["PID"] and body and len(body[0][1]) == 2:
        # ps -o pid,rss= prints the heading of the first column alone.
        names = _names_of_ps(body)
    if not names or _are_values(names):
        raise ConfigError(
            f"{options.source}:{first + 1}: the first line holds values; write a heading with the "
            "names of the columns above it (nvidia-smi: without noheader)."
        )
    if len(body) < len(rows):
        # A heading again: somebody appended a second recording, or ps was called once a sample.
        repeated = [line for line, row in body if [cell.strip() for cell in row] == head]
        if repeated and not of_ps:
            notes.append(f"the heading stands again in line {repeated[0]}: skipped")
        again = set(repeated)
        body = [(line, row) for line, row in body if line not in again]
    if of_ps and "memory" in names:
        notes.append(_READ_AS_BYTES)
    elif of_ps:
        notes.append(_READ_AS.format("ps"))
    _tell_bad_rows(options, len(names), body, notes)
    good = [(line, row) for line, row in body if len(row) == len(names)]
    return Grid(names, [row for _, row in good], [line for line, _ in good], of_ps)


def _grid_of_sysstat(lines: Sequence[str], options: TableOptions, notes: list[str]) -> Grid:
    """The output of pidstat, with or without ``-h``: a heading again and again, and averages."""
    names: list[str] = []
    rows: list[tuple[int, list[str]]] = []
    for number, line in enumerate(lines[1:], 2):
        cells = line.lstrip("# ").split()
        if not cells or cells[0] == "Average:" or _OF_SYSSTAT.match(line):
            continue
        if len(cells) > 1 and cells[1] in {"AM", "PM"}:
            cells[:2] = [" ".join(cells[:2])]
        if not any(_number(cell) for cell in cells[1:]):
            heading = ["Time", *cells[1:]]
            if names and heading != names:
                raise ConfigError(
                    f"{options.source}:{number}: another report begins; record one, such as "
                    "`pidstat -r -p PID 10`."
                )
            names = heading
        elif names:
            # A command may have blanks.
            last = len(names) - 1
            rows.append((number, [*cells[:last], *filter(None, [" ".join(cells[last:])])]))
    if not names:
        raise ConfigError(f"{options.source}: has no heading that names columns.")
    _tell_bad_rows(options, len(names), rows, notes)
    good = [(number, row) for number, row in rows if len(row) == len(names)]
    notes.append(_READ_AS.format("pidstat"))
    return Grid(names, [row for _, row in good], [number for number, _ in good], of_ps=True)


def _are_values(names: Sequence[str]) -> bool:
    """Whether the first line is one of values; series may be called 0, 1, 2 beside a time."""
    numbers = sum(_number(name) is not None for name in names)
    return any(map(looks_like_time, names)) or (
        2 * numbers >= len(names) and not any(map(_TIME_NAMES.match, names))
    )


def _is_of_ps(names: Sequence[str]) -> bool:
    return _OF_PS.issuperset(names) and not _OF_PS_ALONE.isdisjoint(names)


def _names_of_ps(rows: Sequence[tuple[int, Sequence[str]]]) -> list[str]:
    """Names for the columns of ``ps -o rss=`` and its like; none if ``rows`` are not of that."""
    width = len(rows[0][1])
    columns = list(zip(*(row for _, row in rows if len(row) == width), strict=True))
    if width > 2 or not all(_is_ps_number(cell) for column in columns for cell in column):
        return []
    # RSS is not in whole pages of pages.
    sizes = {int(cell) for cell in columns[-1]}
    in_pages = len(sizes) > 1 and not any(size % _PAGE_BYTES for size in sizes)
    size = "memory" if in_pages else "RSS"
    if width == 1:
        return [size]
    first = [int(cell) for cell in columns[0]]
    if min(first) >= _EPOCH_S:
        return ["time", size]
    # Numbers that come once each are no processes.
    if max(first) <= _PID_MAX and 2 * len(set(first)) <= len(first):
        return ["PID", "RSS"]
    return []


def _is_ps_number(cell: str) -> bool:
    # No size and no time has more digits; Python refuses to read thousands of them.
    return cell.isdecimal() and len(cell) <= _PS_DIGITS_MAX


def _all_rows(
    lines: Sequence[str], first: int, delimiter: str | None, options: TableOptions
) -> list[tuple[int, list[str]]]:
    """Number and cells of each line from the heading on, comments left out."""
    if delimiter is None:
        return list(_of_blanks(lines, first))
    rows: list[tuple[int, list[str]]] = []
    reader = csv.reader(lines[first:], delimiter=delimiter, skipinitialspace=True)
    try:
        for row in reader:
            comment = bool(row) and row[0].lstrip().startswith("#") and reader.line_num > 1
            if not comment and any(cell.strip() for cell in row):
                rows.append((first + reader.line_num, row))
    except csv.Error as error:
        line = rows[-1][0] + 1 if rows else 1
        raise ConfigError(
            f"{options.source}:{line}: is not a table ({error}); is a quote left open?"
        ) from error
    return rows


def _of_blanks(lines: Sequence[str], first: int) -> Iterator[tuple[int, list[str]]]:
    """Columns of blanks; psrecord's heading hides behind a ``#`` and has blanks in its names."""
    heading = lines[first].lstrip("# ").strip()
    rows = [
        (number, line.strip())
        for number, line in enumerate(lines[first + 1 :], first + 2)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    words, names = heading.split(), _WIDE_BLANKS.split(heading)
    of_ps = _OF_PS.issuperset(words) or all(_number(name) is not None for name in words)
    if of_ps or (rows and len(rows[0][1].split()) == len(words)):
        names = words
    yield first + 1, names
    # A command line has blanks of its own.
    most = len(names) - 1 if names[-1] in _OF_PS_COMMAND else -1
    for number, line in rows:
        cells, wide = line.split(None, most), _WIDE_BLANKS.split(line)
        # docker: 1.2GiB / 8GiB.
        yield number, wide if len(cells) != len(names) == len(wide) > 1 else cells


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


def _time_index(grid: Grid, options: TableOptions) -> int | None:
    """Which column has the times; None where the caller gave an interval in their place."""
    names = list(grid.names)
    if options.time_column is not None:
        for index, name in enumerate(names):
            if name.strip("# ").casefold() == options.time_column.casefold():
                return index
        raise ConfigError(
            f"{options.source}: --time-column {options.time_column}: no such column; there are "
            f"{', '.join(names)}.",
            code=ErrorCode.UNKNOWN_NAME,
        )
    named = [index for index, name in enumerate(names) if _TIME_NAMES.match(name)]
    dated = [i for i, cell in enumerate(grid.rows[0]) if looks_like_time(cell)]
    for index in (*named, *dated):
        # TIME of ps is processor time.
        if not grid.of_ps or names[index] in ("time", "Time", "ELAPSED"):
            return index
    if options.interval_s is not None:
        return None
    raise ConfigError(
        f"{options.source}:{grid.lines[0]}: no column is a time (columns: {', '.join(names)}); "
        "name one with --time-column, or give the time between two samples with --interval 10s.",
        code=ErrorCode.NEEDS_OPTION,
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
    unit = bracket_unit(name)
    for index, cell in enumerate(cells):
        text = cell.strip()
        if text.lower() in _NOTHING or _NOTHING_IN_BRACKETS.fullmatch(text):
            continue
        filled += 1
        number = _number(text, unit)
        if number is None:
            first = first or (lines[index], text)
            continue
        value[index], bytes_told = number
        in_bytes |= bytes_told
        read += 1
    value[~np.isfinite(value)] = np.nan
    is_text = filled > 0 and read < _NUMERIC_SHARE * filled
    return RawColumn(
        name, times.t_s, value, times.absolute, in_bytes=in_bytes, text_at=first, is_text=is_text
    )


def _number(text: str, heading_unit: str = "") -> tuple[float, bool] | None:
    """The number in a cell, and whether it was in bytes: ``12.3MiB / 2GiB`` is 12.3 * 2^20.

    A unit that its heading has as well (``heading_unit``, in lower case) says nothing new.
    """
    if _DECIMAL_COMMA.fullmatch(text):
        text = text.replace(",", ".")
    try:
        return float(text), False
    except ValueError:
        match = _WITH_UNIT.fullmatch(text)
    if match is None:
        return None
    unit = (match.group(2) or "").lower()
    if unit in ("", "%", heading_unit):
        return float(match.group(1)), False
    if unit not in _CELL_UNITS:
        return None
    return float(match.group(1)) * _CELL_UNITS[unit], True
