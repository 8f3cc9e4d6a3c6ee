"""Containers that only grow: lists and tables of the engine that are never emptied.

Most containers of a healthy engine also grow for a while: a queue under load, a cache until it is
full, a set of shapes until all have occurred.  So length alone is not evidence.  A container leaks
if its gain remains when no request is in the engine, its growth does not slow, no pool fills the
same way, and it grows by a whole number per event or was longer at each of several idle points.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hybridbench.analysis.drivers.rates import rate_per_hour
from hybridbench.analysis.drivers.search import Driver, Hints, explained, find_driver
from hybridbench.analysis.facts.counters import EventCounters, singular
from hybridbench.analysis.facts.facts import Facts
from hybridbench.analysis.facts.pools import CHECKPOINTS_NAMED, IdleReading
from hybridbench.analysis.findings.words import driver_evidence, per_event
from hybridbench.analysis.record import FloatArray, RunRecord, Series
from hybridbench.foundation.units import format_count
from hybridbench.records.events import Checkpoint
from hybridbench.records.finding import Basis, Evidence, Finding, Rate, VerdictKind, Words

_PREFIX, _SUFFIX = "container.", ".len"
_UNIT = "entries"
_FEWEST_SAMPLES = 24
_FEWEST_IDLE = 4
_FILLS = 0.01  # gain of a cache between halves of the idle points above which it is not full
_FILLS_WITH = 0.05  # the same, relative to the container's gain
_MATTERS = 0.1  # minimum gain as a share of the length, if there is no other evidence
_KEEPS_GROWING = 0.5  # pace of the last gain between idle points, relative to the mean pace
_KEEPS_PACE = 0.7  # growth per event in the last third, relative to the first third
_STAYS = 0.8  # share of the gain that must remain when idle
_FOLLOWS = 0.98  # R2 with a pool's fill, above which the container fills with the pool
_FITS = 0.95  # R2 with the events of the named driver
_KNOWN_WELL = 0.3  # width of an interval; it contains a whole number by chance in 3 of 10 cases
_FEWEST_ENTRIES = 3.0


class ContainerGrows(Basis, frozen=True, kw_only=True):
    """A container of the engine that is never emptied.

    Attributes:
        first: entries at the start of the judged window.
        checkpoints: number of idle checkpoints in the window.
        at_checkpoints: lengths at the last of them.
    """

    kind = "container-grows"
    meaning = "A list or table of the engine only grows."
    evidence = Evidence.STATISTICAL
    question = "no container only grows"
    names_mechanism = True

    container: str
    first: float
    last: float
    checkpoints: int
    at_checkpoints: tuple[float, ...]

    def words(self, found: Finding) -> Words:
        if found.driver is None:
            grows = f"{self.container} was longer at each of {self.checkpoints:,.0f} checkpoints"
        else:
            grows = f"{self.container} only grows"
        first, last = format_count(self.first), format_count(self.last)
        at_idle = ", ".join(map(format_count, self.at_checkpoints))
        return Words(
            f"{grows}: {first} to {last} entries{per_event(found)}",
            cause="entries are added and never removed",
            evidence=(
                *((f"length at idle checkpoints: {at_idle}",) if at_idle else ()),
                *driver_evidence(found),
            ),
        )

    def advice(self, found: Finding) -> str:
        if found.driver is not None:
            return (
                f"Start with the {singular(found.driver)} handler: it adds entries to "
                f"{self.container} and never removes them."
            )
        return (
            f"Find where entries of {self.container} are removed, and which exit path of a "
            "request skips that."
        )


@dataclass(frozen=True)
class _Container:
    """A container's lengths since the start of the judged window, in samples and at idle points.

    The samples exclude entries for requests in the engine, if the container has such entries.
    """

    name: str
    samples: Series
    idle: Sequence[IdleReading]

    @property
    def longer(self) -> bool:
        """Whether it is longer at the end than at the start, in samples or when idle."""
        value = self.samples.value
        tenth = max(1, value.size // 10)
        gained = value.size and float(value[-tenth:].mean() - value[:tenth].mean())
        at_idle = [rest.value for rest in self.idle]
        return bool(gained >= _FEWEST_ENTRIES) or at_idle[-1:] > at_idle[:1]


def container_findings(facts: Facts) -> list[Finding]:
    """Return a finding for each container that would keep growing if the run continued."""
    sampled = {
        name.removeprefix(_PREFIX).removesuffix(_SUFFIX)
        for name in facts.record.series
        if name.startswith(_PREFIX) and name.endswith(_SUFFIX)
    }
    seen = {name for event in facts.idle for name in event.containers}
    found = (_judge(facts, name) for name in sorted(sampled | seen))
    return [finding for finding in found if finding is not None]


def _judge(facts: Facts, name: str) -> Finding | None:
    container = _container(facts, name)
    if not container.longer:
        return None
    fill = _filling(facts.record, container)
    if any(_follows(container, series) for series in fill):
        return None
    driver = _driver(facts, container, fill)
    counted = driver is not None and (driver.exact or _whole(driver))
    filled = bool(fill) and _filled(facts, container)
    if counted or _longer_each_time(container, filled=filled):
        return _finding(container, driver)
    return None


def _container(facts: Facts, name: str) -> _Container:
    start = facts.window.start_s if facts.window is not None else 0.0

    def length(at: Checkpoint) -> float | None:
        return at.containers.get(name) if at.t_s >= start else None

    series = facts.record.series.get(
        f"{_PREFIX}{name}{_SUFFIX}", Series(name, np.empty(0), np.empty(0))
    )
    finite = np.isfinite(series.value) & (series.t_s >= start)
    return _Container(
        name,
        _settled(Series(name, series.t_s[finite], series.value[finite]), facts),
        _worked_between(facts.idle_readings(length)),
    )


def _worked_between(idle: list[IdleReading]) -> list[IdleReading]:
    """Drop points before which nothing happened: a run may end right after an idle point."""
    return idle[:1] + [
        now
        for before, now in pairwise(idle)
        if (now.value, now.counts) != (before.value, before.counts)
    ]


def _settled(series: Series, facts: Facts) -> Series:
    """Subtract the requests in flight from the lengths if that makes them fluctuate less."""
    without = series.value - facts.requests_at(series.t_s)
    calmer = _fluctuation(without) < _fluctuation(series.value)
    return Series(series.name, series.t_s, without) if calmer else series


def _fluctuation(value: FloatArray) -> float:
    """Return how far ``value`` moves beyond its net change; 0 if it only grows."""
    steps = np.diff(value)
    return float(np.abs(steps).sum() - abs(steps.sum()))


def _filling(record: RunRecord, container: _Container) -> list[Series]:
    """Return the slots held by trees over time, for each pool in which their number grew."""
    found: list[Series] = []
    t = container.samples.t_s
    for name, series in record.series.items():
        if not (name.startswith("pool.") and name.endswith(".evictable")) or len(series) < 2:
            continue
        locked = record.series.get(name.replace(".evictable", ".protected"))
        held = np.interp(t, series.t_s, series.value)
        if locked is not None and len(locked):
            held = held + np.interp(t, locked.t_s, locked.value)
        if held.size > 1 and held[-1] > held[0]:
            found.append(Series(name, t, held))
    return found


def _follows(container: _Container, fill: Series) -> bool:
    """Whether the container grew along with a pool, and so stops when the pool is full."""
    value = container.samples.value
    return value.size >= _FEWEST_SAMPLES and _r2(fill.value, value) > _FOLLOWS


def _driver(facts: Facts, container: _Container, fill: Sequence[Series]) -> Driver | None:
    """Return the event that explains the growth; None if growth may stop or is gone when idle.

    The samples must agree: two or three idle points agree with some counter by accident.
    """
    t, value = container.samples.t_s, container.samples.value
    if value.size < _FEWEST_SAMPLES:
        return None
    bounded = {series.name: series for series in fill}
    hints = Hints(load=facts.load, idle=container.idle, bounded=bounded)
    driver = find_driver(t, value, facts.counters, hints)
    if driver is None or {driver.counter, *driver.rivals} & bounded.keys():
        return None
    events = facts.counters.at(driver.counter, t)
    fits = _r2(events, value) > _FITS and _keeps_pace(events, value)
    return driver if fits and _stays(container, facts.counters, driver) else None


def _whole(driver: Driver) -> bool:
    """Whether the rate is a whole number of entries, and its interval narrow.

    A wide interval contains a whole number by accident.
    """
    nearest = round(driver.per_event)
    return nearest >= 1 and driver.lower <= nearest <= driver.upper < driver.lower + _KNOWN_WELL


def _stays(container: _Container, counters: EventCounters, driver: Driver) -> bool:
    """Whether the gain remains at the last idle point; without one, only an exact rate shows it."""
    if not container.idle:
        return driver.exact
    last = container.idle[-1]
    t, value = container.samples.t_s, container.samples.value
    since = np.array([t[0], last.t_s])
    gained = driver.per_event * float(np.diff(counters.at(driver.counter, since))[0])
    started = float(value[: max(1, value.size // 20)].min())
    return gained >= _FEWEST_ENTRIES and last.value - started >= _STAYS * gained


def _keeps_pace(events: FloatArray, value: FloatArray) -> bool:
    """Whether the last third of the events added about as many entries each as the first third."""
    thirds = np.interp(np.linspace(events[0], events[-1], 4), events, np.arange(events.size))
    edges = np.round(thirds).astype(np.int64)
    gains = []
    for start, end in pairwise(edges.tolist()):
        x, y = events[start : end + 1], value[start : end + 1]
        centred = x - x.mean()
        spread = float(centred @ centred)
        gains.append(float(centred @ y) / spread if spread > 0 else 0.0)
    return gains[2] >= _KEEPS_PACE * gains[0]


def _filled(facts: Facts, container: _Container) -> bool:
    """Whether a pool's cache grew with the container between the idle points.

    A full cache also holds more at one idle point than at another.  So halves of the points are
    compared, and a cache that gained far less than the container explains nothing.

    Samples do not show that: when the traffic ends, a full cache takes over what the last requests
    held.
    """
    times = {reading.t_s for reading in container.idle}
    held: dict[str, list[float]] = {}
    for event in facts.idle:
        for name, pool in event.pools.items() if event.t_s in times else ():
            cached = pool.get("evictable", 0.0) + pool.get("protected", 0.0)
            held.setdefault(name, []).append(cached)
    gain = _gain_between_halves([reading.value for reading in container.idle])
    limit = max(_FILLS, _FILLS_WITH * gain)
    return any(_gain_between_halves(cached) > limit for cached in held.values())


def _gain_between_halves(values: Sequence[float]) -> float:
    """Return the gain from the first half of ``values`` to the last, as a share of the first."""
    half = max(1, len(values) // 2)
    first, last = sum(values[:half]), sum(values[-half:])
    if first:
        return last / first - 1.0
    return math.inf if last else 0.0


def _longer_each_time(container: _Container, *, filled: bool) -> bool:
    """Judge a container without a driving event.

    It needs enough idle points, each longer than the one before, a last gain that is not small, a
    total gain that matters, and no pool that fills at the same time.
    """
    if len(container.idle) < _FEWEST_IDLE or filled:
        return False
    length = np.array([rest.value for rest in container.idle])
    growth = np.diff(length)
    # A full tree of tens of thousands of nodes gains some hundreds by splits over many minutes.  A
    # list that is never emptied has grown from a short one.
    matters = length[-1] - length[0] >= _MATTERS * length[0]
    # Compare rates, because the last idle point comes when the traffic ends, however soon that is.
    took_s = np.diff([rest.t_s for rest in container.idle])
    slows = growth[-1] / took_s[-1] < _KEEPS_GROWING * growth.sum() / took_s.sum()
    return bool(matters and growth.min() > 0 and not slows)


def _finding(container: _Container, driver: Driver | None) -> Finding:
    name, unit = container.name, _UNIT
    at_idle = np.array([(reading.t_s, reading.value) for reading in container.idle]).reshape(-1, 2)
    samples = container.samples
    t, value = (samples.t_s, samples.value) if driver and len(samples) else at_idle.T
    measure = _between_idle if driver is None else rate_per_hour
    hourly = measure(t, value, unit)
    found = Finding(
        ContainerGrows(
            container=name,
            first=float(value[0]),
            last=float(value[-1]),
            checkpoints=len(container.idle),
            at_checkpoints=tuple(at_idle[-CHECKPOINTS_NAMED:, 1].tolist()),
        ),
        VerdictKind.LEAK,
        f"container: {name}",
        rates=() if hourly is None else (hourly,),
        since_s=float(t[0]),
    )
    return explained(found, driver, unit)


def _between_idle(t: FloatArray, value: FloatArray, unit: str) -> Rate:
    rates = np.diff(value) / np.diff(t) * 3600.0
    low, high = np.quantile(rates, [0.025, 0.975])
    mean = float(value[-1] - value[0]) / float(t[-1] - t[0]) * 3600.0
    return Rate(mean, min(float(low), mean), max(float(high), mean), unit, "h")


def _r2(x: FloatArray, y: FloatArray) -> float:
    if x.size != y.size or not np.ptp(x) or not np.ptp(y):
        return 0.0
    return float(np.corrcoef(x, y)[0, 1]) ** 2
