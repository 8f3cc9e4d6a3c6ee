"""Numbers in the cells of somebody's table: with units, marks between thousands, or nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hybridbench.series.units import BYTE_FACTORS

_NOTHING = frozenset({"", "-", "--", "null", "none", "n/a", "na", "nan", "nil", "undefined"})
# nvidia-smi says so of what a GPU cannot tell: [N/A], [Not Supported], [Unknown Error].
_NOTHING_IN_BRACKETS = re.compile(r"\[[A-Za-z/ ]+\]")
_WITH_UNIT = re.compile(r"([+-]?\d+(?:[.,]\d+)?(?:[eE][+-]?\d+)?)\s*([A-Za-z%]+)?(?:\s*/.*)?")
_GROUPED_BY_DOTS = re.compile(r"[+-]?\d{1,3}(\.\d{3})+,\d+")
_GROUPED_BY_COMMAS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(?![\d,])")
# top, smem -k and docker shorten to one letter and count in powers of 2.
_LETTERS = {"k": 2.0**10, "m": 2.0**20, "g": 2.0**30, "t": 2.0**40}
_CELL_UNITS = {**BYTE_FACTORS, **_LETTERS}


def number_in(
    text: str, heading_unit: str = "", kb: float = BYTE_FACTORS["kb"]
) -> tuple[float, bool] | None:
    """The number in a cell, and whether it was in bytes: ``12.3MiB / 2GiB`` is 12.3 * 2^20.

    A unit that its heading has as well (``heading_unit``, in lower case) says nothing new; ``kb``
    is what KB means.
    """
    try:
        return float(text), False
    except ValueError:
        match = _WITH_UNIT.fullmatch(text)
    if match is None:
        return None
    number = float(match.group(1).replace(",", "."))
    unit = (match.group(2) or "").lower()
    if unit in ("", "%", heading_unit):
        return number, False
    if unit not in _CELL_UNITS:
        return None
    return number * (kb if unit == "kb" else _CELL_UNITS[unit]), True


def is_number(text: str) -> bool:
    """Whether ``text`` is a number and nothing else."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def is_nothing(text: str) -> bool:
    """Whether a cell says that nothing was read."""
    return text.lower() in _NOTHING or bool(_NOTHING_IN_BRACKETS.fullmatch(text))


def ungrouped(cells: Sequence[str], *, commas_group: bool) -> Sequence[str]:
    """``cells`` without marks between thousands: 3,276.80 or 3.276,80 is 3276.8."""
    marked = [cell.strip() for cell in cells if "," in cell]
    if any(map(_GROUPED_BY_DOTS.fullmatch, marked)):
        return [cell.replace(".", "") if "," in cell else cell for cell in cells]
    grouped = marked and all(map(_GROUPED_BY_COMMAS.match, marked))
    if grouped and (commas_group or any(cell.count(",") > 1 or "." in cell for cell in marked)):
        return [cell.replace(",", "") for cell in cells]
    return cells
