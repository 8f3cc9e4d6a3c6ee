"""Tables as text: parted by commas, semicolons, tabs or blanks, with a heading or without one.

What tools print again and again (ps, top, pidstat, docker stats, kubectl top, jstat, smem, dmon) is
a table whose heading comes again.  Without a heading the columns are known by their cells.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from itertools import pairwise

from hybridbench.errors import ConfigError
from hybridbench.series.cells import is_nothing, number_in
from hybridbench.series.grid import Grid, RawTable, TableOptions, table_of
from hybridbench.series.lines import Line, blank_cells
from hybridbench.series.refusals import NO_SHAPE, is_prose
from hybridbench.series.times import is_since_1970, looks_like_time, names_time

_WIDE_BLANKS = re.compile(r"\s{2,}|\t")
_LOOKED_AT = 200
_BAD_ROWS_SHARE, _BAD_ROWS_LEAST = 0.01, 3
_COMMANDS = frozenset({"command", "cmd", "args", "comm"})
# What a date of JavaScript or a cell in quotes holds parts no cells.
_NO_MARKS = re.compile(r'"[^"]*"|(?<=\d{4}), (?=\d)')
_COMMENT_ROW = re.compile(r"#\s*(Date\s+|Time\s+)*(gpu|Entity|Idx|YYYY\S*|HH\S*)\b")
_GROUPED = re.compile(r"[+-]?\d{1,3}([,.]\d{3})+([,.]\d+)?")
# Rows that a tool prints, with the names of their columns where grep took the heading.
_N, _D = r"\d+", r"[\d.,]+[kmgt]?"
_LAYOUTS = (
    (
        rf"\S+ {_N} {_D} {_D} {_N} {_N} \S+ [A-Z]\S* \S+ [\d:.-]+ \S.*",
        "USER PID %CPU %MEM VSZ RSS TTY STAT START TIME COMMAND",
    ),
    (
        rf"{_N} \S+ \S+ -?{_N} {_D} {_D} {_D} [A-Z] {_D} {_D} [\d:.]+ \S.*",
        "PID USER PR NI VIRT RES SHR S %CPU %MEM TIME+ COMMAND",
    ),
    (rf"total kB {_N} {_N} {_N}", "total unit VSZ RSS Dirty"),
)
_PAGE_BYTES, _DIGITS_MAX, _PID_MAX = 4096, 18, 2**22
_MILLICORES = re.compile(r"\d+m")
# ps counts whole pages, so multiples of 4 KiB; what is small and is none may be MiB of nvidia-smi.
_PAGE_KIB, _SURELY_KIB = 4, 100_000
_READ_AS = {
    "RSS": "read as the output of ps: RSS is in KiB",
    "memory": "every number is a multiple of 4096: read as bytes, such as those of a "
    "cgroup's memory.current, which contains the page cache; if they are KiB, use --unit KiB",
    "value": "whole numbers that ps does not print (it counts in steps of 4 KiB): their unit is "
    "unknown; give it with --unit",
}
_NO_HEADING = (
    "the first line holds values; write a heading with the names of the columns above it "
    "(nvidia-smi: without noheader)"
)
# mprof: keyword, series, MiB, seconds since 1970.
_MPROF = re.compile(r"(?:MEM|CHLD (?P<child>\d+)) (?P<mib>[\d.]+) (?P<at>\d+(\.\d+)?)")

Row = tuple[Line, list[str]]
# Names, rows, and the units of columns that the reader named.
_Read = tuple[list[str], list[Row], dict[str, str]]


def table(lines: Sequence[Line], options: TableOptions, notes: list[str]) -> RawTable:
    """The columns of a table with one row a line.

    Raises:
        ConfigError: it has no heading where one is needed, or lines that are no rows of it.
    """
    lines = [line for line in lines if _is_row(line.text)]
    if not lines:
        raise ConfigError(f"{options.source}: has only comments; pass a table.")
    mark = _mark(lines)
    if mark is None:
        names, rows, units = _of_blanks(lines, options, notes)
    else:
        names, rows, units = _of_marks(lines, mark, options, notes)
    good = [(line, cells) for line, cells in rows if len(cells) == len(names)]
    if not good and is_prose(lines):
        raise ConfigError(f"{options.source}: {NO_SHAPE}.")
    grid = Grid(
        names,
        [cells for _, cells in good],
        [line.number for line, _ in good],
        units,
        of_tool=mark is None,
        commas_group=mark == ",",
    )
    return table_of(grid.stamped([line.at for line, _ in good]), options, notes)


def mprof(lines: Sequence[Line], options: TableOptions, notes: list[str]) -> RawTable:
    """The log of memory_profiler: the process in ``MEM``, each of its children in ``CHLD``."""
    rows: list[tuple[int, list[str]]] = []
    odd: list[int] = []
    for line in lines:
        match = _MPROF.fullmatch(line.text.strip())
        if match is not None:
            child = "main" if match["child"] is None else f"child {match['child']}"
            rows.append((line.number, [match["at"], child, match["mib"]]))
        elif not line.text.startswith(("CMDLINE", "FUNC ")):
            odd.append(line.number)
    if len(odd) > max(_BAD_ROWS_LEAST, _BAD_ROWS_SHARE * len(lines)):
        raise ConfigError(
            f"{options.source}:{odd[0]}: is no line of mprof's; record it anew with `mprof run`."
        )
    if odd:
        notes.append(f"{len(odd)} lines left out, no MEM or CHLD of mprof, first {odd[0]}")
    # Without children there is no need to name the process.
    kept = [0, 1, 2] if len({cells[1] for _, cells in rows}) > 1 else [0, 2]
    names = [("time", "process", "MEM (MiB)")[i] for i in kept]
    cells = [[row[i] for i in kept] for _, row in rows]
    return table_of(Grid(names, cells, [number for number, _ in rows]), options, notes)


def _is_row(text: str) -> bool:
    """Whether a line is no comment, or one that names columns beside a time or a GPU."""
    stripped = text.strip()
    if not stripped.startswith("#"):
        return True
    words = [word.strip() for word in re.split(r"\s{2,}|[,;\t]", stripped.lstrip("# "))]
    return (len(words) > 1 and any(map(names_time, words))) or bool(_COMMENT_ROW.match(stripped))


def _mark(lines: Sequence[Line]) -> str | None:
    """What parts the cells: the mark that stands as often in most lines; None for blanks."""
    texts = [_NO_MARKS.sub(" ", line.text) for line in lines[:_LOOKED_AT]]
    # A heading without commas above numbers with them: they are decimal commas.
    first = next((i for i, text in enumerate(texts) if _has_number(re.split(r"[\s,;]+", text))), 0)
    for mark in ("\t", ";", ","):
        counts = [text.count(mark) for text in texts]
        usual = max(set(counts), key=counts.count)
        if (
            usual
            and 2 * counts.count(usual) >= len(counts)
            and texts[max(first - 1, 0)].count(mark)
        ):
            return mark
    return None


def _of_marks(lines: Sequence[Line], mark: str, options: TableOptions, notes: list[str]) -> _Read:
    """What a table holds whose cells a mark parts."""
    reader = csv.reader([line.text for line in lines], delimiter=mark, skipinitialspace=True)
    rows: list[Row] = []
    try:
        rows += ((lines[reader.line_num - 1], [cell.strip() for cell in row]) for row in reader)
    except csv.Error as error:
        number = lines[min(reader.line_num, len(lines)) - 1].number
        raise ConfigError(
            f"{options.source}:{number}: is not a table ({error}); is a quote left open?"
        ) from error
    typical = rows[3 * len(rows) // 4][1]
    numeric = [i for i, cell in enumerate(typical) if _is_value(cell)]
    first = (
        0
        if not numeric
        else next(
            (
                i
                for i, (_, cells) in enumerate(rows)
                if all(_is_value(c) for c in _at(cells, numeric))
            ),
            0,
        )
    )
    above = [i for i in range(first) if _names(rows[i][1])] or ([] if numeric else [0])
    if not above:
        return _names_of_values(rows, mark, options, notes)
    line, names = rows[above[-1]]
    if line is not lines[0]:
        notes.append(f"the heading is line {line.number}: what stands above it is left out")
    body = rows[max(first, above[-1] + 1) :]
    again = [at.number for at, cells in body if cells == names]
    if again:
        notes.append(f"the heading stands again in line {again[0]}: skipped")
    body = [(at, cells) for at, cells in body if cells != names]
    hint = "quote cells that hold the delimiter, or keep the columns that matter"
    _check_rows(line, names, body, options, notes, hint)
    return names, body, {}


def _of_blanks(lines: Sequence[Line], options: TableOptions, notes: list[str]) -> _Read:
    """What a table holds whose cells blanks part, its heading perhaps again and again."""
    cells = [blank_cells(line.text.lstrip("# ")) for line in lines]
    first = next((i for i, row in enumerate(cells) if not _names(row)), len(cells))
    heading = _heading(lines, cells, first)
    if heading is None:
        rows = list(zip(lines, cells, strict=True))
        return _of_layout(rows, options, notes)
    names = _choose_names(lines, cells, heading, first)
    labels = _without_time(cells[heading])
    above = {line.text for line in lines[heading:first]}
    body: list[Row] = []
    others: list[Line] = []
    for line, row in zip(lines[first:], cells[first:], strict=True):
        if _without_time(row) == labels or line.text in above or line.text.startswith("#"):
            continue
        if _names(row) and len(row) > 1:
            if looks_like_time(row[0]) and len(row) > 2:
                _refuse_other(line, options)
            others.append(line)
        # sysstat: Average:, in any language.
        elif not (looks_like_time(cells[heading][0]) and row[0].endswith((":", "\uff1a"))):
            body.append((line, _fitted(line.text, row, names)))
    if len(others) > _BAD_ROWS_LEAST:
        _refuse_other(others[0], options)
    if others:
        notes.append(f"{len(others)} lines without numbers left out, first {others[0].number}")
    if {"RSS", "VSZ", "VIRT", "RES"} & set(names):
        tool = (
            "top"
            if "RES" in names
            else "pidstat"
            if looks_like_time(cells[heading][0]) or names[0] == "Time"
            else "ps"
        )
        notes.append(f"read as the output of {tool}: memory without a unit is in KiB")
    hint = "keep one table: a heading, and rows of as many cells"
    _check_rows(lines[heading], names, body, options, notes, hint)
    return _of_devices(lines, cells, heading, names), body, {}


def _refuse_other(line: Line, options: TableOptions) -> None:
    raise ConfigError(
        f"{options.source}:{line.number}: another report begins, with other columns; record "
        "one, such as `pidstat -r -p PID 10`."
    )


def _heading(lines: Sequence[Line], cells: Sequence[list[str]], first: int) -> int | None:
    """The line above the first row whose names are as many as it has cells."""
    if first == 0 or first == len(cells):
        return None if first == 0 else 0
    row = cells[first]
    if cells[first - 1] == ["PID"] and len(row) == 2:
        # ps -o pid,rss= prints the heading of the first column alone.
        return None
    fits = [
        i
        for i in range(max(0, first - 3), first)
        if len(_fitted(lines[first].text, row, names := cells[i])) == len(names)
        or len(_wide(lines[i].text)) == len(row)
    ]
    # dmon has a second line, of units.
    of_units = fits[-2:] == [first - 2, first - 1] and lines[first - 1].text.startswith("#")
    return (fits[-2] if of_units else fits[-1]) if fits else first - 1


def _choose_names(
    lines: Sequence[Line], cells: Sequence[list[str]], heading: int, first: int
) -> list[str]:
    """Names parted by one blank or by several, whichever more rows fit."""
    words, wide = list(cells[heading]), _wide(lines[heading].text)
    if looks_like_time(words[0]):
        words, wide = ["Time", *words[1:]], []
    shown = list(zip(lines, cells, strict=True))[first : first + 20]
    fit = [
        sum(len(_fitted(line.text, row, names)) == len(names) for line, row in shown)
        for names in (words, wide)
    ]
    return wide if len(wide) > 1 and (fit[1], len(wide)) > (fit[0], len(words)) else words


def _fitted(text: str, row: list[str], names: Sequence[str]) -> list[str]:
    """The cells of a row; a command, and the cells of docker, may have blanks of their own."""
    spare = len(row) - len(names)
    if spare <= 0:
        return row
    wide = _wide(text)
    if len(wide) == len(names) > 1:
        return wide
    of_text = [i for i, name in enumerate(names) if name.lower() in _COMMANDS]
    if not of_text:
        return row
    at = of_text[0]
    return [*row[:at], " ".join(row[at : at + spare + 1]), *row[at + spare + 1 :]]


def _of_devices(
    lines: Sequence[Line], cells: Sequence[list[str]], heading: int, names: list[str]
) -> list[str]:
    """``names``; of nvidia-smi's dmon with the units that stand below them."""
    below = cells[heading + 1] if heading + 1 < len(cells) else []
    if not lines[heading].text.startswith("#") or "MB" not in below or len(below) != len(names):
        return names
    of_unit = {
        "MB": "memory.{} [MiB]",
        "W": "power.{} [W]",
        "C": "temperature.{}",
        "%": "utilization.{}",
    }
    named = [of_unit.get(unit, "{}").format(name) for name, unit in zip(names, below, strict=True)]
    return [
        "index" if name == "gpu" else "clocks." + name if name.endswith("clk") else name
        for name in named
    ]


