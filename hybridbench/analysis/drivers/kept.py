"""Find what a process keeps per event, from heap counts and counters of work.

There are two methods.  At an idle point nothing is in flight and all garbage has been collected, so
whatever was added since the last point was kept; rounds with the same gain per event identify the
event.  Under traffic a count includes requests in flight, so one line is fitted to each half of the
run, with AR(1) errors: the first half suggests a driver and the second confirms it.  A cache that
fills slows down, so its second line is flatter; if a count only fluctuates, its second line is not
significant.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hybridbench.analysis.distributions import t_quantile, t_tail
from hybridbench.analysis.drivers.rates import mean_rate
from hybridbench.analysis.drivers.search import LEAST_PER_EVENT, TIME, Driver
from hybridbench.analysis.record import FloatArray

FEWEST_CENSUSES: Final = 8
# Probability of any false alarm in a run, over all names of all its processes.
ALPHA: Final = 1e-3
# Fewer entries may be a registry of types, or leftovers of the scan itself.
FEWEST_KEPT: Final = 24
_FEWEST_IN_A_HALF: Final = 10
_FEWEST_PARTS: Final = 100  # FEWEST_KEPT if the rate per event is not a whole number
# AR(1) coefficients of the errors, from white noise to almost a random walk.
_MEMORIES: Final = (0.0, 0.3, 0.6, 0.8, 0.9, 0.97, 0.995)
_LIKELY: Final = 2.0  # log-likelihood: coefficients this close to the best are considered as well
_SUGGESTS: Final = 3.0  # minimum slope of the first half's line, in standard errors
_SLOWER: Final = 0.95  # share of the first half's rate; growth significantly below it slows down
_SLOWER_ODDS: Final = 0.99
_KEEPS: Final = 0.9  # minimum of the second half's rate, as a share of the first half's
_KEEPS_SURELY: Final = 0.75  # the same, for the lower end of its interval
# One-sided confidence of that interval; high, because a run has thousands of counts, and many of
# them fill or drift.
_KEEPS_ODDS: Final = 0.995
_KEEPS_ERRORS: Final = NormalDist().inv_cdf(_KEEPS_ODDS)
_MUST_KEEP: Final = 0.8  # minimum share of the first half's rate; anything below is a fill
_CLEARLY: Final = 1.3  # ratio of errors up to which the common work explains a count as well
_WHOLE: Final = 0.02  # a rate this close to a whole number, with an error as small, counts as one
_ABOUT_WHOLE: Final = 0.1
_ROUNDING: Final = 0.25  # variance from reading a count a moment before or after its driver

FEWEST_ROUNDS: Final = 2
FEWEST_UNEVEN: Final = 4  # rounds
_ALIKE: Final = 0.1  # tolerated difference between rounds, as a share of the mean rate
# Rank of time among drivers: ahead of uninformative counters that fit no better.
_CLOCK: Final = 1_000
_TIMELY: Final = 1.5  # a driver whose errors are smaller by this factor fits clearly better


def of_bytes(counter: str) -> bool:
    """Whether a counter counts bytes; a single event can add thousands of them."""
    return "_bytes" in counter


@dataclass(frozen=True)
class Work:
    """Possible drivers of a count, at the times it was read: [readings, names], time last."""

    names: tuple[str, ...]
    columns: FloatArray
    telling: Mapping[str, int]  # rank of the counters that describe the work done
    main: frozenset[str]  # the counters of the common work: requests and tokens

    def rank(self, name: str, *, whole: bool) -> int:
        """Return the rank of ``name`` among drivers that fit equally well; the lowest is named.

        Drivers with a ``whole`` number of entries per event come first, and counters that are less
        informative than the clock come last.
        """
        said = _CLOCK if name == TIME else self.telling.get(name, 2 * _CLOCK)
        said += of_bytes(name)  # bytes come with events, which are more informative
        return said - 4 * _CLOCK if whole else said

    def rows(self, keep: NDArray[np.bool_]) -> Work:
        """Select readings, with the counters that moved during them."""
        columns = self.columns[keep]
        moved = np.ptp(columns, axis=0) >= 3.0 if columns.size else np.zeros(0, dtype=np.bool_)
        names = tuple(n for n, yes in zip(self.names, moved.tolist(), strict=True) if yes)
        return replace(self, names=names, columns=columns[:, moved])


@dataclass(frozen=True)
class Kept:
    """What is kept per event, or per second if no event explains it.

    Attributes:
        early, late: the rate in the first and in the second half.
        slows: whether the second rate is significantly lower, as for a cache that fills.
        steady: whether the second rate is shown to be about as high as the first, as for a leak.
            If neither holds, the growth stays open.
        odds: p-value of the second half's growth; 0 if it was counted at idle points.
        rounds: number of rounds between idle points; 0 if only readings under traffic were used.
        alike: whether these rounds agree; otherwise each gained, but by varying amounts.
        whole: whether each event keeps a whole number of entries; no cache that fills does so for
            long.
        counted: whether each round kept exactly what events explain: one entry in every so many, or
            a whole number per event that lies between two counters.
    """

    driver: Driver
    early: float
    late: float
    slows: bool
    steady: bool
    odds: float
    rounds: int = 0
    alike: bool = True
    whole: bool = False
    counted: bool = False

    @property
    def timed(self) -> bool:
        """Whether only the clock explains the growth, so that the rate is per second."""
        return self.driver.counter == TIME


def kept_under_traffic(
    values: FloatArray, first: NDArray[np.bool_], work: Work, load: FloatArray
) -> list[Kept | None]:
    """Judge each row of ``values`` [names, readings]; None for a row without growth to report.

    The first half of the readings suggests drivers; ``odds`` come from the second half alone.
    """
    names, readings = values.shape
    if readings < FEWEST_CENSUSES or not work.names or not names:
        return [None] * names
    fits = _Fits(values.T, first, work, load)
    return [fits.kept(name) for name in range(names)]


class _Fits:
    """Fit all counts to all drivers at once: one line per half, at each AR(1) coefficient."""

    def __init__(
        self, values: FloatArray, first: NDArray[np.bool_], work: Work, load: FloatArray
    ) -> None:
        self._values, self._first, self._work, self._load = values, first, work, load
        self._middle = _middles(first)
        early = self._early
        steps = np.where(first[1:, None], 0.0, np.diff(values, axis=0))
        self._gained = steps[early[1:]].sum(axis=0), steps[~early[1:]].sum(axis=0)

    # Fitted on demand, because in a healthy run no count has grown enough to need a fit.
    @cached_property
    def _whole(self) -> list[_Lines]:
        drivers = [[x] for x in self._work.columns.T]
        return _lines(self._values, drivers, self._first, self._load)

    @cached_property
    def _suggested(self) -> list[_Lines]:
        early = self._early
        drivers = [[x[early]] for x in self._work.columns.T]
        return _lines(self._values[early], drivers, self._first[early], self._load[early])

    @cached_property
    def _halves(self) -> list[_Lines]:
        drivers = [
            [np.minimum(x, x[self._middle]), np.maximum(x - x[self._middle], 0.0)]
            for x in self._work.columns.T
        ]
        return _lines(self._values, drivers, self._first, self._load)

    @property
    def _early(self) -> NDArray[np.bool_]:
        return np.arange(self._first.size) <= self._middle

    def kept(self, name: int) -> Kept | None:
        """Judge one count; None unless it may have grown in both halves."""
        early, late = (float(half[name]) for half in self._gained)
        if late < _FEWEST_IN_A_HALF or early + late < FEWEST_KEPT:
            return None
        suggested = self._suggest(name)
        chosen = self._chosen(name, suggested)
        if not chosen:
            return None
        driver, rivals = chosen[0], chosen[1:]
        lines = self._halves[driver]
        whole = self._whole_rate(name, driver, _WHOLE)
        if not whole and early + late < _FEWEST_PARTS:
            return None
        odds = max(t_tail(ratio, lines.df) for ratio in lines.ratio(name, 1))
        before, after = lines.slope(name, 0), lines.slope(name, 1)
        slows, steady = self._seems_slow(name, driver), self._steady(name, driver)
        if not whole:
            # Growth that is constant per second, or per rare event, may still be a cache that is
            # filled by the common work or by another event.
            may_add = [i for i in suggested if not self._is_unlikely(name, i, driver)]
            slows = slows or any(self._is_flatter(name, i) for i in (*self._main, *may_add))
            steady = steady and not any(self._seems_slow(name, i) for i in self._main)
            steady = steady and all(self._steady(name, i) for i in self._main_alike(name, driver))
        driven = self._driver(name, driver, rivals)
        odds = min(1.0, odds * len(suggested))
        return Kept(driven, before, after, slows, steady and not slows, odds, whole=whole)

    def _steady(self, name: int, driver: int) -> bool:
        """Whether the second line is shown to be about as steep as the first, as a leak's is."""
        lines = self._halves[driver]
        if lines.slope(name, 1) < _KEEPS * lines.slope(name, 0):
            return False
        return max(lines.slowing(name, _KEEPS_SURELY)) < -t_quantile(_KEEPS_ODDS, lines.df)

    def _seems_slow(self, name: int, driver: int) -> bool:
        """Whether the second line is much flatter than the first, or shown to be flatter."""
        lines = self._halves[driver]
        if lines.slope(name, 1) < _MUST_KEEP * lines.slope(name, 0):
            return True
        return self._is_flatter(name, driver)

    def _is_flatter(self, name: int, driver: int) -> bool:
        """Whether the second line is shown to be flatter than the first."""
        lines = self._halves[driver]
        return min(lines.slowing(name, _SLOWER)) > t_quantile(_SLOWER_ODDS, lines.df)

    def _is_unlikely(self, name: int, index: int, driver: int) -> bool:
        """Whether ``index`` fits clearly worse than ``driver``, so that its bend says nothing.

        One line by requests is straight while aborts become more common, and any line by them is
        not.  Per second, everything grows more slowly when fewer requests arrive, so the clock is
        not even given a bend.
        """
        lines = self._whole if self._work.names[index] == TIME else self._halves
        return lines[index].sigma(name) > _TIMELY * self._whole[driver].sigma(name)

    @property
    def _main(self) -> list[int]:
        """The counters of the common work."""
        return [i for i, name in enumerate(self._work.names) if name in self._work.main]

    def _suggest(self, name: int) -> list[int]:
        """The drivers with which the count grows in the first half."""
        lines = enumerate(self._suggested)
        return [i for i, one in lines if min(one.ratio(name, 0)) >= _SUGGESTS]

    def _main_alike(self, name: int, driver: int) -> list[int]:
        """The common-work counters that explain the count about as well as ``driver`` does."""
        most = _CLEARLY * self._whole[driver].sigma(name)
        return [i for i in self._main if self._whole[i].sigma(name) <= most]

    def _chosen(self, name: int, alike: Sequence[int]) -> list[int]:
        """The suggested drivers that fit the whole run, best first."""
        sigma = {i: self._whole[i].sigma(name) for i in alike}
        close = [i for i in alike if sigma[i] <= _TIMELY * min(sigma.values())]
        return sorted(close, key=lambda i: self._rank(name, i, sigma[i]))

    def _rank(self, name: int, index: int, sigma: float) -> tuple[int, float, float]:
        whole = self._whole_rate(name, index, _ABOUT_WHOLE)
        times = float(round(self._whole[index].slope(name, 0))) if whole else 0.0
        return self._place(index, whole=whole), times, sigma

    def _whole_rate(self, name: int, index: int, tolerance: float) -> bool:
        """Whether the rate is a whole number, within ``tolerance`` and its error."""
        rate, error = self._whole[index].slope(name, 0), self._whole[index].error(name, 0)
        near = abs(rate - round(rate)) <= min(max(2.0 * error, _WHOLE), tolerance)
        # Check the whole interval: a fill and a rare event can give "about one" by coincidence.
        sure = round(rate) >= 1 and 2.0 * error <= tolerance
        return self._work.names[index] in self._work.telling and sure and near

    def _place(self, index: int, *, whole: bool = False) -> int:
        return self._work.rank(self._work.names[index], whole=whole)

    def _driver(self, name: int, index: int, rivals: Sequence[int]) -> Driver:
        lines, column = self._whole[index], self._work.columns[:, index]
        rate, error = lines.slope(name, 0), lines.error(name, 0)
        inside = ~self._first[1:]
        steps, moved = np.diff(self._values[:, name])[inside], np.diff(column)[inside]
        rises = np.maximum(steps, 0.0)
        half = t_quantile(0.975, lines.df) * error
        others = tuple(n for i in rivals if (n := self._work.names[i]) != TIME)
        return Driver(
            counter=self._work.names[index],
            per_event=rate,
            lower=rate - half,
            upper=rate + half,
            events=float(moved.sum()),
            rise=float(steps.sum()),
            covered=float(rises[moved > 0].sum()) / max(float(rises.sum()), 1.0),
            rivals=others,
        )


