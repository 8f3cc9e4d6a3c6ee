"""Record, after every step, which event counters moved together with slots that were lost or that
waiting requests hold.

A sample per second cannot resolve single events: in a busy second every counter moves.  The counter
that moved in all steps in which slots were lost, and in few others, is the cause.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hybridbench.engine.counters import COUNTER_NAMES
from hybridbench.engine.scheduler.pool_stats import PoolStats
from hybridbench.worker.port import ServedEngine


class StepWatch:
    """Watches what waiting requests hold between steps, and slots that are unaccounted for.

    Summing the pools after every step needs a walk over the running requests, so it begins with the
    first sample in which a slot is missing: a healthy run never pays for it.
    """

    def __init__(self, engine: ServedEngine) -> None:
        self._engine = engine
        self._counters = engine.counters
        self._counts = engine.counters.values()
        self._steps_with = [0] * len(COUNTER_NAMES)
        # By pool: slots newly held by waiting requests, and slots lost, per counter that moved in
        # the same step, in the order of the counters.
        self._waiting_taken: dict[str, list[int]] = {}
        self._lost_taken: dict[str, list[int]] = {}
        self._waiting_holders: set[str] = set()
        self._waiting_highest: dict[str, int] = {}
        # By pool: the most slots ever missing, so that a slot that returns and is lost again counts
        # once.
        self._missing: dict[str, int] = {}

    def after_step(self) -> None:
        """Record what the step did, with the counters that moved in it."""
        counts = self._counters.values()
        moved = [
            i for i, (now, then) in enumerate(zip(counts, self._counts, strict=True)) if now != then
        ]
        self._counts = counts
        for index in moved:
            self._steps_with[index] += 1
        self._watch_waiting(moved)
        if self._missing:
            self._watch_losses(moved)

    def saw_pools(self, pools: Mapping[str, PoolStats]) -> None:
        """Process a sample; from the first missing slot on, sum the pools at each step."""
        if not self._missing and any(stats.residual > 0 for stats in pools.values()):
            self._missing = {pool: stats.residual for pool, stats in pools.items()}

    def take_waiting_highest(self, pool: str) -> int:
        """Return the most slots of ``pool`` held by waiting requests since the last call."""
        return self._waiting_highest.pop(pool, 0)

    def metrics(self) -> dict[str, float]:
        """Return the counts; empty unless a waiting request held a slot or one was lost."""
        values: dict[str, float] = {}
        for family, by_pool in (
            ("waiting_taken", self._waiting_taken),
            ("lost_taken", self._lost_taken),
        ):
            for pool, taken in by_pool.items():
                values.update(_named(f"{family}.{pool}", taken))
        return {**_named("steps_with", self._steps_with), **values} if values else values

    def _watch_waiting(self, moved: Sequence[int]) -> None:
        holding = self._engine.held_by_waiting()
        if not holding:
            self._waiting_holders.clear()
            return
        for rid in holding.keys() - self._waiting_holders:
            for pool, slots in holding[rid].items():
                _add(self._waiting_taken, pool, slots, moved)
        self._waiting_holders = set(holding)
        for pool, stats in self._engine.pool_stats().items():
            self._waiting_highest[pool] = max(
                self._waiting_highest.get(pool, 0), stats.waiting_held
            )

    def _watch_losses(self, moved: Sequence[int]) -> None:
        for pool, stats in self._engine.pool_stats().items():
            lost = stats.residual - self._missing[pool]
            if lost > 0:
                self._missing[pool] = stats.residual
                _add(self._lost_taken, pool, lost, moved)


def _add(taken: dict[str, list[int]], pool: str, slots: int, moved: Sequence[int]) -> None:
    with_counters = taken.setdefault(pool, [0] * len(COUNTER_NAMES))
    for index in moved:
        with_counters[index] += slots


def _named(family: str, counts: Sequence[int]) -> dict[str, float]:
    return {f"{family}.{name}": n for name, n in zip(COUNTER_NAMES, counts, strict=True) if n}
