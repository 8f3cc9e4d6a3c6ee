"""One soak from plan to stored run: start the target, take the steps, clean up in any case."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from hybridbench.foundation.clock import Clock, SystemClock
from hybridbench.foundation.errors import ConfigError, RunDirectoryError, WorkerFailedError
from hybridbench.records import events
from hybridbench.records.events import DiskFull, Interrupted, WorkloadFailed
from hybridbench.records.manifest import Manifest
from hybridbench.rundir.layout import (
    make_run_dir,
    new_run_id,
    remove_unused,
)
from hybridbench.rundir.lock import locked_run
from hybridbench.rundir.writer import RunWriter
from hybridbench.runs.begun import BegunRun
from hybridbench.runs.bench_failure import record_bench_failure
from hybridbench.runs.bundled import BundledUnderSoak
from hybridbench.runs.crash import record_crash, unreaped_text
from hybridbench.runs.interim import InterimJudge, InterimReport
from hybridbench.runs.interrupts import Interrupts, SecondSignalError, handled_interrupts
from hybridbench.runs.live import make_view
from hybridbench.runs.log_watch import LogWatch
from hybridbench.runs.loop import RunContext, RunLoop, WorkerLostError
from hybridbench.runs.plan import RunPlan, Segment, SoakOutcome, SoakPlan
from hybridbench.runs.recorder import Recorder
from hybridbench.runs.status import View
from hybridbench.runs.steps import SoakSteps
from hybridbench.runs.stopping import Extension, make_stopper
from hybridbench.sampling.headroom import oom_kills
from hybridbench.targets.target import Observe

_STOP_PATIENCE_S = 10.0


class UnderSoak(Protocol):
    """A kind of target, as a run handles it from start to end."""

    @property
    def plan(self) -> RunPlan: ...

    @property
    def dump_stack(self) -> Callable[[], None] | None:
        """A function that makes the launched target dump its stacks; None if it cannot."""
        ...

    @property
    def segment(self) -> Segment | None:
        """Where an interrupted run resumes; None for a new one."""
        ...

    def planned(self, run_id: str, started_wall_s: float) -> Manifest:
        """Return the manifest before anything is started."""
        ...

    def log_path(self, run_dir: Path) -> Path:
        """The file with the target's output, which is searched for reports of trouble."""
        ...

    def launch(self, log_path: Path) -> Observe:
        """Start the target, or attach to it.

        Raises:
            WorkerFailedError: it cannot be started.
        """
        ...

    def begin(self, run: BegunRun) -> SoakSteps | None:
        """Wait until the target is ready and return the steps of the soak; None if the user
        interrupts.

        Raises:
            ConfigError: it does not fit the run.
            WorkerLostError: it has ended, or was not ready in time.
        """
        ...

    def end(self, run: BegunRun) -> None:
        """Clean up after the steps ended or were cut short."""
        ...


def run_soak(
    plan: SoakPlan,
    clock: Clock | None = None,
    on_started: Callable[[Path], None] | None = None,
) -> SoakOutcome:
    """Soak the bundled engine, or another with its wire protocol, as in ``plan``; see ``soak``."""
    return soak(BundledUnderSoak(plan), clock, on_started)


def soak(
    under: UnderSoak,
    clock: Clock | None = None,
    on_started: Callable[[Path], None] | None = None,
) -> SoakOutcome:
    """Carry out the plan; the run directory is complete when this returns.

    ``on_started`` gets the run directory as soon as it can be read.  A worker that dies or hangs
    is an outcome, reported in the run's events.

    Raises:
        ConfigError: the worker cannot be built as planned; nothing was measured, and no run
            directory is left behind.
        WorkerFailedError: the worker process cannot be started.
        RunDirectoryError: the store cannot be written; no sample was taken, and no run directory is
            left behind.
    """
    clock = clock if clock is not None else SystemClock()
    started_wall_s = clock.wall_s()
    plan = under.plan
    run_dir = make_run_dir(plan.store, new_run_id(started_wall_s, *plan.named_by))
    manifest = under.planned(run_dir.name, started_wall_s)
    view = make_view(plan.ui)
    try:
        # Install signal handlers first, so that no signal leaves a lock or a directory behind.
        with (
            handled_interrupts() as interrupts,
            RunWriter(run_dir, manifest, clock) as writer,
            locked_run(run_dir),
        ):
            if on_started is not None:
                on_started(run_dir)
            return _Soak(under, clock, writer, interrupts, view, manifest).run()
    except (ConfigError, RunDirectoryError):
        # Nothing was measured, so an empty directory would only be in the way.
        remove_unused(run_dir)
        raise
    finally:
        view.close()


def continue_soak(
    plan: SoakPlan, segment: Segment, clock: Clock, interrupts: Interrupts
) -> SoakOutcome:
    """Resume the run that ``segment`` names; the caller holds its lock.

    Raises:
        ConfigError: it cannot be resumed as it began; the run is left unchanged.
        WorkerFailedError: the worker process cannot be started.
        RunDirectoryError: the run directory cannot be written.
    """
    manifest = msgspec.structs.replace(segment.manifest, ended_wall_s=None)
    view = make_view(plan.ui)
    try:
        with RunWriter(segment.run_dir, manifest, clock, goes_on=True) as writer:
            try:
                under = BundledUnderSoak(plan)
                return _Soak(under, clock, writer, interrupts, view, manifest).run()
            except ConfigError:
                if not writer.has_samples:
                    writer.take_back()
                raise
    finally:
        view.close()


