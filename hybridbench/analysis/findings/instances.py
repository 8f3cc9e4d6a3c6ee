"""Instances that should have died by reference count and were found alive outside the engine.

No statistics decide here: a healthy engine leaves none for the collector, so finding them twice is
a leak, whether or not full collections keep the process's memory flat.  Statistics only say how
many there are per event: a full collection empties the account, so only stretches between two
collections count, and within them the number rises by the same amount per event.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

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
from hybridbench.analysis.record import FloatArray, RunRecord, Series
from hybridbench.metrics import COLLECTIBLE, COLLECTIONS
from hybridbench.records.events import Checkpoint
from hybridbench.records.json_value import JsonValue
from hybridbench.records.verdict import RETAINED, WAITING, Finding, Rate, VerdictKind, untyped

_PREFIX, _FIELDS = "instances.", ("stray", "collectible", "retained")

# Heap scans run between two steps, when no removal is under way; one local variable of the loop may
# still name the object that was removed last, and another the one it hung from.
TOLERANCE = 2.0
_MIN_PROBES = 2
_WAVERS = 0.4  # of the changes are falls
# What ends the life of an instance, likeliest first.
_END_OF_NODES = ("nodes_evicted",)
_END_OF_OTHERS = ("finishes",)

_UNKNOWN_WIDTH = 0.1  # of a rate that two points alone give


@dataclass(frozen=True)
class _Scans:
    """What the probes saw of one class."""

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
        """The counters of events that end the life of an instance."""
        return _END_OF_NODES if self._is_node else _END_OF_OTHERS

    @property
    def _is_node(self) -> bool:
        return self.name.lower().endswith("node")


def instance_findings(facts: Facts) -> list[Finding]:
    """One finding for each class with strays in at least two probes."""
    record = facts.record
    sampled = (name for name in record.series if name.startswith(_PREFIX))
    names = {name.removeprefix(_PREFIX).rpartition(".")[0] for name in sampled}
    for checkpoint in record.all_events(Checkpoint):
        names.update(checkpoint.instances or {})
    found = (_judge(facts, _scans(record, name)) for name in sorted(names))
    return [finding for finding in found if finding is not None]


def _scans(record: RunRecord, name: str) -> _Scans:
    """The probes of the class, with those taken at checkpoints."""
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
    # The event that leaves instances behind, as far as the probes between collections tell.
    hints = Hints(natural=scans.ends, emptied=True)
    found = find_driver(scans.t_s, scans.stray, facts.counters, hints)
    driver = found.counter if found is not None else _likely(scans, facts.counters)
    per_event = None if driver is None else _per_event(driver, facts.counters, scans, probes)
    if per_event is None:
        driver, found = None, None
    return untyped(
        kind=WAITING if _waits(scans, seen) else RETAINED,
        verdict=VerdictKind.LEAK,
        subject=scans.name,
        driver=driver,
        rates=tuple(_rates(facts, scans, probes, per_event, driver)),
        since_s=float(scans.t_s[first]),
        data={
            "probes": int(scans.t_s.size),
            "probes_with_strays": int(seen.sum()),
            "most": float(np.max(scans.stray)),
            "last": float(scans.stray[-1]),
            "retained_most": _most(scans.retained[seen]),
            "retained_measured": bool(np.any(np.isfinite(scans.retained))),
            "collectible_most": _most(scans.collectible[seen]),
            **_shares(scans, seen),
            "unit": scans.unit,
            **_collections(facts.record, probes),
        },
        driven=None if found is None else found.how,
    )


def _first_judged(facts: Facts, scans: _Scans, first: int) -> int:
    """The probe that rates begin at: in the judged window if it has enough of them, as a warm-up
    leaves fewer behind or more; else the ``first`` with strays.
    """
    if facts.window is None:
        return first
    steady = max(first, int(np.searchsorted(scans.t_s, facts.window.start_s)))
    return steady if scans.t_s.size - steady >= FEWEST_SAMPLES else first


def _waits(scans: _Scans, seen: NDArray[np.bool_]) -> bool:
    """Whether most wait for a full collection; the others survive one.

    By the probes that found strays; where none tried a collection, by what it could free.
    """
    freed, kept = _tried(scans, seen)
    # Without a probe that tried both, both sums are 0.
    return freed >= kept and _most(scans.collectible[seen]) > TOLERANCE


def _shares(scans: _Scans, seen: NDArray[np.bool_]) -> dict[str, JsonValue]:
    """Which share survives a full collection, over all probes that tried one, and both counts of
    the one probe that found most: the largest counts of either may be of different probes.
    """
    freed, kept = _tried(scans, seen)
    if not freed or not kept:
        return {}
    both = np.where(seen, scans.collectible + scans.retained, np.nan)
    fullest = int(np.nanargmax(both))
    return {
        "retained_share": kept / (freed + kept),
        "probes_tried": int(np.isfinite(both).sum()),
        "fullest_s": float(scans.t_s[fullest]),
        "fullest_retained": float(scans.retained[fullest]),
        "fullest_collectible": float(scans.collectible[fullest]),
    }


def _tried(scans: _Scans, seen: NDArray[np.bool_]) -> tuple[float, float]:
    """Instances that a full collection frees and keeps, summed over the probes that tried one."""
    collectible, retained = scans.collectible[seen], scans.retained[seen]
    tried = np.isfinite(collectible) & np.isfinite(retained)
    return float(collectible[tried].sum()), float(retained[tried].sum())


def _collections(record: RunRecord, probes: Probes) -> dict[str, JsonValue]:
    """Full collections of the run, the stretches between them, and the most that one would free."""
    found: dict[str, JsonValue] = {}
    collected, size = record.series.get(COLLECTIONS), record.series.get(COLLECTIBLE)
    if collected is not None and len(collected):
        found["collections"] = float(collected.value[-1] - collected.value[0])
        found["stretches"] = len(probes.stretches())
    if size is not None and len(size):
        found["collectible_bytes_most"] = float(np.nanmax(size.value))
    return found


def _likely(scans: _Scans, counters: EventCounters) -> str | None:
    """Where the probes are too few for a fit, the event that ends the life of such an instance."""
    if scans.t_s.size >= FEWEST_SAMPLES:
        return None
    return next((name for name in scans.ends if counters.total(name) > 0), None)


def _per_event(driver: str, counters: EventCounters, scans: _Scans, probes: Probes) -> Rate | None:
    """Instances for each event; None where they do not rise with it, and it may not be named."""
    at = counters.at(driver, probes.t_s)
    rate = production_rate(probes, at, scans.unit, singular(driver))
    if rate is None or not correlates(rate) or _wavers(probes):
        return None
    # An event that ends one life leaves one instance at most: more come from something else.
    if driver in scans.ends and rate.lower > 1.0:
        return None
    events = sum(float(at[run][-1] - at[run][0]) for run in probes.stretches())
    return with_counting_error(rate, events)


def _wavers(probes: Probes) -> bool:
    """Whether the count falls about as often as it rises, with no full collection in between.

    Rises between falls are then noise, whatever moved meanwhile; a sawtooth of younger collections
    rises more often than it falls.
    """
    same = probes.collections_after[1:] <= probes.collections_before[:-1]
    steps = np.diff(probes.value)[same]
    moves = int(np.count_nonzero(steps))
    return moves >= FEWEST_SAMPLES and int((steps < 0).sum()) > _WAVERS * moves


def _rates(
    facts: Facts, scans: _Scans, probes: Probes, per_event: Rate | None, driver: str | None
) -> Iterable[Rate]:
    """Objects per event and per hour, then the bytes that come with them."""
    hourly = production_rate(probes, probes.t_s / 3600.0, scans.unit, "h")
    rates = [per_event, hourly]
    size = facts.record.series.get(COLLECTIBLE)
    # Only what a collection would free is weighed: where most strays would stay, those bytes are
    # the smaller part, and the growth of the process tells more.
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
    """Values seen by probes, with the number of full collections just before and after each."""

    t_s: FloatArray
    value: FloatArray
    collections_before: FloatArray
    collections_after: FloatArray

    def stretches(self) -> list[slice[int, int, None]]:
        """Runs of at least two probes without a full collection, nor any fall, between them."""
        if self.t_s.size < 2:
            return []
        same = self.collections_after[1:] <= self.collections_before[:-1]
        # A fall without a counted collection is a younger one, or one that the counter missed.
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
    """Probes with the collection counts around them; without a counter only falls part the
    stretches.
    """
    if collections is None or not len(collections):
        none = np.zeros_like(t_s)
        return Probes(t_s, value, none, none)
    return Probes(t_s, value, *collections.around(t_s))


def production_rate(probes: Probes, progress: FloatArray, unit: str, per: str) -> Rate | None:
    """Rise of the value for each unit of ``progress`` (a counter or hours at the probes): the
    quotient of the totals over all stretches.

    What is kept adds up, so its chance is that of a random walk: a line through the levels would
    weigh the middle of a stretch most and call itself too certain.

    Returns:
        None without two probes between collections, or without progress between them.
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
    """``rate`` widened by what chance alone does to a share of ``events``, where it is a share."""
    if not 0.0 <= rate.value <= 1.0:
        return rate
    low, high = wilson_interval(rate.value * events, events)
    return replace(rate, lower=min(rate.lower, low), upper=max(rate.upper, high))
