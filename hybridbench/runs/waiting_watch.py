"""What waiting requests hold between steps, and in which steps they came to hold it.

A sample a second sees neither: slots come and go within it, and in a busy second every counter
moves.  So the worker looks after every step, and notes beside each new holding which event counters
moved in that very step.  The counter that moved in all of those steps and in few others drives it.
"""

from __future__ import annotations

from hybridbench.engine.counters import COUNTER_NAMES
from hybridbench.engine.engine import Engine
from hybridbench.engine.req import ReqKv


class WaitingWatch:
    """Looks after each step; ``metrics`` and ``take_highest`` tell what was seen."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._highest: dict[str, int] = {}
        self._holders: set[str] = set()
        self._counts = engine.counters.values()
        # Steps in which a counter moved, and slots newly held in such steps, by pool; both in the
        # order of the counters.
        self._steps_with = [0] * len(COUNTER_NAMES)
        self._taken_with: dict[str, list[int]] = {}

    def after_step(self) -> None:
        """Note what the step left in the hands of waiting requests."""
        counts = self._engine.counters.values()
        moved = [
            i for i, (now, then) in enumerate(zip(counts, self._counts, strict=True)) if now != then
        ]
        self._counts = counts
        steps_with = self._steps_with
        for index in moved:
            steps_with[index] += 1
        waiting = self._engine.scheduler.waiting_queue
        holding = {req.rid: req.kv for req in waiting if not req.kv.is_empty}
        if not holding:
            self._holders.clear()
            return
        for rid in holding.keys() - self._holders:
            for pool, slots in self._held(holding[rid]).items():
                taken = self._taken_with.setdefault(pool, [0] * len(COUNTER_NAMES))
                for index in moved:
                    taken[index] += slots
        self._holders = set(holding)
        for pool, stats in self._engine.pool_stats().items():
            self._highest[pool] = max(self._highest.get(pool, 0), stats.waiting_held)

    def take_highest(self, pool: str) -> int:
        """The most slots of ``pool`` that waiting requests held since this was last asked."""
        return self._highest.pop(pool, 0)

    def metrics(self) -> dict[str, float]:
        """Nothing at all as long as no waiting request ever held a slot."""
        values: dict[str, float] = {}
        if self._taken_with:
            values.update(_named("steps_with", self._steps_with))
        for pool, taken in self._taken_with.items():
            values.update(_named(f"waiting_taken.{pool}", taken))
        return values

    def _held(self, kv: ReqKv) -> dict[str, int]:
        """Slots by pool that a waiting request's record names; only pools with any."""
        held = {
            "mamba": int(kv.mamba_pool_idx is not None),
            "req": int(kv.req_pool_idx is not None),
            "kv": kv.held_len(self._engine.pools.page_size),
        }
        return {pool: slots for pool, slots in held.items() if slots}


def _named(family: str, counts: list[int]) -> dict[str, float]:
    return {f"{family}.{name}": n for name, n in zip(COUNTER_NAMES, counts, strict=True) if n}
