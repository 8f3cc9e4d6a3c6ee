"""Format amounts and rates, with units and confidence intervals, consistently."""

from __future__ import annotations

import math
from typing import Final

from hybridbench.foundation.metrics import Unit
from hybridbench.foundation.units import digits_apart, format_bytes, format_count
from hybridbench.records.finding import Rate

# Denominators of rates over time, rather than per event.
TIME_UNITS: Final = frozenset({"h", "min", "s"})

# Estimates from here on get a prefix, as 332,936 nodes/h would suggest false precision.
_LARGE: Final = 10_000.0

# Rounding error of an exact zero, and of one whose interval is wide, as a share of its ends.
TINY: Final = 1e-6
_TINY_SHARE: Final = 1e-10


def amount(value: float, unit: str, *, signed: bool = False, digits: int = 3) -> str:
    """``value`` with its unit: ``1.44 GiB``, ``+3.00 slots``."""
    if math.isnan(value):
        return "unknown"
    if math.isinf(value):
        return "no bound" if value > 0 else "no lower bound"
    sign = "\N{MINUS SIGN}" if value < -TINY else ("+" if signed and value > TINY else "")
    size = abs(value) if abs(value) > TINY else 0.0
    if unit == Unit.BYTES:
        return sign + format_bytes(size, digits)
    # The metric's name says what a plain count counts.
    counted = "" if unit == Unit.COUNT else unit
    counted_exactly = size == int(size) or size < _LARGE
    shown = number(size, digits) if counted_exactly else format_count(size, digits)
    return f"{sign}{shown}{'' if counted == '%' else ' '}{counted}".rstrip()


def number(value: float, digits: int = 3) -> str:
    """A plain number with at least three significant digits and thousands separators."""
    if not math.isfinite(value):
        return "unknown" if math.isnan(value) else "no bound"
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) >= 1000:
        return f"{value:,.{digits - 3}f}"
    if abs(value) >= 0.01:
        places = max(digits - 3, digits - 1 - math.floor(math.log10(abs(value))))
        return f"{value:.{places}f}"
    return f"{value:.{digits - 1}g}"


def per_text(per: str) -> str:
    """Suffix for ``per``: ``/h`` for time, `` per request`` for work, empty for a level."""
    if not per:
        return ""
    return f"/{per}" if per in TIME_UNITS else f" per {per}"


def rate_text(rate: Rate, *, signed: bool = True) -> str:
    """The rate without its interval: ``+3.45 GiB/h``."""
    digits = _digits(rate)
    # One is printed as 1.00, because the counted noun is in the plural.
    if rate.lower == rate.upper and abs(rate.value) != 1.0:
        said = amount(rate.value, rate.unit, signed=signed, digits=digits)
    else:
        is_zero = abs(rate.value) <= _TINY_SHARE * max(abs(rate.lower), abs(rate.upper)) < math.inf
        said = _measured(0.0 if is_zero else rate.value, rate, digits, signed=signed)
    return said + per_text(rate.per)


def interval_text(rate: Rate) -> str:
    """The interval: ``+3.41 to +3.50 GiB/h``; an unbounded end is put in words."""
    return _span_text(rate) + (per_text(rate.per) if _has_end(rate) else "")


def full_rate_text(rate: Rate, *, signed: bool = True) -> str:
    """Rate and interval in one line: ``+3.45 GiB/h (95% interval +3.41 to +3.50 GiB/h)``."""
    said = rate_text(rate, signed=signed)
    if rate.lower == rate.upper:
        return f"{said}, exactly"
    share = f"{100 * rate.confidence:.4g}%"
    if not _has_end(rate):
        return f"{said} (no {share} interval)"
    span = _span_text(rate, signed=signed)
    # Omit the counted noun, which was just printed; but the prefix of bytes may differ.
    if rate.unit != Unit.BYTES:
        span = span.removesuffix(f" {rate.unit}")
    elif rate.per in TIME_UNITS:
        span += per_text(rate.per)
    return f"{said} ({share} interval {span})"


def _has_end(rate: Rate) -> bool:
    return math.isfinite(rate.lower) or math.isfinite(rate.upper)


def _digits(rate: Rate) -> int:
    """Number of digits that distinguishes the rate from the ends of its interval."""

    def one(value: float, digits: int) -> str:
        return amount(value, rate.unit, digits=digits)

    return digits_apart(one, (rate.value, rate.lower, rate.upper))


def _measured(value: float, rate: Rate, digits: int, *, signed: bool) -> str:
    """``amount``, but with decimals for whole estimates: ``1.00 nodes``, not ``1 nodes``."""
    is_whole = value == int(value) if math.isfinite(value) else False
    if rate.unit == Unit.BYTES or not is_whole or not 0.0 < abs(value) < 100.0:
        return amount(value, rate.unit, signed=signed, digits=digits)
    places = digits - 1 - math.floor(math.log10(abs(value)))
    sign = "\N{MINUS SIGN}" if value < 0 else ("+" if signed else "")
    counted = "" if rate.unit == Unit.COUNT else rate.unit
    return f"{sign}{abs(value):.{places}f}{'' if counted == '%' else ' '}{counted}".rstrip()


def _span_text(rate: Rate, *, signed: bool = True) -> str:
    digits = _digits(rate)
    if rate.lower == rate.upper or max(abs(rate.lower), abs(rate.upper)) < TINY:
        return f"exactly {amount(rate.lower, rate.unit, signed=signed, digits=digits)}"
    lower, upper = (_measured(end, rate, digits, signed=signed) for end in (rate.lower, rate.upper))
    if math.isfinite(rate.lower) and math.isfinite(rate.upper):
        return f"{_common_unit(lower, upper)} to {upper}"
    if math.isfinite(rate.lower):
        return f"at least {lower}"
    return f"at most {upper}" if math.isfinite(rate.upper) else "none"


def _common_unit(lower: str, upper: str) -> str:
    """``lower`` without its unit if ``upper`` ends in the same one."""
    # The number is the first word; the unit may be several words.
    head, _, unit = lower.partition(" ")
    return head if head and upper.endswith(f" {unit}") else lower
