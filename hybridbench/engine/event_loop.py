"""The order of work in a step: schedule, run, settle; with overlap, settle one step later.

Source: SGLang's scheduler has ``event_loop_normal`` and ``event_loop_overlap``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from hybridbench.engine.model_runner import ModelRunner
from hybridbench.engine.next_token import NextTokens
from hybridbench.engine.scheduler.outcome import StepOutcome
from hybridbench.engine.scheduler.schedule_batch import ChainsToCome, ScheduleBatch
from hybridbench.engine.scheduler.scheduler import Scheduler
from hybridbench.engine.scheduler.timings import EngineTimings


class EventLoop(Protocol):
    """Runs one step at a time, entirely on the caller's thread."""

    def run(self, outcome: StepOutcome) -> ScheduleBatch | None:
        """Run one step and return its batch, if any; record in ``outcome`` what happened."""


class EventLoopNormal:
    """Settles each batch in the step that runs it."""

    def __init__(self, scheduler: Scheduler, runner: ModelRunner, timings: EngineTimings) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._timings = timings

    def run(self, outcome: StepOutcome) -> ScheduleBatch | None:
        scheduler, timings = self._scheduler, self._timings
        began_s = timings.beside_model_s()
        scheduler.settle_aborts(outcome)
        planned = scheduler.schedule(outcome)
        batch = None if planned is None else scheduler.lay_out(planned)
        if batch is not None:
            model_began = timings.now_s(), timings.cpu_s()
            launched = BatchInFlight(batch, self._runner.launch(batch.forward))
            chosen = _read(launched, self._runner)
            timings.count_forward(*model_began)
            scheduler.settle(batch, scheduler.accept(batch, chosen), outcome)
        timings.schedule_s += timings.beside_model_s() - began_s
        return batch


@dataclass(frozen=True, slots=True)
class BatchInFlight:
    """A launched batch, and its logits, which a CUDA device may still be computing."""

    batch: ScheduleBatch
    logits: Tensor


class EventLoopOverlap:
    """Forms and launches batch k + 1 before it settles the results of batch k.

    The scheduler plans batch k + 1 while batch k is running.  In the plan, batch k's tokens and the
    lengths of the draft chains that it verifies are still unknown; they are filled in after
    planning, once the results of batch k have arrived.  On a CPU the forward pass is complete when
    it returns, so steps run in the overlapped order but without the speed-up; this still exercises
    everything that depends on the order.
    """

    def __init__(self, scheduler: Scheduler, runner: ModelRunner, timings: EngineTimings) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._timings = timings
        self._in_flight: BatchInFlight | None = None

    def run(self, outcome: StepOutcome) -> ScheduleBatch | None:
        scheduler, timings = self._scheduler, self._timings
        began_s = timings.beside_model_s()
        scheduler.settle_aborts(outcome)
        planned = scheduler.schedule(outcome)
        previous, self._in_flight = self._in_flight, None
        batch, tokens = self._resolve(planned, previous)
        if batch is not None:
            model_began = timings.now_s(), timings.cpu_s()
            self._in_flight = BatchInFlight(batch, self._runner.launch(batch.forward))
            timings.count_forward(*model_began)
        scheduler.launched(batch)
        if previous is not None:
            scheduler.settle(previous.batch, tokens, outcome)
        timings.schedule_s += timings.beside_model_s() - began_s
        return batch

    def _resolve(
        self, planned: ScheduleBatch | ChainsToCome | None, previous: BatchInFlight | None
    ) -> tuple[ScheduleBatch | None, Sequence[Sequence[int]]]:
        """Wait for the previous batch, and complete the planned one.

        Returns:
            The completed batch, and the previous batch's tokens, to be settled after the launch.
        """
        if previous is None:
            return (None if planned is None else self._scheduler.lay_out(planned)), []
        model_began = self._timings.now_s(), self._timings.cpu_s()
        chosen = _read(previous, self._runner)
        self._timings.count_forward(*model_began)
        tokens = self._scheduler.accept(previous.batch, chosen)
        if planned is None:
            return None, tokens
        return self._scheduler.lay_out(planned, previous.batch, tokens), tokens


def _read(launched: BatchInFlight, runner: ModelRunner) -> NextTokens:
    """Wait for a launched batch and return its tokens."""
    params = [req.sampling_params for req in launched.batch.reqs]
    return runner.next_tokens(launched.batch.forward, launched.logits, params)
