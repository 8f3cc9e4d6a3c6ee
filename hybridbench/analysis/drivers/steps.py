"""Find what drives a quantity that rises and falls: the counter that moves when it rises.

No line can be fitted to slots that are taken and freed within a second; only the timing of the
rises is informative.  This is association, not proof: the finding reports how often they coincided,
and readers can check the samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from hybridbench.analysis.drivers.rates import mean_rate
from hybridbench.analysis.facts.counters import EventCounters, expectation, singular
from hybridbench.analysis.record import FloatArray, RunRecord
from hybridbench.records.finding import HowDriven, Rate

_COVERS = 0.9  # share of all rises that must fall into intervals in which the counter moved
_COVERS_STEPS = 0.99  # share of all slots taken in steps in which the counter moved
_SAME_STEPS = 0.05
_PART = 0.15  # minimum share of all lost slots for each of several causes
_TELLS = 4.0  # how many times more frequent a cause must be in losing steps than in all steps
_MOST_PARTS = 3
# These move in every step of a busy engine and would explain anything.
_NOT_EVENTS = ("steps", "tokens", "chunks", "calls")
# The score is a log-likelihood ratio (of a rise when the counter moves) plus an R2; the prior for
# the kind of finding may decide between counters that move together, but not against clear
# evidence.
_EXPECTED = 2.0
_EXPECTED_NEXT = 0.1


@dataclass(frozen=True)
class StepDriver:
    """The counter that moves when a quantity rises."""

    counter: str
    covered: float  # share of the rises in intervals in which the counter moved
    per_event: float  # total rise per event; too small if slots were also freed
    ends: tuple[float, float]  # 95% interval of ``per_event``
    events: float
    rise: float
    # Share of all steps in which the counter moved; None if only samples are known.
    base_rate: float | None = None

    def rate(self, unit: str) -> Rate:
        """Return the rise per event, with its interval."""
        return Rate(self.per_event, *self.ends, unit, singular(self.counter))

    @property
    def how(self) -> HowDriven:
        """The evidence for the driver, for a finding."""
        return HowDriven(
            events=self.events, share=self.covered, rise=self.rise, of_steps=self.base_rate
        )


def find_step_driver(
    record: RunRecord, pool: str, counters: EventCounters, expected: Sequence[str] = ()
) -> StepDriver | None:
    """Return the driver of slots held by waiting requests, from the worker's per-step counts.

    Of the counters that moved in all steps that took slots, it is the one that moved in the fewest
    other steps; None if there are no such counts.
    """

    def score(driver: StepDriver) -> float:
        # The expected names only decide between counters that move in the same steps.
        likely = expectation(driver.counter, expected) is not None
        return driver.covered / (driver.base_rate or 1.0) * (1.0 + _SAME_STEPS * likely)

    known = _of_steps(record, f"waiting_taken.{pool}", counters, _COVERS_STEPS)
    return max(known, key=score, default=None)


@dataclass(frozen=True)
class LosingSteps:
    """The steps that lost slots of a pool, from the worker's per-step counts.

    Args:
        always: counters that moved in all of these steps, and in the fewest others.
        mostly: all counters that moved in nearly all of these steps.
        parts: if no counter moved in all of them: rarer counters that moved in a substantial share,
            each with its share of the lost slots and of all steps.
    """

    always: tuple[str, ...]
    mostly: frozenset[str]
    parts: tuple[tuple[str, float, float], ...]


def losing_steps(record: RunRecord, pool: str, counters: EventCounters) -> LosingSteps | None:
    """Return what the steps that lost slots of ``pool`` have in common; None without counts."""
    known = list(_of_steps(record, f"lost_taken.{pool}", counters, _PART))
    if not known:
        return None
    whole = [driver for driver in known if driver.covered >= _COVERS_STEPS]
    fewest = min((driver.base_rate or 1.0 for driver in whole), default=1.0)
    always = [d.counter for d in whole if (d.base_rate or 1.0) <= fewest * (1.0 + _SAME_STEPS)]
    mostly = frozenset(driver.counter for driver in known if driver.covered >= _COVERS)
    telling = [d for d in known if d.covered >= _TELLS * (d.base_rate or 1.0)]
    telling.sort(key=lambda d: -d.covered / (d.base_rate or 1.0))
    parts = [(d.counter, d.covered, d.base_rate or 0.0) for d in telling[:_MOST_PARTS]]
    return LosingSteps(tuple(always), mostly, () if always else tuple(parts))


def _of_steps(
    record: RunRecord, family: str, counters: EventCounters, least: float
) -> Iterable[StepDriver]:
    """Yield every counter that moved with at least the share ``least`` of ``family``'s slots."""
    total = _last(record, f"{family}.steps")
    steps = _last(record, "steps_with.steps")
    if total <= 0 or steps <= 0:
        return
    for name in counters.causes:
        covered = _last(record, f"{family}.{name}") / total
        base_rate = _last(record, f"steps_with.{name}") / steps
        events = counters.total(name)
        if name.endswith(_NOT_EVENTS) or covered < least or not base_rate or not events:
            continue
        taken = record.series[f"{family}.steps"]
        ends = _ends(taken.value, counters.at(name, taken.t_s), total, events)
        yield StepDriver(name, covered, total / events, ends, events, total, base_rate)


