"""Scalar types of a profile's keys: how each is parsed, validated and written.

A validator raises ValueError with the half sentence that follows "file:line: key.path:"; pydantic
does not catch TypeError, so a value of the wrong type is a ValueError as well.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Final, TypeAlias

from annotated_types import Ge, Le
from pydantic import (
    AllowInfNan,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
)

from hybridbench.foundation.foreign import SEED_MAX
from hybridbench.foundation.setting_types import Strict, Written, decimal
from hybridbench.foundation.thresholds import Stat, parse_threshold
from hybridbench.foundation.units import parse_amount, parse_byte_rate


@dataclass(frozen=True, slots=True)
class TokenRange:
    """Token counts drawn uniformly from ``low`` to ``high``, both included."""

    low: int
    high: int

    @property
    def mean(self) -> float:
        return (self.low + self.high) / 2


# A hundred times what a serving process holds: 10 GB of Python objects.
OBJECTS_MAX: Final = 100_000_000
_ZIPF = re.compile(r"zipf\((\d+(?:\.\d+)?)\)")
_MAX_ZIPF_EXPONENT: Final = 8.0


def _byte_rate(value: object) -> float:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a rate; write 200MiB/h or 1.5GB/h")  # noqa: TRY004
    return parse_byte_rate(value)


def _request_rate(value: object) -> float:
    amount = None if isinstance(value, bool) else parse_amount(str(value))
    if amount is None or amount.unit or amount.number <= 0 or amount.per not in ("", "s", "min"):
        raise ValueError(f"{value!r} is not a request rate; write 40 (a second), 40/s or 90/min")
    return amount.number / (60.0 if amount.per == "min" else 1.0)


def _token_range(value: object) -> TokenRange:
    wrong = f"{value!r} is not a token range; write [16, 64], or 32 for always 32"
    low, high = _pair(value, wrong)
    if low < 1:
        raise ValueError(f"[{low}, {high}] must begin at 1 token or more")
    if high < low:
        raise ValueError(f"[{low}, {high}] runs backwards; write [{high}, {low}]")
    return TokenRange(low, high)


def _pair(value: object, wrong: str) -> tuple[int, int]:
    if isinstance(value, TokenRange):
        return value.low, value.high
    ends = [value, value] if isinstance(value, int) else value
    if not isinstance(ends, list | tuple) or len(ends) != 2:
        raise ValueError(wrong)
    low, high = ends
    # isinstance accepts bool as int, but yes and no are not token counts.
    if type(low) is not int or type(high) is not int:
        raise ValueError(wrong)
    return low, high


def _zipf_exponent(value: object) -> float:
    if value == "uniform":
        return 0.0
    match = _ZIPF.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{value!r} is not a reuse law; write zipf(1.1) or uniform")
    exponent = float(match.group(1))
    if exponent > _MAX_ZIPF_EXPONENT:
        raise ValueError(f"{value!r} leaves only one prompt in use; write zipf(1.1), at most 8")
    return exponent


def _zipf_text(value: float) -> str:
    return f"zipf({decimal(value)})" if value else "uniform"


def _threshold_text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a threshold; write 'rss.slope<200MiB/h'")  # noqa: TRY004
    threshold = parse_threshold(value)
    if threshold.stat is Stat.RATIO:
        raise ValueError(f"{value!r} compares two versions, and a run is one: give it to compare")
    return threshold.text


# Leaves room, because seeds derived from it by addition must fit into 64 bits too.
Seed: TypeAlias = Annotated[int, Strict(), Ge(0), Le(SEED_MAX)]
Objects: TypeAlias = Annotated[int, Strict(), Ge(0), Le(OBJECTS_MAX)]
Amount: TypeAlias = Annotated[float, Strict(), AllowInfNan(False), Ge(0.0)]
BytesPerHour: TypeAlias = Annotated[
    float,
    Written(
        _byte_rate,
        lambda value: f"{decimal(value)}B/h",
        {"type": "string", "examples": ["200MiB/h", "1.5GB/h"]},
    ),
]
PerSecond: TypeAlias = Annotated[
    float,
    Written(
        _request_rate,
        schema={"type": ["number", "string"], "examples": [40, "40/s", "90/min"]},
    ),
]
Tokens: TypeAlias = Annotated[
    TokenRange,
    PlainValidator(_token_range),
    PlainSerializer(lambda value: [value.low, value.high], return_type=list[int]),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1},
                {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2},
            ]
        }
    ),
]
ThresholdText: TypeAlias = Annotated[
    str,
    Written(
        _threshold_text,
        schema={"type": "string", "examples": ["rss.slope<200MiB/h", "throughput.p50>900/s"]},
    ),
]
ZipfExponent: TypeAlias = Annotated[
    float,
    Written(_zipf_exponent, _zipf_text, {"type": "string", "examples": ["zipf(1.1)", "uniform"]}),
]
