"""Read text tables: split by commas, semicolons, tabs or spaces, with or without a heading.

Tools that print repeatedly (ps, top, pidstat, docker stats, kubectl top, jstat, smem, dmon) repeat
the heading.  Without a heading, columns are recognised by their cells.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import replace

from hybridbench.series.cells import is_nothing, number_in, ungrouped
from hybridbench.series.grid import METRIC_NAME, Grid, Row
from hybridbench.series.owners import TextColumn, labels, splits
from hybridbench.series.refusals import NO_SHAPE, is_prose
from hybridbench.series.source import Line, Source, blank_cells, fitted, wide
from hybridbench.series.times import is_moment, looks_like_time, names_time, unit_in
from hybridbench.series.units import BYTE_FACTORS, heading_unit
from hybridbench.series.unnamed import unnamed

# Lines examined, rows used to choose a heading, lines in which it may stand.
_LOOKED_AT, _FITTED, _TITLES = 200, 20, 3
_OTHER_REPORT = (
    "another report begins, with other columns; record one, such as `pidstat -r -p PID 10`."
)
# Marks inside a JavaScript date, a quoted cell or an aligned number do not separate cells.
_NO_MARKS = re.compile(r'"[^"]*"|(?<=\d{4}), (?=\d\d?:)|(?<=\s\s)\d{1,3}(,\d{3})+(?=\s|$)')
# dmon's names and units, mapped to those of --query-gpu.
_OF_DMON = {
    "gpu": "index", "mclk": "clocks.mclk", "pclk": "clocks.pclk", "MB": "memory.{} [MiB]",
    "W": "power.{} [W]", "C": "temperature.{}", "%": "utilization.{}",
}  # fmt: skip
_COMMENT_ROW = re.compile(r"#\s*(Date\s+|Time\s+)*(gpu|Entity|Idx|YYYY\S*|HH\S*)\b")
_UNIT = re.compile(r"%|\u00b0?[cf]|[wvac]|[kmg]?hz|count|1")
_GERMAN_DATE = re.compile(r"\d\d?\.\d\d?\.\d{4}\b")


def table(lines: Sequence[Line], source: Source) -> Grid:
    """Return a table with one row per line.

    Raises:
        ConfigError: a heading is needed but missing, or lines do not fit the table.
    """
    values = next((line for line in lines if line.text.lstrip()[:1] != "#"), None)
    width = 0 if values is None else len(blank_cells(values.text))
    lines = [line for line in lines if _is_row(line.text, width)]
    if not lines:
        raise source.wrong("has only comments; pass a table.")
    mark = _mark(lines)
    rows = _as_wide_as_heading(_parted(lines, mark, source))
    read = (_of_blanks if mark is None else _of_marks)(rows, source) or unnamed(rows, mark, source)
    sizes = [name for name in read.names if name in ("RSS", "VSZ", "VIRT", "RES")]
    if sizes and mark is None and not read.units:
        said = f"{', '.join(sizes)}: in KiB where no unit stands, as ps, top, pidstat print"
        source.notes.append(said)
    # Where dates are written 31.12.2026, the comma is the decimal point.
    german = any(_GERMAN_DATE.match(cell) for _, cells in read.rows[:1] for cell in cells)
    groups = "," if mark == "," else "." * german
    # Where the comma is the decimal point, the semicolon separates cells.
    unsure = {",": "", ";": ",."}.get(mark or "", ",")
    whole = _whole(read, rows, mark, source)
    return replace(whole, of_tool=mark is None, groups=groups, unsure=unsure)


def _is_row(text: str, width: int) -> bool:
    """Return whether a line is a row or a commented heading, not a plain comment.

    A commented heading names a time or a GPU.  If only single spaces separate its names, there
    must be ``width`` of them, the number of cells in the first row.
    """
    stripped = text.strip()
    if not stripped.startswith("#"):
        return True
    each = stripped.lstrip("# ").split()
    if len(each) == width > 1 and any(map(names_time, each)):
        return True
    words = [word.strip() for word in re.split(r"\s{2,}|[,;\t|]", stripped.lstrip("# "))]
    return (len(words) > 1 and any(map(names_time, words))) or bool(_COMMENT_ROW.match(stripped))


def _untied(cells: list[str]) -> list[str]:
    """Strip the colon or brackets from a time in the first cell."""
    time = cells[0].strip("[]").removesuffix(":") if cells else ""
    return [time, *cells[1:]] if is_moment(time) else cells


def _mark(lines: Sequence[Line]) -> str | None:
    """Find the separator: the mark with the same count in most lines; None for spaces."""
    texts = [_NO_MARKS.sub(" ", line.text) for line in lines[:_LOOKED_AT]]
    # If the heading has no commas but the numbers have, they are decimal commas.
    words = [re.split(r"[\s,;]+", text) for text in texts]
    first = next((i for i, each in enumerate(words) if any(map(_is_value, each))), 0)
    for mark in ("\t", ";", ",", "|"):
        counts = [text.count(mark) for text in texts]
        usual = max(set(counts), key=counts.count)
        in_most = usual and 2 * counts.count(usual) >= len(counts)
        if in_most and texts[max(first - 1, 0)].count(mark):
            return mark
    return None


def _parted(lines: Sequence[Line], mark: str | None, source: Source) -> list[Row]:
    if mark is None:
        return [(line, _untied(blank_cells(line.text.lstrip("# ")))) for line in lines]
    reader = csv.reader([line.text for line in lines], delimiter=mark, skipinitialspace=True)
    try:
        rows = [(lines[reader.line_num - 1], [cell.strip() for cell in row]) for row in reader]
    except csv.Error as error:
        number = lines[min(reader.line_num, len(lines)) - 1].number
        raise source.wrong(f"is not a table ({error}); is a quote left open?", number) from error
    if mark != "\t" or len({len(cells) for _, cells in rows}) == 1:
        return rows
    # Several tabs in a row may align columns by hand.
    full = [(line, list(filter(None, cells))) for line, cells in rows]
    return full if len({len(cells) for _, cells in full}) == 1 else rows


def _as_wide_as_heading(rows: Sequence[Row]) -> Sequence[Row]:
    """Drop the cell by which the rows exceed the heading.

    It is the empty one behind a last mark, or the row's number, as R and pandas print it.
    """
    width = len(rows[0][1]) + 1
    longer = [cells for _, cells in rows if len(cells) == width]
    if len(longer) < 2 or 2 * len(longer) < len(rows):
        return rows
    numbers = [cells[0] for cells in longer]
    if not any(cells[-1] for cells in longer):
        return [(line, cells[: width - 1]) for line, cells in rows]
    if numbers == [str(int(numbers[0] != "0") + i) for i in range(len(numbers))]:
        return [(line, cells[1:] if len(cells) == width else cells) for line, cells in rows]
    return rows


def _of_marks(rows: Sequence[Row], source: Source) -> Grid | None:
    """Build a table split by a mark, perhaps below a title; None if it has no heading."""
    typical = rows[3 * len(rows) // 4][1]
    numeric = [i for i, cell in enumerate(typical) if _is_value(cell)]
    first = 0
    if numeric:
        full = (all(_is_value(cells[i]) for i in numeric if i < len(cells)) for _, cells in rows)
        first = next((i for i, is_full in enumerate(full) if is_full), 0)
    if not any(_is_value(cell) for _, cells in rows for cell in cells):
        raise source.wrong(f"{NO_SHAPE}.")
    # A time beside cells without numbers is not a name.
    words = (i for i in range(first) if _names(rows[i][1]))
    above = [i for i in words if not any(map(looks_like_time, rows[i][1]))]
    above = above or ([] if numeric else [0])
    if not above:
        return None
    line, last = rows[above[-1]]
    before, body = [rows[i][1] for i in above[:-1]], rows[above[-1] + 1 :]
    keyed = _of_attributes(before, last) if any(map(_is_value, rows[first][1][:1])) else None
    names, used = keyed or _joined(before, last)
    if used < above[-1]:
        source.notes.append(f"the heading is line {line.number}: the lines above it are skipped")
    # A first column without a name is the pandas index.
    named = [name or ("value" if index else "") for index, name in enumerate(names)]
    again = [at.number for at, cells in body if cells == last]
    if again:
        source.notes.append(f"the heading stands again in line {again[0]}: skipped")
    return Grid(named, [row for row in body if row[1] != last], line.number)


def _of_attributes(above: Sequence[list[str]], last: list[str]) -> tuple[list[str], int] | None:
    """Name the columns of rows that begin with a key: Label, Unit, pod; None for other rows.

    So write CloudWatch, Google Cloud and pandas.  Returns the names and the number of rows used.
    """
    if names_time(last[0]) and any(last[1:]):
        return None
    rows = {row[0]: row[1:] for row in (last, *reversed(above)) if len(row) == len(last)}
    metric = next((key for key in rows if METRIC_NAME.fullmatch(key)), None)
    if metric is None or (len(rows) == 1 and last[0] == metric):
        return None
    units = rows.get("Unit", [""] * len(rows[metric]))
    names = [f"{name}{heading_unit(unit)}" for name, unit in zip(rows[metric], units, strict=True)]
    owners = [TextColumn(metric, names)]
    for key, row in rows.items():
        column = TextColumn(key, row)
        owners += [column] if splits(owners, column) else []
    told = [labels((one.name, one.cells[i]) for one in owners[1:]) for i in range(len(names))]
    return ["time", *map("".join, zip(names, told, strict=True))], len(above)


def _joined(above: Sequence[list[str]], names: list[str]) -> tuple[list[str], int]:
    """Complete ``names`` with the rows above them; return them and the number of rows used.

    A row above is used if ``names`` are the units of its names, or if two of ``names`` are the
    same.
    """
    used = 0
    for upper in reversed(above):
        units = [name.strip("()[]-") for name in names]
        of_units, named = _are_units(units), [name for name in names if name]
        is_short = len(set(named)) < len(named)
        if len(upper) != len(names) or not (of_units or is_short):
            break
        pairs = zip(upper, units if of_units else names, strict=True)
        form = "{} ({})" if of_units else "{} {}"
        names = [form.format(*two) if all(two) else "".join(two) for two in pairs]
        used += 1
    return names, used


def _are_units(words: Sequence[str]) -> bool:
    """Return whether cells are units or empty, at least one of them of memory or time."""
    lower = {word.lower() for word in words} - {""}
    known = {word for word in lower if word in BYTE_FACTORS or unit_in(word)} - {"date", "datum"}
    return bool(known) and all(map(_UNIT.fullmatch, lower - known))


def _of_blanks(rows: Sequence[Row], source: Source) -> Grid | None:
    """Build a table split by spaces, perhaps with repeated headings; None if it has no heading."""
    rows = _below_title(rows, source)
    first = next((i for i, (_, cells) in enumerate(rows) if not _names(cells)), len(rows))
    # ps -o pid,rss= prints only the heading of the first column.
    only_pid = 0 < first < len(rows) and rows[first - 1][1] == ["PID"] and len(rows[first][1]) == 2
    if first == 0 or only_pid:
        return None
    at, names = _heading(rows, first)
    if at:
        # The time column may have no name.
        lead = max(0, len(names) - len(rows[at][1]))
        names = [*names[:lead], *_joined([rows[at - 1][1]], names[lead:])[0]]
    heading, words = rows[at]
    again = {line.text for line, _ in rows[:first]}
    body: list[Row] = []
    others: list[Line] = []
    prose = is_prose([line for line, _ in rows])
    for line, row in rows[first:]:
        if _without_time(row) == _without_time(words) or line.text in again or line.text[0] == "#":
            continue
        if _names(row) and len(row) > 1 and not any(map(is_nothing, row)):
            others.append(line)
            if looks_like_time(row[0]):
                # The names of a report are far apart, the words of a log are not.
                is_log = prose and 2 * len(wide(line.text)) <= len(row)
                raise source.wrong(f"{NO_SHAPE}." if is_log else _OTHER_REPORT, line.number)
        # sysstat's "Average:" row, in any language.
        elif not (looks_like_time(words[0]) and row[0].endswith((":", "\uff1a"))):
            body.append((line, fitted(line.text, row, names)))
    # The headings of other reports are few: more lines of words than of numbers are another format.
    refusal = f"{NO_SHAPE}." if prose or len(others) > len(body) else _OTHER_REPORT
    source.leave_out(others, [line for line, _ in rows], "without numbers", refusal)
    return Grid(_of_devices(rows, at, names), body, heading.number)


def _below_title(rows: Sequence[Row], source: Source) -> Sequence[Row]:
    """Drop a title that has a number in it, such as "test 7", from above the heading."""
    at = next((i for i, (_, cells) in enumerate(rows[1:-1][:_TITLES], 1) if _names(cells)), 0)
    width = len(rows[at][1])
    if not at or _names(rows[0][1]) or len(rows[0][1]) == width or len(rows[at + 1][1]) != width:
        return rows
    source.notes.append(f"the heading is line {rows[at][0].number}: the lines above it are skipped")
    return rows[at:]


def _heading(rows: Sequence[Row], first: int) -> tuple[int, list[str]]:
    """Return the index and the names of the row above ``first`` whose names fit most rows.

    ``first`` is the index of the first numeric row.  Names may be separated by one space or by
    several; sysstat prints a time instead of the first name.
    """
    shown = [row for row in rows[first : first + _FITTED] if not _names(row[1])]

    def fit(named: tuple[int, list[str]]) -> tuple[int, bool, int, int]:
        at, names = named
        fits = sum(len(fitted(line.text, row, names)) == len(names) for line, row in shown)
        # dmon has a second heading line with units.
        is_marked = rows[at][0].text[0] == "#"
        return fits, is_marked, -at if is_marked else at, len(names)

    found = []
    for at in range(max(0, first - 3), first):
        line, words = rows[at]
        is_timed, apart = looks_like_time(words[0]), wide(line.text)
        found.append((at, ["Time", *words[1:]] if is_timed else words))
        # pmrep and rrdtool have no name above the times.
        if shown and is_moment(shown[0][1][0]) and not (is_timed or names_time(words[0])):
            found.append((at, ["Time", *words]))
        # smem puts one space between PID and User.
        if not (is_timed or any(name.startswith("PID ") for name in apart)):
            found.append((at, apart))
    best = max(found, key=fit)
    return best if fit(best)[0] else (first - 1, rows[first - 1][1])


def _of_devices(rows: Sequence[Row], at: int, names: list[str]) -> list[str]:
    """Return ``names``; convert dmon's to those of --query-gpu, using the units below them."""
    below = rows[at + 1][1] if at + 1 < len(rows) else []
    if not rows[at][0].text.startswith("#") or "MB" not in below or len(below) != len(names):
        return names
    return [
        _OF_DMON.get(name, _OF_DMON.get(unit, "{}")).format(name)
        for name, unit in zip(names, below, strict=True)
    ]


