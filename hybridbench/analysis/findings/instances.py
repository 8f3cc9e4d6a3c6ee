"""Objects that the engine removed and that reference counting should have freed, but did not.

The decision needs no statistics: a healthy engine leaves none for the collector, so finding some
twice is a leak, whether or not full collections keep the process's memory flat.  Statistics only
estimate how many appear per event: a full collection resets the count, so rates use only stretches
between two collections, within which the count rises by the same amount per event.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from hybridbench.analysis.distributions import wilson_interval
from hybridbench.analysis.drivers.rates import mean_rate
from hybridbench.analysis.drivers.search import (
    FEWEST_SAMPLES,
    Hints,
    correlates,
    find_driver,
)
from hybridbench.analysis.facts.counters import EventCounters, singular
from hybridbench.analysis.facts.facts import Facts
from hybridbench.analysis.findings.growth import Collectible, collectible_growth
from hybridbench.analysis.findings.words import (
    bare_rate_text,
    certain,
    driver_evidence,
    times,
)
from hybridbench.analysis.record import FloatArray, RunRecord, Series
from hybridbench.foundation.metrics import COLLECTIBLE, COLLECTIONS, Unit
from hybridbench.foundation.units import format_bytes, format_count, format_duration
from hybridbench.records.events import Checkpoint
from hybridbench.records.finding import Basis, Finding, Rate, VerdictKind, Words
from hybridbench.records.verdict import RETAINED, WAITING, MetricResult

_PREFIX, _FIELDS = "instances.", ("stray", "collectible", "retained")

# Heap scans run between two steps, when no removal is in progress; but one local variable of the
# loop may still reference the object removed last, and another may reference its former parent.
TOLERANCE = 2.0
_MIN_PROBES = 2
_WAVERS = 0.4  # share of falls among the changes, above which the count is noise
# Events that end the life of an instance, likeliest first.
_END_OF_NODES = ("nodes_evicted",)
_END_OF_SESSIONS = ("session_closes",)
_END_OF_OTHERS = ("finishes", "requests_aborted")

_UNKNOWN_WIDTH = 0.1  # half-width of the interval of a rate without one, as a share of the rate


class Instances(Basis, frozen=True, kw_only=True):
    """Objects of one class that the engine removed and that are still alive.

    Some may wait for a full collection and others survive one: the larger group gives the kind.

    Attributes:
        other: the kind of the smaller group.
        others_do: a clause on what the smaller group's objects do.
        most_do: the same for the larger group, if no trial collection shows it.
        probes_with_strays: heap scans that found any, out of ``probes``.
        most: the largest number of objects in one scan.
        last: the number of objects in the last scan.
        retained_most: the most objects in one scan that survive a full collection.
        retained_measured: whether any trial collection was made.
        collectible_most: the most objects in one scan that a full collection frees.
        retained_share: share of survivors in the ``probes_tried`` scans with a trial collection;
            like the next four values, None if there is only one group.
        fullest_s: time of the scan among these that found most.
        fullest_retained, fullest_collectible: objects that survive and that are freed in that scan.
        collections: full collections during the run, with ``stretches`` between them.
        collectible_bytes_most: the most memory that a full collection would free at one time.
    """

    names_mechanism = True
    from_steady = True
    other: ClassVar[str]
    others_do: ClassVar[str]
    most_do: ClassVar[str]

    probes: int
    probes_with_strays: int
    most: float
    last: float
    retained_most: float
    retained_measured: bool
    collectible_most: float
    retained_share: float | None = None
    probes_tried: int | None = None
    fullest_s: float | None = None
    fullest_retained: float | None = None
    fullest_collectible: float | None = None
    unit: str
    collections: float | None = None
    stretches: int | None = None
    collectible_bytes_most: float | None = None

    @property
    def others(self) -> float:
        """The most objects of the smaller group in one scan."""
        raise NotImplementedError(type(self).__name__)

    @property
    def shares(self) -> tuple[str, str] | None:
        """The shares that a full collection frees and does not free; None if one group is empty."""
        if self.retained_share is None or not self._is_mixed:
            return None
        kept = round(100.0 * self.retained_share)
        if not 0 < kept < 100:
            few, most = "less than 1%", "more than 99%"
            return (few, most) if kept else (most, few)
        return f"{100 - kept}%", f"{kept}%"

    @property
    def _is_mixed(self) -> bool:
        return min(self.retained_most, self.collectible_most) > TOLERANCE

    def words(self, found: Finding) -> Words:
        objects = f"removed {found.subject} objects {self._predicate()}"
        # Include only rates that are significantly above zero.
        rates = [
            bare_rate_text(rate)
            for rate in found.rates
            if rate.unit != Unit.BYTES and certain(rate)
        ]
        most = format_count(self.most)
        return Words(
            f"{objects}: {', '.join(rates)}" if rates else f"up to {most} {objects}",
            cause=self._cause(),
            evidence=(*self._evidence(found), *driver_evidence(found)),
        )

    def _predicate(self) -> str:
        if self._is_mixed:
            kept = "some" if self.shares is None else self.shares[1]
            return f"stay alive ({kept} survive a full gc.collect())"
        return "survive a full gc.collect()" if self.retained_most > TOLERANCE else self.most_do

    def _cause(self) -> str:
        if self._is_mixed:
            freed, kept = ("some", "others") if self.shares is None else self.shares
            return (
                f"{freed} form reference cycles or hang from one, which only a full collection "
                f"frees; the {'' if self.shares is None else 'other '}{kept} are still referenced "
                "by objects in use, so a collection keeps them"
            )
        if self.collectible_most <= TOLERANCE:
            return "something still refers to objects that the engine has removed"
        return "removed objects still refer to each other: only a full collection frees them"

    def _evidence(self, found: Finding) -> Iterable[str]:
        yield (
            f"removed objects alive in {self.probes_with_strays:,.0f} of {self.probes:,.0f} heap "
            f"scans, first at {format_duration(found.since_s or 0.0)}; at most "
            f"{format_count(self.most)} at once, {format_count(self.last)} in the last"
        )
        if self._is_mixed:
            yield from self._both_parts()
        elif self.retained_most > TOLERANCE:
            kept = format_count(self.retained_most)
            yield f"up to {kept} {self.unit} survive a full collection"
        elif self.retained_measured:
            yield "a full collection would free all of them: nothing else refers to them"
        if self.collections is not None:
            yield _collections_text(self.collections, self.stretches or 0)
        if self.collectible_bytes_most is not None:
            size = format_bytes(self.collectible_bytes_most)
            yield (
                f"collectible memory reached {size}"
                f"{' before a full collection' if self.collections else ''}"
            )

    def _both_parts(self) -> Iterable[str]:
        """Describe both groups: their shares over all trial collections, and counts of one scan."""
        if self.shares is None or self.fullest_s is None:
            return
        yield (
            f"in {times(self.probes_tried or 0, 'heap scan')} with a trial collection, all "
            f"together: it frees {self.shares[0]} of the removed objects, {self.shares[1]} survive "
            "it"
        )
        freed, kept = self.fullest_collectible or 0.0, self.fullest_retained or 0.0
        yield (
            f"in the fullest of them, at {format_duration(self.fullest_s)}: {format_count(freed)} "
            f"freed, {format_count(kept)} survive"
        )

    def advice(self, found: Finding) -> str:
        if self.shares is None:
            return self._remedy(found.subject)
        freed, kept = self.shares
        return (
            f"Where {found.subject} objects are removed, clear the pointers between them (prev and "
            f"next): that frees the {freed} in cycles. Then find what still refers to the {kept} "
            "that survive gc.collect() (gc.get_referrers in the live process, or the diagnosis), "
            "and clear that too."
        )

    def _remedy(self, name: str) -> str:
        """Return the advice for objects named ``name`` if there is only one group."""
        raise NotImplementedError(type(self).__name__)


def _collections_text(count: float, stretches: int) -> str:
    if not count:
        return "no full collection during the run"
    parts = f"{stretches:,.0f} stretch{'es' * (stretches != 1)}"
    return f"{times(count, 'full collection')} during the run; rates are from {parts} between them"


class InstancesWait(Instances, frozen=True, kw_only=True):
    """Most objects wait for a collection; ``collectible`` is their share of the memory growth."""

    kind = "instances-wait-for-collector"
    meaning = "Removed objects stay alive in reference cycles until the garbage collector runs."
    question = "no removed object waits for the garbage collector"
    other = RETAINED
    others_do = "survive a full gc.collect()"
    most_do = "wait for the garbage collector"

    collectible: Collectible | None = None

    @property
    def others(self) -> float:
        return self.retained_most

    def _evidence(self, found: Finding) -> Iterable[str]:
        yield from super()._evidence(found)
        if self.collectible is not None:
            yield self.collectible.split()

    def _remedy(self, name: str) -> str:
        return (
            f"Find where {name} is unlinked and clear its remaining pointers there (prev and "
            "next): an object in no cycle is freed by reference count at once."
        )


class InstancesRetained(Instances, frozen=True, kw_only=True):
    """Most objects survive a full collection, because something in use references them."""

    kind = "instances-retained"
    meaning = "Removed objects are still referenced: a full garbage collection does not free them."
    question = "no removed object survives a full gc.collect()"
    other = WAITING
    others_do = "are left to the collector"
    most_do = "stay alive, and something still refers to them"

    @property
    def others(self) -> float:
        return self.collectible_most

    def _remedy(self, name: str) -> str:
        return (
            f"Find what still refers to the removed {name} objects (gc.get_referrers in the live "
            "process, or the diagnosis) and clear that reference where they are removed; a full "
            "gc.collect() does not free them."
        )


def with_split(findings: Sequence[Finding], results: Sequence[MetricResult]) -> list[Finding]:
    """Add the share of memory growth that they explain to findings of kind ``InstancesWait``."""
    split = collectible_growth(results)
    if split is None:
        return list(findings)
    return [
        replace(finding, basis=msgspec.structs.replace(finding.basis, collectible=split))
        if isinstance(finding.basis, InstancesWait)
        else finding
        for finding in findings
    ]


@dataclass(frozen=True)
class _Scans:
    """The probes' readings of one class."""

    name: str
    t_s: FloatArray
    stray: FloatArray
    collectible: FloatArray
    retained: FloatArray

    @property
    def unit(self) -> str:
        return "nodes" if self._is_node else f"{self.name} instances"

    @property
    def ends(self) -> tuple[str, ...]:
        """Counters of events that end an instance's life."""
        if self._is_node:
            return _END_OF_NODES
        return _END_OF_SESSIONS if self.name == "Session" else _END_OF_OTHERS

    @property
    def _is_node(self) -> bool:
        return self.name.lower().endswith("node")


