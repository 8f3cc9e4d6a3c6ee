"""What waiting requests hold between steps, and in which steps they came to hold it.

A sample a second sees neither: slots come and go within it.
"""

from __future__ import annotations

from collections.abc import Sequence

from hybridbench.engine.counters import COUNTER_NAMES
from hybridbench.engine.engine import Engine
from hybridbench.engine.req import ReqKv


class WaitingWatch:
    """Looks at the queue after each step."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._highest: dict[str, int] = {}
        self._holders: set[str] = set()
        self.taken_with: dict[str, list[int]] = {}
        """By pool: slots newly held after steps in which a counter moved, by counter."""

    def after_step(self, moved: Sequence[int]) -> None:
        """Note what the step left in the hands of waiting requests; ``moved`` indexes counters."""
        waiting = self._engine.scheduler.waiting_queue
        holding = {req.rid: req.kv for req in waiting if not req.kv.is_empty}
        if not holding:
            self._holders.clear()
            return
        for rid in holding.keys() - self._holders:
            for pool, slots in self._held(holding[rid]).items():
                taken = self.taken_with.setdefault(pool, [0] * len(COUNTER_NAMES))
                for index in moved:
                    taken[index] += slots
        self._holders = set(holding)
        for pool, stats in self._engine.pool_stats().items():
            self._highest[pool] = max(self._highest.get(pool, 0), stats.waiting_held)

    def take_highest(self, pool: str) -> int:
        """The most slots of ``pool`` that waiting requests held since this was last asked."""
        return self._highest.pop(pool, 0)

    def _held(self, kv: ReqKv) -> dict[str, int]:
        """Slots by pool that a waiting request's record names; only pools with any."""
        held = {
            "mamba": kv.state_slots_held,
            "req": int(kv.req_pool_idx is not None),
            "kv": kv.held_len(self._engine.pools.page_size),
        }
        return {pool: slots for pool, slots in held.items() if slots}
