"""Parse numbers in table cells: units, thousands separators, empty cells."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import log

from hybridbench.series.units import BYTE_FACTORS

_NOTHING = frozenset(
    {"", "-", "--", "-- / --", "null", "none", "n/a", "na", "nan", "nil", "undefined"}
)
# Words of nvidia-smi and kubectl for a value that they cannot read: [N/A], [Not Supported],
# <unknown>.
_NOTHING_IN_BRACKETS = re.compile(r"[\[<][A-Za-z/ ]+[\]>]")
# A number and its unit, perhaps as one of a total (12 MB / 2 GB, 12/2048 MB, 12 MB of 2 GB) or with
# its share or another remark: 12 MB (1%).  top on macOS appends + or - to a size that has changed.
_WITH_UNIT = re.compile(
    r"(?:[~\u2248] ?)?([+-]?\d+(?:[.,]\d+)?(?:[eE][+-]?\d+)?)\s*(?:([A-Za-z%]+)[+-]?)?"
    r"(?:\s*/\s*\d[\d.,]*\s*([A-Za-z]+)|\s*/.*|\s+of\s+\d.*|\s*\([^()]*\))?"
)
# French, Swiss and SI separators of thousands: spaces and apostrophes.
_GROUPED_BY_SPACES = re.compile(
    "(?<!\\d)\\d{1,3}(?:([ \xa0\u2009\u202f'\u2019])\\d{3})(?:\\1\\d{3})*(?!\\d)"
)
# For each thousands separator: the matching decimal point, and a pattern for grouped numbers.
_GROUPED = {
    # Indian grouping is accepted too: 8,19,200.
    ",": (".", re.compile(r"[+-]?[1-9]\d{0,2}(,\d\d)*(,\d{3})+(\.\d+)?(?![\d,.])")),
    ".": (",", re.compile(r"[+-]?[1-9]\d{0,2}(\.\d{3})+(,\d+)?(?![\d,.])")),
}
_THREE_DIGITS = re.compile(r"[1-9]\d{0,2}[,.]\d{3}(?:\s*[A-Za-z]+)?(?:\s*/.*)?")
_PROCESS_BYTES = (2.0**23, 2.0**37)  # plausible process memory, to decide between two readings
_NEARER = 1000.0**0.5
# top, smem -k and docker use one-letter units and count in powers of 2.
_LETTERS = {"k": 2.0**10, "m": 2.0**20, "g": 2.0**30, "t": 2.0**40}
CELL_UNITS: Mapping[str, float] = {**BYTE_FACTORS, **_LETTERS}
# Units that mean powers of 1000 or of 1024, depending on the program.
_EITHER = {"kb": 1, "mb": 2, "gb": 3, "tb": 4}
_JUMP_MAX = 2.0 * log(1.024)
_MILLI_LEAST = 2.0**23  # 8 TiB in MiB; from here on, m is Kubernetes' thousandth of a byte


def written(text: str) -> tuple[str, str] | None:
    """Return the digits in a cell and their unit in lower case, which may be empty; else None.

    ``12,3MiB / 2GiB`` is 12.3 and mib.
    """
    if is_number(text):
        return text, ""
    text = _GROUPED_BY_SPACES.sub(lambda match: match[0].replace(match[1], ""), text)
    match = _WITH_UNIT.fullmatch(text)
    if match is None:
        return None
    return match[1].replace(",", "."), (match[2] or match[3] or "").lower()


def number_in(text: str) -> tuple[float, bool] | None:
    """Return the number in a cell, and whether it is in bytes; None if the cell is not a number."""
    read = written(text)
    return None if read is None else converted(float(read[0]), read[1])


def converted(
    number: float, unit: str, heading_unit: str = "", units: Mapping[str, float] = CELL_UNITS
) -> tuple[float, bool] | None:
    """Return ``number`` of ``unit`` in bytes and True; with no unit as it is and False; else None.

    A unit that the column heading also has (``heading_unit``, in lower case) is ignored.  ``units``
    are the bytes in each unit, as ``units_of`` returns them.
    """
    if unit in ("", "%", heading_unit):
        return number, False
    if unit not in units:
        return None
    if unit == "m" and number >= _MILLI_LEAST:
        return number / 1000.0, True
    return number * units[unit], True


def units_of(read: Iterable[tuple[str, str]], kb: float) -> Mapping[str, float]:
    """Return the bytes in each unit of the numbers ``read`` in a column, whose KB is ``kb`` bytes.

    A program that writes 1023 MB and then 1 GB counts in powers of 1024, one that writes 999 MB
    and then 1 GB in powers of 1000: the base is the one with which the level does not jump where
    the unit changes.
    """
    known = [(float(digits), _EITHER[unit]) for digits, unit in read if unit in _EITHER]
    sizes = [(log(number), power) for number, power in known if number > 0]
    turns = [(b - a, powers) for (a, p), (b, q) in pairwise(sizes) if (powers := q - p)]
    if not turns:
        return {**CELL_UNITS, "kb": kb}

    def jumps(base: float) -> float:
        # More than that is a move of the level itself, which decides nothing.
        return sum(min(abs(moved + powers * log(base)), _JUMP_MAX) for moved, powers in turns)

    base = min((kb, 1000.0, 1024.0), key=jumps)
    return {**CELL_UNITS, **{unit: base**power for unit, power in _EITHER.items()}}


def last_digit(digits: str, number: float) -> float:
    """Return the value of one unit in the last of ``digits``, read as ``number``; 0 if that is 0.

    It is 0.1 GiB for 1.2 and the number of bytes in 1.2 GiB.
    """
    if not float(digits):
        return 0.0
    return abs(number / float(digits)) * 10.0 ** -len(digits.partition(".")[2])


def is_number(text: str) -> bool:
    """Return whether ``text`` is a plain number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def is_nothing(text: str) -> bool:
    """Return whether a cell means that no value was read."""
    return text.lower() in _NOTHING or bool(_NOTHING_IN_BRACKETS.fullmatch(text))