def _of_layout(rows: list[Row], options: TableOptions, notes: list[str]) -> _Read:
    """Names for rows that a tool prints without a heading, then for any columns."""
    if rows[0][1] == ["PID"]:
        rows = [(line, cells) for line, cells in rows if cells != ["PID"]]
    for pattern, names in _LAYOUTS:
        # ``date`` may have been printed before each row.
        offset = int(looks_like_time(rows[0][1][0]))
        if re.fullmatch(pattern, " ".join(rows[0][1][offset:])):
            whole = [*["time"] * offset, *names.split()]
            notes.append(f"read as rows of {names}: memory without a unit is in KiB")
            fitted = [(line, _fitted(line.text, cells, whole)) for line, cells in rows]
            _check_rows(rows[0][0], whole, fitted, options, notes, "keep the rows of one tool")
            return whole, fitted, {}
    return _names_of_values(rows, None, options, notes)


def _names_of_values(
    rows: Sequence[Row], mark: str | None, options: TableOptions, notes: list[str]
) -> _Read:
    """Names for columns without a heading, by what their cells are.

    A time, names and one size: with a unit, or whole numbers as ``ps -o rss=`` prints them.
    """
    width = len(rows[0][1])
    full = [cells for _, cells in rows if len(cells) == width]
    columns = list(zip(*full, strict=True))
    kinds = [_kind(column, alone=width == 1) for column in columns]
    # Of two columns that count from 1970, the second is what was measured.
    kinds = ["whole" if k == "time" and "time" in kinds[:i] else k for i, k in enumerate(kinds)]
    names = [
        "name" if kind == "text" else "share (%)" if kind == "share" else kind for kind in kinds
    ]
    sizes = [i for i, kind in enumerate(kinds) if kind in ("whole", "number")]
    in_bytes = kinds.count("memory")
    is_pid = mark is None and sizes == [0, 1] and width == 2 and _are_pids(columns[0])
    if is_pid:
        names[0] = "PID"
        sizes = sizes[1:]
    known = in_bytes + len(sizes) == 1 and kinds.count("time") <= 1
    if sizes and (kinds[sizes[0]] == "number" and "time" not in kinds):
        known = False
    if not known or 2 * len(full) < len(rows):
        what = NO_SHAPE if is_prose([line for line, _ in rows]) else _NO_HEADING
        raise ConfigError(f"{options.source}:{rows[0][0].number}: {what}.")
    units = {}
    if sizes and kinds[sizes[0]] == "number":
        names[sizes[0]] = "value"
    elif sizes:
        # RSS is in KiB, and not in whole pages of pages.
        numbers = {int(cell) for cell in columns[sizes[0]]}
        in_pages = not is_pid and len(numbers) > 1 and not any(n % _PAGE_BYTES for n in numbers)
        of_ps = is_pid or max(numbers) >= _SURELY_KIB or not any(n % _PAGE_KIB for n in numbers)
        name, unit = ("memory", "bytes") if in_pages else ("RSS", "KiB") if of_ps else ("value", "")
        names[sizes[0]], units[name] = name, unit
        notes.append(_READ_AS[name])
    _check_rows(rows[0][0], names, rows, options, notes, "keep the rows of one kind")
    return names, list(rows), units


