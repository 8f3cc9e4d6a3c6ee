"""Typed access to the JSON of a manifest or an event: the value, or the given default where it is
missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hybridbench.records.json_value import JsonValue


def number(data: Mapping[str, JsonValue], key: str, default: float = 0.0) -> float:
    """The number under ``key``; ``default`` if there is none."""
    value = data.get(key)
    return float(value) if isinstance(value, int | float) else default


def text(data: Mapping[str, JsonValue], key: str, default: str = "") -> str:
    """The string under ``key``; ``default`` if there is none."""
    value = data.get(key)
    return value if isinstance(value, str) else default


def mapping(data: Mapping[str, JsonValue], key: str) -> Mapping[str, JsonValue]:
    """The object under ``key``; an empty one if there is none."""
    value = data.get(key)
    return value if isinstance(value, Mapping) else {}


def numbers(data: Mapping[str, JsonValue], key: str) -> dict[str, float]:
    """All numbers of the object under ``key``, by name."""
    return {
        name: float(value)
        for name, value in sorted(mapping(data, key).items())
        if isinstance(value, int | float)
    }


def texts(data: Mapping[str, JsonValue], key: str) -> list[str]:
    """The strings of the list under ``key``; none if there is no list."""
    value = data.get(key)
    if not isinstance(value, Sequence) or isinstance(value, str):
        return []
    return [item for item in value if isinstance(item, str)]
