"""Numbers in words: rates with intervals, times, values with units; one spelling everywhere."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from hybridbench.metrics import Unit, label_of, spec_of
from hybridbench.records.json_value import JsonValue
from hybridbench.records.verdict import MetricResult, Rate
from hybridbench.report.document import Badge, Fact, Tone
from hybridbench.units import digits_apart, format_bytes, format_count

_SIGNS: Final[Mapping[Tone, Mapping[str, str]]] = {
    Tone.GOOD: {
        "CLEAN": "✓",
        "BOUNDED": "✓",
        "met": "✓",
        "passed": "✓",
        "PASS": "✓",
        "SAME": "=",
        "FASTER": "△",
        "BETTER": "△",
        "FIXED": "✓",
        "LESS": "▽",
        "HIGHER": "△",
    },
    Tone.BAD: {
        "LEAK": "▲",
        "DEGRADED": "▼",
        "INVARIANT": "≠",
        "CRASHED": "✕",
        "NOT MET": "✕",
        "failed": "✕",
        "error": "✕",
        "FAIL": "✕",
        "MISSING": "✕",
        "REGRESSION": "▲",
        "SLOWER": "▼",
        "WORSE": "▼",
        "INTRODUCED": "▲",
        "MORE": "▲",
        "LOWER": "▼",
    },
    Tone.OPEN: {
        "INCONCLUSIVE": "?",
        "UNDECIDED": "?",
        "GROWS FASTER": "△",
        "skipped": "?",
        "WAIVED": "~",
    },
    Tone.VOID: {"INVALID": "∅", "UNCHANGED": "=", "GROWS SLOWER": "▽"},
}

# Every word that is an answer, with the shape and tone it has in any report.
BADGES: Final[Mapping[str, Badge]] = {
    word: Badge(word, glyph, tone)
    for tone, signs in _SIGNS.items()
    for word, glyph in signs.items()
}

# Of a rate: what it is against where that is no event.
TIME_UNITS: Final = frozenset({"h", "min", "s"})

# In place of a growth that too few samples were taken of.
NO_RATE: Final = "not measured"

# From here on an estimate has a prefix: nobody measures 332,936 nodes an hour.
_LARGE: Final = 10_000.0

# What rounding leaves of an exact zero.
_TINY: Final = 1e-6


def clock_text(t_s: float) -> str:
    """``t_s`` seconds as ``h:mm:ss``."""
    total = round(max(0.0, t_s))
    return f"{total // 3600}:{total // 60 % 60:02d}:{total % 60:02d}"


def amount(value: float, unit: str, *, signed: bool = False, digits: int = 3) -> str:
    """``value`` with its unit: ``1.44 GiB``, ``+3.00 slots``."""
    if math.isnan(value):
        return "unknown"
    if math.isinf(value):
        return "no bound" if value > 0 else "no lower bound"
    sign = "\N{MINUS SIGN}" if value < -_TINY else ("+" if signed and value > _TINY else "")
    size = abs(value) if abs(value) > _TINY else 0.0
    if unit == Unit.BYTES:
        return sign + format_bytes(size, digits)
    # A plain count is of what its metric names.
    counted = "" if unit == Unit.COUNT else unit
    counted_exactly = size == int(size) or size < _LARGE
    shown = number(size, digits) if counted_exactly else format_count(size, digits)
    return f"{sign}{shown} {counted}".rstrip()


def number(value: float, digits: int = 3) -> str:
    """A plain number with three or more digits that mean something and thousands apart."""
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
    """How ``per`` is appended: ``/h`` for time, `` per request`` for work."""
    return f"/{per}" if per in TIME_UNITS else f" per {per}"


def rate_text(rate: Rate) -> str:
    """``+3.45 GiB/h``."""
    return amount(rate.value, rate.unit, signed=True, digits=_digits(rate)) + per_text(rate.per)


def interval_text(rate: Rate) -> str:
    """``+3.41 to +3.50 GiB/h``; an open end is said in words."""
    return _span_text(rate) + (per_text(rate.per) if _has_end(rate) else "")


def full_rate_text(rate: Rate) -> str:
    """Rate and interval in one line: ``+3.45 GiB/h (95 % interval +3.41 to +3.50 GiB)``."""
    if rate.lower == rate.upper:
        return f"{rate_text(rate)}, exactly"
    share = f"{100 * rate.confidence:.4g} %"
    if not _has_end(rate):
        return f"{rate_text(rate)} (no {share} interval)"
    span = _span_text(rate)
    # The name of what is counted stands right before it; a byte's prefix may change in between.
    if rate.unit != Unit.BYTES:
        span = span.removesuffix(f" {rate.unit}")
    return f"{rate_text(rate)} ({share} interval {span})"


def rate_facts(rates: Iterable[Rate]) -> list[Fact]:
    """Each rate of a finding with its interval."""
    return [
        Fact("Growth" if rate.per in TIME_UNITS else "Per event", full_rate_text(rate))
        for rate in rates
    ]


def level_text(value: float, unit: str) -> str:
    """A level with its unit: ``1.44 GiB``, ``43.2 %``, ``38.0/s``."""
    if unit == Unit.BYTES:
        return format_bytes(value)
    if unit == Unit.RATIO:
        return f"{100.0 * value:.3g} %"
    figures = number(float(f"{value:.4g}"))
    return f"{figures}/s" if unit == Unit.PER_SECOND else f"{figures} {unit}".rstrip()


def bound_text(result: MetricResult) -> str:
    """What a result excludes: ``no growth above 38 MiB/h (95 %)``; empty when it bounds nothing."""
    rate = result.rate_per_hour
    if rate is None or not math.isfinite(rate.upper):
        return ""
    if rate.upper <= _TINY:
        return f"no growth ({100 * rate.confidence:.4g} %)"
    upper = amount(rate.upper, rate.unit)
    return f"no growth above {upper}{per_text(rate.per)} ({100 * rate.confidence:.4g} %)"


def metric_title(name: str) -> str:
    """A metric for people: its declared meaning, with the family member in front."""
    spec = spec_of(name)
    if spec is None:
        return name
    if "*" not in spec.name:
        return spec.meaning
    head, _, tail = spec.name.partition("*")
    member = name[len(head) : len(name) - len(tail)] if tail else name[len(head) :]
    return f"{member}: {spec.meaning}"


def metric_label(name: str) -> str:
    """A gated metric in two words."""
    label = label_of(name).removeprefix("the number of ")
    return (label if label != name else name.removesuffix("_bytes").replace("_", " ")).capitalize()


def command_text(command: Sequence[str]) -> str:
    """The command line as one would type it; empty when the manifest has none."""
    return shlex.join(command)


def without_options(command: Sequence[str], *options: str) -> list[str]:
    """``command`` as given, but for these options and their values."""
    kept: list[str] = []
    words = iter(command)
    for word in words:
        if word in options:
            next(words, None)
        elif word.partition("=")[0] not in options:
            kept.append(word)
    return kept


def plain_text(value: JsonValue) -> str:
    """Any manifest value in one line."""
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return number(float(value)) if isinstance(value, float) else str(value)
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {plain_text(item)}" for key, item in value.items()) or "none"
    return ", ".join(plain_text(item) for item in value) or "none"


def _has_end(rate: Rate) -> bool:
    return math.isfinite(rate.lower) or math.isfinite(rate.upper)


def _digits(rate: Rate) -> int:
    """As many as tell the rate and the ends of its interval apart."""

    def one(value: float, digits: int) -> str:
        return amount(value, rate.unit, digits=digits)

    return digits_apart(one, (rate.value, rate.lower, rate.upper))


def _span_text(rate: Rate) -> str:
    digits = _digits(rate)
    lower = amount(rate.lower, rate.unit, signed=True, digits=digits)
    upper = amount(rate.upper, rate.unit, signed=True, digits=digits)
    if rate.lower == rate.upper or max(abs(rate.lower), abs(rate.upper)) < _TINY:
        return f"exactly {lower}"
    if math.isfinite(rate.lower) and math.isfinite(rate.upper):
        return f"{_common_unit(lower, upper)} to {upper}"
    if math.isfinite(rate.lower):
        return f"at least {lower}"
    return f"at most {upper}" if math.isfinite(rate.upper) else "none"


def _common_unit(lower: str, upper: str) -> str:
    """``lower`` without its unit where ``upper`` ends in the same one."""
    # The number is the first word; what is counted may be several.
    head, _, unit = lower.partition(" ")
    return head if head and upper.endswith(f" {unit}") else lower
