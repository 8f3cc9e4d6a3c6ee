"""Find what a process keeps per event between idle points.

Nothing is in flight there and all garbage has been collected, so whatever was added since the last
point was kept; rounds with the same gain per event identify the event.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from hybridbench.analysis.distributions import t_quantile
from hybridbench.analysis.drivers.kept import (
    ALPHA,
    FEWEST_KEPT,
    FEWEST_PARTS,
    KEEPS,
    KEEPS_ERRORS,
    KEEPS_SURELY,
    MUST_KEEP,
    SLOWER,
    TIMELY,
    Kept,
    Work,
)
from hybridbench.analysis.drivers.rates import mean_rate
from hybridbench.analysis.drivers.search import LEAST_PER_EVENT, TIME, Driver
from hybridbench.analysis.record import FloatArray

FEWEST_ROUNDS: Final = 2
FEWEST_UNEVEN: Final = 4  # rounds
_ALIKE: Final = 0.1  # tolerated difference between rounds, as a share of the mean rate


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
    if gained.sum() < (FEWEST_KEPT if times >= 1.0 else FEWEST_PARTS):
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
    if not found or gained.sum() < FEWEST_PARTS:
        return None
    most = TIMELY * min(spread for _, spread, _ in found)
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
        keeps = self._quotient - KEEPS_ERRORS * self.error >= KEEPS_SURELY
        return self._quotient >= KEEPS and keeps

    @property
    def slows(self) -> bool:
        """Whether the last rounds kept less per event."""
        return self._quotient < MUST_KEEP or self.surely_slow

    @property
    def surely_slow(self) -> bool:
        """Whether the last rounds kept significantly less per event."""
        return self._quotient + 2.33 * self.error < 1.0 and self._quotient < SLOWER

    @property
    def _quotient(self) -> float:
        return self.late / self.early
