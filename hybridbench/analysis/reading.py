"""Typed access to the JSON of a manifest, an event or a finding: the value, or the given default
where it is missing.
"""

from __future__ import annotations

from collections.abc import Mapping

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
