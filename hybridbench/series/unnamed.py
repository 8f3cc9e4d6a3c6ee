"""Identify columns without a heading from their cells: a time, names, and one size.

A heading is missing if grep removed it, or if a loop prints one number per line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import gcd

from hybridbench.series.cells import is_nothing, number_in, ungrouped
from hybridbench.series.grid import Grid, Row
from hybridbench.series.refusals import NO_SHAPE, OF_FILES, RECORD_PROCESS, is_prose
from hybridbench.series.source import Source, fitted
from hybridbench.series.times import is_epoch, is_moment, looks_like_time
from hybridbench.series.units import is_memory

# Rows of known tools, with the column names to use if the heading is missing.
_N, _D = r"\d+", r"[\d.,]+[kmgt]?"
_PAIR = r"[\d.]+[kKMGT]?i?B / [\d.]+[kKMGT]?i?B"
_LAYOUTS = (
    (rf"\S+ {_N} {_D} {_D} {_N} {_N} \S+ [A-Z]\S* \S+ [\d:.-]+ \S.*",
     "USER, PID, %CPU, %MEM, VSZ, RSS, TTY, STAT, START, TIME, COMMAND"),
    (rf"{_N} \S+ \S+ -?{_N} {_D} {_D} {_D} [A-Z] {_D} {_D} [\d:.]+ \S.*",
     "PID, USER, PR, NI, VIRT, RES, SHR, S, %CPU, %MEM, TIME+, COMMAND"),
    (rf"[\da-f]{{12}} \S+ {_D}% {_PAIR} {_D}% {_PAIR} {_PAIR} \d+",
     "CONTAINER ID, NAME, CPU %, MEM USAGE / LIMIT, MEM %, NET I/O, BLOCK I/O, PIDS"),
    (rf"total kB {_N} {_N} {_N}", "total, unit, VSZ, RSS, Dirty"),
    (r"\S*(/|\.(slice|service|scope))\S* (\d+|-) ([\d.]+|-) [\d.]+[BKMGT]? \S+ \S+",
     "Control Group, Tasks, %CPU, Memory, Input/s, Output/s"),
    # memory_profiler: the process, or one of its children.
    (r"(MEM|CHLD \d+) [\d.]+ \d+(\.\d+)?", "process, MEM (MiB), time"),
)  # fmt: skip
_PAGE_BYTES, _DIGITS_MAX, _PID_MAX = 4096, 18, 2**22
_FILE = re.compile(r"\.[A-Za-z]\w*$|[A-Za-z.~]/.")
_DATA_FILE = re.compile(r"\.(log|out|txt|jsonl?|csv|db|sqlite3?|wal)$")
_MILLICORES = re.compile(r"\d+m")
# A size followed by text that cannot be read, such as 512M(2%).
_LIKE_SIZE = re.compile(r"\d+(?:[.,]\d+)?\s*[KMGT]i?B?\b", re.I)
# A small number that is not a multiple of 4 KiB may be MiB from nvidia-smi.  So may multiples that
# are all below 4 MiB, or whose steps are all multiples of more than a page.  Above 128 GiB, the
# unit is not KiB.
_PAGE_KIB, _PROCESS_KIB, _SURELY_KIB, _KIB_MAX = 4, 4096, 100_000, 2**27
_READ_AS = {
    "RSS": "read as the output of ps: RSS is in KiB",
    "memory": "every number is a multiple of 4096: read as bytes, such as those of a "
    "cgroup's memory.current, which contains the page cache; if they are KiB, use --unit KiB",
    "value": "whole numbers that are not clearly those of ps (multiples of 4 KiB, from 4 MiB on): "
    "their unit is unknown; give it with --unit",
}
_NO_HEADING = (
    "the first line holds values; write a heading with the names of the columns above it "
    "(nvidia-smi: without noheader)"
)


def unnamed(rows: Sequence[Row], mark: str | None, source: Source) -> Grid:
    """Name the columns of rows without a heading; ``mark`` separates cells, None means spaces.

    Accepts rows of known tools, or a time, names and one size: with a unit, or whole numbers as
    ``ps -o rss=`` prints them.

    Raises:
        ConfigError: the columns cannot be identified.
    """
    rows = [row for row in rows if row[1] != ["PID"]]
    heading, first = rows[0]
    # ``date`` may have printed a time before each row.
    timed = looks_like_time(first[0])
    for pattern, names in () if mark else _LAYOUTS:
        if re.fullmatch(pattern, " ".join(first[timed:])):
            whole = [*["time"] * timed, *names.split(", ")]
            source.notes.append(f"read as rows of {names}")
            body = [(line, fitted(line.text, cells, whole)) for line, cells in rows]
            return Grid(whole, body, heading.number)
    labelled = _labelled(rows)
    if labelled is not None:
        return labelled
    full = [cells for _, cells in rows if len(cells) == len(first)]
    columns = list(zip(*full, strict=True))
    kinds: list[str] = []
    has_time = len(columns) == 1
    for column in columns:
        # Of two columns that look like epoch times, the second is the measurement.
        kinds.append(_kind(ungrouped(column, "," if mark == "," else ""), is_timed=has_time))
        has_time = has_time or kinds[-1] == "time"
    named = [{"text": "name", "share": "share (%)", "number": "value"}.get(k, k) for k in kinds]
    sizes = [i for i, kind in enumerate(kinds) if kind in ("memory", "whole", "number")]
    if kinds.count("memory") == 1 and "number" not in kinds:
        # Beside a size with its unit, whole numbers are ids, such as a GPU's.
        named = ["id" if kind == "whole" else name for name, kind in zip(named, kinds, strict=True)]
        sizes = [kinds.index("memory")]
    is_pid = mark is None and kinds == ["whole", "whole"] and _are_pids(columns[0])
    if is_pid:
        named[0] = "PID"
        sizes = sizes[1:]
    known = len(sizes) == 1 and kinds.count("time") <= 1 and 2 * len(full) >= len(rows)
    # The number that was read may then be an id beside the measurement.
    known = known and not any(map(_hides_size, columns, kinds))
    if not known or (kinds[sizes[0]] == "number" and "time" not in kinds):
        is_text = kinds[0] in ("text", "time") and is_prose([line for line, _ in rows])
        raise source.wrong(f"{NO_SHAPE if is_text else _NO_HEADING}.", heading.number)
    if kinds[sizes[0]] != "whole":
        return Grid(named, rows, heading.number)
    numbers = {int(c) for c in columns[sizes[0]] if not is_nothing(c)}
    name, unit = _size(numbers, is_pid=is_pid)
    # Numbers of ps beside a path are multiples of 4 KiB.
    of_file = _FILE if max(numbers) >= _SURELY_KIB else _DATA_FILE
    if name == "value" and any(map(of_file.search, first)):
        raise source.wrong(f"{OF_FILES}; {RECORD_PROCESS}.")
    # Its own name says what a value is; numbers without one may count, or be the size of a log.
    named[sizes[0]] = "number" if name == "value" and "name" not in named else name
    source.notes.append(_READ_AS[name])
    return Grid(named, rows, heading.number, {name: unit})


def _labelled(rows: Sequence[Row]) -> Grid | None:
    """Build a table of a time, a name and a value (``10:00:00 Heap used: 12 MB``), else None."""
    ends = [
        max((i for i, c in enumerate(cells) if c.endswith((":", "="))), default=0)
        for _, cells in rows
    ]
    body = [
        (line, [cells[0], " ".join(cells[1 : end + 1])[:-1], *cells[end + 1 :]])
        for end, (line, cells) in zip(ends, rows, strict=True)
        if end and is_moment(cells[0])
    ]
    if len(body) < len(rows) or any(len(cells) != 3 for _, cells in body):
        return None
    whole = {int(cells[2]) for _, cells in body if cells[2].isdecimal()}
    memory = {cells[1] for _, cells in body if is_memory(cells[1])}
    units = dict.fromkeys(memory, _size(whole, is_pid=False)[1] if whole else "")
    return Grid(["time", "name", "value"], body, units=units)


def _size(numbers: set[int], *, is_pid: bool) -> tuple[str, str]:
    """Return a name and a unit for whole numbers; the unit is empty if it is unknown.

    Multiples of 4096 are bytes: RSS in KiB would not be in multiples of 1024 pages.
    """
    if not is_pid and len(numbers) > 1 and not any(n % _PAGE_BYTES for n in numbers):
        return "memory", "bytes"
    in_pages = not any(n % _PAGE_KIB for n in numbers)
    large = _SURELY_KIB <= max(numbers) <= _KIB_MAX
    step = gcd(*(n - min(numbers) for n in numbers))
    small = max(numbers) >= _PROCESS_KIB and (len(numbers) < 3 or step == _PAGE_KIB)
    return ("RSS", "KiB") if is_pid or (in_pages and (large or small)) else ("value", "")


def _kind(cells: Sequence[str], *, is_timed: bool) -> str:
    """Classify a column without a name: time, memory (with a unit), whole, number, share, text."""
    cells = [cell for cell in cells if not is_nothing(cell)] or ["-"]
    # A number alone, or beside a time, is the measurement, however large it is.
    counts = not is_timed and all(map(is_epoch, cells))
    # Fractions and milliseconds are not byte counts, so they need not be in order.
    counts = counts and (min(map(len, cells)) > 12 or sorted(cells, key=float) == list(cells))
    if counts or all(map(looks_like_time, cells)):
        return "time"
    numbers = [number_in(cell) for cell in cells]
    if None in numbers:
        return "text"
    # kubectl: thousandths of a processor core.
    if all(cell.endswith("%") or _MILLICORES.fullmatch(cell) for cell in cells):
        return "share"
    if any(number is not None and number[1] for number in numbers):
        return "memory"
    whole = all(cell.isdecimal() and len(cell) <= _DIGITS_MAX for cell in cells)
    return "whole" if whole else "number"


def _hides_size(cells: Sequence[str], kind: str) -> bool:
    """Return whether changing text begins like a size, so that a measurement is not read."""
    changes = kind == "text" and len(set(cells)) > 1
    return changes and all(map(_LIKE_SIZE.match, cells))


def _are_pids(cells: Sequence[str]) -> bool:
    # Process ids recur: numbers that occur once each are not ids.  Several multiples of 4 are KiB.
    ids = {int(cell) for cell in cells if not is_nothing(cell)}
    of_pages = len(ids) > 1 and not any(n % _PAGE_KIB for n in ids)
    return max(ids) <= _PID_MAX and 2 * len(ids) <= len(cells) and not of_pages
