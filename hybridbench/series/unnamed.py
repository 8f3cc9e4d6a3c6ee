"""Columns without a heading, known by their cells: a time, names, and one size.

A heading is missing where grep took it, or where a loop prints one number a line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from hybridbench.errors import ConfigError
from hybridbench.series.cells import is_nothing, number_in
from hybridbench.series.grid import TableOptions
from hybridbench.series.refusals import NO_SHAPE, is_prose
from hybridbench.series.rows import Read, Row, check_rows, fitted
from hybridbench.series.times import is_since_1970, looks_like_time

# Of seconds, ms, us and ns.
_DIGITS_SINCE_1970 = (10, 13, 16, 19)
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


def of_layout(rows: list[Row], options: TableOptions, notes: list[str]) -> Read:
    """Names for rows that a tool prints without a heading, then for any columns."""
    if rows[0][1] == ["PID"]:
        rows = [(line, cells) for line, cells in rows if cells != ["PID"]]
    for pattern, names in _LAYOUTS:
        # ``date`` may have been printed before each row.
        offset = int(looks_like_time(rows[0][1][0]))
        if re.fullmatch(pattern, " ".join(rows[0][1][offset:])):
            whole = [*["time"] * offset, *names.split()]
            notes.append(f"read as rows of {names}: memory without a unit is in KiB")
            whole_rows = [(line, fitted(line.text, cells, whole)) for line, cells in rows]
            hint = "keep the rows of one tool"
            check_rows(rows[0][0], whole, whole_rows, options, notes, hint)
            return whole, whole_rows, {}
    return names_of_values(rows, None, options, notes)


def names_of_values(
    rows: Sequence[Row], mark: str | None, options: TableOptions, notes: list[str]
) -> Read:
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
    is_pid = mark is None and kinds == ["whole", "whole"] and _are_pids(columns[0])
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
        numbers = {int(cell) for cell in columns[sizes[0]] if not is_nothing(cell)}
        in_pages = not is_pid and len(numbers) > 1 and not any(n % _PAGE_BYTES for n in numbers)
        of_ps = is_pid or max(numbers) >= _SURELY_KIB or not any(n % _PAGE_KIB for n in numbers)
        name, unit = ("memory", "bytes") if in_pages else ("RSS", "KiB") if of_ps else ("value", "")
        names[sizes[0]], units[name] = name, unit
        notes.append(_READ_AS[name])
    check_rows(rows[0][0], names, rows, options, notes, "keep the rows of one kind")
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
        and len(cells[0].partition(".")[0]) in _DIGITS_SINCE_1970
        and all(float(a) <= float(b) for a, b in pairwise(cells))
    )


def _are_pids(cells: Sequence[str]) -> bool:
    # Numbers that come once each are no processes.
    ids = [int(cell) for cell in cells if not is_nothing(cell)]
    return max(ids) <= _PID_MAX and 2 * len(set(ids)) <= len(cells)
