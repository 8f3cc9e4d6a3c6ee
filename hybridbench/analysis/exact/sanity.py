"""Counts that cannot be: fewer than none, or more free slots than there are.

No statistics and no second reading: the samples are taken between two steps, when every count is
whole, so a single one of these is a state that contradicts itself.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from hybridbench.analysis.facts.pools import (
    all_readings,
    pool_names,
    pool_unit,
    pool_words,
)
from hybridbench.analysis.record import FloatArray, RunRecord
from hybridbench.records.verdict import Finding, VerdictKind
from hybridbench.units import format_duration

NEGATIVE = "negative-count"
TOO_MANY = "more-free-than-exist"

_PARTS = ("available", "evictable", "protected", "in_flight", "session_held", "waiting_held")


def sanity_findings(record: RunRecord) -> list[Finding]:
    """One finding for each count that was negative, and for each pool with too much free."""
    findings: list[Finding] = []
    for pool in pool_names(record):
        for part in _PARTS:
            findings += _negative(_pool_counts(record, pool, part), pool_words(pool), part)
        findings += _too_many(record, pool)
    for name in sorted(record.series):
        if name.startswith("container."):
            container = name.removeprefix("container.").removesuffix(".len")
            findings += _negative(_lengths(record, container), f"container: {container}", "length")
    return findings


def _negative(
    readings: tuple[FloatArray, FloatArray], subject: str, part: str
) -> Iterable[Finding]:
    t, value = readings
    below = np.flatnonzero(value < 0)
    if below.size:
        first = float(t[below[0]])
        yield Finding(
            kind=NEGATIVE,
            verdict=VerdictKind.INVARIANT,
            subject=subject,
            title=f"{part.replace('_', ' ')} is {value.min():.0f}: a count fell below zero",
            cause="something was given back, or taken off the count, twice",
            evidence=(f"in {below.size} of {t.size} readings, first at {format_duration(first)}",),
            since_s=first,
            data={"least": float(value.min()), "looks": int(below.size)},
        )


def _too_many(record: RunRecord, pool: str) -> Iterable[Finding]:
    t, free = _pool_counts(record, pool, "available")
    total_t, total = _pool_counts(record, pool, "total")
    if not t.size or not total_t.size:
        return
    more = free - np.interp(t, total_t, total)
    over = np.flatnonzero(more > 0)
    if over.size:
        first = float(t[over[0]])
        unit = pool_unit(pool)
        yield Finding(
            kind=TOO_MANY,
            verdict=VerdictKind.INVARIANT,
            subject=pool_words(pool),
            title=f"{more.max():.0f} more {unit} are free than the pool has",
            cause="a slot was freed twice, and stands in the free list twice",
            evidence=(f"in {over.size} of {t.size} readings, first at {format_duration(first)}",),
            since_s=first,
            data={"pool": pool, "most": float(more.max())},
        )


def _pool_counts(record: RunRecord, pool: str, part: str) -> tuple[FloatArray, FloatArray]:
    name = f"pool.{pool}.{part}"
    return all_readings(record, name, lambda at: at.pools.get(pool, {}).get(part))


def _lengths(record: RunRecord, container: str) -> tuple[FloatArray, FloatArray]:
    name = f"container.{container}.len"
    return all_readings(record, name, lambda at: at.containers.get(container))
