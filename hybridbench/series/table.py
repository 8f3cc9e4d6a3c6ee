"""Tables as text: from lines and cells to columns of numbers with their times."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hybridbench.analysis.record import FloatArray
from hybridbench.errors import ConfigError, ErrorCode
from hybridbench.series.cells import is_nothing, number_in, ungrouped
from hybridbench.series.owners import keys_of, parts_of
from hybridbench.series.times import (
    BadTimeError,
    Times,
    looks_like_time,
    parse_times,
    scaled,
)
from hybridbench.series.units import bracket_unit

_TIME_NAMES = re.compile(
    r"^#?\s*_?(t|time|ts|timestamp|date|datetime|elapsed|when|wall|epoch|seconds|sec|"
    r"(elapsed|wall|unix|sample|date)[_ ]?time(stamp)?|time[_ ]?stamp|elapsed_seconds)"
    r"([_ ]?[(\[]?(s|sec|ms|us|ns|min|h|utc|seconds)[)\]]?)?$",
    re.I,
)
_WIDE_BLANKS = re.compile(r"\s{2,}|\t")
_PARTS_MAX = 256
_TITLE_LINES_MAX = 20
_VALUES_MIN = 3
_NAMES_MAX = 8
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
    commas_group: bool = False  # a comma in a number parts thousands, as commas part the cells


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
    grid = _with_whole_times(grid)
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
    keys = keys_of(grid.names, columns, told)
    parts = parts_of(grid.names, grid.rows, keys)
    if len(parts) > _PARTS_MAX:
        raise ConfigError(
            f"{options.source}: rows of {len(parts)} series, such as {next(iter(parts))}; keep "
            f"those that matter, {_PARTS_MAX} at most (`ps -p PID`, `top -p PID`)."
        )
    times = _counted_times(parts, len(grid.rows), options) if told is None else told
    table = RawTable([], notes, has_times=told is not None)
    for group, (label, rows) in enumerate(parts.items()):
        own = Times(times.t_s[rows], times.absolute)
        lines = [grid.lines[row] for row in rows]
        for index, name in enumerate(grid.names):
            if index == at or index in keys:
                continue
            cells = ungrouped([columns[index][row] for row in rows], commas_group=grid.commas_group)
            column = _column(name, own, cells, lines)
            unit = _UNITS_OF_PS.get(name, "") if grid.of_ps else ""
            table.columns.append(replace(column, name=name + label, group=group, usual_unit=unit))
    return table


def _with_whole_times(grid: Grid) -> Grid:
    """``grid`` with its date and its time of day, if it has both, in one column."""
    names = [name.strip("# ").casefold() for name in grid.names]
    if not {"date", "time"} <= set(names) or ":" in grid.rows[0][names.index("date")]:
        return grid
    date, clock = names.index("date"), names.index("time")
    kept = [index for index in range(len(names)) if index not in (date, clock)]
    rows = [[*(row[i] for i in kept), f"{row[date]} {row[clock]}"] for row in grid.rows]
    return replace(grid, names=[*(grid.names[i] for i in kept), "time"], rows=rows)


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
    above = _lines_above(lines, first)
    if above:
        first += above
        notes.append(f"the heading is line {first + 1}: what stands above it is left out")
    delimiter = _delimiter(lines[first])
    rows = _all_rows(lines, first, delimiter, options)
    head = [name.strip() for name in rows[0][1]]
    names, body, of_ps = head, rows[1:], _is_of_ps(head)
    if all(number_in(name) is not None for name in head):
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
    if of_ps:
        notes.append(_READ_AS_BYTES if "memory" in names else _READ_AS.format("ps"))
    _tell_bad_rows(options, len(names), body, notes)
    good = [(line, row) for line, row in body if len(row) == len(names)]
    rows_read, at = [row for _, row in good], [line for line, _ in good]
    return Grid(names, rows_read, at, of_ps, commas_group=delimiter == ",")


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
        if not any(number_in(cell) for cell in cells[1:]):
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
    numbers = sum(number_in(name) is not None for name in names)
    of_numbers = numbers >= _VALUES_MIN or 2 * numbers >= len(names)
    return any(map(looks_like_time, names)) or (
        of_numbers and not any(map(_TIME_NAMES.match, names))
    )


def _is_of_ps(names: Sequence[str]) -> bool:
    return _OF_PS.issuperset(set(names) - {"time"}) and not _OF_PS_ALONE.isdisjoint(names)


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
    of_ps = _OF_PS.issuperset(set(words) - {"time"}) or all(
        number_in(name) is not None for name in words
    )
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
    return len(words) > 1 and any(_TIME_NAMES.match(word.strip()) for word in words)


def _lines_above(lines: Sequence[str], first: int) -> int:
    """How many lines, such as a title, stand between ``first`` and a heading that names a time."""
    found = 0
    for above, line in enumerate(lines[first : first + _TITLE_LINES_MAX]):
        names = [cell.strip(' "') for cell in re.split(r"[,;\t]", line)]
        is_heading = len(names) > 1 and any(map(_TIME_NAMES.match, names))
        if is_heading and not any(number_in(name) is not None for name in names):
            # dstat: the names of groups, and below them those of columns.
            found = above
        elif found:
            break
        if is_heading and above == 0:
            break
    return found


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
            f"{_few(names)}.",
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
        f"{options.source}:{grid.lines[0]}: no column is a time (columns: {_few(names)}); "
        "name one with --time-column, or give the time between two samples with --interval 10s.",
        code=ErrorCode.NEEDS_OPTION,
    )


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMES_MAX]) + (", ..." if len(names) > _NAMES_MAX else "")


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
        if is_nothing(text):
            continue
        filled += 1
        number = number_in(text, unit)
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