def find_rise_driver(
    t_s: FloatArray, value: FloatArray, counters: EventCounters, expected: Sequence[str] = ()
) -> StepDriver | None:
    """Return the counter that moved in nearly all intervals where ``value`` rose and in few others.

    ``expected`` has substrings of likely names, likeliest first.
    """
    rise = np.maximum(np.diff(value), 0.0)
    total = float(rise.sum())
    if total <= 0:
        return None
    best: tuple[float, StepDriver] | None = None
    for name in counters.causes:
        series = counters.series[name]
        before, after = series.around(t_s[:-1])[0], series.around(t_s[1:])[1]
        moved = np.maximum(after - before, 0.0)
        if name.endswith(_NOT_EVENTS) or not moved.any():
            continue
        covered = float(rise[moved > 0].sum()) / total
        if covered < _COVERS:
            continue
        score = _score(rise, moved, covered) + _advance(name, expected)
        events = float(counters.at(name, t_s[-1:])[0] - counters.at(name, t_s[:1])[0])
        if events > 0 and (best is None or score > best[0]):
            risen = np.concatenate(([0.0], np.cumsum(rise)))
            ends = _ends(risen, counters.at(name, t_s), total, events)
            best = score, StepDriver(name, covered, total / events, ends, events, total)
    return None if best is None else best[1]


def _ends(
    taken: FloatArray, counted: FloatArray, total: float, events: float
) -> tuple[float, float]:
    """Return the ends of the interval (95%) of ``total`` per event, from two cumulative counts.

    It allows for the counting error, and for the spread between stretches of the run, because
    events take unequal numbers of slots; with too few stretches, one event may have taken all.
    """
    rate, counting = total / events, 1.96 * float(np.sqrt(total)) / events
    mean = mean_rate(np.diff(taken), np.diff(counted))
    spread = rate
    if mean is not None and mean.ends is not None:
        spread = mean.ends[1] - mean.value
    half = max(counting, spread)
    return max(0.0, rate - half), rate + half


def _score(rise: FloatArray, moved: FloatArray, covered: float) -> float:
    lift = covered / float(np.mean(moved > 0))
    fit = float(rise @ moved) ** 2 / (float(rise @ rise) * float(moved @ moved))
    return float(np.log(lift)) + fit


def _advance(name: str, expected: Sequence[str]) -> float:
    rank = expectation(name, expected)
    return 0.0 if rank is None else _EXPECTED - _EXPECTED_NEXT * rank


def _last(record: RunRecord, name: str) -> float:
    series = record.series.get(name)
    return float(series.value[-1]) if series is not None and len(series) else 0.0
