"""What waiting requests hold between steps, and in which steps they came to hold it.

A sample a second sees neither: slots come and go within it, and in a busy second every counter
moves.  So the worker looks after every step, and notes beside each new holding which event counters
moved in that very step.  The counter that moved in all of those steps and in few others drives it.
"""

from __future__ import annotations

from collections import Counter

from hybridbench.engine.engine import Engine
from hybridbench.engine.req import ReqKv


class WaitingWatch:
    """Looks after each step; ``metrics`` and ``take_highest`` tell what was seen."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._highest: dict[str, int] = {}
        self._holders: set[str] = set()
        self._counters = engine.counters.as_dict()
        # Steps in which a counter moved, and slots newly held in such steps, by pool and counter.
        self._steps_with: Counter[str] = Counter()
        self._taken_with: dict[str, Counter[str]] = {}

    def after_step(self) -> None:
        """Note what the step left in the hands of waiting requests."""
        counters = self._engine.counters.as_dict()
        before = self._counters
        moved = [name for name, count in counters.items() if count != before.get(name, 0)]
        self._counters = counters
        self._steps_with.update(moved)
        waiting = self._engine.scheduler.waiting_queue
        holding = {req.rid: req.kv for req in waiting if not req.kv.is_empty}
        for rid in holding.keys() - self._holders:
            for pool, slots in _held(holding[rid]).items():
                taken = self._taken_with.setdefault(pool, Counter())
                for name in moved:
                    taken[name] += slots
        self._holders = set(holding)
        if holding:
            for pool, stats in self._engine.pool_stats().items():
                self._highest[pool] = max(self._highest.get(pool, 0), stats.waiting_held)

    def take_highest(self, pool: str) -> int:
        """The most slots of ``pool`` that waiting requests held since this was last asked."""
        return self._highest.pop(pool, 0)

    def metrics(self) -> dict[str, float]:
        """Nothing at all as long as no waiting request ever held a slot."""
        values: dict[str, float] = {}
        if self._taken_with:
            values.update((f"steps_with.{name}", n) for name, n in self._steps_with.items())
        for pool, taken in self._taken_with.items():
            values.update((f"waiting_taken.{pool}.{name}", n) for name, n in taken.items())
        return values


def _held(kv: ReqKv) -> dict[str, int]:
    """Slots by pool that a waiting request's record names; only pools with any."""
    held = {
        "mamba": int(kv.mamba_pool_idx is not None),
        "req": int(kv.req_pool_idx is not None),
        "kv": kv.uncached_len,
    }
    return {pool: slots for pool, slots in held.items() if slots}
