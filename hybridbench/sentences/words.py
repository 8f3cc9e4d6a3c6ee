"""What a finding says: its title, its cause and its evidence, and the words that findings share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hybridbench.analysis.facts.counters import singular
from hybridbench.analysis.reading import number, number_list, texts
from hybridbench.records.json_value import JsonValue
from hybridbench.records.verdict import Finding
from hybridbench.sentences.rates import full_rate_text
from hybridbench.units import format_percent

_RIVALS_NAMED = 4


@dataclass(frozen=True)
class Words:
    """The sentences of one finding."""

    title: str
    cause: str = ""
    evidence: tuple[str, ...] = ()


def per_event(found: Finding) -> str:
    """``; +3.00 state slots per session close, exactly``; nothing without a driver."""
    if found.driver is None:
        return ""
    rate = replace(found.rates[0], per=singular(found.driver))
    if not found.data.get("driver_exact"):
        return f"; {full_rate_text(rate)}"
    return f"; {rate.value:+.2f} {rate.unit} per {rate.per}, exactly"


def driver_evidence(found: Finding) -> Iterable[str]:
    """How the driver is known, and the counters that explain the growth as well."""
    if found.driver is None or "driver_events" not in found.data:
        return
    events = number(found.data, "driver_events")
    if found.data.get("driver_exact"):
        each = found.rates[0].value
        yield f"{found.driver} rose by {events:,.0f}; each event added exactly {each:g}"
    else:
        share = number(found.data, "driver_share")
        yield (
            f"{format_percent(share)} of the growth came in intervals in which {found.driver} rose "
            f"(by {events:,.0f} in all)"
        )
    rivals = texts(found.data, "rivals")
    if rivals:
        names = listed(rivals, _RIVALS_NAMED)
        yield f"{found.driver} cannot be distinguished in this run from {names}"


def listed(names: Sequence[str], most: int) -> str:
    """``a, b and 3 more``."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def times(count: float, noun: str, plural: str = "") -> str:
    """``1 line``, ``3 lines``; ``plural`` where an s is not enough."""
    return f"{count:,.0f} {noun if count == 1 else plural or f'{noun}s'}"


def readings(data: Mapping[str, JsonValue]) -> str:
    """What was read at the last checkpoints: ``0, 3, 6``."""
    return ", ".join(f"{value:.0f}" for value in number_list(data, "at_checkpoints"))
