"""Typed access to JSON of a manifest, an event or a finding, with defaults for missing values."""

from __future__ import annotations

from collections.abc import Mapping

from hybridbench.records.json_value import JsonValue


def number(data: Mapping[str, JsonValue], key: str, default: float = 0.0) -> float:
    """Return the number under ``key``, or ``default``."""
    value = data.get(key)
    return float(value) if isinstance(value, int | float) else default


def text(data: Mapping[str, JsonValue], key: str, default: str = "") -> str:
    """Return the string under ``key``, or ``default``."""
    value = data.get(key)
    return value if isinstance(value, str) else default


def mapping(data: Mapping[str, JsonValue], key: str) -> Mapping[str, JsonValue]:
    """Return the object under ``key``, or an empty one."""
    value = data.get(key)
    return value if isinstance(value, Mapping) else {}
