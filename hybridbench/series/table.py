"""Tables as text: parted by commas, semicolons, tabs or blanks, with a heading or without one.

What tools print again and again (ps, top, pidstat, docker stats, kubectl top, jstat, smem, dmon) is
a table whose heading comes again.  Without a heading the columns are known by their cells.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence

from hybridbench.errors import ConfigError
from hybridbench.series.cells import number_in
from hybridbench.series.grid import Grid, RawTable, TableOptions, table_of
from hybridbench.series.lines import Line, blank_cells
from hybridbench.series.refusals import NO_SHAPE, is_prose
from hybridbench.series.rows import Read, Row, check_rows, few, fitted, wide
from hybridbench.series.times import looks_like_time, names_time
from hybridbench.series.unnamed import names_of_values, of_layout

_LOOKED_AT = 200
# What a date of JavaScript or a cell in quotes holds parts no cells.
_NO_MARKS = re.compile(r'"[^"]*"|(?<=\d{4}), (?=\d)')
_COMMENT_ROW = re.compile(r"#\s*(Date\s+|Time\s+)*(gpu|Entity|Idx|YYYY\S*|HH\S*)\b")
_GROUPED = re.compile(r"[+-]?\d{1,3}([,.]\d{3})+([,.]\d+)?")
# mprof: keyword, series, MiB, seconds since 1970.
_MPROF = re.compile(r"(?:MEM|CHLD (?P<child>\d+)) (?P<mib>[\d.]+) (?P<at>\d+(\.\d+)?)")


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
    if not few(len(odd), len(lines)):
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


def _of_marks(lines: Sequence[Line], mark: str, options: TableOptions, notes: list[str]) -> Read:
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
        return names_of_values(rows, mark, options, notes)
    line, names = rows[above[-1]]
    if line is not lines[0]:
        notes.append(f"the heading is line {line.number}: what stands above it is left out")
    body = rows[max(first, above[-1] + 1) :]
    again = [at.number for at, cells in body if cells == names]
    if again:
        notes.append(f"the heading stands again in line {again[0]}: skipped")
    body = [(at, cells) for at, cells in body if cells != names]
    hint = "quote cells that hold the delimiter, or keep the columns that matter"
    check_rows(line, names, body, options, notes, hint)
    return names, body, {}


def _of_blanks(lines: Sequence[Line], options: TableOptions, notes: list[str]) -> Read:
    """What a table holds whose cells blanks part, its heading perhaps again and again."""
    cells = [blank_cells(line.text.lstrip("# ")) for line in lines]
    first = next((i for i, row in enumerate(cells) if not _names(row)), len(cells))
    heading = _heading(lines, cells, first)
    if heading is None:
        rows = list(zip(lines, cells, strict=True))
        return of_layout(rows, options, notes)
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
            body.append((line, fitted(line.text, row, names)))
    if not few(len(others), len(lines)):
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
    check_rows(lines[heading], names, body, options, notes, hint)
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
        if len(fitted(lines[first].text, row, names := cells[i])) == len(names)
        or len(wide(lines[i].text)) == len(row)
    ]
    # dmon has a second line, of units.
    of_units = fits[-2:] == [first - 2, first - 1] and lines[first - 1].text.startswith("#")
    return (fits[-2] if of_units else fits[-1]) if fits else first - 1


def _choose_names(
    lines: Sequence[Line], cells: Sequence[list[str]], heading: int, first: int
) -> list[str]:
    """Names parted by one blank or by several, whichever more rows fit."""
    words, apart = list(cells[heading]), wide(lines[heading].text)
    if looks_like_time(words[0]):
        words, apart = ["Time", *words[1:]], []
    shown = list(zip(lines, cells, strict=True))[first : first + 20]
    fit = [
        sum(len(fitted(line.text, row, names)) == len(names) for line, row in shown)
        for names in (words, apart)
    ]
    return apart if len(apart) > 1 and (fit[1], len(apart)) > (fit[0], len(words)) else words


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


def _names(cells: Sequence[str]) -> bool:
    """Whether cells are names of columns: no numbers, unless one of them names a time."""
    # A time comes first; to look at all cells of all rows would take long.
    return any(map(names_time, cells[:2])) or not _has_number(_without_time(cells))


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
