"""Parse durations, bytes and rates strictly, and format them with their unit.

GB is 10^9 bytes and GiB is 2^30 bytes, everywhere.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_DURATION_S = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
# Ten years.
DURATION_MAX_S = 3650 * 86400.0
_AMOUNT = re.compile(r"(-?)(\d+(?:\.\d+)?)\s*([A-Za-z%/1][\w %/]*)?")
# Units per hour.
PER_HOUR = {"h": 1.0, "hour": 1.0, "min": 60.0, "s": 3600.0, "d": 1 / 24, "day": 1 / 24}
_BYTES_MAX = 2.0**62
_SHOWN_CHARS = 40
_SPARKS = "▁▂▃▄▅▆▇█"
_MOST_DIGITS = 8
_BYTE_UNITS = {
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}


@dataclass(frozen=True)
class Amount:
    """A number with its unit, as written: ``-2 GiB/h`` is "2", "GiB" and "h".

    ``digits`` keeps the number as text, so that 0.1 MB is exactly 100,000 bytes; ``unit`` and
    ``per`` may be empty.
    """

    digits: str
    unit: str
    per: str = ""
    minus: bool = False

    @property
    def number(self) -> float:
        return -float(self.digits) if self.minus else float(self.digits)

    @property
    def in_bytes(self) -> int | None:
        """The number of bytes; None without a unit of bytes.

        Raises:
            ValueError: it is larger than any memory.
        """
        if self.unit not in _BYTE_UNITS:
            return None
        size = float(self.digits) * _BYTE_UNITS[self.unit]
        if size >= _BYTES_MAX:
            shown = f"{self.digits}{self.unit}"[:_SHOWN_CHARS]
            raise ValueError(f"{shown!r} is larger than any memory; write 512MiB or less")
        return round(-size if self.minus else size)


def parse_amount(text: str) -> Amount | None:
    """Parse ``text`` as an amount; None if it is not one.

    An amount is a number, an optional unit, and optionally a slash and a time or an event.
    """
    amount, slash, per = text.strip().rpartition("/")
    if not slash:
        amount, per = per, ""
    match = _AMOUNT.fullmatch(amount.strip())
    if match is None or (slash and not per.strip()):
        return None
    minus, digits, unit = match.groups()
    return Amount(digits, (unit or "").strip(), per.strip(), bool(minus))


def parse_duration_s(text: str) -> float:
    """Parse seconds: ``90s``, ``1h30m``, ``1.5h``, ``2d``, ``250ms``, or a bare number.

    Raises:
        ValueError: names the text and the accepted forms.
    """
    stripped = text.strip()
    if re.fullmatch(r"\d+(\.\d+)?", stripped):
        return _bounded(float(stripped), text)
    parts = _DURATION_PART.findall(stripped)
    if not parts or "".join(number + unit for number, unit in parts) != stripped:
        raise ValueError(f"{text!r} is not a duration; write 90s, 5m, 1h30m, 1.5h or 2d")
    return _bounded(sum(float(number) * _DURATION_S[unit] for number, unit in parts), text)


def _bounded(duration_s: float, text: str) -> float:
    if duration_s > DURATION_MAX_S:
        raise ValueError(f"{text[:_SHOWN_CHARS]!r} is longer than 3650d, the longest duration")
    return duration_s


def parse_bytes(text: str) -> int:
    """Parse bytes: ``512MiB`` (binary) or ``512MB`` (decimal).

    Raises:
        ValueError: anything else, including a bare number, because its unit would be a guess.
    """
    amount = parse_amount(text)
    size = None if amount is None or amount.per or amount.minus else amount.in_bytes
    if size is None:
        raise ValueError(f"{text!r} is not a size; write 512MiB (2^20) or 512MB (10^6)")
    return size


def parse_byte_rate(text: str) -> float:
    """Parse bytes per hour: ``200MiB/h``; also ``/min`` and ``/s``.

    Raises:
        ValueError: names the text and the accepted forms.
    """
    amount = parse_amount(text)
    size = None if amount is None or amount.minus else amount.in_bytes
    if amount is None or size is None or amount.per not in ("h", "min", "s"):
        raise ValueError(f"{text!r} is not a rate; write 200MiB/h or 1.5GB/h")
    return size * PER_HOUR[amount.per]


def format_duration(duration_s: float) -> str:
    """``duration_s`` with at most two units: ``45s``, ``3m``, ``1h30m``, ``2d4h``."""
    if not math.isfinite(duration_s):
        return str(duration_s)
    # 999.5 ms would print as 1000ms.
    if 0.0005 <= duration_s < 0.9995:
        return f"{duration_s * 1000:.0f}ms"
    total = round(duration_s)
    parts = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, total = divmod(total, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts[:2]) or "0s"


def format_bytes(size: float, digits: int = 3) -> str:
    """``size`` in the binary unit with one to three digits before the point: ``1.44 GiB``."""
    units = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
    return _scaled(size, units, "B", digits)


def format_byte_rate(bytes_per_hour: float) -> str:
    """``bytes_per_hour`` as ``3.45 GiB/h``."""
    return f"{format_bytes(bytes_per_hour)}/h"


def format_count(value: float, digits: int = 3) -> str:
    """A count for people: ``987``, ``12.3 k``, ``1.20 M``."""
    return _scaled(value, (("G", 10**9), ("M", 10**6), ("k", 10**3)), "", digits).rstrip()


def format_percent(share: float, digits: int = 0) -> str:
    """``share`` (0 to 1) as ``95%``."""
    return f"{100.0 * share:.{digits}f}%"


def sparkline(values: Sequence[float], least_span: float = 0.0) -> str:
    """A row of block characters, scaled to the values' range, at least ``least_span``."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    span = max(high - low, least_span) or 1.0
    top = len(_SPARKS) - 1
    return "".join(_SPARKS[round((value - low) / span * top)] for value in values)


def digits_apart(form: Callable[[float, int], str], values: Sequence[float]) -> int:
    """The fewest digits, at least three, at which ``form`` prints different values differently.

    An interval with equal printed ends would look exact.
    """
    known = [value for value in values if math.isfinite(value)]
    rounding = 1e-7 * max((abs(value) for value in known), default=0.0)
    for digits in range(3, _MOST_DIGITS):
        texts = [form(value, digits) for value in known]
        if not any(
            texts[i] == texts[j] and abs(known[i] - known[j]) > rounding
            for i in range(len(known))
            for j in range(i)
        ):
            return digits
    return _MOST_DIGITS


def _scaled(value: float, units: tuple[tuple[str, int], ...], base: str, digits: int) -> str:
    if not math.isfinite(value):
        return f"{value} {base}"
    for unit, factor in units:
        # 999.5 would print as 1000 in the smaller unit.
        if abs(value) >= 0.9995 * factor:
            return f"{_with_digits(value / factor, digits)} {unit}"
    return (
        f"{_with_digits(value, digits)} {base}" if value != int(value) else f"{int(value)} {base}"
    )


def _with_digits(value: float, digits: int) -> str:
    magnitude = abs(value)
    if magnitude >= 100:
        places = digits - 3
    elif magnitude >= 10:
        places = digits - 2
    elif magnitude >= 0.1 or magnitude == 0.0:
        places = digits - 1
    elif magnitude < 1e-4:
        return f"{value:.{digits - 1}g}"
    else:
        # Two significant digits: 0.0129 is not 0.01.
        places = digits - 2 - math.floor(math.log10(magnitude))
    return f"{value:.{places}f}"
