"""A number on a page: its name, window, value and interval, and its text.

Every measured number enters a report as a ``Quantity``, alone or in a ``Phrase``, and becomes text
only here.  A run's inputs (its profile, its command, the machine) and the sentences of a stored
verdict are plain texts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import StrEnum
from typing import Final, TypeAlias

from hybridbench.analysis.comparison.words import ends_text, percent
from hybridbench.foundation.metrics import Unit
from hybridbench.foundation.units import format_bytes, format_duration
from hybridbench.records import rates
from hybridbench.records.finding import Rate

# Units besides those of metrics: a share from 0 to 1; a multiple of another value.
SHARE: Final = "share"
TIMES: Final = "ratio"
SECONDS: Final = Unit.SECONDS.value
Window: TypeAlias = tuple[float, float] | None


class Form(StrEnum):
    """How much of a quantity its text shows."""

    FULL = "full"  # +3.45 GiB/h (95% interval +3.41 to +3.50 GiB/h)
    VALUE = "value"  # the narrow form: +3.45 GiB/h
    INTERVAL = "interval"  # +3.41 to +3.50 GiB/h, next to the value
    BOUND = "bound"  # growth of at most 3.50 GiB/h (95%)
    LEVEL = "level"  # four figures: 11,730 tok/s
    PLAIN = "plain"  # the number alone, if its column names the unit: 43.1
    COUNT = "count"  # its sample size: 9,120
    CLOCK = "clock"  # for a moment: 0:01:21
    CHANGE = "change"  # for a ratio: −4.9% (−5.7% to −4.1%)
    CHANGE_CELL = "change in a table"  # −4.9% (−5.7 to −4.1)
    TIMES = "times"  # for a ratio: 0.951


@dataclass(frozen=True)
class Quantity:
    """One measured number.  On one page ``of``, ``name`` and ``window`` determine the value.

    Args:
        name: the same in every report: ``growth.rss_anon_swap_bytes``, ``length.judged``.
        value: in ``unit``; NaN if unknown.
        unit: a metric's unit, ``SHARE``, ``TIMES``, or what is counted: ``nodes``.
        window: the judged stretch in seconds of the run; None for all of it.
        per: ``h``, or the event of a rate.
        lower, upper: the ends of its interval; None without one, infinite for an open end.
        count: sample size: requests, samples.
        of: the version, cell, file or run that it belongs to, if a page has several.
        signed: whether it is a change, which may be negative and is printed with its sign; others
            are at least 0.
        part_of: the name of the quantity that it and its siblings sum up to.
    """

    name: str
    value: float
    unit: str = ""
    window: Window = None
    per: str = ""
    lower: float | None = None
    upper: float | None = None
    confidence: float = 0.95
    count: int | None = None
    of: str = ""
    signed: bool = False
    part_of: str = ""
    form: Form = Form.FULL

    def __str__(self) -> str:
        return _FORMS[self.form](self)

    def shown(self, form: Form) -> Quantity:
        """Return the same number, with more or less text."""
        return replace(self, form=form)

    @property
    def narrow(self) -> Quantity:
        return self.shown(Form.VALUE)


@dataclass(frozen=True)
class Phrase:
    """Words and quantities in sequence."""

    parts: tuple[str | Quantity, ...]

    def __str__(self) -> str:
        return "".join(map(str, self.parts))


Text: TypeAlias = str | Quantity | Phrase


def phrase(*texts: Text) -> Phrase:
    """Concatenate ``texts``."""
    parts: list[str | Quantity] = []
    for text in texts:
        parts += text.parts if isinstance(text, Phrase) else [text]
    return Phrase(tuple(parts))


def joined(separator: str, texts: Iterable[Text]) -> Phrase:
    """Join ``texts`` with ``separator`` between them."""
    parts = [part for text in texts for part in (separator, text)]
    return phrase(*parts[1:])


def quantities(part: object) -> Iterator[Quantity]:
    """Yield every quantity in ``part``: a document, or any part of one."""
    if isinstance(part, Quantity):
        yield part
    elif isinstance(part, tuple):
        for item in part:
            yield from quantities(item)
    elif is_dataclass(part):
        for field in fields(part):
            yield from quantities(getattr(part, field.name))


def of_rate(name: str, rate: Rate, window: Window = None, of: str = "") -> Quantity:
    """Return the quantity of a ``rate``; the name of a rate per event includes the event."""
    share = rate.unit == SHARE
    return Quantity(
        name if rate.per in rates.TIME_UNITS else f"{name} per {rate.per}",
        rate.value,
        rate.unit,
        window,
        rate.per if not share else "",
        rate.lower,
        rate.upper,
        rate.confidence,
        of=of,
        signed=True,
    )


def length(name: str, seconds: float, window: Window = None, of: str = "") -> Quantity:
    """Return a duration: ``4m57s``."""
    return Quantity(f"length.{name}", seconds, SECONDS, window, of=of)


def moment(name: str, t_s: float) -> Quantity:
    """Return a moment, in seconds of the run: ``0:01:21``."""
    return Quantity(f"moment.{name}", t_s, SECONDS, form=Form.CLOCK)


def size(name: str, size_bytes: float, *, signed: bool = False, part_of: str = "") -> Quantity:
    """Return a number of bytes: ``1.44 GiB``."""
    return Quantity(name, size_bytes, Unit.BYTES.value, signed=signed, part_of=part_of)


def _rate(quantity: Quantity) -> Rate:
    lower = quantity.value if quantity.lower is None else quantity.lower
    upper = quantity.value if quantity.upper is None else quantity.upper
    unit, per = quantity.unit, quantity.per
    if unit == Unit.PER_SECOND:
        unit, per = "", "s"
    return Rate(quantity.value, lower, upper, unit, per, quantity.confidence)


def _full(quantity: Quantity) -> str:
    if quantity.lower is None or quantity.upper is None:
        return _value(quantity)
    if quantity.unit == SHARE:
        sure = sure_text(quantity.confidence)
        return f"{_value(quantity)} ({sure} interval {_interval(quantity)})"
    return rates.full_rate_text(_rate(quantity), signed=quantity.signed)


def _value(quantity: Quantity) -> str:
    if quantity.unit == SHARE:
        # Parts are printed below each other.
        digits = 1 if quantity.part_of else 0
        return share_text(quantity.value, signed=quantity.signed, digits=digits)
    # A metric's unit may be "ratio" as well; its rates are per hour.
    if quantity.unit == TIMES and not quantity.per:
        return percent(quantity.value)
    if quantity.unit == SECONDS and not quantity.per:
        return format_duration(quantity.value)
    rate = _rate(quantity)
    if quantity.lower is not None:
        return rates.rate_text(rate, signed=quantity.signed)
    return rates.amount(rate.value, rate.unit, signed=quantity.signed) + rates.per_text(rate.per)


def _interval(quantity: Quantity) -> str:
    rate = _rate(quantity)
    if rate.unit == SHARE:
        return " to ".join(share_text(e, signed=quantity.signed) for e in (rate.lower, rate.upper))
    # The value next to it has the unit, but the prefix of bytes may differ.
    return rates.interval_text(rate if rate.unit == Unit.BYTES else replace(rate, unit="", per=""))


def _bound(quantity: Quantity) -> str:
    sure = sure_text(quantity.confidence)
    upper = math.inf if quantity.upper is None else quantity.upper
    if upper <= rates.TINY:
        return f"no growth ({sure})"
    most = rates.amount(upper, quantity.unit)
    return f"growth of at most {most}{rates.per_text(quantity.per)} ({sure})"


def _level(quantity: Quantity) -> str:
    if quantity.unit == Unit.BYTES:
        return format_bytes(quantity.value)
    if quantity.unit == SHARE:
        return share_text(quantity.value)
    figures = rates.number(float(f"{quantity.value:.4g}"))
    unit = quantity.unit
    return f"{figures}/s" if unit == Unit.PER_SECOND else f"{figures} {unit}".rstrip()


def _clock(quantity: Quantity) -> str:
    total = round(max(0.0, quantity.value))
    return f"{total // 3600}:{total // 60 % 60:02d}:{total % 60:02d}"


def _change(quantity: Quantity) -> str:
    rate = _rate(quantity)
    return f"{percent(rate.value)} ({ends_text(rate.lower, rate.upper)})"


def _change_cell(quantity: Quantity) -> str:
    first, ends = _change(quantity).split(" ", 1)
    return f"{first} {ends.replace('%', '')}"


def sure_text(confidence: float) -> str:
    """Format the confidence of an interval: ``95%``."""
    return f"{100.0 * confidence:.4g}%"


def share_text(share: float, *, signed: bool = False, digits: int = 0) -> str:
    """Format ``share`` in percent: ``43.2%``, ``0.51%``, ``3%``; or with fixed ``digits``."""
    percents = 100.0 * abs(share)
    text = f"{percents:.1f}".removesuffix(".0") if percents >= 0.95 else f"{percents:.2g}"
    text = f"{percents:.{digits}f}" if digits else text
    sign = "\N{MINUS SIGN}" if share < 0.0 else "+" if signed and share > 0.0 else ""
    return f"{sign}{text}%"


_FORMS: Final[Mapping[Form, Callable[[Quantity], str]]] = {
    Form.FULL: _full,
    Form.VALUE: _value,
    Form.INTERVAL: _interval,
    Form.BOUND: _bound,
    Form.LEVEL: _level,
    Form.PLAIN: lambda quantity: rates.number(quantity.value),
    Form.COUNT: lambda quantity: f"{quantity.count or 0:,}",
    Form.CLOCK: _clock,
    Form.CHANGE: _change,
    Form.CHANGE_CELL: _change_cell,
    Form.TIMES: lambda quantity: f"{quantity.value:.3f}",
}
