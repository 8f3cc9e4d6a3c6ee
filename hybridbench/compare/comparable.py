"""Refusing to compare what differs in more than the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from hybridbench.analysis.comparison.mismatches import mismatches, refusal
from hybridbench.errors import UsageError
from hybridbench.records.json_value import JsonValue


def refuse_mismatches(
    versions: Sequence[tuple[str, str, Mapping[str, JsonValue]]], allowed: Set[str]
) -> None:
    """Nothing, if the first of (name, kind, manifest) can be compared with each other one.

    Raises:
        UsageError: with the keys that differ and their values.
    """
    base_name, base_kind, base = versions[0]
    for name, kind, manifest in versions[1:]:
        found = mismatches(base, manifest, (base_kind, kind), allowed)
        if found:
            raise UsageError(
                f"{base_name} and {name} cannot be compared, they differ in {refusal(found)}; "
                "make them equal, or give --allow-mismatch KEY for each that may differ."
            )
