"""Find the event that explains growth, and the rate: "+3.00 state slots per session close".

Every counter of the run is a candidate; it is named only if it explains the growth clearly better
than the clock does.  A count that is a whole multiple of a counter at every sample needs no
statistics.  This is association, not proof: indistinguishable counters are listed as rivals, and
readers can check the samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from hybridbench.analysis.distributions import wilson_interval
from hybridbench.analysis.drivers.line_fits import (
    Fit,
    Levels,
    Screening,
    fit_line,
    screen,
    slope_interval,
    told_apart,
)
from hybridbench.analysis.drivers.rates import (
    LONG_BLOCKS,
    MeanRate,
    exact_at_idle,
    exact_multiple,
    mean_rate,
)
from hybridbench.analysis.facts.counters import EventCounters, expectation, singular, telling
from hybridbench.analysis.facts.pools import IdleReading
from hybridbench.analysis.record import FloatArray, Series
from hybridbench.records.finding import Finding, HowDriven, Rate

TIME = "time"
_WORK = "finishes"  # the common measure of work: the driver must beat it, or it is named itself

# A lower rate per event would print as 0.00, which explains nothing.
LEAST_PER_EVENT = 0.005
FEWEST_SAMPLES = 12
_FEWEST_EVENTS = 3.0
_Z = 2.33
_Z_TIME = 3.1  # stricter: among many counters, one beats time by chance
_COVERS = 0.9  # share of a count's rises that must come when its driver moved
_COMPARED = 12  # how many of the best candidates are compared error by error
_CHANCE = 1e-3  # probability that rises match a candidate's intervals by accident
_MUCH_BETTER = 1.5  # a fit with errors smaller by this factor beats a natural driver
_SAME = 0.5  # in log-likelihood
# A count that stays at its maximum for this many times its longest pause has reached a limit.
_FULL_FOR = 4.0
_FULL_SAMPLES = 10


@dataclass(frozen=True)
class Hints:
    """What the caller knows about a series.

    Args:
        expected: parts of the names of likely drivers, likeliest first; they decide only between
            counters that the samples cannot distinguish.
        natural: counters of the only events that can cause a rise; they are named unless another
            counter fits much better.
        among: the only counters that may be named by goodness of fit; None for any.
        load: other influences on the level, such as requests in flight.
        idle: values read with nothing in flight, with the counters at the same moment.
        bounded: levels with a limit of their own that explain a fill, by name.
        emptied: whether a fall starts the count again, as a collection does for garbage.
        from_zero: whether the value was 0 before the first event, so that the last idle reading is
            the total gain.
    """

    expected: Sequence[str] = ()
    natural: Sequence[str] = ()
    among: frozenset[str] | None = None
    load: Sequence[Series] = ()
    idle: Sequence[IdleReading] = ()
    bounded: Mapping[str, Series] = field(default_factory=dict)
    emptied: bool = False
    from_zero: bool = False

    def witnesses(self) -> list[IdleReading]:
        """The idle readings, preceded by zero at the start if ``from_zero``."""
        if not (self.from_zero and self.idle):
            return list(self.idle)
        return [IdleReading(0.0, 0.0, dict.fromkeys(self.idle[-1].counts, 0.0)), *self.idle]

    def likely(self, name: str) -> bool:
        """Whether ``name`` may be named even if time explains the growth as well."""
        return name in self.natural or expectation(name, self.expected) is not None


@dataclass(frozen=True)
class Driver:
    """The counter that best explains the growth, and the growth per event (95%)."""

    counter: str
    per_event: float
    lower: float
    upper: float
    events: float
    rise: float
    covered: float  # share of all rises in intervals in which the counter moved
    exact: bool = False  # the value is this whole multiple of the counter at every sample
    rivals: tuple[str, ...] = ()  # counters that explain it equally well

    def rate(self, unit: str) -> Rate:
        """Return the growth per event, in ``unit``."""
        per = singular(self.counter)
        return Rate(self.per_event, self.lower, self.upper, unit, per)

    @property
    def how(self) -> HowDriven:
        """The evidence for the driver, for a finding."""
        return HowDriven(
            events=self.events, share=self.covered, exact=self.exact, rivals=self.rivals
        )


def explained(finding: Finding, driver: Driver | None, unit: str) -> Finding:
    """Add the driver to ``finding``: its rate per event, the evidence for it, and its rivals."""
    if driver is None:
        return finding
    return replace(
        finding,
        driver=driver.counter,
        rates=(driver.rate(unit), *finding.rates),
        driven=driver.how,
    )


def correlates(rate: Rate) -> bool:
    """Whether an event with this rate explains any growth.

    It does if the interval excludes zero and the rate does not print as zero.
    """
    return rate.lower > 0 and rate.value >= LEAST_PER_EVENT


def find_driver(
    t_s: FloatArray, value: FloatArray, counters: EventCounters, hints: Hints | None = None
) -> Driver | None:
    """Return the event that drives the growth of ``value``.

    None if no counter explains it better than time, or if the best counter hardly moves it.
    """
    driver = _best_driver(t_s, value, counters, hints or Hints())
    return driver if driver is not None and correlates(driver.rate("")) else None


def _best_driver(
    t_s: FloatArray, value: FloatArray, counters: EventCounters, hints: Hints
) -> Driver | None:
    data = _prepared(t_s, value, counters, hints)
    if data is None:
        at_idle = exact_at_idle(hints.witnesses(), counters.causes)
        return _from_idle(at_idle, hints)
    singles = _exact_ones(data)
    if singles:
        return _exact_driver(data, singles, hints)
    few = data.t_s.size < FEWEST_SAMPLES
    # A sample may fall between a cause and its effect; an idle reading includes both.
    at_idle = exact_at_idle(hints.witnesses(), counters.causes, against_samples=not few)
    if few or at_idle:
        return _from_idle(at_idle, hints)
    return _fitted(data, hints)


@dataclass(frozen=True)
class _Data:
    """Samples with the candidates that moved; time is the last name."""

    t_s: FloatArray
    value: FloatArray
    names: tuple[str, ...]
    columns: FloatArray  # [n, names]
    first: NDArray[np.bool_]
    load: FloatArray  # [n, q]

    @property
    def counting(self) -> bool:
        """Whether the value is a count that never falls within a stretch."""
        steps = np.diff(self.value)[~self.first[1:]]
        return bool(np.all(self.value == np.round(self.value)) and np.all(steps >= 0))

    def covered(self, index: int, lag: int) -> float:
        """Return the share of the rises in intervals in which the candidate moved.

        These are extended by ``lag`` intervals on both sides.
        """
        inside = ~self.first[1:]
        rise = np.where(inside, np.maximum(np.diff(self.value), 0.0), 0.0)
        moved = np.diff(self.columns[:, index]) > 0
        for _ in range(lag):
            moved = moved | np.append(moved[1:], False) | np.append(False, moved[:-1])
        total = float(rise.sum())
        return float(rise[moved].sum()) / total if total > 0 else 0.0

    def timely(self, index: int) -> bool:
        """Whether rises match the intervals in which the candidate moved too well for chance."""
        inside = ~self.first[1:]
        moved = np.diff(self.columns[:, index])[inside] > 0
        risen = np.diff(self.value)[inside] > 0
        if not self.counting or np.any(risen & ~moved):
            return False
        by_chance = int(risen.sum()) * np.log(max(float(np.mean(moved)), 1e-300))
        return bool(by_chance < np.log(_CHANCE / len(self.names)))

    def with_chance(self, index: int, ends: tuple[float, float]) -> tuple[float, float]:
        """Widen a slope's interval for binomial chance, if only a share of the events leak."""
        events, rises = self.moved(index), np.diff(self.value)[~self.first[1:]]
        if not self.counting or events <= 0:
            return ends
        unit = float(np.gcd.reduce(rises[rises > 0].astype(np.int64)))
        if self.rise() > events * unit:
            return ends
        low, high = wilson_interval(self.rise() / unit, events)
        return min(ends[0], low * unit), max(ends[1], high * unit)

    def driver(
        self, index: int, rate: float, ends: tuple[float, float], rivals: Iterable[str]
    ) -> Driver:
        """Return the candidate as a driver at ``rate``, not marked exact."""
        events, covered = self.moved(index), self.covered(index, 0)
        low, high = min(ends[0], rate), max(ends[1], rate)
        name, others = self.names[index], tuple(rivals)
        return Driver(name, rate, low, high, events, self.rise(), covered, rivals=others)

    def moved(self, index: int) -> float:
        """Count the candidate's events during the samples."""
        return float(self.columns[-1, index] - self.columns[0, index])

    def steps_without_load(self, index: int) -> tuple[FloatArray, FloatArray]:
        """Return the value's steps without the load's contribution, and the candidate's steps."""
        inside = ~self.first[1:]
        moved = np.diff(self.columns[:, index])[inside]
        steps, load = np.diff(self.value)[inside], np.diff(self.load, axis=0)[inside]
        explained = np.linalg.lstsq(np.column_stack([load, moved]), steps, rcond=None)[0]
        return steps - load @ explained[:-1], moved

    def rise(self) -> float:
        return float(np.diff(self.value)[~self.first[1:]].sum())


