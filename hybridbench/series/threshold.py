"""``rss<200MiB/h``: how much a column may worsen, and in whose unit."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hybridbench.errors import ErrorCode, UsageError
from hybridbench.metrics import Unit
from hybridbench.series.units import Meaning
from hybridbench.units import parse_bytes

_PER_HOUR = {"h": 1.0, "hour": 1.0, "min": 60.0, "s": 3600.0, "d": 1.0 / 24.0, "day": 1.0 / 24.0}
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")
_FORM = "write NAME<200MiB/h, or NAME<5/h for a count"


@dataclass(frozen=True)
class Threshold:
    """One threshold as written: ``amount`` still has its unit."""

    text: str
    name: str
    amount: str
    per: str


def parse_threshold(text: str) -> Threshold:
    """The parts of ``text``.

    Raises:
        UsageError: it is no threshold.
    """
    name, less, limit = text.partition("<")
    amount, slash, per = limit.removeprefix("=").strip().rpartition("/")
    if not less or not name.strip() or not slash or per.strip() not in _PER_HOUR:
        raise UsageError(
            f"--threshold {text}: not a threshold; {_FORM} (per h, min, s or d).",
            code=ErrorCode.BAD_VALUE,
        )
    return Threshold(text, name.strip(), amount.strip(), per.strip())


def per_hour(threshold: Threshold, meaning: Meaning) -> float:
    """The threshold in units of ``meaning`` per hour.

    Raises:
        UsageError: its unit is not the column's.
    """
    match = _NUMBER.fullmatch(threshold.amount)
    if match is None:
        raise UsageError(
            f"--threshold {threshold.text}: {threshold.amount!r} is not an amount; {_FORM}.",
            code=ErrorCode.BAD_VALUE,
        )
    number, unit = match.groups()
    factor = _PER_HOUR[threshold.per]
    if meaning.unit is Unit.BYTES:
        try:
            return parse_bytes(threshold.amount) * factor
        except ValueError as error:
            raise UsageError(
                f"--threshold {threshold.text}: {error}.", code=ErrorCode.BAD_VALUE
            ) from error
    if unit and unit != meaning.unit.value:
        raise UsageError(
            f"--threshold {threshold.text}: {threshold.name} is not known to be in {unit}; give "
            f"it a unit with --metric '{threshold.name}:{unit}', or write "
            f"{number}/{threshold.per}.",
            code=ErrorCode.BAD_VALUE,
        )
    return float(number) * factor
