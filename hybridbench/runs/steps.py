"""The steps of a soak: warm up, run steadily with checkpoints, drain, probe once more, stop.

A target that can only be observed has fewer steps: those that its ports allow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from hybridbench.records.events import (
    TARGET_ENDED,
    Interrupted,
    Steady,
    StoppedEarly,
    WorkloadFailed,
)
from hybridbench.runs.loop import RunLoop
from hybridbench.runs.plan import RunPlan
from hybridbench.runs.stopping import LOW_MEMORY, Extension, StopRule
from hybridbench.targets.target import Control, Pending

# A longer warm-up continues as the judged part, without a `steady` event.
_WARMUP_SHARE_MAX = 0.4
_GOODBYE_PATIENCE_S = 10.0
_SCAN_PATIENCE_S = 30.0
_LOOK_PATIENCE_S = 120.0
_RECLAIM_PATIENCE_S = 20.0
_FLUSH_PATIENCE_S = 10.0
_SECOND_DRAIN_S = 5.0


class Diagnosis(Protocol):
    """Diagnoses a target that leaks; implemented by LeakDiagnosis."""

    def take_baseline(self) -> None:
        """Called when the target is idle at a checkpoint."""
        ...

    def run(self) -> bool:
        """Return whether the target was diagnosed, which changes it."""
        ...


class Allocations(Protocol):
    """Extra traffic with every allocation recorded; implemented by AllocationRecord."""

    def run(self, drain: Callable[[], bool], flush: Callable[[], None]) -> None:
        """Serve traffic, drain and flush, and record what remains."""
        ...


@dataclass
class SoakSteps:
    """Each method is one step; ``run`` calls them.  All of them end early when interrupted.

    Optional collaborators end the soak early, diagnose it, extend it, or record allocations.
    """

    plan: RunPlan
    loop: RunLoop
    stop_rule: StopRule | None = None
    diagnosis: Diagnosis | None = None
    allocations: Allocations | None = None
    extension: Extension | None = None

    def __post_init__(self) -> None:
        self._recorder = self.loop.context.recorder
        self._view = self.loop.context.view
        self._stop: StoppedEarly | None = None
        self._start_s = self._checkpoint_due_s = self.loop.now_s
        self._checkpoints = 0
        self._steady_recorded = self._diagnosed = self._drained = False
        self._workload_failed = False
        self._finished_at_failure: int | None = None  # finished requests when the last drain failed

    def run(self) -> None:
        """Run the whole soak.

        Raises:
            WorkerLostError: the worker died or hangs; what was recorded before is kept.
        """
        self.loop.start_traffic()
        if self.loop.drive is None:
            self.observe()
        else:
            self.warm_up()
            self.run_steadily()
        self.end_traffic()
        if self.extension is not None:
            self.extend(self.extension)
        self.reclaim()
        self.record_allocations()
        self.stop()
        self._recorder.enter("done")

    def observe(self) -> None:
        """Sample a target whose traffic the run does not send."""
        self._recorder.enter(self.serving)
        self._serve(self._end_s)

    def warm_up(self) -> None:
        """Send traffic until the engine is steady and the profile's warm-up is served."""
        self._recorder.enter("warmup")
        wanted = self.plan.warmup_requests

        def is_warm() -> bool:
            return self.loop.declared_steady is not None and self._finished >= wanted

        self._turn_until(is_warm, self._start_s + _WARMUP_SHARE_MAX * self.plan.traffic_s)

    def run_steadily(self) -> None:
        """Run the judged part: traffic and samples, with periodic checkpoints."""
        self._recorder.enter(self.serving)
        self.record_steady()
        self.checkpoint(self._end_s)
        self._checkpoint_due_s = self.loop.now_s + self.plan.cadence.checkpoint_every_s
        self._serve(self._end_s)

    def extend(self, extension: Extension) -> None:
        """Continue beyond the planned end until the verdict is decided.

        Only an analysis without traffic ends the run: the verdict will be that of the same data.
        """
        end_s = self._end_s + extension.limit_s
        try:
            while self._is_undecided(extension, end_s):
                self._resume()
                self._serve(end_s, extension.over)
                self.end_traffic()
        finally:
            extension.end()

    def _is_undecided(self, extension: Extension, end_s: float) -> bool:
        """Whether the run may go on until ``end_s``, and what it has stored is undecided."""
        if self._is_over() or self.loop.now_s >= end_s:
            return False
        extension.ask()
        self.loop.wait_for(lambda: extension.has_answer or self.loop.interrupted, _LOOK_PATIENCE_S)
        if self.loop.interrupted:
            self._say_interrupted()
        return not (extension.settled or self._is_over())

    def _resume(self) -> None:
        """Let the traffic continue after a pause."""
        control = self.loop.control
        if control is not None:
            control.resume()
            control.heap_scans_wanted = True
            self._recorder.enter("resume")
        self._recorder.enter(self.serving)

    def end_traffic(self) -> None:
        """Let the last requests finish, and probe the idle engine once more."""
        self.drain()
        self.last_checkpoint()

    @property
    def serving(self) -> str:
        """The phase of the judged part."""
        return "observe" if self.loop.drive is None else "steady"

    @property
    def _end_s(self) -> float:
        return self._start_s + self.plan.traffic_s

    def _serve(self, end_s: float, over: Callable[[], bool] = lambda: False) -> None:
        """Send traffic until ``end_s`` or ``over``, with periodic checkpoints."""
        every_s = self.plan.cadence.checkpoint_every_s
        while self.loop.now_s < end_s and not self._is_over() and not over():
            limit_s = min(end_s, self._checkpoint_due_s)
            self._turn_until(lambda: over() or self._steady_is_news(), limit_s)
            self.record_steady()
            # A checkpoint close to the end is skipped in favour of the last one.
            if self._checkpoint_due_s <= self.loop.now_s < end_s - every_s / 4:
                self.checkpoint(end_s)
                next_s = self.loop.now_s + every_s / 2
                self._checkpoint_due_s = max(self._checkpoint_due_s + every_s, next_s)
            elif self._checkpoint_due_s <= self.loop.now_s:
                self._checkpoint_due_s += every_s

    def checkpoint(self, end_s: float) -> None:
        """Drain, settle, probe, resume; the forked heap scan finishes during traffic."""
        if self._is_over() or self.loop.now_s >= end_s:
            return
        control = self.loop.control
        if control is None:
            return
        if self._drain(control):
            self._rest(control, audit=False)
            if self.diagnosis is not None:
                self.diagnosis.take_baseline()
        self._resume()

    def checkpoint_at_rest(self) -> None:
        """Drain, settle, probe, and wait for the answer, if it became idle.

        The engine stays drained until the caller posts Resume.
        """
        control = self.loop.control
        if control is not None and self._drain(control):
            self._await_checkpoint(self._rest(control, audit=False))

    def _say_interrupted(self) -> None:
        interrupts = self.loop.context.interrupts
        if interrupts.first is not None:
            self._recorder.event(Interrupted(interrupts.first.name))
            doing = "ending" if self.loop.control is None else "draining the engine"
            self._view.note(f"{interrupts.first.name}: {doing}; a second signal stops at once")

    def drain(self) -> None:
        """Send no new requests, and let the last ones finish."""
        self._say_interrupted()
        control = self.loop.control
        if control is None:
            return
        # A probe forks, and a fork under memory pressure gets processes killed.
        self._drained = self._drain(control) and not (
            # The machine has no memory left for probes.
            self._stop is not None and self._stop.reason == LOW_MEMORY
        )

    def last_checkpoint(self) -> None:
        """Probe once more, and wait for the answer."""
        control = self.loop.control
        if control is None or not self._drained:
            return
        # The audit walks every slot; at the end it delays nothing.
        self._await_checkpoint(self._rest(control, audit=True))

    def reclaim(self) -> None:
        """Measure what memory the worker can release; nothing is sampled afterwards, as this
        changes it.

        If a leak is diagnosed, run all stages; otherwise only measure what each part releases.
        """
        control = self.loop.control
        if control is None or not self._drained or self.loop.interrupted:
            return
        if self.diagnosis is not None and self.diagnosis.run():
            self._diagnosed = True
            return
        control.reclaim(_RECLAIM_PATIENCE_S)

    def record_allocations(self) -> None:
        """If a leak was diagnosed, record which calls allocate the memory that is kept."""
        control = self.loop.control
        if control is None or self.loop.interrupted or self._workload_failed:
            return
        if self.allocations is not None and self._diagnosed:
            self.allocations.run(lambda: self._drain(control), lambda: self._flush(control))

    def stop(self) -> None:
        """Shut the target down cleanly."""
        if self.loop.control is not None:
            self.loop.control.leave(_GOODBYE_PATIENCE_S)

    @property
    def _finished(self) -> int:
        """Number of requests that the run sent and that have finished."""
        return 0 if self.loop.drive is None else self.loop.drive.counts.finished

    def _drain(self, control: Control) -> bool:
        """Drain the engine; return whether it became idle.  If not, it hangs or is far too slow."""
        self._recorder.enter("drain")
        control.heap_scans_wanted = False
        # Nothing finished since a drain failed, so a second full wait would change nothing.
        is_stuck = self._finished == self._finished_at_failure
        limit_s = _SECOND_DRAIN_S if is_stuck else self.plan.drain_limit_s
        is_cut_short = self.loop.interrupt_from_now()
        if control.drain(limit_s):
            return True
        self._finished_at_failure = self._finished
        if not (is_stuck or is_cut_short()):
            self._recorder.note(f"the engine was not idle after {limit_s:.0f} s of draining")
        return False

    def _rest(self, control: Control, *, audit: bool) -> Pending:
        """Settle, flush if the profile wants all idle points equal, request a checkpoint.

        Optionally idle between two checkpoints: any change between them happened without work.
        """
        checkpoint = self.plan.checkpoint
        self._settle(control, checkpoint.settle_s)
        if checkpoint.flush:
            self._flush(control)
        control.sample_rest()
        if checkpoint.idle_s > 0:
            self._await_checkpoint(self._post_checkpoint(control, audit=False))
            idle_until_s = self.loop.now_s + checkpoint.idle_s
            self.loop.run_until(lambda: self.loop.interrupted, idle_until_s)
        return self._post_checkpoint(control, audit=audit)

    def _flush(self, control: Control) -> None:
        if not control.flush(_FLUSH_PATIENCE_S):
            self._recorder.note("the cache was not flushed in time")

    def _await_checkpoint(self, checkpoint: Pending) -> None:
        self.loop.wait_for(lambda: checkpoint.answer is not None, _SCAN_PATIENCE_S)

    def _settle(self, control: Control, settle_s: float) -> None:
        self._recorder.enter("idle")
        self.loop.run_until(lambda: False, self.loop.now_s + settle_s)
        # Only one heap scan runs at a time, and the checkpoint's own must find the engine idle.
        self.loop.wait_for(control.no_scan_open, _SCAN_PATIENCE_S)

    def _post_checkpoint(self, control: Control, *, audit: bool) -> Pending:
        self._checkpoints += 1
        return control.post_checkpoint(self._checkpoints - 1, audit=audit)

    def _turn_until(self, done: Callable[[], bool], limit_s: float) -> None:
        self.loop.run_until(lambda: self._is_over() or done(), limit_s)

    def _is_over(self) -> bool:
        """Whether the traffic ends early."""
        if self.loop.interrupted or self._has_no_traffic():
            return True
        if self._stop is None and self.loop.over:
            status = self.loop.target.exit_status()
            how = "" if status is None else f" ({status.text})"
            self._stop = StoppedEarly(TARGET_ENDED, f"the target ended by itself{how}")
            self._recorder.event(self._stop)
        if self._stop is None and self.stop_rule is not None:
            self._stop = self.stop_rule.check(self.loop.now_s)
            if self._stop is not None:
                self._recorder.event(self._stop)
                self._view.note(f"stopping early: {self._stop.text}")
        return self._stop is not None

    def _has_no_traffic(self) -> bool:
        """Whether the workload failed, which is reported once.  The run then ends early, and what
        was measured is judged.
        """
        failure = self.loop.failure
        if failure and not self._workload_failed:
            self._workload_failed = True
            self._recorder.event(WorkloadFailed(failure))
            self._view.note(f"ending early, no further request can be sent: {failure}")
        return self._workload_failed

    def _steady_is_news(self) -> bool:
        return self.loop.declared_steady is not None and not self._steady_recorded

    def record_steady(self) -> None:
        """Record once, when it happens, that the engine is steady."""
        declared = self.loop.declared_steady
        if self._steady_is_news() and declared is not None:
            self._steady_recorded = True
            if self.stop_rule is not None:
                self.stop_rule.steady()
            self._recorder.event(Steady(declared.reason))
