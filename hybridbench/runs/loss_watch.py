"""In which steps slots went that nobody accounts for.

Adding up a pool after every step costs a walk over the running requests, so it begins with the
first sample that misses a slot: a healthy run never pays for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hybridbench.engine.counters import COUNTER_NAMES
from hybridbench.engine.engine import Engine
from hybridbench.engine.scheduler.pool_stats import PoolStats


class LossWatch:
    """Adds up the pools after each step, once one of them has missed a slot."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # The most slots that were ever missing: what comes back and goes again is lost once.
        self._missing: dict[str, int] = {}
        self.lost_with: dict[str, list[int]] = {}
        """By pool: slots lost in steps in which a counter moved, in the order of the counters."""

    def saw(self, pools: Mapping[str, PoolStats]) -> None:
        """What a sample found; from the first missing slot on every step is looked at."""
        if not self._missing and any(stats.residual > 0 for stats in pools.values()):
            self._missing = {pool: stats.residual for pool, stats in pools.items()}

    def after_step(self, moved: Sequence[int]) -> None:
        """Note the slots that this step lost beside the counters that ``moved`` in it."""
        if not self._missing:
            return
        for pool, stats in self._engine.pool_stats().items():
            lost = stats.residual - self._missing[pool]
            if lost <= 0:
                continue
            self._missing[pool] = stats.residual
            with_counters = self.lost_with.setdefault(pool, [0] * len(COUNTER_NAMES))
            for index in moved:
                with_counters[index] += lost
