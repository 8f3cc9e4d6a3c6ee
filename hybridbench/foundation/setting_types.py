"""Scalar types of settings: their notation and bounds.

Pydantic reads them to validate a profile; the engine reads only the bounds.  Nothing here imports
pydantic, which the worker does not need.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, TypeAlias, cast

from annotated_types import Ge, Le, MinLen

from hybridbench.foundation.units import DURATION_MAX_S, parse_bytes, parse_duration_s

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import CoreSchema

_UNITS: Final = ("_bytes_per_h", "_bytes", "_per_s", "_s")
_DURATION_PATTERN: Final = r"^(\d+(\.\d+)?|(\d+(\.\d+)?(ms|s|m|h|d))+)$"


def yaml_key(field_name: str) -> str:
    """The profile key of a field: its name without the unit."""
    for unit in _UNITS:
        if field_name.endswith(unit):
            return field_name.removesuffix(unit)
    return field_name


class ProfileGroup:
    """A record that is a group of keys in a profile, with pydantic's settings to validate it."""

    __pydantic_config__: ClassVar[dict[str, object]] = {
        "extra": "forbid",
        "alias_generator": yaml_key,
        "validate_default": True,
        "use_attribute_docstrings": True,
    }


@dataclass(frozen=True)
class Strict:
    """Forbids conversion: the file must have the exact type; "3" is not 3, and yes is not 1."""

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return cast("CoreSchema", {**handler(source), "strict": True})


@dataclass(frozen=True)
class WithOff:
    """Accepts ``off`` as a word, which YAML reads as false."""

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        from pydantic_core import core_schema

        return core_schema.no_info_before_validator_function(
            lambda value: "off" if value is False else value, handler(source)
        )


@dataclass(frozen=True, eq=False)
class Written:
    """A value with a custom notation.

    Args:
        read: parses the value in the file; raises ValueError with a clause.
        text: formats the value; by default it is written as it is.
        schema: JSON Schema of the notation; by default that of the value's type.
    """

    read: Callable[[object], object]
    text: Callable[[Any], str] | None = None
    schema: Mapping[str, object] | None = None

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        from pydantic_core import core_schema

        if self.text is None:
            return core_schema.no_info_before_validator_function(self.read, handler(source))
        return core_schema.no_info_before_validator_function(
            self.read,
            handler(source),
            serialization=core_schema.plain_serializer_function_ser_schema(
                self.text, return_schema=core_schema.str_schema()
            ),
        )

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return handler(schema) if self.schema is None else dict(self.schema)


@dataclass(frozen=True)
class Pattern:
    """Text that matches a regular expression."""

    regex: str

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return cast("CoreSchema", {**handler(source), "pattern": self.regex})


def duration_s(value: object) -> float:
    """Parse a profile's duration into seconds.

    Raises:
        ValueError: a clause that says how to write a duration.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{value!r} is not a duration; write 90s, 5m, 1h30m, 1.5h or 2d")  # noqa: TRY004
    if isinstance(value, str):
        return parse_duration_s(value)
    if not 0 <= value < math.inf:
        raise ValueError(f"{value!r} is not a duration; write 90s, 5m, 1h30m, 1.5h or 2d")
    if value > DURATION_MAX_S:
        raise ValueError(f"{value!r} seconds are longer than 3650d, the longest duration")
    return float(value)


def _auto_duration_s(value: object) -> float | None:
    return None if value is None or value == "auto" else duration_s(value)


def _seconds_text(value: float | None) -> str:
    return "auto" if value is None else f"{decimal(value)}s"


def _size_bytes(value: object) -> int:
    if value == 0 and type(value) is int:
        return 0
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a size; write 256KiB or 2MB, or 0 for none")  # noqa: TRY004
    return parse_bytes(value)


def _date(value: object) -> date:
    if isinstance(value, date):
        return value
    try:
        return date.fromisoformat(value if isinstance(value, str) else "")
    except ValueError:
        raise ValueError(f"{value!r} is not a date; write 2027-01-31") from None


def decimal(value: float) -> str:
    """The shortest digits that parse to the same float, without an exponent."""
    text = repr(float(value))
    if "e" in text:
        return f"{Decimal(text):f}"
    return text.removesuffix(".0")


Count: TypeAlias = Annotated[int, Strict(), Ge(1)]
CountOrZero: TypeAlias = Annotated[int, Strict(), Ge(0)]
Flag: TypeAlias = Annotated[bool, Strict()]
Share: TypeAlias = Annotated[float, Strict(), Ge(0.0), Le(1.0)]
Text: TypeAlias = Annotated[str, Strict(), MinLen(1)]
Name: TypeAlias = Annotated[str, Strict(), Pattern(r"^[a-z0-9][a-z0-9._-]*$")]
Day: TypeAlias = Annotated[date, Written(_date)]
# Seconds, written 90s, 5m or 1h30m; a bare number counts seconds.
DURATION: Final = Written(
    duration_s, _seconds_text, {"type": ["string", "number"], "pattern": _DURATION_PATTERN}
)
DurationS: TypeAlias = Annotated[float, DURATION]
AutoDurationS: TypeAlias = Annotated[
    float | None,
    Written(_auto_duration_s, _seconds_text, {"type": ["string", "number", "null"]}),
]
SizeBytes: TypeAlias = Annotated[
    int,
    Written(
        _size_bytes,
        lambda size: f"{size}B",
        {"type": ["string", "integer"], "examples": ["256KiB", 0]},
    ),
]
