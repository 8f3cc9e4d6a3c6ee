"""``rss<200MiB/h``: how much a column may worsen, and in whose unit."""

from __future__ import annotations

from dataclasses import dataclass

from hybridbench.errors import UsageError
from hybridbench.metrics import Unit
from hybridbench.series.units import Meaning
from hybridbench.units import PER_HOUR, Amount, parse_amount, parse_bytes

_FORM = "write NAME<200MiB/h, or NAME<5/h for a count"


@dataclass(frozen=True)
class Threshold:
    """One threshold as written: ``limit`` is in whatever unit the column has."""

    text: str
    name: str
    limit: Amount


def parse_threshold(text: str) -> Threshold:
    """The parts of ``text``.

    Raises:
        UsageError: it is no threshold.
    """
    name, less, limit = text.partition("<")
    amount = parse_amount(limit.removeprefix("="))
    if (
        not (less and name.strip())
        or amount is None
        or amount.minus
        or amount.per not in PER_HOUR
        or not (amount.unit.isalpha() or not amount.unit)
    ):
        raise UsageError(
            f"{text}: not a threshold; {_FORM} (per h, min, s or d).", option="--threshold"
        )
    return Threshold(text, name.strip(), amount)


def per_hour(threshold: Threshold, meaning: Meaning) -> float:
    """The threshold in units of ``meaning`` per hour.

    Raises:
        UsageError: its unit is not the column's.
    """
    limit = threshold.limit
    factor = PER_HOUR[limit.per]
    if meaning.unit is Unit.BYTES:
        return _size(threshold) * factor
    if limit.unit and limit.unit != meaning.unit.value:
        raise UsageError(
            f"{threshold.text}: {threshold.name} is not known to be in {limit.unit}; "
            f"give it a unit with --metric '{threshold.name}:{limit.unit}', or write "
            f"{limit.digits}/{limit.per}.",
            option="--threshold",
        )
    return limit.number * factor


def _size(threshold: Threshold) -> int:
    try:
        return parse_bytes(f"{threshold.limit.digits}{threshold.limit.unit}")
    except ValueError as error:
        raise UsageError(f"{threshold.text}: {error}.", option="--threshold") from error
