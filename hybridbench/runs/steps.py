"""The steps of a soak: warm up, run steadily with checkpoints, drain, probe once more, stop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from hybridbench.records import events
from hybridbench.records.events import Interrupted, Steady, StoppedEarly, WorkloadFailed
from hybridbench.records.messages import (
    CheckpointReply,
    Flush,
    Flushed,
    Goodbye,
    Reclaim,
    Reclaimed,
    Shutdown,
)
from hybridbench.runs.allocations import record_allocations
from hybridbench.runs.leak_diagnosis import LeakDiagnosis
from hybridbench.runs.loop import Question, SoakLoop
from hybridbench.runs.plan import SoakPlan
from hybridbench.runs.stopping import LOW_MEMORY, Extension, StopRule

# A warm-up that has not ended by then goes over into the judged part without a `steady` event.
_WARMUP_SHARE_MAX = 0.4
_GOODBYE_PATIENCE_S = 10.0
_SCAN_PATIENCE_S = 30.0
_RECLAIM_PATIENCE_S = 20.0
_FLUSH_PATIENCE_S = 10.0
_SECOND_DRAIN_S = 5.0


@dataclass
class SoakSteps:
    """Each method is one step; ``run`` calls them.  All of them end early when interrupted.

    Besides its traffic a soak may have somebody who ends it early, diagnoses or extends it, and a
    file for the allocations of ``memray_s`` more seconds.
    """

    plan: SoakPlan
    loop: SoakLoop
    stop_rule: StopRule | None = None
    diagnosis: LeakDiagnosis | None = None
    allocations: Path | None = None
    extension: Extension | None = None

    def __post_init__(self) -> None:
        self._recorder = self.loop.context.recorder
        self._view = self.loop.context.view
        self._stop: StoppedEarly | None = None
        self._start_s = self._checkpoint_due_s = self.loop.now_s
        self._checkpoints = 0
        self._steady_recorded = self._diagnosed = self._drained = False
        self._workload_failed = False
        self._finished_at_failure: int | None = None  # requests, when the last drain failed

    def run(self) -> None:
        """The whole soak.

        Raises:
            WorkerLostError: the worker died or hangs; what was recorded up to then stands.
        """
        self.loop.start_traffic()
        self.warm_up()
        self.run_steadily()
        self.extend()
        self.drain()
        self.last_checkpoint()
        self.reclaim()
        self.record_allocations()
        self.stop()
        self._recorder.enter("done")

    def warm_up(self) -> None:
        """Traffic until the engine is steady and the profile's warm-up is served."""
        self._recorder.enter("warmup")
        wanted = self.plan.profile.warmup.requests
        counts = self.loop.driver.counts

        def is_warm() -> bool:
            return self.loop.steady is not None and counts.finished >= wanted

        self._turn_until(is_warm, self._start_s + _WARMUP_SHARE_MAX * self.plan.traffic_s)

    def run_steadily(self) -> None:
        """The judged part: traffic and samples, with a checkpoint now and then."""
        self._recorder.enter("steady")
        self.record_steady()
        self.checkpoint(self._end_s)
        self._checkpoint_due_s = self.loop.now_s + self.plan.cadence.checkpoint_every_s
        self._serve(self._end_s)

    def extend(self) -> None:
        """More of the same beyond the planned end, until the verdict is decided."""
        extension = self.extension
        if extension is None or self._is_over():
            return
        try:
            self._serve(self._end_s + extension.limit_s, extension.over)
        finally:
            extension.end()

    @property
    def _end_s(self) -> float:
        return self._start_s + self.plan.traffic_s

    def _serve(self, end_s: float, over: Callable[[], bool] = lambda: False) -> None:
        """Traffic until ``end_s`` or until ``over``, with a checkpoint now and then."""
        every_s = self.plan.cadence.checkpoint_every_s
        while self.loop.now_s < end_s and not self._is_over() and not over():
            limit_s = min(end_s, self._checkpoint_due_s)
            self._turn_until(lambda: over() or self._steady_is_news(), limit_s)
            self.record_steady()
            # One that would fall into the end gives way to the last checkpoint.
            if self._checkpoint_due_s <= self.loop.now_s < end_s - every_s / 4:
                self.checkpoint(end_s)
                next_s = self.loop.now_s + every_s / 2
                self._checkpoint_due_s = max(self._checkpoint_due_s + every_s, next_s)
            elif self._checkpoint_due_s <= self.loop.now_s:
                self._checkpoint_due_s += every_s

    def checkpoint(self, end_s: float) -> None:
        """Drain, let it settle, probe, go on: the heap scan counts while traffic is back."""
        if self._is_over() or self.loop.now_s >= end_s:
            return
        if self._drain():
            self._rest(audit=False)
            if self.diagnosis is not None:
                self.diagnosis.take_baseline()
        self.loop.resume()
        self.loop.heap_scans_wanted = True
        self._recorder.enter("resume")
        self._recorder.enter("steady")

    def checkpoint_at_rest(self, *, audit: bool) -> bool:
        """Drain, let it settle, probe, and wait for the answer; False if it did not come to rest.

        The engine stays drained until somebody posts Resume.
        """
        if not self._drain():
            return False
        self._await_checkpoint(self._rest(audit=audit))
        return True

    def drain(self) -> None:
        """The last requests finish; nothing new comes."""
        interrupts = self.loop.context.interrupts
        if interrupts.first is not None:
            self._recorder.event(Interrupted(interrupts.first.name))
            self._view.note(
                f"{interrupts.first.name}: draining the engine; a second signal stops at once"
            )
        # A probe forks, and a fork in want of memory is what gets processes killed.
        self._drained = self._drain() and not (
            # The machine has no memory left for probes.
            self._stop is not None and self._stop.reason == LOW_MEMORY
        )

    def last_checkpoint(self) -> None:
        """Probe once more, and wait for the answer."""
        if not self._drained:
            return
        # The audit walks every slot; at the end it holds nobody up.
        self._await_checkpoint(self._rest(audit=True))

    def reclaim(self) -> None:
        """See what the worker can give back; nothing is sampled afterwards, as it is changed.

        In full where a leak is diagnosed, or only what each part comes to.
        """
        if not self._drained or self.loop.interrupted:
            return
        if self.diagnosis is not None and self.diagnosis.run():
            self._diagnosed = True
            return
        self.loop.samples_wanted = False
        given = self.loop.ask(Reclaim(), Reclaimed, _RECLAIM_PATIENCE_S)
        if given is not None:
            recorded = msgspec.convert(given, events.Reclaim, from_attributes=True)
            self._recorder.at(given.t_s, recorded)

    def record_allocations(self) -> None:
        """Where a leak was diagnosed, see which calls allocate what is kept."""
        if self.loop.interrupted or self._workload_failed:
            return
        seconds = self.plan.options.memray_s
        if self.allocations is not None and seconds and self._diagnosed:
            record_allocations(self.loop, self.allocations, seconds, self._drain, self._flush)

    def stop(self) -> None:
        """The worker leaves in order."""
        self.loop.ask(Shutdown(), Goodbye, _GOODBYE_PATIENCE_S)

    def _drain(self) -> bool:
        """Whether the engine became idle; one that does not hangs or is far too slow."""
        self._recorder.enter("drain")
        self.loop.heap_scans_wanted = False
        counts = self.loop.driver.counts
        # Nothing has finished since a drain failed: a second full wait would change nothing.
        is_stuck = counts.finished == self._finished_at_failure
        limit_s = _SECOND_DRAIN_S if is_stuck else self.plan.drain_limit_s
        if self.loop.drain(limit_s):
            return True
        self._finished_at_failure = counts.finished
        if not is_stuck:
            self._recorder.note(f"the engine was not idle after {limit_s:.0f} s of draining")
        return False

    def _rest(self, *, audit: bool) -> Question[CheckpointReply]:
        """Settle, make every rest alike if the profile asks for it, ask for a checkpoint.

        A stretch of idleness lies between two of them: what changes there changed without work.
        """
        checkpoint = self.plan.profile.checkpoint
        self._settle()
        if checkpoint.flush:
            self._flush()
        self.loop.sample_rest()
        if checkpoint.idle_s > 0:
            self._await_checkpoint(self._post_checkpoint(audit=False))
            idle_until_s = self.loop.now_s + checkpoint.idle_s
            self.loop.run_until(lambda: self.loop.interrupted, idle_until_s)
        return self._post_checkpoint(audit=audit)

    def _flush(self) -> None:
        if self.loop.ask(Flush(), Flushed, _FLUSH_PATIENCE_S) is None:
            self._recorder.note("the cache was not flushed in time")

    def _await_checkpoint(self, checkpoint: Question[CheckpointReply]) -> None:
        self.loop.wait_for(lambda: checkpoint.answer is not None, _SCAN_PATIENCE_S)

    def _settle(self) -> None:
        self._recorder.enter("idle")
        settled_s = self.loop.now_s + self.plan.profile.checkpoint.settle_s
        self.loop.run_until(lambda: False, settled_s)
        # Only one heap scan runs at a time, and the checkpoint's own must find the engine idle.
        self.loop.wait_for(self.loop.no_scan_open, _SCAN_PATIENCE_S)

    def _post_checkpoint(self, *, audit: bool) -> Question[CheckpointReply]:
        self._checkpoints += 1
        return self.loop.post_checkpoint(self._checkpoints - 1, audit=audit)

    def _turn_until(self, done: Callable[[], bool], limit_s: float) -> None:
        self.loop.run_until(lambda: self._is_over() or done(), limit_s)

    def _is_over(self) -> bool:
        """Whether the traffic ends before its time."""
        if self.loop.interrupted or self._has_no_traffic():
            return True
        if self._stop is None and self.stop_rule is not None:
            self._stop = self.stop_rule.check(self.loop.now_s)
            if self._stop is not None:
                self._recorder.event(self._stop)
                self._view.note(f"stopping early: {self._stop.text}")
        return self._stop is not None

    def _has_no_traffic(self) -> bool:
        """Whether the workload failed; said once.  Nothing more comes, so there is nothing to wait
        for: what was measured is judged.
        """
        failure = self.loop.driver.failure
        if failure and not self._workload_failed:
            self._workload_failed = True
            self._recorder.event(WorkloadFailed(failure))
            self._view.note(f"ending early, no further request can be sent: {failure}")
        return self._workload_failed

    def _steady_is_news(self) -> bool:
        return self.loop.steady is not None and not self._steady_recorded

    def record_steady(self) -> None:
        """Say once in the run's events that the engine is steady, when it is."""
        if self._steady_is_news() and self.loop.steady is not None:
            self._steady_recorded = True
            if self.stop_rule is not None:
                self.stop_rule.steady()
            self._recorder.event(Steady(self.loop.steady.reason))
