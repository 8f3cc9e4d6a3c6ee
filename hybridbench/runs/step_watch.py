"""After every step: which event counters moved in it, for whoever notes what else it changed.

A sample a second sees no single event: in a busy second every counter moves.  The counter that
moved in all steps in which slots went, and in few others, is what loses them.
"""

from __future__ import annotations

from collections.abc import Sequence

from hybridbench.engine.counters import COUNTER_NAMES
from hybridbench.engine.engine import Engine
from hybridbench.runs.loss_watch import LossWatch
from hybridbench.runs.waiting_watch import WaitingWatch


class StepWatch:
    """Looks after each step; ``metrics`` tells what was seen."""

    def __init__(self, engine: Engine) -> None:
        self._counters = engine.counters
        self._counts = engine.counters.values()
        self._steps_with = [0] * len(COUNTER_NAMES)
        self.waiting = WaitingWatch(engine)
        self.losses = LossWatch(engine)

    def after_step(self) -> None:
        """Note what the step did, beside the counters that moved in it."""
        counts = self._counters.values()
        moved = [
            i for i, (now, then) in enumerate(zip(counts, self._counts, strict=True)) if now != then
        ]
        self._counts = counts
        for index in moved:
            self._steps_with[index] += 1
        self.waiting.after_step(moved)
        self.losses.after_step(moved)

    def metrics(self) -> dict[str, float]:
        """Nothing at all as long as no slot was ever held by a waiting request, or lost."""
        seen = [("waiting_taken", self.waiting.taken_with), ("lost_taken", self.losses.lost_with)]
        values: dict[str, float] = {}
        for family, by_pool in seen:
            for pool, taken in by_pool.items():
                values.update(_named(f"{family}.{pool}", taken))
        return {**_named("steps_with", self._steps_with), **values} if values else values


def _named(family: str, counts: Sequence[int]) -> dict[str, float]:
    return {f"{family}.{name}": n for name, n in zip(COUNTER_NAMES, counts, strict=True) if n}