def instance_findings(facts: Facts) -> list[Finding]:
    """Return one finding for each class with removed instances alive in at least two probes."""
    record = facts.record
    sampled = (name for name in record.series if name.startswith(_PREFIX))
    names = {name.removeprefix(_PREFIX).rpartition(".")[0] for name in sampled}
    for checkpoint in record.all_events(Checkpoint):
        names.update(checkpoint.instances or {})
    found = (_judge(facts, _scans(record, name)) for name in sorted(names))
    return [finding for finding in found if finding is not None]


def _scans(record: RunRecord, name: str) -> _Scans:
    """Collect the probes of the class, including those taken at checkpoints."""
    columns: dict[str, dict[float, float]] = {field: {} for field in _FIELDS}
    for field in _FIELDS:
        series = record.series.get(f"{_PREFIX}{name}.{field}")
        if series is not None:
            columns[field] = dict(zip(series.t_s.tolist(), series.value.tolist(), strict=True))
    for checkpoint in record.all_events(Checkpoint):
        counts = (checkpoint.instances or {}).get(name)
        if counts is not None:
            columns["stray"][checkpoint.t_s] = counts.live - counts.expected
            columns["collectible"][checkpoint.t_s] = counts.collectible
            columns["retained"][checkpoint.t_s] = counts.retained
    t = sorted(columns["stray"])
    arrays = [np.array([column.get(time, np.nan) for time in t]) for column in columns.values()]
    return _Scans(name, np.array(t), *arrays)