class _Soak:
    """Owns the target from its start to its end, and the manifest in between."""

    def __init__(
        self,
        under: UnderSoak,
        clock: Clock,
        writer: RunWriter,
        interrupts: Interrupts,
        view: View,
        manifest: Manifest,
    ) -> None:
        self._under = under
        self._clock = clock
        self._writer = writer
        self._interrupts = interrupts
        self._view = view
        self._segment = under.segment
        begun_s = 0.0 if self._segment is None else self._segment.start_s
        self._recorder = Recorder(writer, clock, clock.monotonic_s() - begun_s)
        self._crashed = False
        self._unwritten = ""
        self._kills_before = oom_kills()
        self._log_path = under.log_path(writer.run_dir)
        self._report = InterimReport(writer.run_dir)
        self._log_watch = LogWatch(self._log_path, self._recorder)
        context = RunContext(
            clock, self._recorder, interrupts, view, self._log_watch, self._write_report
        )
        self._run = BegunRun(context, writer, manifest, clock.wall_s())

    def run(self) -> SoakOutcome:
        if self._segment is not None:
            self._open_segment(self._segment)
        self._recorder.enter("boot")
        target = self._under.launch(self._log_path)
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
            # In any case, leave no process behind that can be killed.
            target.kill()
        return SoakOutcome(
            self._writer.run_dir, self._crashed, self._interrupts.exit_code, self._unwritten
        )

    def _attempt(self, part: str, step: Callable[[], None], target: Observe) -> None:
        """Run ``step``; once there is a sample, no error in it ends the run without a verdict.

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
        resumed = self._segment is not None and not isinstance(error, ConfigError)
        return resumed or self._writer.has_samples

    def _record_failure(self, part: str, error: BaseException, target: Observe) -> None:
        """Record what ended the run, or a part of its end, and make sure that the worker ends.

        Raises:
            RunDirectoryError: the disk refuses the write.
        """
        match error:
            case WorkerLostError():
                self._record_crash(target, error)
            case WorkerFailedError():
                # It sent something that is not a wire protocol message.
                self._record_crash(target, WorkerLostError("exit", str(error)))
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

    def _record_crash(self, target: Observe, lost: WorkerLostError) -> None:
        self._crashed = True
        kills, dump_stack = self._kills_before, self._under.dump_stack
        record_crash(target, self._recorder, self._clock, lost, kills, dump_stack)

    def _bench_failed(self, part: str, error: BaseException, *, ended_run: bool) -> None:
        run_dir = self._writer.run_dir
        said = record_bench_failure(run_dir, self._recorder, part, error, ended_run=ended_run)
        with contextlib.suppress(Exception):
            self._view.note(f"hybridbench failed in {part}: {said}; what was measured is judged")

    def _stop(self, target: Observe) -> None:
        if target.stop(_STOP_PATIENCE_S) is None:
            self._recorder.note(unreaped_text(target.pid))

    def _soak(self, target: Observe) -> None:
        steps = self._under.begin(self._run)
        if steps is None:
            # The worker reads no messages while it builds the engine, so it must be killed.
            target.kill()
            self._recorder.event(Interrupted(self._signal()))
            return
        plan, run_dir = self._under.plan, self._writer.run_dir
        try:
            with make_stopper(plan, run_dir, lambda: self._recorder.now_s) as stopper:
                steps.stop_rule = stopper
                steps.extension = self._extension(steps.loop)
                steps.run()
        finally:
            self._under.end(self._run)

    def _extension(self, loop: RunLoop) -> Extension | None:
        extend_s = self._under.plan.options.extend_s
        if not extend_s:
            return None
        judge = InterimJudge(self._writer.run_dir, final=True)
        return Extension(extend_s, judge, self._recorder, self._view, loop.status)

    def _write_report(self) -> None:
        if self._report.start():
            said = "writing the evidence so far: verdict-so-far.json, report-so-far.html and .md in"
            self._view.note(f"{said} {self._writer.run_dir}")

    def _open_segment(self, segment: Segment) -> None:
        """Record the start of the segment, and what the interruption cost."""
        self._recorder.event(events.Segment(segment.index, segment.away_s))
        for name, torn in self._writer.repaired_bytes.items():
            if torn:
                said = (
                    f"the interruption cut the last line of {name}: its {torn} bytes are left out"
                )
                self._recorder.note(said)

    def _cannot_write(self, error: RunDirectoryError) -> None:
        """Handle a disk that refuses writes: keep what is written; one short line may still fit."""
        if self._unwritten:
            return
        self._view.note(f"stopped: {error}")
        self._unwritten = str(error)
        with contextlib.suppress(RunDirectoryError):
            self._recorder.event(DiskFull(str(error)))

    def _end(self) -> None:
        """Write this process's last entries about the run."""
        ended = msgspec.structs.replace(self._run.manifest, ended_wall_s=self._clock.wall_s())
        kills, before = oom_kills(), self._kills_before
        if kills is not None and before is not None and kills > before:
            self._recorder.note(f"processes killed here for lack of memory: {kills - before}")
        self._writer.update_manifest(ended)

    def _signal(self) -> str:
        first = self._interrupts.first
        return "" if first is None else first.name
