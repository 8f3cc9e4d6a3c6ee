"""What is printed anew for each sample: ``/proc`` files, /metrics pages, top, nvidia-smi dmon."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise

from hybridbench.series.cells import number_in
from hybridbench.series.table import Grid, RawTable, TableOptions, table_of
from hybridbench.series.times import BadTimeError, looks_like_time, parse_moment

# VmRSS:  123 kB, or anon 4096, or vllm:num_requests_running{engine="0"} 3.0 [1700000000000]
_PAIR = re.compile(
    r"(?P<name>[A-Za-z_:][\w:.()]*(?:\{.*\})?):?\s+"
    r"(?P<number>[+-]?(?:\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|Inf|NaN))"
    r"(?:\s+(?P<unit>kB)|\s+\d{13})?"
)
_MOMENT = re.compile(r"1\d{9}(\.\d+)?")
_STEP_S_MAX = 3600.0
# A histogram is its sum and its count; when a series was created is no level.
_NO_SERIES = re.compile(r"_(bucket|created)(\{|$)")
# The first lines of /proc/PID/status and smaps_rollup are no pairs.
_OF_PROC = re.compile(r"Name:\s+\S|[0-9a-f]+-[0-9a-f]+ .*\[rollup\]$")
_TOP = re.compile(r"top - (\d\d:\d\d:\d\d) up ")
_OF_TOP = ("VIRT", "RES", "SHR")
_LOOKED_AT = 12  # lines, of which a time and the comments of a page are some

Screens = Callable[[Sequence[str], TableOptions], RawTable]


def screens_of(text: str) -> Screens | None:
    """The reader of ``text``, or None if it is not printed sample by sample."""
    lines = _first_lines(text.splitlines())
    if not lines:
        return None
    if _TOP.match(lines[0]):
        return _top
    if len(lines) > 1 and re.match(r"#\s*(Date\s+)?(Time\s+)?gpu\s", lines[0]):
        return _dmon
    if _OF_PROC.match(lines[0]):
        return _pairs
    numbers = [line for line in lines if not line.startswith("#")]
    if not numbers and not lines[0].startswith(("# HELP ", "# TYPE ")):
        return None
    return _pairs if all(map(_PAIR.fullmatch, numbers)) else None


def _first_lines(lines: Sequence[str]) -> list[str]:
    """Some lines of the first sample, without the time before it."""
    stripped = (line.strip() for line in lines[:_LOOKED_AT])
    return [line for line in stripped if line and not _is_moment(line)][:3]


def stamped(text: str) -> str:
    """``text`` with each line that is a time put before the lines below it, as ``date`` in a loop.

    Other text is returned as it is.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines or not _is_moment(lines[0]):
        return text
    moments = [_is_moment(line) for line in lines]
    if all(moments):
        # Bytes may look like seconds since 1970.
        seconds = [float(line) if _MOMENT.fullmatch(line) else 0.0 for line in lines[::2]]
        if not all(0 < b - a < _STEP_S_MAX for a, b in pairwise(seconds)):
            return text
        moments = [index % 2 == 0 for index in range(len(lines))]
    told, at = list[str](), ""
    for line, is_moment in zip(lines, moments, strict=True):
        if is_moment:
            at = f"{parse_moment(line).t_s[0]:.0f}"
        else:
            is_heading = all(number_in(cell) is None for cell in line.split())
            told.append(f"{'time' if is_heading else at}   {line}")
    return "\n".join(told)


def _is_moment(line: str) -> bool:
    if _MOMENT.fullmatch(line):
        return True
    try:
        return looks_like_time(line) and parse_moment(line).absolute
    except BadTimeError:
        return False


def _pairs(lines: Sequence[str], options: TableOptions) -> RawTable:
    """Names with one number each; a name that comes again begins the next sample."""
    # Its other numbers are ids, masks and context switches.
    of_proc = bool(_OF_PROC.match(_first_lines(lines)[0]))
    samples: list[tuple[int, dict[str, str]]] = []
    odd: list[int] = []
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line.startswith("#"):
            continue
        match = _PAIR.fullmatch(line)
        if match is None and not _is_moment(line):
            odd += [] if of_proc else [number]
            continue
        if match is None:
            samples.append((number, {"time": line}))
            continue
        name = match["name"].rstrip(":") + (" (KiB)" if match["unit"] else "")
        if _NO_SERIES.search(name) or (of_proc and not match["unit"] and name != "Threads"):
            continue
        if not samples or name in samples[-1][1]:
            samples.append((number, {}))
        samples[-1][1][name] = match["number"]
    notes = [f"{len(odd)} lines left out, not a name and a number, first {n}" for n in odd[:1]]
    names = list(dict.fromkeys(name for _, sample in samples for name in sample))
    rows = [[sample.get(name, "") for name in names] for _, sample in samples]
    return table_of(Grid(names, rows, [at for at, _ in samples]), options, notes)


def _top(lines: Sequence[str], options: TableOptions) -> RawTable:
    """The processes that ``top -b`` lists; plain numbers are KiB."""
    rows: list[list[str]] = []
    at: list[int] = []
    time, heading = "", list[str]()
    for number, line in enumerate(lines, 1):
        cells = line.split()
        match = _TOP.match(line)
        if match is not None:
            time, heading = match[1], []
        elif "PID" in cells and "RES" in cells:
            heading = cells
        elif len(cells) >= len(heading) > 0:
            row = dict(zip(heading, cells, strict=False))
            sizes = (row.get(name, "") for name in _OF_TOP)
            rows.append([time, row["PID"], *(f"{s}KiB" if s.isdecimal() else s for s in sizes)])
            at.append(number)
    note = "read as the output of top: VIRT, RES and SHR of each process"
    return table_of(Grid(["time", "PID", *_OF_TOP], rows, at), options, [note])


def _dmon(lines: Sequence[str], options: TableOptions) -> RawTable:
    """The memory that ``nvidia-smi dmon`` shows of each GPU."""
    heading = [line for line in lines if line.strip()][:2]
    names, units = (line.strip("# ").split() for line in heading)
    taken = [i for i, unit in enumerate(units) if unit == "MB" or names[i] in ("Date", "Time")]
    taken.append(names.index("gpu"))
    head = [f"memory.{names[i]} [MiB]" if units[i] == "MB" else names[i] for i in taken]
    rows: list[list[str]] = []
    at: list[int] = []
    for number, line in enumerate(lines, 1):
        cells = line.split()
        if len(cells) == len(names) and not cells[0].startswith("#"):
            rows.append([cells[i] for i in taken])
            at.append(number)
    note = "read as the output of nvidia-smi dmon: the columns in MB, which are MiB"
    return table_of(Grid([*head[:-1], "index"], rows, at), options, [note])