def _judge(facts: Facts, scans: _Scans) -> Finding | None:
    seen = scans.stray > TOLERANCE
    if int(seen.sum()) < _MIN_PROBES:
        return None
    first = int(np.argmax(seen))
    collections = facts.record.series.get(COLLECTIONS)
    start = _first_judged(facts, scans, first)
    probes = make_probes(scans.t_s[start:], scans.stray[start:], collections)
    # The event that leaves instances behind, by the probes between collections.
    hints = Hints(natural=scans.ends, emptied=True)
    found = find_driver(scans.t_s, scans.stray, facts.counters, hints)
    driver = found.counter if found is not None else _likely(scans, facts.counters)
    per_event = None if driver is None else _per_event(driver, facts.counters, scans, probes)
    if per_event is None:
        driver, found = None, None
    kind = InstancesWait if _waits(scans, seen) else InstancesRetained
    basis = kind(
        probes=int(scans.t_s.size),
        probes_with_strays=int(seen.sum()),
        most=float(np.max(scans.stray)),
        last=float(scans.stray[-1]),
        retained_most=_most(scans.retained[seen]),
        retained_measured=bool(np.any(np.isfinite(scans.retained))),
        collectible_most=_most(scans.collectible[seen]),
        unit=scans.unit,
    )
    return Finding(
        _with_collections(_with_shares(basis, scans, seen), facts.record, probes),
        VerdictKind.LEAK,
        scans.name,
        driver,
        tuple(_rates(facts, scans, probes, per_event, driver)),
        float(scans.t_s[first]),
        None if found is None else found.how,
    )


