"""Impossible counts: negative ones, more free slots than exist, admissions that did not fit.

Neither statistics nor a second reading is needed: samples are taken between two steps, when every
count is consistent, so a single such value is a contradiction.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from hybridbench.analysis.facts.facts import Facts
from hybridbench.analysis.facts.pools import all_readings, pool_names, pool_unit, pool_words
from hybridbench.analysis.findings.words import times
from hybridbench.analysis.record import FloatArray, RunRecord
from hybridbench.foundation.units import format_duration
from hybridbench.records.finding import Basis, Finding, VerdictKind, Words

_PARTS = ("available", "evictable", "protected", "in_flight", "session_held", "waiting_held")


class NegativeCount(Basis, frozen=True, kw_only=True):
    """A part of a pool, or the length of a container, that was below zero.

    Attributes:
        part: what was negative, such as ``session_held`` or ``length``.
        least: the lowest reading.
        looks: number of readings below zero, out of ``readings``.
    """

    kind = "negative-count"
    meaning = "A count fell below zero."
    leads_to = "INVARIANT"
    question = "no pool count is negative"

    part: str
    least: float
    looks: int
    readings: int

    def words(self, found: Finding) -> Words:
        return Words(
            f"{self.part.replace('_', ' ')} is {self.least:,.0f}: the count fell below zero",
            cause="something was released, or taken off the count, twice",
            evidence=(_seen_in(self, found),),
        )

    def advice(self, found: Finding) -> str:
        counted = found.subject.rpartition(": ")[2]
        return f"Find the second code path that subtracts the same amount from {counted}."


class MoreFreeThanExist(Basis, frozen=True, kw_only=True):
    """A pool with up to ``most`` free slots too many, in ``looks`` of ``readings`` readings."""

    kind = "more-free-than-exist"
    meaning = "More slots of a pool are free than exist."
    leads_to = "INVARIANT"
    question = "no pool has more free slots than exist"

    pool: str
    most: float
    looks: int
    readings: int

    def words(self, found: Finding) -> Words:
        return Words(
            f"free {pool_unit(self.pool)} exceed the size of the {self.pool} pool by "
            f"{self.most:,.0f}",
            cause="a slot was freed twice and is in the free list twice",
            evidence=(_seen_in(self, found),),
        )

    def advice(self, found: Finding) -> str:
        return (
            f"Find the slot that is in the free list of {pool_unit(self.pool)} twice: it will be "
            "allocated to two requests at once."
        )


class AdmissionUndone(Basis, frozen=True, kw_only=True):
    """Prefill steps that admission had counted room for, and that could not be allocated.

    Attributes:
        undone: number of such steps; those whose allocation the profile made fail are not counted.
        steps: number of prefill steps.
    """

    kind = "admission-undone"
    meaning = (
        "Admission counted room for a prefill step, but an allocation failed, and its requests "
        "went back to the queue."
    )
    leads_to = "INVARIANT"
    question = "every admitted request gets the slots that admission counted"
    advised = (
        "Compare what admission counts for a request (whole pages, state slots, rows, what can be "
        "evicted) with what its first step allocates."
    )

    undone: float
    steps: float

    def words(self, found: Finding) -> Words:
        return Words(
            f"{times(self.undone, 'prefill step')} could not be allocated although admission had "
            "counted room",
            cause="admission and the allocators count the need or the room differently",
            evidence=(
                f"beside {times(self.steps, 'prefill step')} that ran; first at "
                f"{format_duration(found.since_s or 0.0)}",
            ),
        )


def _seen_in(basis: NegativeCount | MoreFreeThanExist, found: Finding) -> str:
    first = format_duration(found.since_s or 0.0)
    return f"in {basis.looks:,.0f} of {basis.readings:,.0f} readings, first at {first}"


def sanity_findings(facts: Facts) -> list[Finding]:
    """Return one finding for each negative count, each pool with too many free slots, and all
    admissions that did not fit.
    """
    record = facts.record
    findings: list[Finding] = []
    for pool in pool_names(record):
        for part in _PARTS:
            findings += _negative(_pool_counts(record, pool, part), pool_words(pool), part)
        findings += _too_many(record, pool)
    findings += _undone(facts)
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
        basis = NegativeCount(
            part=part, least=float(value.min()), looks=int(below.size), readings=int(t.size)
        )
        yield Finding(basis, VerdictKind.INVARIANT, subject, since_s=float(t[below[0]]))


def _too_many(record: RunRecord, pool: str) -> Iterable[Finding]:
    t, free = _pool_counts(record, pool, "available")
    total_t, total = _pool_counts(record, pool, "total")
    if not t.size or not total_t.size:
        return
    more = free - np.interp(t, total_t, total)
    over = np.flatnonzero(more > 0)
    if over.size:
        basis = MoreFreeThanExist(
            pool=pool, most=float(more.max()), looks=int(over.size), readings=int(t.size)
        )
        yield Finding(basis, VerdictKind.INVARIANT, pool_words(pool), since_s=float(t[over[0]]))


def _undone(facts: Facts) -> Iterable[Finding]:
    counters = facts.counters
    undone = counters.total("rollbacks") - counters.total("forced_fail_allocation")
    if undone > 0:
        series = counters.series["rollbacks"]
        basis = AdmissionUndone(undone=undone, steps=counters.total("prefill_steps"))
        since_s = float(series.t_s[np.flatnonzero(series.value > 0)[0]])
        yield Finding(basis, VerdictKind.INVARIANT, "admission", since_s=since_s)


def _pool_counts(record: RunRecord, pool: str, part: str) -> tuple[FloatArray, FloatArray]:
    name = f"pool.{pool}.{part}"
    return all_readings(record, name, lambda at: at.pools.get(pool, {}).get(part))


def _lengths(record: RunRecord, container: str) -> tuple[FloatArray, FloatArray]:
    name = f"container.{container}.len"
    return all_readings(record, name, lambda at: at.containers.get(container))
