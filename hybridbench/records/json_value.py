"""A value of a JSON document: as the type checker sees it, and made ready to be written."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    JsonValue: TypeAlias = (
        "bool | int | float | str | Sequence[JsonValue] | Mapping[str, JsonValue] | None"
    )
else:
    # msgspec resolves annotations when it builds a decoder, and knows no recursive alias.
    JsonValue = object


def json_text(value: JsonValue) -> str:
    """``value`` as a document for a file or a pipe; what is not finite is null."""
    text = json.dumps(plain_value(value), indent=2, allow_nan=False, ensure_ascii=False)
    return text + "\n"


def plain_mapping(values: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """A copy in dicts, lists and finite numbers, ready for JSON."""
    return {str(key): plain_value(value) for key, value in values.items()}


def plain_value(value: JsonValue) -> JsonValue:
    """``value`` in dicts, lists and finite numbers; what is not finite becomes None."""
    if isinstance(value, Mapping):
        return plain_mapping(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain_value(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def as_mapping(value: JsonValue) -> Mapping[str, JsonValue]:
    """``value`` if it is a mapping, else an empty one: for what a document may leave out."""
    return value if isinstance(value, Mapping) else {}