def _prepared(
    t_s: FloatArray, value: FloatArray, counters: EventCounters, hints: Hints
) -> _Data | None:
    keep = np.isfinite(value)
    t, y = t_s[keep], value[keep]
    if t.size < 3 or not np.any(np.diff(y) > 0):
        return None
    restarts = np.searchsorted(t, counters.restarts_s)
    first = np.zeros(t.size, dtype=np.bool_)
    first[0] = True
    first[restarts[restarts < t.size]] = True
    if hints.emptied:
        first[1:] |= np.diff(y) < 0
    used = slice(0, _until_full(y, first))
    t, y, first = t[used], y[used], first[used]
    levels = {name: counters.at(name, t) for name in counters.causes}
    levels |= {n: np.interp(t, s.t_s, s.value) for n, s in hints.bounded.items() if len(s)}
    moving = {n: x for n, x in levels.items() if float(np.ptp(x)) >= _FEWEST_EVENTS}
    names = (*moving, TIME)
    columns = np.column_stack([*moving.values(), t])
    load = [np.interp(t, s.t_s, s.value) for s in hints.load if len(s)]
    load = [x for x in load if np.ptp(x) > 0]
    nuisance = np.column_stack(load) if load else np.empty((t.size, 0))
    return _Data(t, y, names, columns, first, nuisance)


