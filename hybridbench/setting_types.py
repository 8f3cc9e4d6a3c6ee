"""Scalar types of settings: how each is written, and within which bounds.

Pydantic reads them where a profile is validated; the engine reads the bounds alone.  Nothing here
imports pydantic, which the worker does without.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, TypeAlias, cast

from annotated_types import Ge, Le

from hybridbench.units import DURATION_MAX_S, parse_duration_s

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import CoreSchema

_UNITS: Final = ("_bytes_per_h", "_bytes", "_per_s", "_s")
_DURATION_PATTERN: Final = r"^(\d+(\.\d+)?|(\d+(\.\d+)?(ms|s|m|h|d))+)$"


def yaml_key(field_name: str) -> str:
    """The key of a field in a profile: its name without the unit."""
    for unit in _UNITS:
        if field_name.endswith(unit):
            return field_name.removesuffix(unit)
    return field_name


class ProfileGroup:
    """A record that a profile has as a group of keys; this is how pydantic validates it there."""

    __pydantic_config__: ClassVar[dict[str, object]] = {
        "extra": "forbid",
        "alias_generator": yaml_key,
        "validate_default": True,
        "use_attribute_docstrings": True,
    }


@dataclass(frozen=True)
class Strict:
    """A number or flag is one in the file, too: "3" is no 3, and yes is no 1."""

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return cast("CoreSchema", {**handler(source), "strict": True})


@dataclass(frozen=True)
class WithOff:
    """One of its words is ``off``, which YAML reads as false."""

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        from pydantic_core import core_schema

        return core_schema.no_info_before_validator_function(
            lambda value: "off" if value is False else value, handler(source)
        )


@dataclass(frozen=True)
class Duration:
    """Seconds, written 90s, 5m or 1h30m; a bare number counts seconds."""

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        from pydantic_core import core_schema

        return core_schema.no_info_before_validator_function(
            duration_s,
            handler(source),
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda seconds: f"{decimal(seconds)}s", return_schema=core_schema.str_schema()
            ),
        )

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"type": ["string", "number"], "pattern": _DURATION_PATTERN}


def duration_s(value: object) -> float:
    """Seconds of a duration as a profile writes it.

    Raises:
        ValueError: half a sentence on what would be one.
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


def decimal(value: float) -> str:
    """The shortest digits that read back as the same float, without an exponent."""
    text = repr(float(value))
    if "e" in text:
        return f"{Decimal(text):f}"
    return text.removesuffix(".0")


Count: TypeAlias = Annotated[int, Strict(), Ge(1)]
CountOrZero: TypeAlias = Annotated[int, Strict(), Ge(0)]
Flag: TypeAlias = Annotated[bool, Strict()]
Share: TypeAlias = Annotated[float, Strict(), Ge(0.0), Le(1.0)]
DurationS: TypeAlias = Annotated[float, Duration()]
