"""Text shared by all findings: headlines, rates, drivers, lists."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from hybridbench.analysis.facts.counters import singular
from hybridbench.foundation.metrics import Unit
from hybridbench.foundation.units import format_percent
from hybridbench.records.finding import Finding, Rate
from hybridbench.records.rates import per_text, rate_text

_RIVALS_NAMED = 4

# Characters of a headline: two lines of a terminal.
HEADLINE_MAX: Final = 160


def headline(word: str, lead: str, parts: Sequence[str] = (), tail: str = "") -> str:
    """Join ``lead``, as many of ``parts`` as fit into a headline after ``word``, and ``tail``.

    Parts that do not fit must appear elsewhere in the report.
    """
    room = headline_room(word, tail)
    said = shortened(lead, room)
    for part in parts:
        if len(said) + len(part) + 2 > room:
            break
        said += f"; {part}"
    return said + tail


def headline_room(word: str, tail: str) -> int:
    """Return how many characters a headline has between ``word`` and ``tail``."""
    return HEADLINE_MAX - len(tail) - (len(f"{word}: ") if word else 0)


def shortened(text: str, most: int) -> str:
    """Shorten ``text`` to ``most`` characters, cutting between words."""
    if len(text) <= most:
        return text
    whole = text[:most].rpartition(" ")[0] or text[: most - 1]
    return f"{whole[: most - 1].rstrip(' ,;:')}…"


def for_each(found: Finding) -> str:
    """Return a clause such as `` for each request``, with the driver; empty without one."""
    return "" if found.driver is None else f" for each {singular(found.driver)}"


def certain(rate: Rate) -> bool:
    """Whether the interval of ``rate`` excludes zero."""
    return rate.lower > 0.0 or rate.upper < 0.0


def per_event(found: Finding) -> str:
    """Return a phrase such as ``, 3.00 per session close``, to follow the subject of a title.

    Empty without a driver or a significant rate.  Every report prints the interval separately.
    """
    if found.driver is None or not certain(found.rates[0]):
        return ""
    rate = replace(found.rates[0], per=singular(found.driver))
    if found.driven is not None and found.driven.exact:
        return f", {rate.value:.2f}{per_text(rate.per)}"
    return f", {bare_rate_text(rate)}"


def bare_rate_text(rate: Rate) -> str:
    """Format a rate without its unit, except bytes: ``0.990 per evicted node``, ``131 k/h``."""
    unit = rate.unit if rate.unit == Unit.BYTES else Unit.COUNT.value
    return rate_text(replace(rate, unit=unit), signed=False)


def driver_evidence(found: Finding) -> Iterable[str]:
    """Yield the evidence for the driver, and the counters that explain the growth equally well."""
    how = found.driven
    if found.driver is None or how is None:
        return
    if how.exact:
        each = found.rates[0].value
        of_every = round(1.0 / each)
        added = f"each event added exactly {each:g}"
        if of_every > 1:
            added = f"exactly one of every {of_every:,} events added one"
        yield f"{found.driver} rose by {how.events:,.0f}; {added}"
    else:
        yield (
            f"{format_percent(how.share)} of the growth came in intervals in which {found.driver} "
            f"rose (by {how.events:,.0f} in all)"
        )
    if how.rivals:
        names = listed(how.rivals, _RIVALS_NAMED)
        yield f"{found.driver} cannot be distinguished in this run from {names}"


def listed(names: Sequence[str], most: int) -> str:
    """Join the first ``most`` names: ``a, b and 3 more``."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def times(count: float, noun: str, plural: str = "") -> str:
    """Format a count with its noun: ``1 line``, ``3 lines``; ``plural`` is for irregular nouns."""
    return f"{count:,.0f} {noun if count == 1 else plural or f'{noun}s'}"


def is_or_are(count: float) -> str:
    """Return the verb after ``times`` or ``pool_count``."""
    return "is" if count == 1 else "are"


def readings(values: Sequence[float]) -> str:
    """Format readings at the last checkpoints: ``0, 3, 6``."""
    return ", ".join(f"{value:.0f}" for value in values)
