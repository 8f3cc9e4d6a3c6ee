"""Parse numbers in table cells: units, thousands separators, empty cells."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hybridbench.series.units import BYTE_FACTORS

_NOTHING = frozenset({"", "-", "--", "null", "none", "n/a", "na", "nan", "nil", "undefined"})
# nvidia-smi's words for a value that it cannot read: [N/A], [Not Supported], [Unknown Error].
_NOTHING_IN_BRACKETS = re.compile(r"\[[A-Za-z/ ]+\]")
_WITH_UNIT = re.compile(r"([+-]?\d+(?:[.,]\d+)?(?:[eE][+-]?\d+)?)\s*([A-Za-z%]+)?(?:\s*/.*)?")
_GROUPED_BY_DOTS = re.compile(r"[+-]?\d{1,3}(\.\d{3})+,\d+")
_GROUPED_BY_COMMAS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(?![\d,])")
# top, smem -k and docker use one-letter units and count in powers of 2.
_LETTERS = {"k": 2.0**10, "m": 2.0**20, "g": 2.0**30, "t": 2.0**40}
_CELL_UNITS = {**BYTE_FACTORS, **_LETTERS}


def number_in(
    text: str, heading_unit: str = "", kb: float = BYTE_FACTORS["kb"]
) -> tuple[float, bool] | None:
    """Return the number in a cell, and whether the cell gave bytes.

    ``12.3MiB / 2GiB`` is 12.3 * 2^20.  A unit that the column heading also has (``heading_unit``,
    in lower case) is ignored.  ``kb`` is the number of bytes in KB.
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
    """Return whether ``text`` is a plain number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def is_nothing(text: str) -> bool:
    """Return whether a cell means that no value was read."""
    return text.lower() in _NOTHING or bool(_NOTHING_IN_BRACKETS.fullmatch(text))


def ungrouped(cells: Sequence[str], *, commas_group: bool) -> Sequence[str]:
    """Remove thousands separators from ``cells``: 3,276.80 and 3.276,80 become 3276.8."""
    marked = [cell.strip() for cell in cells if "," in cell]
    if any(map(_GROUPED_BY_DOTS.fullmatch, marked)):
        return [cell.replace(".", "") if "," in cell else cell for cell in cells]
    grouped = marked and all(map(_GROUPED_BY_COMMAS.match, marked))
    if grouped and (commas_group or any(cell.count(",") > 1 or "." in cell for cell in marked)):
        return [cell.replace(",", "") for cell in cells]
    return cells