def _first_judged(facts: Facts, scans: _Scans, first: int) -> int:
    """Return the probe from which rates are computed.

    It is in the judged window if that has enough probes, because a warm-up may leave more or fewer
    instances behind; otherwise it is the ``first`` probe with such instances.
    """
    if facts.window is None:
        return first
    steady = max(first, int(np.searchsorted(scans.t_s, facts.window.start_s)))
    return steady if scans.t_s.size - steady >= FEWEST_SAMPLES else first


def _waits(scans: _Scans, seen: NDArray[np.bool_]) -> bool:
    """Whether most of the objects wait for a full collection, rather than survive one.

    Uses the probes that found any; if none of them tried a collection, any collectible objects
    decide.
    """
    freed, kept = _tried(scans, seen)
    # If no probe measured both, both sums are 0.
    return freed >= kept and _most(scans.collectible[seen]) > TOLERANCE


def _with_shares(basis: Instances, scans: _Scans, seen: NDArray[np.bool_]) -> Instances:
    """Add the share that survives over all trial collections, and both counts of the fullest probe.

    The maxima of the two counts may come from different probes.
    """
    freed, kept = _tried(scans, seen)
    if not freed or not kept:
        return basis
    both = np.where(seen, scans.collectible + scans.retained, np.nan)
    fullest = int(np.nanargmax(both))
    return msgspec.structs.replace(
        basis,
        retained_share=kept / (freed + kept),
        probes_tried=int(np.isfinite(both).sum()),
        fullest_s=float(scans.t_s[fullest]),
        fullest_retained=float(scans.retained[fullest]),
        fullest_collectible=float(scans.collectible[fullest]),
    )


def _tried(scans: _Scans, seen: NDArray[np.bool_]) -> tuple[float, float]:
    """Return the sums of freed and surviving objects over the probes with a trial collection."""
    collectible, retained = scans.collectible[seen], scans.retained[seen]
    tried = np.isfinite(collectible) & np.isfinite(retained)
    return float(collectible[tried].sum()), float(retained[tried].sum())


def _with_collections(basis: Instances, record: RunRecord, probes: Probes) -> Instances:
    """Add the full collections, the stretches between them, and the most that one would free."""
    collected, size = record.series.get(COLLECTIONS), record.series.get(COLLECTIBLE)
    if collected is not None and len(collected):
        count = float(collected.value[-1] - collected.value[0])
        basis = msgspec.structs.replace(basis, collections=count, stretches=len(probes.stretches()))
    if size is not None and len(size):
        most = float(np.nanmax(size.value))
        basis = msgspec.structs.replace(basis, collectible_bytes_most=most)
    return basis


def _likely(scans: _Scans, counters: EventCounters) -> str | None:
    """Return the event that ends an instance's life, if there are too few probes for a fit."""
    if scans.t_s.size >= FEWEST_SAMPLES:
        return None
    return next((name for name in scans.ends if counters.total(name) > 0), None)


def _per_event(driver: str, counters: EventCounters, scans: _Scans, probes: Probes) -> Rate | None:
    """Return instances per event; None if they do not rise with it or it cannot be the cause."""
    at = counters.at(driver, probes.t_s)
    rate = production_rate(probes, at, scans.unit, singular(driver))
    if rate is None or not correlates(rate) or _wavers(probes):
        return None
    # An event that ends one life leaves at most one instance; a higher rate has another cause.
    if driver in scans.ends and rate.lower > 1.0:
        return None
    events = sum(float(at[run][-1] - at[run][0]) for run in probes.stretches())
    return with_counting_error(rate, events)


