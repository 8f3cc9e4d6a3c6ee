"""A synthetic defect: 5% of the engine's speed is lost between its steps.

It tests whether comparisons find a cost of known size on any machine.
"""

from __future__ import annotations

import time

from hybridbench.defects.defect import Defect, Patch, Role, Signature
from hybridbench.defects.truth import Truth
from hybridbench.engine.engine import Engine
from hybridbench.engine.events import EngineEvent

TRUTH = Truth()
# The share of throughput lost; a slightly larger share of the working time must be burned for it.
LOST = 0.05
_BURNED = LOST / (1.0 - LOST)


class Burden:
    """Spins after each step for a fixed share of the processor time since the last one.

    Wall-clock time would also pass while the process is stopped or waits to be scheduled.
    """

    def __init__(self) -> None:
        self._working_since_s: float | None = None

    def begin_step(self) -> None:
        """Start timing, unless the last step left work: then timing continues from its end."""
        if self._working_since_s is None:
            self._working_since_s = time.thread_time()

    def end_step(self, *, more: bool) -> None:
        """Burn the share of what this step took, including the loop around it."""
        assert self._working_since_s is not None, "a step that did not begin"
        now_s = time.thread_time()
        until_s = now_s + _BURNED * (now_s - self._working_since_s)
        while time.thread_time() < until_s:
            pass
        TRUTH.add("steps")
        TRUTH.add("burned_us", round(1e6 * (until_s - now_s)))
        self._working_since_s = time.thread_time() if more else None


_BURDEN = Burden()
_healthy_step = Engine.step


def step(self: Engine) -> list[EngineEvent]:
    """Run the step, then spin."""
    _BURDEN.begin_step()
    events = _healthy_step(self)
    _BURDEN.end_step(more=self.has_work)
    return events


DEFECT = Defect(
    slug="slow-step",
    source="synthetic",
    symptom="Throughput is 5% lower from the first step on; nothing else changes.",
    profile="chat-churn",
    signature=Signature(
        verdicts=("SLOWER",),
        kinds=(),
        subject="throughput_tokens_per_s",
        event="engine step",
        rate="5% of the throughput of the same engine without it",
        harm="burned_us",
        per="steps",
        duration_s=600.0,
    ),
    patches=(Patch(Engine, "step", step, fingerprint="8d8f0873ae84"),),
    truth=TRUTH,
    role=Role.PLANTED,
)