def _kind(cells: Sequence[str], *, alone: bool) -> str:
    """What a column without a name has: time, memory (with a unit), whole, number, share, text."""
    cells = [cell for cell in cells if not is_nothing(cell)] or ["-"]
    # A number alone is what was measured, however large it is.
    if all(map(looks_like_time, cells)) or (not alone and _count_from_1970(cells)):
        return "time"
    numbers = [number_in(cell) for cell in cells]
    read = [number for number in numbers if number is not None]
    if len(read) < len(cells):
        return "text"
    # kubectl: thousandths of a processor.
    if all(cell.endswith("%") or _MILLICORES.fullmatch(cell) for cell in cells):
        return "share"
    if any(in_bytes for _, in_bytes in read):
        return "memory"
    whole = all(cell.isdecimal() and len(cell) <= _DIGITS_MAX for cell in cells)
    return "whole" if whole else "number"


def _count_from_1970(cells: Sequence[str]) -> bool:
    return (
        is_since_1970(cells)
        and len(cells[0].partition(".")[0]) == len("1700000000")
        and all(float(a) <= float(b) for a, b in pairwise(cells))
    )


def _are_pids(cells: Sequence[str]) -> bool:
    # Numbers that come once each are no processes.
    return max(map(int, cells)) <= _PID_MAX and 2 * len(set(cells)) <= len(cells)


