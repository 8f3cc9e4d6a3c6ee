"""Planted, not historic: a twentieth of the engine's speed is lost between its steps.

Comparisons are tried on it: whether they find a cost whose size is known, on any machine.
"""

from __future__ import annotations

import time

from hybridbench.defects.defect import Defect, Patch, Role, Signature
from hybridbench.defects.truth import Truth
from hybridbench.engine.engine import Engine
from hybridbench.engine.events import EngineEvent

TRUTH = Truth()
# Throughput falls by this share: what is burned is a little more of the time that work takes.
LOST = 0.05
_BURNED = LOST / (1.0 - LOST)


class Burden:
    """Spins after each step for a fixed share of the processor time since the last one.

    Not of the clock's: that runs on while a process is frozen or waits for its turn.
    """

    def __init__(self) -> None:
        self._working_since_s: float | None = None

    def begin_step(self) -> None:
        """A step begins; what passed since the last one was work if there was more to do."""
        if self._working_since_s is None:
            self._working_since_s = time.thread_time()

    def end_step(self, *, more: bool) -> None:
        """Burn the share of what this step took, the loop around it included."""
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
    """The step, and then nothing for a while."""
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
    patches=(Patch(Engine, "step", step, fingerprint="83bc9659d934"),),
    truth=TRUTH,
    role=Role.PLANTED,
)
