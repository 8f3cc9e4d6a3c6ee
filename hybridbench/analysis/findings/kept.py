"""Findings about counts that keep growing in a process, and about caches that fill.

The counts are entries of containers, objects, blocks and bytes of the heap, open files, threads,
child processes and zombies.  One leak shows in many counts: the container, its objects, their own
lists, the allocator's blocks, and memory.  Each container that stays the same throughout is a
finding, with the rest as its evidence; if no container grows, the objects come first, then the
allocators.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

import msgspec

from hybridbench.analysis.drivers.growing import Doubt, Growing, GrowthKind, Sort
from hybridbench.analysis.drivers.search import TIME, explained
from hybridbench.analysis.facts.counters import singular
from hybridbench.analysis.findings.growth import Growth
from hybridbench.analysis.findings.held import (
    HELD,
    Beside,
    CacheFills,
    EntriesKept,
    HandlesKept,
    Held,
    noun,
)
from hybridbench.analysis.trend.allowance import Allowance
from hybridbench.foundation.labels import labelled, labels_of, unlabelled
from hybridbench.foundation.metrics import MEMORY, declared
from hybridbench.records.finding import Finding, Rate, VerdictKind
from hybridbench.records.verdict import MetricResult

_NAMED: Final = 4
# A cache that grows by less than this share of its length in the second half is practically full.
_MATTERS: Final = 0.05
# A cache that is full in the end was filling before.
_CACHES: Final = (GrowthKind.FILLS, GrowthKind.FULL)
_UNNAMED: Final = (Sort.BLOCKS, Sort.BYTES)
# Which count leads if one leak shows in several.
_ORDER: Final = (Sort.ENTRIES, Sort.OBJECTS, Sort.BLOCKS, Sort.BYTES, Sort.HANDLES)
# Containers of weak references do not keep their entries alive; something else does.
_WEAK: Final = frozenset(
    {
        "_weakrefset.WeakSet.data",
        "weakref.WeakKeyDictionary.data",
        "weakref.WeakValueDictionary.data",
    }
)


def kept_findings(
    growing: Sequence[Growing],
    metrics: Sequence[MetricResult] = (),
    allowed: Allowance | None = None,
) -> list[Finding]:
    """Return findings for containers that keep entries, for caches that fill, and for handles.

    A process without such a container gets a finding for its other growth.  Of the caches that fill
    in a process, only the largest is a finding.
    """
    found = []
    for own in _by_heap(growing):
        in_heap = [one for one in own if one.sort is not Sort.HANDLES]
        kept = [one for one in in_heap if one.kind is GrowthKind.KEPT]
        opened = [one for one in in_heap if one.kind is GrowthKind.OPEN]
        leaders = _leaders(kept) or _leaders(opened)[:1]
        containers = [one for one in own if one.sort is Sort.ENTRIES and one.kind in _CACHES]
        leaders = _unless_explained(leaders, opened, containers)
        filling = [one for one in containers if _matters(one)]
        led = set(map(id, leaders))
        beside = [
            one
            for one in own
            if id(one) not in led and one.kind in (GrowthKind.KEPT, GrowthKind.OPEN)
        ]
        for place, leader in enumerate(leaders):
            others = _besides(leader, beside, metrics) if place == 0 else ()
            found.append(_finding(leader, others, allowed or Allowance()))
        most = sorted(filling, key=lambda one: -one.last)
        found += [_fills(one, len(most)) for one in most[:1]]
        found += _handles(own, leaders)
    return found


def _handles(own: Sequence[Growing], leaders: Sequence[Growing]) -> list[Finding]:
    """Return findings for handles kept open, unless the first leader is a leak that names them.

    Undecided handles have a finding from their trend instead.
    """
    kept = [one for one in own if one.sort is Sort.HANDLES and one.kind is GrowthKind.KEPT]
    if leaders and leaders[0].kind is GrowthKind.KEPT:
        kept = [one for one in kept if not _events(one) & _events(leaders[0])]
    return [_finding(one, (), Allowance()) for one in sorted(kept, key=_place)]


def _unless_explained(
    leaders: list[Growing], opened: Sequence[Growing], caches: Sequence[Growing]
) -> list[Growing]:
    """Return ``leaders``, or the undecided count that grows with the first and explains it.

    Empty if a bounded cache explains the leader.
    """
    if not leaders or (leaders[0].sort is Sort.ENTRIES and leaders[0].one):
        return leaders
    leader = leaders[0]
    if any(one.bound and _in_step(one, leader) for one in caches):
        return []
    before = _ORDER[: _ORDER.index(leader.sort)]
    # Whatever holds more and more objects or containers may be known.
    inside = leader.sort in (Sort.ENTRIES, Sort.OBJECTS)
    named = [
        one
        for one in opened
        if (_holds(one) or (one.sort in before and not inside)) and _in_step(one, leader)
    ]
    return _leaders(named)[:1] or leaders


def without_parts(findings: Sequence[Finding], kept: Sequence[Finding]) -> list[Finding]:
    """Drop from ``findings`` what the leaks in ``kept`` already report.

    That is the memory growth of their processes, and the trends of the handles that they keep open.
    """
    leaks = [one for one in kept if one.verdict is VerdictKind.LEAK]
    named = {_owner(one.subject) for one in leaks}
    opened = {labelled(name, dict(_owner(one.subject))) for one in leaks for name in _opened(one)}
    return [
        finding
        for finding in findings
        if finding.subject not in opened
        and not (
            isinstance(finding.basis, Growth)
            and unlabelled(finding.subject) == MEMORY
            and _owner(finding.subject) in named
        )
    ]


def _opened(leak: Finding) -> Iterable[str]:
    """Yield the metrics of the handles that ``leak`` reports, as its subject or as evidence."""
    basis = leak.basis
    if isinstance(basis, HandlesKept):
        yield basis.name
    if isinstance(basis, Held):
        yield from (one.name for one in basis.beside if one.sort == Sort.HANDLES.value)


def _owner(subject: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(labels_of(subject).items()))


def _by_heap(growing: Sequence[Growing]) -> list[list[Growing]]:
    heaps: dict[int, list[Growing]] = {}
    for one in growing:
        heaps.setdefault(id(one.heap), []).append(one)
    return list(heaps.values())


def _leaders(kept: Sequence[Growing]) -> list[Growing]:
    """Return the containers that keep entries alive; if there are none, the first other count."""
    containers = [one for one in kept if _holds(one)]
    if containers:
        return sorted(containers, key=_place)
    return sorted(kept, key=_place)[:1]


def _holds(one: Growing) -> bool:
    """Whether ``one`` is a container that stayed the same and keeps its entries alive."""
    return one.sort is Sort.ENTRIES and one.one and one.name not in _WEAK


def _place(one: Growing) -> tuple[int, int, bool, float, str]:
    driver = one.kept.driver
    whole = abs(driver.per_event - 1.0) < 0.02
    timed = driver.counter == TIME
    sort, told = _ORDER.index(one.sort), 0
    if one.sort is Sort.ENTRIES and not _holds(one):
        # If containers multiply, the objects that own them are more informative, unless builtin.
        sort, told = _ORDER.index(Sort.OBJECTS), 3 if one.name in _WEAK else 1
    elif one.sort is Sort.OBJECTS and _is_builtin(one.name):
        told = 2
    return sort, told, timed, 0.0 if whole else 1.0, one.name


def _is_builtin(kind: str) -> bool:
    """Whether every program has objects of this type, such as ``builtins.list``."""
    module = kind.partition(".")[0]
    return module in ("builtins", "weakref") or (module[:1] == "_" and module[:2] != "__")


def _besides(
    leader: Growing, others: Sequence[Growing], metrics: Sequence[MetricResult]
) -> tuple[Beside, ...]:
    """Return the counts that grow with the event of ``leader``, or an indistinguishable one."""
    shown = sorted((one for one in others if _events(one) & _events(leader)), key=_place)
    # Handles listed here have no finding of their own, so they are always named.
    shown.sort(key=lambda one: one.sort is not Sort.HANDLES)
    found = [
        Beside(
            sort=one.unit,
            name=one.name,
            value=one.kept.driver.per_event * _same_event(one, leader) * _scale(leader),
            per=_event(leader),
        )
        for one in shown
    ]
    return (*found[:_NAMED], *_memory(leader, metrics))


def _in_step(cache: Growing, other: Growing) -> bool:
    """Whether both grow with the same event, or with indistinguishable ones."""
    return not cache.kept.slows and bool(_events(cache) & _events(other))


def _events(one: Growing) -> set[str]:
    """Return the event that drives the growth, and its rivals."""
    return {one.kept.driver.counter, *one.kept.driver.rivals}


def _same_event(one: Growing, leader: Growing) -> float:
    """Return the number of events of ``one``'s driver per event of the leader's."""
    own, other = one.kept.driver, leader.kept.driver
    return 1.0 if own.counter == other.counter else own.events / max(other.events, 1.0)


def _memory(leader: Growing, metrics: Sequence[MetricResult]) -> Iterable[Beside]:
    subject = leader.heap.subject(MEMORY)
    for result in metrics:
        rate = result.rate_per_hour
        if result.metric == subject and rate is not None and rate.lower > 0:
            events = leader.kept.driver.events
            hours = (leader.until_s - leader.since_s) / 3600.0
            hourly = leader.kept.timed or not events
            value = rate.value if hourly else rate.value * hours / events
            yield Beside(sort="B", name=MEMORY, value=value, per="h" if hourly else _event(leader))


def _event(one: Growing) -> str:
    counter = one.kept.driver.counter
    return "h" if counter == TIME else singular(counter)


def _finding(one: Growing, beside: tuple[Beside, ...], allowed: Allowance) -> Finding:
    kept = one.kept
    # A count without a name may be of any declared cache.
    is_cache = one.sort in _UNNAMED or allowed.covers(one.name)
    budget = allowed.budget if is_cache else None
    unit = declared(one.name).label if one.sort is Sort.HANDLES else one.unit
    basis = HELD[one.sort](
        role=one.heap.role,
        name=one.name,
        last=one.last,
        at_idle=one.at_idle,
        collected=one.collected,
        rounds=kept.rounds,
        alike=kept.alike,
        counted=kept.driver.exact,
        doubt=one.doubt.value,
        censuses=one.censuses,
        early=kept.early * _scale(one),
        late=kept.late * _scale(one),
        odds=None if kept.rounds else kept.odds,
        beside=beside,
        budget=budget,
        limit=one.limit if one.doubt is Doubt.LIMIT else None,
        kv_cache=allowed.kv_caches.get(one.heap.subject("")) if one.doubt is Doubt.CACHE else None,
    )
    if isinstance(basis, EntriesKept):
        holds = one.heap.holds.get(one.name, "")
        basis = msgspec.structs.replace(basis, holds=holds, several=not one.one)
    leaks = one.kind is GrowthKind.KEPT and budget is None
    verdict = VerdictKind.LEAK if leaks else VerdictKind.INCONCLUSIVE
    found = Finding(basis, verdict, _subject(one), since_s=one.since_s)
    if kept.timed:
        driver = kept.driver
        value, low, high = (3600.0 * x for x in (driver.per_event, driver.lower, driver.upper))
        return replace(found, rates=(Rate(value, low, high, unit, "h"),))
    return explained(found, kept.driver, unit)


def _subject(one: Growing) -> str:
    if one.sort is not Sort.ENTRIES:
        return one.heap.subject(one.name)
    return one.heap.subject(f"{noun(one.unit)} of {one.name}")


def _scale(one: Growing) -> float:
    return 3600.0 if one.kept.timed else 1.0


def _matters(one: Growing) -> bool:
    """Whether a filling cache grows enough to leave the run undecided.

    Many containers at one path are not a cache; their holder may be one, under its own name.
    """
    if one.bound is not None or not one.one:
        return False
    kept = one.kept
    share = kept.late / max(kept.early + kept.late, 1e-300)
    return share * kept.driver.rise >= _MATTERS * max(one.last, 1.0)


def _fills(one: Growing, caches: int) -> Finding:
    kept = one.kept
    basis = CacheFills(
        role=one.heap.role,
        path=one.name,
        size=one.last,
        caches=caches,
        early=kept.early * _scale(one),
        late=kept.late * _scale(one),
    )
    # The rate of the second half is shown as an estimate; it decides nothing.
    rate = Rate(basis.late, -math.inf, math.inf, one.unit, _event(one))
    subject = _subject(one)
    return Finding(basis, VerdictKind.INCONCLUSIVE, subject, rates=(rate,), since_s=one.since_s)
