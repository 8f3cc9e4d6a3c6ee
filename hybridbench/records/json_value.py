"""The type of JSON values, and functions that prepare them for output."""

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
    # msgspec resolves annotations when it builds a decoder, but does not know recursive aliases.
    JsonValue = object


def json_text(value: JsonValue) -> str:
    """Format ``value`` as a document for a file or a pipe; non-finite numbers become null."""
    text = json.dumps(plain_value(value), indent=2, allow_nan=False, ensure_ascii=False)
    return text + "\n"


def plain_mapping(values: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return a copy in dicts, lists and finite numbers, ready for JSON."""
    return {str(key): plain_value(value) for key, value in values.items()}


def plain_value(value: JsonValue) -> JsonValue:
    """Convert ``value`` to dicts, lists and finite numbers; non-finite numbers become None."""
    if isinstance(value, Mapping):
        return plain_mapping(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain_value(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def as_mapping(value: JsonValue) -> Mapping[str, JsonValue]:
    """Return ``value`` if it is a mapping, else an empty one, for optional parts of a document."""
    return value if isinstance(value, Mapping) else {}