def _middles(first: NDArray[np.bool_]) -> NDArray[np.int64]:
    """For each reading, the index of the middle of its stretch (the readings of one process).

    A restarted process fills its caches again, so each process has its own two halves.
    """
    starts = np.flatnonzero(first)
    ends = np.append(starts[1:], first.size)
    return np.repeat((starts + ends - 1) // 2, ends - starts)


@dataclass(frozen=True)
class _Lines:
    """Slopes of one driver's lines for all counts, at each AR(1) coefficient ("memory").

    ``slopes`` [memories, lines, counts], ``inverse`` [memories, lines, lines], ``variance`` and
    ``by_memory`` (log-likelihood) [memories, counts].
    """

    slopes: FloatArray
    inverse: FloatArray
    variance: FloatArray
    by_memory: FloatArray
    df: int

    def slope(self, count: int, line: int) -> float:
        return float(self.slopes[self._best(count), line, count])

    def sigma(self, count: int) -> float:
        return float(np.sqrt(self.variance[self._best(count), count]))

    def error(self, count: int, line: int) -> float:
        """The largest standard error among the likely memories."""
        return max(self._error(m, count, line) for m in self._likely(count))

    def ratio(self, count: int, line: int) -> list[float]:
        """The slope in standard errors, at each likely memory."""
        return [
            float(self.slopes[m, line, count]) / self._error(m, count, line)
            for m in self._likely(count)
        ]

    def slowing(self, count: int, share: float) -> list[float]:
        """How many standard errors the second slope is below ``share`` of the first."""
        weights = np.array([share, -1.0])
        found = []
        for m in self._likely(count):
            spread = float(weights @ self.inverse[m] @ weights) * float(self.variance[m, count])
            found.append(float(weights @ self.slopes[m, :, count]) / float(np.sqrt(spread)))
        return found

    def _error(self, memory: int, count: int, line: int) -> float:
        return float(np.sqrt(self.inverse[memory, line, line] * self.variance[memory, count]))

    def _best(self, count: int) -> int:
        return int(np.argmax(self.by_memory[:, count]))

    def _likely(self, count: int) -> list[int]:
        by_memory = self.by_memory[:, count]
        return [int(m) for m in np.flatnonzero(by_memory >= by_memory.max() - _LIKELY)]


def _lines(
    values: FloatArray,
    drivers: Sequence[Sequence[FloatArray]],
    first: NDArray[np.bool_],
    load: FloatArray,
) -> list[_Lines]:
    """Regress every count on each of ``drivers``, whose columns all have the same number.

    Each stretch has a level of its own.  There is one fit for each AR(1) coefficient of the errors
    (Prais and Winsten).
    """
    moved = np.array([np.column_stack(columns) for columns in drivers])
    scale = np.maximum(np.ptp(moved, axis=1), 1e-300)
    own = np.cumsum(first)[:, None] == np.arange(1, int(first.sum()) + 1)
    beside = np.column_stack([load, own.astype(np.float64)])
    # From zero on, because a large count that does not move must not overflow.
    moved = (moved - moved[:, :1]) / scale[:, None]
    columns = np.concatenate(
        [moved, np.broadcast_to(beside, (len(drivers), *beside.shape))], axis=2
    )
    fits: list[list[tuple[FloatArray, FloatArray, FloatArray, FloatArray]]] = [[] for _ in drivers]
    for memory in _MEMORIES:
        x, y = _fresh(columns, first, memory), _fresh(values, first, memory)
        inverses = np.linalg.pinv(x.mT @ x, rcond=1e-12, hermitian=True)
        known = 0.5 * float(first.sum()) * np.log(1.0 - memory * memory)
        for fit, own_x, inverse, own_scale in zip(fits, x, inverses, scale, strict=True):
            fit.append(_regressed(own_x, y, inverse, own_scale, known))
    df = max(values.shape[0] - columns.shape[2], 1)
    return [
        _Lines(np.array(slopes), np.array(inverses), np.array(variances), np.array(likelihoods), df)
        for slopes, inverses, variances, likelihoods in (zip(*fit, strict=True) for fit in fits)
    ]


def _regressed(
    x: FloatArray, y: FloatArray, inverse: FloatArray, scale: FloatArray, known: float
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return slopes, inverse, variance and likelihood of each count in ``y``, as in ``_Lines``.

    ``inverse`` is that of ``x``'s products; ``known`` is the part of the likelihood that depends on
    the AR(1) coefficient alone.
    """
    rows, columns = x.shape
    beta = inverse @ (x.T @ y)
    left = np.sum((y - x @ beta) ** 2, axis=0)
    own = slice(scale.size)
    # A driver that did not move has no slope: its variance is infinite.
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        slopes = beta[own] / scale[:, None]
        inverse = inverse[own, own] / np.outer(scale, scale)
    variance = np.maximum(left / max(rows - columns, 1), _ROUNDING)
    likelihood = known - 0.5 * rows * np.log(np.maximum(left / rows, _ROUNDING))
    return slopes, inverse, variance, likelihood


def _fresh(data: FloatArray, first: NDArray[np.bool_], memory: float) -> FloatArray:
    """Quasi-difference the rows of each stretch, so that their errors are no longer correlated.

    ``data`` is [..., rows, columns].
    """
    out = data - memory * np.roll(data, 1, axis=-2)
    out[..., first, :] = np.sqrt(1.0 - memory * memory) * data[..., first, :]
    return out


def kept_at_idle(
    held: FloatArray, work: Work, noise: float, least: float, *, named: bool = False
) -> Kept | None:
    """Find what is kept per event between idle points.

    Return None if the rounds disagree, unless the count belongs to one ``named`` container that was
    longer at each of several points: then some events keep an entry, but no counter identifies
    them.

    Args:
        held: [points]; the first ends the warm-up.  Later points may still belong to the warm-up,
            so up to half of the rounds are dropped at the start.
        work: the counters at the same points.
        noise: reading error.
        least: smallest gain in a round that counts as growth.
    """
    for rounds_of in (_equal_rounds, _uneven_rounds) if named else (_equal_rounds,):
        for start in range(last_start(held.size) + 1):
            # Two rounds agree by accident with some counter, if one may choose where to begin.
            if held.size - 1 - start < FEWEST_ROUNDS + (start > 0):
                break
            found = rounds_of(held[start:], work, start, noise, least)
            if found is not None:
                return found
    return None


def last_start(points: int) -> int:
    """Return the last of so many idle points at which the comparison may begin."""
    return max(1, points // 2) - 1


def _equal_rounds(
    held: FloatArray, work: Work, start: int, noise: float, least: float
) -> Kept | None:
    gained = np.diff(held)
    ample = gained >= max(least, 2.0 * noise)
    rounds = np.diff(work.columns[start:], axis=0)
    found = _agreeing(gained, rounds, work, noise)
    if not ample.all():
        # That rounds with few events agree as well is no accident if each keeps exactly as much.
        found = [one for one in found if one.times >= 1.0]
    if not found or np.count_nonzero(ample) < FEWEST_ROUNDS:
        return None
    best, *rivals = found
    times = best.times
    if gained.sum() < (FEWEST_KEPT if times >= 1.0 else _FEWEST_PARTS):
        return None
    moved = rounds[:, best.index] > 0
    gained, rounds = gained[moved], rounds[moved]
    events = rounds[:, best.index]
    mean = mean_rate(gained, events)
    assert mean is not None, "each round has events"
    rates = gained / events
    low, high = mean.ends or (float(rates.min()), float(rates.max()))
    exact = times > 0.0
    driver = Driver(
        counter=work.names[best.index],
        per_event=times or mean.value,
        lower=times or low,
        upper=times or high,
        events=float(events.sum()),
        rise=float(gained.sum()),
        covered=1.0,
        exact=exact,
        rivals=tuple(name for one in rivals if (name := work.names[one.index]) != TIME),
    )
    own = _Rounds.of(gained, events, noise)
    main = [done for done, n in zip(rounds.T, work.names, strict=True) if n in work.main]
    # What a rare event keeps varies by chance if counted per request.
    by_main = [_Rounds.of(gained, done, noise, at_once=max(1.0, mean.value)) for done in main]
    slows = not exact and (own.slows or any(one.surely_slow for one in by_main))
    steady = exact or (own.steady and not any(one.slows for one in (own, *by_main)))
    return Kept(
        driver,
        own.early,
        own.late,
        slows,
        steady,
        0.0,
        gained.size,
        whole=times >= 1.0,
        counted=exact or _is_between(gained, [rounds[:, one.index] for one in found if one.told]),
    )


@dataclass(frozen=True, order=True)
class _Agreeing:
    """A counter by which all rounds agree, ordered by how well it explains the gain.

    ``times`` is what ``_exact_times`` returns; ``told`` is whether it describes the work done.
    """

    rank: tuple[bool, bool, bool, int]
    times: float
    share: float
    index: int
    told: bool


def _agreeing(gained: FloatArray, rounds: FloatArray, work: Work, noise: float) -> list[_Agreeing]:
    """Return the counters by which all rounds agree, best first.

    ``gained`` is [rounds], ``rounds`` [rounds, names] the events of each counter.
    """
    found = []
    for index, name in enumerate(work.names):
        events = rounds[:, index]
        if events.min() < 0 or np.any(gained[events == 0]) or not events.any():
            continue
        rate = float(gained.sum()) / float(events.sum())
        off = np.abs(gained - rate * events)
        agree = bool(np.all(off <= np.maximum(_ALIKE * rate * events, 2.0 * noise)))
        if not agree or rate <= 0.0 or (rate < LEAST_PER_EVENT and name != TIME):
            continue
        times = _exact_times(gained, events, rate, len(work.names)) if name in work.telling else 0.0
        share = float(off.sum()) / float(gained.sum())
        place = work.rank(name, whole=False)
        rank = (share > 0.02, not times >= 1.0, not times, place)
        found.append(_Agreeing(rank, times, share, index, name in work.telling))
    return sorted(found)


def _is_between(gained: FloatArray, counts: Sequence[FloatArray]) -> bool:
    """Whether a whole number of entries is kept per event that no counter counts, but that is about
    as frequent as others: some requests end before they are admitted, for example.

    Then each round kept at least that number for each event of one counter, and at most for each of
    another.
    """
    if not counts:
        return False
    times = max(1.0, round(float(gained.sum() / counts[0].sum())))
    alike = [times * n for n in counts if np.all(np.abs(times * n - gained) <= _ALIKE * gained)]
    above = any(np.all(gained >= least) for least in alike)
    below = any(np.all(gained <= most) for most in alike)
    return above and below and gained.size >= FEWEST_UNEVEN


def _exact_times(gained: FloatArray, events: FloatArray, rate: float, drivers: int) -> float:
    """Return how many entries each event keeps in every round, or one in how many does.

    That is a whole number, or its reciprocal if every so many events keep one entry: then the total
    is never off by a whole entry.  0 if neither holds, or if counts that vary by chance would often
    do the same with one of so many ``drivers``.
    """
    times = float(round(rate))
    if times >= 1.0 and np.all(gained == times * events):
        return times
    share = 1.0 / max(2, round(1.0 / rate))
    off = np.cumsum(gained - share * events)
    if max(off.max(), 0.0) - min(off.min(), 0.0) >= 1.0:
        return 0.0
    # A round is this close by chance if one or two of the likely counts are.
    chance = np.minimum(1.0, 2.0 / np.sqrt(2.0 * np.pi * share * np.maximum(events, 1.0)))
    return share if drivers * float(np.prod(chance)) < ALPHA else 0.0


def _uneven_rounds(
    held: FloatArray, work: Work, start: int, noise: float, least: float
) -> Kept | None:
    """Use an event whose rate varies least between rounds; that variation gives the error.

    Of several whose rates vary about as little, the most informative one is the driver.
    """
    gained = np.diff(held)
    if gained.size < FEWEST_UNEVEN or np.any(gained < max(least, 2.0 * noise)):
        return None
    found = []
    for index, name in enumerate(work.names):
        events = np.diff(work.columns[start:, index])
        if events.min() > 0 and (name in work.telling or name == TIME):
            rates = gained / events
            spread = float(rates.std(ddof=1) / rates.mean())
            found.append((work.rank(name, whole=False), spread, index))
    if not found or gained.sum() < _FEWEST_PARTS:
        return None
    most = _TIMELY * min(spread for _, spread, _ in found)
    _, spread, index = min(one for one in found if one[1] <= most)
    events = np.diff(work.columns[start:, index])
    rate = float(gained.sum() / events.sum())
    half = t_quantile(0.975, gained.size - 1) * spread * rate / float(np.sqrt(gained.size))
    driver = Driver(
        counter=work.names[index],
        per_event=rate,
        lower=max(0.0, rate - half),
        upper=rate + half,
        events=float(events.sum()),
        rise=float(gained.sum()),
        covered=1.0,
        rivals=tuple(n for _, _, i in sorted(found) if i != index and (n := work.names[i]) != TIME),
    )
    own = _Rounds.of(gained, events, noise, spread=spread)
    # Uneven rounds do not show that the growth continues: under rising traffic, a container that
    # expires its entries grows as well.
    return Kept(driver, own.early, own.late, own.surely_slow, False, 0.0, gained.size, alike=False)


@dataclass(frozen=True)
class _Rounds:
    """The rate in the first and the last half of the rounds, and the error of their ratio."""

    early: float
    late: float
    error: float

    @staticmethod
    def of(
        gained: FloatArray,
        events: FloatArray,
        noise: float,
        *,
        spread: float = 0.0,
        at_once: float = 1.0,
    ) -> _Rounds:
        """Estimate both rates from the gain of each round.

        The error combines the counting error of entries that come ``at_once``, the noise of two
        readings, and the variation of the rate between rounds (``spread``, a share of the mean).
        """
        half = max(1, gained.size // 2)
        totals = [float(x.sum()) for x in (gained[:half], gained[-half:])]
        done = [max(float(x.sum()), 1e-300) for x in (events[:half], events[-half:])]
        counted = [math.sqrt(at_once * total + 2.0 * noise * noise) / total for total in totals]
        share = [math.hypot(one, spread / math.sqrt(half)) for one in counted]
        rates = [total / x for total, x in zip(totals, done, strict=True)]
        return _Rounds(rates[0], rates[1], math.hypot(*share))

    @property
    def steady(self) -> bool:
        """Whether the last rounds are shown to have kept about as much per event as the first."""
        keeps = self._quotient - _KEEPS_ERRORS * self.error >= _KEEPS_SURELY
        return self._quotient >= _KEEPS and keeps

    @property
    def slows(self) -> bool:
        """Whether the last rounds kept less per event."""
        return self._quotient < _MUST_KEEP or self.surely_slow

    @property
    def surely_slow(self) -> bool:
        """Whether the last rounds kept significantly less per event."""
        return self._quotient + 2.33 * self.error < 1.0 and self._quotient < _SLOWER

    @property
    def _quotient(self) -> float:
        return self.late / self.early
