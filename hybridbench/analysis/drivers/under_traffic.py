"""Find what a process keeps per event under traffic.

A count includes requests in flight, so one line is fitted to each half of the run, with AR(1)
errors: the first half suggests a driver and the second confirms it.  A cache that fills slows down,
so its second line is flatter; if a count only fluctuates, its second line is not significant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hybridbench.analysis.distributions import t_quantile, t_tail
from hybridbench.analysis.drivers.kept import (
    FEWEST_KEPT,
    FEWEST_PARTS,
    KEEPS,
    KEEPS_ODDS,
    KEEPS_SURELY,
    MUST_KEEP,
    SLOWER,
    TIMELY,
    Kept,
    Work,
)
from hybridbench.analysis.drivers.search import TIME, Driver
from hybridbench.analysis.record import FloatArray

FEWEST_CENSUSES: Final = 8
_FEWEST_IN_A_HALF: Final = 10
# AR(1) coefficients of the errors, from white noise to almost a random walk.
_MEMORIES: Final = (0.0, 0.3, 0.6, 0.8, 0.9, 0.97, 0.995)
_LIKELY: Final = 2.0  # log-likelihood: coefficients this close to the best are considered as well
_SUGGESTS: Final = 3.0  # minimum slope of the first half's line, in standard errors
_SLOWER_ODDS: Final = 0.99
_CLEARLY: Final = 1.3  # ratio of errors up to which the common work explains a count as well
_WHOLE: Final = 0.02  # a rate this close to a whole number, with an error as small, counts as one
_ABOUT_WHOLE: Final = 0.1
_ROUNDING: Final = 0.25  # variance from reading a count a moment before or after its driver


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
        if not whole and early + late < FEWEST_PARTS:
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
        if lines.slope(name, 1) < KEEPS * lines.slope(name, 0):
            return False
        return max(lines.slowing(name, KEEPS_SURELY)) < -t_quantile(KEEPS_ODDS, lines.df)

    def _seems_slow(self, name: int, driver: int) -> bool:
        """Whether the second line is much flatter than the first, or shown to be flatter."""
        lines = self._halves[driver]
        if lines.slope(name, 1) < MUST_KEEP * lines.slope(name, 0):
            return True
        return self._is_flatter(name, driver)

    def _is_flatter(self, name: int, driver: int) -> bool:
        """Whether the second line is shown to be flatter than the first."""
        lines = self._halves[driver]
        return min(lines.slowing(name, SLOWER)) > t_quantile(_SLOWER_ODDS, lines.df)

    def _is_unlikely(self, name: int, index: int, driver: int) -> bool:
        """Whether ``index`` fits clearly worse than ``driver``, so that its bend says nothing.

        One line by requests is straight while aborts become more common, and any line by them is
        not.  Per second, everything grows more slowly when fewer requests arrive, so the clock is
        not even given a bend.
        """
        lines = self._whole if self._work.names[index] == TIME else self._halves
        return lines[index].sigma(name) > TIMELY * self._whole[driver].sigma(name)

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
        close = [i for i in alike if sigma[i] <= TIMELY * min(sigma.values())]
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