def _until_full(y: FloatArray, first: NDArray[np.bool_]) -> int:
    """Return how many samples to use: an exhausted pool can lose no more slots."""
    if first[1:].any() or np.any(np.diff(y) < 0):
        return y.size
    rises = np.flatnonzero(np.diff(y) > 0)
    pauses = np.diff(rises, prepend=0)
    flat = y.size - 1 - int(rises[-1])
    full = rises.size > 2 and flat > max(_FULL_FOR * float(pauses.max()), _FULL_SAMPLES)
    return int(rises[-1]) + 2 if full else y.size


def _exact_ones(data: _Data) -> dict[int, float]:
    """Return the candidates that the value is a whole multiple of, with the multiple."""
    found: dict[int, float] = {}
    if not data.counting:
        return found
    for index in range(len(data.names) - 1):
        times = exact_multiple(data.value, data.columns[:, index], data.first)
        if times is not None:
            found[index] = times
    return found


def _exact_driver(data: _Data, found: Mapping[int, float], hints: Hints) -> Driver:
    chosen, *rest = sorted(found, key=lambda i: _rank(data.names[i], 0.0, hints))
    times = found[chosen]
    driver = data.driver(chosen, times, (times, times), (data.names[i] for i in rest))
    return replace(driver, exact=True)


def _fitted(data: _Data, hints: Hints) -> Driver | None:
    candidates = _plausible(data)
    if hints.among is not None:
        candidates = [index for index in candidates if data.names[index] in hints.among]
    columns = data.columns[:, [*candidates, len(data.names) - 1]]
    levels = Levels(data.value, columns, data.load, data.first)
    if levels.rows < FEWEST_SAMPLES or not candidates:
        return None
    screening = screen(levels)
    names = [data.names[i] for i in candidates]
    clock = len(candidates)
    also = {i for i, name in enumerate(names) if name == _WORK or hints.likely(name)}
    fits = _leading(levels, screening, also)
    lines = [*names, TIME]
    alike = [fit for fit in fits if _as_good(fits[0], fit, lines[fit.index], hints)]
    counted = [fit for fit in alike if fit.index != clock]
    if not counted:
        return None
    at_idle = exact_at_idle(hints.witnesses(), [names[f.index] for f in counted], confirming=True)
    if at_idle:
        counted = [fit for fit in counted if names[fit.index] in at_idle]
    elif len(counted) < len(alike) and not data.timely(candidates[counted[0].index]):
        # Time explains it as well: only counters likely for this kind of finding may be named.
        counted = [f for f in counted if hints.likely(names[f.index])]
    if not counted:
        return None
    best = fits[0].log_likelihood
    counted.sort(key=lambda f: _rank(names[f.index], best - f.log_likelihood, hints))
    chosen, *rest = counted
    index, rivals = candidates[chosen.index], [names[fit.index] for fit in rest]
    times = at_idle.get(names[chosen.index])
    if times is not None:
        return replace(data.driver(index, times, (times, times), rivals), exact=True)
    mean = _mean_rate(data, index, hints)
    if mean is None:
        ends = data.with_chance(index, slope_interval(levels, screening, chosen.index))
        return data.driver(index, chosen.slope, ends, rivals)
    low, high = mean.ends or slope_interval(levels, screening, chosen.index)
    ends = data.with_chance(index, (max(mean.least, low), high))
    return data.driver(index, mean.value, ends, rivals)