def _wavers(probes: Probes) -> bool:
    """Whether the count falls about as often as it rises without a full collection in between.

    The rises between falls are then noise, whatever else changed; a sawtooth from collections of
    younger generations rises more often than it falls.
    """
    same = probes.collections_after[1:] <= probes.collections_before[:-1]
    steps = np.diff(probes.value)[same]
    moves = int(np.count_nonzero(steps))
    return moves >= FEWEST_SAMPLES and int((steps < 0).sum()) > _WAVERS * moves


def _rates(
    facts: Facts, scans: _Scans, probes: Probes, per_event: Rate | None, driver: str | None
) -> Iterable[Rate]:
    """Yield objects per event and per hour, then the corresponding bytes."""
    hourly = production_rate(probes, probes.t_s / 3600.0, scans.unit, "h")
    rates = [per_event, hourly]
    size = facts.record.series.get(COLLECTIBLE)
    # These bytes cover only what a collection would free.  If most instances survive one, they are
    # the smaller part, and the growth of the process is more informative.
    if size is not None and _most(scans.collectible) > max(TOLERANCE, _most(scans.retained)):
        after = size.between(float(probes.t_s[0]), float(probes.t_s[-1]))
        weighed = make_probes(after.t_s, after.value, facts.record.series.get(COLLECTIONS))
        if driver is not None:
            at = facts.counters.at(driver, weighed.t_s)
            rates.append(production_rate(weighed, at, "B", singular(driver)))
        rates.append(production_rate(weighed, weighed.t_s / 3600.0, "B", "h"))
    return (rate for rate in rates if rate is not None)


def _most(values: FloatArray) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.max()) if finite.size else 0.0


@dataclass(frozen=True)
class Probes:
    """Values read by probes, with the number of full collections just before and after each."""

    t_s: FloatArray
    value: FloatArray
    collections_before: FloatArray
    collections_after: FloatArray

    def stretches(self) -> list[slice[int, int, None]]:
        """Return runs of at least two probes without a full collection or a fall between them."""
        if self.t_s.size < 2:
            return []
        same = self.collections_after[1:] <= self.collections_before[:-1]
        # A fall without a counted collection is due to a younger generation or to a missed count.
        joined = same & (np.diff(self.value) >= 0)
        runs: list[slice[int, int, None]] = []
        start = 0
        for i, together in enumerate([*joined.tolist(), False]):
            if not together:
                if i > start:
                    runs.append(slice(start, i + 1, None))
                start = i + 1
        return runs


def make_probes(t_s: FloatArray, value: FloatArray, collections: Series | None) -> Probes:
    """Pair probes with the collection counts around them.

    Without a counter, only falls separate the stretches.
    """
    if collections is None or not len(collections):
        none = np.zeros_like(t_s)
        return Probes(t_s, value, none, none)
    return Probes(t_s, value, *collections.around(t_s))


def production_rate(probes: Probes, progress: FloatArray, unit: str, per: str) -> Rate | None:
    """Return the total rise of the value over all stretches per unit of ``progress``.

    ``progress`` is a counter, or hours, at the probes.  Kept objects accumulate, so the noise is a
    random walk: a line through the levels would weigh the middle of a stretch most and give too
    narrow an interval.

    Returns:
        None if no stretch has two probes with progress between them.
    """
    runs = probes.stretches()
    if not runs:
        return None
    rises, events = (
        np.concatenate([np.diff(values[run]) for run in runs])
        for values in (probes.value, progress)
    )
    mean = mean_rate(rises, events)
    if mean is None:
        return None
    half = _UNKNOWN_WIDTH * abs(mean.value)
    lower, upper = mean.ends or (mean.value - half, mean.value + half)
    return Rate(mean.value, lower, upper, unit, per)


def with_counting_error(rate: Rate, events: float) -> Rate:
    """Widen ``rate`` by the binomial error if it is a share of ``events`` (between 0 and 1)."""
    if not 0.0 <= rate.value <= 1.0:
        return rate
    low, high = wilson_interval(rate.value * events, events)
    return replace(rate, lower=min(rate.lower, low), upper=max(rate.upper, high))