def _whole(read: Grid, rows: Sequence[Row], mark: str | None, source: Source) -> Grid:
    """Drop the few rows of ``read`` that do not have one cell per name."""
    width = len(read.names)
    good = [row for row in read.rows if len(row[1]) == width]
    bad = [row for row in read.rows if len(row[1]) != width]
    is_lost = len(good) <= 2 * len(bad)
    is_empty = len(rows) > 2 and not read.rows
    if is_lost and (is_empty or is_prose([line for line, _ in rows])):
        raise source.wrong(f"{NO_SHAPE}.")
    hint = "keep one table" if mark is None else "quote cells that hold the delimiter"
    source.leave_out(
        [line for line, _ in bad],
        [line for line, _ in read.rows],
        "with too few or too many cells",
        f"{len(bad[0][1]) if bad else 0} cells where the heading has {width} (line {read.heading})"
        f"; {hint}, or keep the columns that matter.",
    )
    return replace(read, rows=good)


def _names(cells: Sequence[str]) -> bool:
    """Return whether cells are column names: no numbers, unless one of them names a time."""
    # A time comes first; checking all cells of all rows would take too long.
    return any(map(names_time, cells[:2])) or not any(map(_is_value, _without_time(cells)))


def _without_time(cells: Sequence[str]) -> list[str]:
    """Drop the time that sysstat prints instead of the first name."""
    skipped = bool(cells) and (looks_like_time(cells[0]) or names_time(cells[0]))
    return list(cells[skipped:])


def _is_value(cell: str) -> bool:
    (text,) = ungrouped([cell.strip()], ",.")
    return number_in(text) is not None or looks_like_time(text)
