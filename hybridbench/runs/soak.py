"""One soak from plan to stored run: start the worker, take the steps, end well in any case."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import msgspec

from hybridbench.clock import Clock, SystemClock
from hybridbench.errors import ConfigError, RunDirectoryError, WorkerFailedError
from hybridbench.records import events
from hybridbench.records.events import DiskFull, Interrupted, WorkloadFailed
from hybridbench.records.manifest import Manifest
from hybridbench.rundir.layout import (
    ALLOCATIONS,
    WORKER_STDERR,
    make_run_dir,
    new_run_id,
    remove_unused,
)
from hybridbench.rundir.lock import locked_run
from hybridbench.rundir.truth import add_truth
from hybridbench.rundir.writer import RunWriter
from hybridbench.runs.bench_failure import record_bench_failure
from hybridbench.runs.boot import boot_worker, check_same_engine
from hybridbench.runs.crash import record_crash, unreaped_text
from hybridbench.runs.driver import Driver
from hybridbench.runs.interim import InterimJudge, InterimReport
from hybridbench.runs.interrupts import Interrupts, SecondSignalError, handled_interrupts
from hybridbench.runs.leak_diagnosis import LeakDiagnosis
from hybridbench.runs.live import make_view
from hybridbench.runs.log_watch import LogWatch
from hybridbench.runs.loop import RunContext, SoakLoop, WorkerLostError, make_loop
from hybridbench.runs.manifest import planned_manifest, with_counts, with_segment, with_worker
from hybridbench.runs.plan import Segment, SoakOutcome, SoakPlan
from hybridbench.runs.recorder import Recorder
from hybridbench.runs.status import View
from hybridbench.runs.steps import SoakSteps
from hybridbench.runs.stopping import Extension, make_stopper
from hybridbench.sampling.headroom import oom_kills
from hybridbench.targets.bundled import BundledTarget
from hybridbench.targets.target import Target
from hybridbench.workload.build import build_workload

_STOP_PATIENCE_S = 10.0


def run_soak(
    plan: SoakPlan,
    clock: Clock | None = None,
    on_started: Callable[[Path], None] | None = None,
) -> SoakOutcome:
    """Do what ``plan`` says; the run directory is complete when this returns.

    ``on_started`` gets the run directory as soon as it can be read.  A worker that dies or hangs
    is an outcome, reported in the run's events.

    Raises:
        ConfigError: the worker cannot be built as asked; nothing was measured, and no run directory
            is left behind.
        WorkerFailedError: the worker process cannot be started.
        RunDirectoryError: the store cannot be written; it took no sample, and no run directory is
            left behind.
    """
    clock = clock if clock is not None else SystemClock()
    started_wall_s = clock.wall_s()
    run_id = new_run_id(started_wall_s, plan.model, plan.profile.name, plan.defects)
    run_dir = make_run_dir(plan.store, run_id)
    manifest = planned_manifest(plan, run_dir.name, started_wall_s)
    view = make_view(plan.ui)
    try:
        # Signals first: none may find a lock or a directory that nobody takes away.
        with (
            handled_interrupts() as interrupts,
            RunWriter(run_dir, manifest, clock) as writer,
            locked_run(run_dir),
        ):
            if on_started is not None:
                on_started(run_dir)
            return _Soak(plan, clock, writer, interrupts, view, manifest).run()
    except (ConfigError, RunDirectoryError):
        # Nothing was measured: a directory that says so would only be in the way.
        remove_unused(run_dir)
        raise
    finally:
        view.close()


def continue_soak(
    plan: SoakPlan, segment: Segment, clock: Clock, interrupts: Interrupts
) -> SoakOutcome:
    """Go on with the run that ``segment`` names, whose lock the caller holds.

    Raises:
        ConfigError: it cannot go on as it began; the run is left as it was.
        WorkerFailedError: the worker process cannot be started.
        RunDirectoryError: the run directory cannot be written.
    """
    manifest = msgspec.structs.replace(segment.manifest, ended_wall_s=None)
    view = make_view(plan.ui)
    try:
        with RunWriter(segment.run_dir, manifest, clock, goes_on=True) as writer:
            try:
                return _Soak(plan, clock, writer, interrupts, view, manifest).run()
            except ConfigError:
                if not writer.has_samples:
                    writer.take_back()
                raise
    finally:
        view.close()


class _Soak:
    """Owns the worker from its start to its end, and the manifest in between."""

    def __init__(
        self,
        plan: SoakPlan,
        clock: Clock,
        writer: RunWriter,
        interrupts: Interrupts,
        view: View,
        manifest: Manifest,
    ) -> None:
        self._plan = plan
        self._clock = clock
        self._writer = writer
        self._interrupts = interrupts
        self._view = view
        self._manifest = manifest
        self._started_wall_s = clock.wall_s()
        begun_s = 0.0 if plan.segment is None else plan.segment.start_s
        self._recorder = Recorder(writer, clock, clock.monotonic_s() - begun_s)
        self._crashed = False
        self._unwritten = ""
        self._kills_before = oom_kills()
        self._stderr_path = writer.run_dir / WORKER_STDERR
        self._report = InterimReport(writer.run_dir)
        self._log_watch = LogWatch(self._stderr_path, self._recorder)
        self._context = RunContext(
            clock, self._recorder, interrupts, view, self._log_watch, self._write_report
        )

    def run(self) -> SoakOutcome:
        if self._plan.segment is not None:
            self._open_segment(self._plan.segment)
        self._recorder.enter("boot")
        target = BundledTarget(self._plan.worker_launch(self._stderr_path))
        try:
            self._attempt("the soak", lambda: self._soak(target), target)
            self._attempt("the end of the worker", lambda: self._stop(target), target)
            for part, step in (
                ("the report of the run so far", self._report.close),
                ("the worker's log", self._log_watch.finish),
                ("the end of the run", self._end),
                ("the files of the run", self._writer.close),
            ):
                self._attempt(part, step, target)
        finally:
            # Whatever happened, no process stays that a kill can end.
            target.kill()
        return SoakOutcome(
            self._writer.run_dir, self._crashed, self._interrupts.exit_code, self._unwritten
        )

    def _attempt(self, part: str, step: Callable[[], None], target: Target) -> None:
        """Take ``step``; once there is a sample nothing that goes wrong in it ends the run without
        a verdict.

        Raises:
            Exception: whatever ``step`` raises before the first sample.
        """
        try:
            step()
        except (Exception, SecondSignalError) as error:
            if not self._is_outcome(error):
                raise
            try:
                self._record_failure(part, error, target)
            except RunDirectoryError as unwritten:
                self._cannot_write(unwritten)
            except SecondSignalError:
                target.kill()
            except Exception as further:
                self._bench_failed(part, further, ended_run=True)

    def _is_outcome(self, error: BaseException) -> bool:
        """Whether ``error`` is an outcome of the run; before the first sample most are refusals."""
        if isinstance(error, WorkerLostError | SecondSignalError):
            return True
        resumed = self._plan.segment is not None and not isinstance(error, ConfigError)
        return resumed or self._writer.has_samples

    def _record_failure(self, part: str, error: BaseException, target: Target) -> None:
        """Write what ended the run, or a part of its end, into it; the worker does not outlive it.

        Raises:
            RunDirectoryError: the disk refuses.
        """
        match error:
            case WorkerLostError():
                self._crashed = True
                record_crash(target, self._recorder, self._clock, error, self._kills_before)
            case WorkerFailedError():
                # What it sent is no message of this wire.
                self._crashed = True
                lost = WorkerLostError("exit", str(error))
                record_crash(target, self._recorder, self._clock, lost, self._kills_before)
            case SecondSignalError():
                target.kill()
                self._recorder.event(Interrupted(self._signal(), killed=True))
            case RunDirectoryError():
                target.kill()
                self._cannot_write(error)
            case ConfigError():
                # Too late for a refusal: what was measured is kept and judged.
                target.kill()
                self._view.note(f"stopped: {error}")
                self._recorder.event(WorkloadFailed(str(error)))
            case _:
                self._bench_failed(part, error, ended_run=self._recorder.phase != "done")
                target.kill()

    def _bench_failed(self, part: str, error: BaseException, *, ended_run: bool) -> None:
        run_dir = self._writer.run_dir
        said = record_bench_failure(run_dir, self._recorder, part, error, ended_run=ended_run)
        with contextlib.suppress(Exception):
            self._view.note(f"hybridbench failed in {part}: {said}; what was measured is judged")

    def _stop(self, target: Target) -> None:
        if target.stop(_STOP_PATIENCE_S) is None:
            self._recorder.note(unreaped_text(target.pid))

    def _soak(self, target: BundledTarget) -> None:
        plan = self._plan
        self._view.note(f"building {plan.model} in a worker process")
        ready = boot_worker(target, plan, self._interrupts)
        if ready is None:
            # It builds the engine and would not read a request to leave.
            target.kill()
            self._recorder.event(Interrupted(self._signal()))
            return
        if plan.segment is not None:
            check_same_engine(plan.segment, ready)
        workload = build_workload(plan.profile, ready.vocab_size, plan.trace, plan.traffic_seed)
        manifest = with_worker(self._manifest, plan, ready, workload.describe())
        self._manifest = with_segment(manifest, plan, ready, self._started_wall_s)
        self._writer.update_manifest(self._manifest)
        self._view.note(ready.model_note)
        loop = make_loop(plan, self._context, target, Driver(workload, target), ready)
        try:
            with make_stopper(plan, self._writer.run_dir, lambda: self._recorder.now_s) as stopper:
                SoakSteps(
                    plan,
                    loop,
                    stop_rule=stopper,
                    diagnosis=LeakDiagnosis(
                        plan.options.diagnose,
                        plan.options.hold_s,
                        loop,
                        InterimJudge(self._writer.run_dir),
                    ),
                    allocations=self._writer.run_dir / ALLOCATIONS,
                    extension=self._extension(loop),
                ).run()
        finally:
            self._manifest = with_counts(self._manifest, workload.counts())
            if loop.truth is not None:
                add_truth(self._writer.run_dir, loop.truth)

    def _extension(self, loop: SoakLoop) -> Extension | None:
        extend_s = self._plan.options.extend_s
        if not extend_s:
            return None
        judge = InterimJudge(self._writer.run_dir, final=True)
        return Extension(extend_s, judge, self._recorder, self._view, loop.status)

    def _write_report(self) -> None:
        if self._report.start():
            said = "writing the evidence so far: verdict-so-far.json, report-so-far.html and .md in"
            self._view.note(f"{said} {self._writer.run_dir}")

    def _open_segment(self, segment: Segment) -> None:
        """Mark the border, and say what the cut has cost."""
        self._recorder.event(events.Segment(segment.index, segment.away_s))
        for name, torn in self._writer.repaired_bytes.items():
            if torn:
                said = f"the cut tore the last line of {name}: its {torn} bytes are left out"
                self._recorder.note(said)

    def _cannot_write(self, error: RunDirectoryError) -> None:
        """The disk refuses: what is written stands, and one more short line may still fit."""
        if self._unwritten:
            return
        self._view.note(f"stopped: {error}")
        self._unwritten = str(error)
        with contextlib.suppress(RunDirectoryError):
            self._recorder.event(DiskFull(str(error)))

    def _end(self) -> None:
        """The last words of this process about the run."""
        self._manifest = msgspec.structs.replace(self._manifest, ended_wall_s=self._clock.wall_s())
        kills, before = oom_kills(), self._kills_before
        if kills is not None and before is not None and kills > before:
            self._recorder.note(f"processes killed here for lack of memory: {kills - before}")
        self._writer.update_manifest(self._manifest)

    def _signal(self) -> str:
        first = self._interrupts.first
        return "" if first is None else first.name
