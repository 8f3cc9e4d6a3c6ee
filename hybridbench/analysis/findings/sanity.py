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
    pool_words,
)
from hybridbench.analysis.record import FloatArray, RunRecord
from hybridbench.records.codes import FindingCode
from hybridbench.records.verdict import Finding, VerdictKind, untyped

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
        yield untyped(
            kind=FindingCode.NEGATIVE_COUNT,
            verdict=VerdictKind.INVARIANT,
            subject=subject,
            since_s=float(t[below[0]]),
            data={
                "part": part,
                "least": float(value.min()),
                "looks": int(below.size),
                "readings": int(t.size),
            },
        )


def _too_many(record: RunRecord, pool: str) -> Iterable[Finding]:
    t, free = _pool_counts(record, pool, "available")
    total_t, total = _pool_counts(record, pool, "total")
    if not t.size or not total_t.size:
        return
    more = free - np.interp(t, total_t, total)
    over = np.flatnonzero(more > 0)
    if over.size:
        yield untyped(
            kind=FindingCode.MORE_FREE_THAN_EXIST,
            verdict=VerdictKind.INVARIANT,
            subject=pool_words(pool),
            since_s=float(t[over[0]]),
            data={
                "pool": pool,
                "most": float(more.max()),
                "looks": int(over.size),
                "readings": int(t.size),
            },
        )


def _pool_counts(record: RunRecord, pool: str, part: str) -> tuple[FloatArray, FloatArray]:
    name = f"pool.{pool}.{part}"
    return all_readings(record, name, lambda at: at.pools.get(pool, {}).get(part))


def _lengths(record: RunRecord, container: str) -> tuple[FloatArray, FloatArray]:
    name = f"container.{container}.len"
    return all_readings(record, name, lambda at: at.containers.get(container))