def ungrouped(
    cells: Sequence[str], groups: str = "", unsure: str = "", unit: str = ""
) -> Sequence[str]:
    """Remove thousands separators from ``cells``: 3,276.80 and 3.276,80 become 3276.8.

    ``1,800`` is ambiguous.  It is read as 1800 if the comma is in ``groups``, the marks that
    separate thousands in this file, or if neighbouring cells without a mark are close to it, such
    as 999.  For memory with a unit, in the cell or else ``unit``, a size that no process has is
    ruled out: ``1.800 GiB`` is 1.8 GiB; ``1,800 MiB`` is 1800 MiB if the comma is in ``unsure``,
    the marks that may be either.
    """
    for mark, (point, grouped) in _GROUPED.items():
        # Ignore the limit after a slash, which may have a mark of its own.
        marked = [cell.partition("/")[0].strip() for cell in cells if mark in cell]
        if marked and all(map(grouped.match, marked)):
            sure = any(point in c or c.count(mark) > 1 for c in marked)
            likely = favours_groups(marked[0], mark, unit)
            if mark == ",":
                sure = sure or mark in groups or (mark in unsure and likely > 0)
            else:
                sure = sure or (mark in groups and likely >= 0)
            if sure or (len(marked) < len(cells) and _passes_a_thousand(cells, mark)):
                return [cell.replace(mark, "") for cell in cells]
    return cells


def may_be_grouped(cells: Sequence[str]) -> bool:
    """Return whether every cell looks like 1,800 or 1.800, which may mean 1.8 or 1800."""
    return all(_THREE_DIGITS.fullmatch(cell.strip()) for cell in cells)


def favours_groups(cell: str, mark: str, unit: str) -> int:
    """Return which reading of ``cell``, which may lack its ``unit``, is plausible process memory.

    1: only with ``mark`` as a thousands separator; -1: only as a decimal point; 0: both, or none.
    """

    def is_memory(text: str) -> bool:
        size = number_in(text if text[-1].isalpha() else f"{text} {unit}".strip())
        return size is not None and size[1] and _PROCESS_BYTES[0] <= size[0] <= _PROCESS_BYTES[1]

    return is_memory(cell.replace(mark, "")) - is_memory(cell)


def _passes_a_thousand(cells: Sequence[str], mark: str) -> bool:
    """Return whether neighbours with and without ``mark`` are close in size, as 999 and 1,000."""
    turns = [
        [number_in(cell.replace(mark, "").strip()) for cell in sorted(two, key=lambda c: mark in c)]
        for two in pairwise(cells)
        if sum(mark in cell for cell in two) == 1 and not any(map(is_nothing, two))
    ]
    return bool(turns) and all(a and b and abs(a[0]) * _NEARER > abs(b[0]) for a, b in turns)