def _check_rows(
    heading: Line,
    names: Sequence[str],
    body: Sequence[Row],
    options: TableOptions,
    notes: list[str],
    hint: str,
) -> None:
    """Say which rows are left out because they have too few or too many cells; refuse many."""
    bad = [(line.number, len(cells)) for line, cells in body if len(cells) != len(names)]
    if not bad:
        return
    number, count = bad[0]
    if len(bad) == 1 and number == body[-1][0].number:
        notes.append(f"the last line ({number}) is cut short: left out")
    elif len(bad) <= max(_BAD_ROWS_LEAST, _BAD_ROWS_SHARE * len(body)) and len(bad) < len(body):
        notes.append(f"{len(bad)} lines with too few or too many cells left out, first {number}")
    elif 2 * len(bad) > len(body) and is_prose([line for line, _ in body]):
        raise ConfigError(f"{options.source}: {NO_SHAPE}.")
    else:
        raise ConfigError(
            f"{options.source}:{number}: {count} cells where the heading has {len(names)} (line "
            f"{heading.number}); {hint}."
        )


def _names(cells: Sequence[str]) -> bool:
    """Whether cells are names of columns: no numbers, unless one of them names a time."""
    return any(names_time(cell) for cell in cells) or not _has_number(_without_time(cells))


def _without_time(cells: Sequence[str]) -> list[str]:
    """``cells`` without the time that sysstat prints in the place of the first name."""
    skipped = bool(cells) and (looks_like_time(cells[0]) or names_time(cells[0]))
    return list(cells[skipped:])


def _has_number(cells: Sequence[str]) -> bool:
    return any(_is_value(cell) for cell in cells)


def _is_value(cell: str) -> bool:
    text = cell.strip()
    return number_in(text) is not None or looks_like_time(text) or bool(_GROUPED.fullmatch(text))


def _at(cells: Sequence[str], indices: Sequence[int]) -> list[str]:
    return [cells[i] for i in indices if i < len(cells)]


def _wide(text: str) -> list[str]:
    return [cell.strip() for cell in _WIDE_BLANKS.split(text.strip().lstrip("# "))]