def _as_good(best: Fit, fit: Fit, name: str, hints: Hints) -> bool:
    """Whether ``best`` fails to clearly beat ``fit``, the line of the counter ``name``."""
    if name in hints.natural and fit.sigma <= _MUCH_BETTER * best.sigma:
        return True
    return not told_apart(best, fit, _Z_TIME if name == TIME else _Z)


def _mean_rate(data: _Data, index: int, hints: Hints) -> MeanRate | None:
    """Return total gain over total events, if both are known."""
    name = data.names[index]
    points = [(r.value, r.counts[name]) for r in hints.witnesses() if name in r.counts]
    at_idle = sampled = None
    if hints.from_zero and len(points) > 1:
        at_idle = mean_rate(*np.diff(np.array(points), axis=0).T)
    if data.counting and data.covered(index, 0) == 1.0:
        inside = ~data.first[1:]
        sampled = mean_rate(np.diff(data.value)[inside], np.diff(data.columns[:, index])[inside])
    if at_idle is None or at_idle.ends is not None:
        return at_idle or sampled
    # There are too few idle readings to estimate their spread; the samples give more stretches.
    between = sampled or mean_rate(*data.steps_without_load(index), most_blocks=LONG_BLOCKS)
    if between is None or between.ends is None:
        return at_idle
    low, high = (end - between.value for end in between.ends)
    return replace(at_idle, ends=(at_idle.value + low, at_idle.value + high))


def _plausible(data: _Data) -> list[int]:
    """Return the candidates that moved when the value rose; all of them if it also falls."""
    every = range(len(data.names) - 1)
    if not data.counting:
        return list(every)
    # A counter may be read just before the sample that shows its effect, or just after.
    return [index for index in every if data.covered(index, lag=1) >= _COVERS]


def _leading(levels: Levels, screening: Screening, also: set[int]) -> list[Fit]:
    """Return the candidates with a positive slope, best first, including time and ``also``."""
    rising = np.flatnonzero(screening.slope > 0)
    order = rising[np.argsort(-screening.log_likelihood[rising])][:_COMPARED].tolist()
    clock = screening.slope.size - 1
    chosen = {*order, clock, *(also & set(rising.tolist()))}
    fits = [fit_line(levels, screening, index) for index in chosen]
    fits.sort(key=lambda fit: -fit.log_likelihood)
    return fits


def _rank(name: str, behind: float, hints: Hints) -> tuple[int, int, float, int]:
    """Sort key for naming counters that cannot be distinguished."""
    if name in hints.natural:
        return -1, 0, 0.0, 0
    rank = expectation(name, hints.expected)
    common = 0 if name == _WORK else 1
    expected = len(hints.expected) if rank is None else rank
    return expected, common, 0.0 if behind < _SAME else behind, telling(name)


def _from_idle(found: Mapping[str, float], hints: Hints) -> Driver | None:
    if not found:
        return None
    chosen, *rest = sorted(found, key=lambda name: _rank(name, 0.0, hints))
    times = found[chosen]
    seen = hints.witnesses()
    first, last = seen[0], seen[-1]
    events = last.counts[chosen] - first.counts[chosen]
    rise = last.value - first.value
    return Driver(chosen, times, times, times, events, rise, 1.0, exact=True, rivals=tuple(rest))
