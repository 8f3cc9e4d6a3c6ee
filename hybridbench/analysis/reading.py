"""Typed access to the JSON of a manifest, an event or a finding: the value, or the given default
where it is missing.
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
    return [item for item in _items(data, key) if isinstance(item, str)]


def number_list(data: Mapping[str, JsonValue], key: str) -> list[float]:
    """The numbers of the list under ``key``; none if there is no list."""
    return [float(item) for item in _items(data, key) if isinstance(item, int | float)]


def mappings(data: Mapping[str, JsonValue], key: str) -> list[Mapping[str, JsonValue]]:
    """The objects of the list under ``key``; none if there is no list."""
    return [item for item in _items(data, key) if isinstance(item, Mapping)]


def _items(data: Mapping[str, JsonValue], key: str) -> Sequence[JsonValue]:
    value = data.get(key)
    return value if isinstance(value, Sequence) and not isinstance(value, str) else ()
