"""The order of one step: schedule, run, settle; or, overlapped, the results one step later.

Source: SGLang's scheduler has ``event_loop_normal`` and ``event_loop_overlap``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from hybridbench.engine.forward_batch import ForwardBatch
from hybridbench.engine.model_runner import ModelRunner
from hybridbench.engine.scheduler.batch import ScheduleBatch
from hybridbench.engine.scheduler.outcome import StepOutcome
from hybridbench.engine.scheduler.scheduler import Scheduler
from hybridbench.engine.scheduler.timings import EngineTimings


class EventLoop(Protocol):
    """Runs one step at a time, all of it on the caller's thread."""

    def run(self, outcome: StepOutcome) -> ScheduleBatch | None:
        """One step; the batch that it ran, if any.  ``outcome`` is filled with who got what."""


class EventLoopNormal:
    """A batch is settled in the step that runs it."""

    def __init__(self, scheduler: Scheduler, runner: ModelRunner, timings: EngineTimings) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._timings = timings

    def run(self, outcome: StepOutcome) -> ScheduleBatch | None:
        scheduler, timings = self._scheduler, self._timings
        started_s = timings.cpu_s()
        scheduler.settle_aborts(outcome)
        batch = scheduler.schedule(outcome)
        timings.schedule_s += timings.cpu_s() - started_s
        if batch is None:
            return None
        with timings.forward():
            token_ids = self._runner.next_tokens(
                batch.forward, [req.sampling_params for req in batch.reqs]
            )
        settling_s = timings.cpu_s()
        scheduler.settle(batch, token_ids, outcome)
        timings.schedule_s += timings.cpu_s() - settling_s
        return batch


@dataclass(frozen=True, slots=True)
class BatchInFlight:
    """A batch that was launched, and the tokens that the scheduler has not seen yet."""

    batch: ScheduleBatch
    token_ids: Sequence[int]


class EventLoopOverlap:
    """Batch k + 1 is formed and launched before the results of batch k are settled.

    The scheduler decides as if k were still running: its tokens are futures, which are filled in
    after scheduling.  On a CPU the forward pass is over when it returns, so this is the order of
    overlap without the gain in time; what it puts to the test is everything that depends on the
    order.
    """

    def __init__(self, scheduler: Scheduler, runner: ModelRunner, timings: EngineTimings) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._timings = timings
        self._in_flight: BatchInFlight | None = None

    def run(self, outcome: StepOutcome) -> ScheduleBatch | None:
        scheduler, timings = self._scheduler, self._timings
        started_s = timings.cpu_s()
        scheduler.settle_aborts(outcome)
        batch = scheduler.schedule(outcome)
        timings.schedule_s += timings.cpu_s() - started_s
        previous, self._in_flight = self._in_flight, None
        if batch is not None:
            with timings.forward():
                self._in_flight = self._launch(batch, previous)
        settling_s = timings.cpu_s()
        scheduler.launched(batch)
        if previous is not None:
            scheduler.settle(previous.batch, previous.token_ids, outcome)
        timings.schedule_s += timings.cpu_s() - settling_s
        return batch

    def _launch(self, batch: ScheduleBatch, previous: BatchInFlight | None) -> BatchInFlight:
        forward = batch.forward
        if previous is not None:
            forward = resolve_future_token_ids(forward, previous.token_ids)
        params = [req.sampling_params for req in batch.reqs]
        return BatchInFlight(batch, self._runner.next_tokens(forward, params))


def resolve_future_token_ids(forward: ForwardBatch, token_ids: Sequence[int]) -> ForwardBatch:
    """``forward`` with every future replaced by the token it stands for.

    Args:
        forward: a batch whose ``input_ids`` may have ``-1 - row`` for a token not known before.
        token_ids: the tokens of the batch before it, by row.

    Raises:
        IndexError: a future names a row that batch did not have.
    """
    input_ids = forward.input_ids
    is_future = input_ids < 0
    if not is_future.any():
        return forward
    resolved = input_ids.copy()
    resolved[is_future] = np.asarray(token_ids, dtype=np.int64)[-1 - input_ids[is_future]]
    return replace(forward, input_ids=resolved)
