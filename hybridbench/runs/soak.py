"""One soak from plan to stored run: start the worker, take the steps, end well in any case."""

from __future__ import annotations

import shutil

from hybridbench.analysis.record import JsonValue
from hybridbench.clock import Clock, SystemClock
from hybridbench.errors import ConfigError
from hybridbench.rundir.layout import make_run_dir, new_run_id
from hybridbench.rundir.truth import write_truth
from hybridbench.rundir.writer import RunWriter
from hybridbench.runs.boot import boot_worker
from hybridbench.runs.crash import bury
from hybridbench.runs.driver import Driver
from hybridbench.runs.interrupts import Interrupts, SecondSignalError, handled_interrupts
from hybridbench.runs.live import make_view
from hybridbench.runs.loop import LoopParts, SoakLoop, WorkerLostError
from hybridbench.runs.manifest import planned_manifest, with_worker
from hybridbench.runs.plan import SoakOutcome, SoakPlan
from hybridbench.runs.recorder import Recorder
from hybridbench.runs.status import RunStatus, View
from hybridbench.runs.steps import SoakSteps
from hybridbench.runs.watchdog import Watchdog
from hybridbench.sampling.cadence import Beat, CensusPace
from hybridbench.sampling.cgroup import oom_kills
from hybridbench.sampling.sampler import (
    HarnessSource,
    ProcessSource,
    PssSource,
    Sampler,
    TimedSource,
)
from hybridbench.targets.bundled import BundledTarget, WorkerLaunch
from hybridbench.targets.messages import Ready
from hybridbench.workload.actions import Workload
from hybridbench.workload.build import build_workload

STDERR_FILE = "worker.stderr.log"
_PSS_INTERVAL_S = 20.0
_STOP_PATIENCE_S = 10.0


def run_soak(plan: SoakPlan, clock: Clock | None = None) -> SoakOutcome:
    """Do what ``plan`` says; the run directory is complete when this returns.

    A worker that dies or hangs is an outcome, told in the run's events.

    Raises:
        ConfigError: the worker cannot be built as asked; no run directory is left behind.
        WorkerFailedError: the worker process cannot be started.
        RunDirectoryError: the store cannot be written.
    """
    clock = clock if clock is not None else SystemClock()
    started_wall_s = clock.wall_s()
    run_id = new_run_id(started_wall_s, plan.model, plan.profile.name, plan.defects)
    run_dir = make_run_dir(plan.store, run_id)
    manifest = planned_manifest(plan, run_dir.name, started_wall_s)
    view = make_view(plan.ui)
    try:
        with RunWriter(run_dir, manifest, clock) as writer, handled_interrupts() as interrupts:
            return _Soak(plan, clock, writer, interrupts, view, manifest).run()
    except ConfigError:
        # Nothing ran: a directory that says so would only be in the way.
        shutil.rmtree(run_dir, ignore_errors=True)
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
        manifest: dict[str, JsonValue],
    ) -> None:
        self._plan = plan
        self._clock = clock
        self._writer = writer
        self._interrupts = interrupts
        self._view = view
        self._manifest = manifest
        self._recorder = Recorder(writer, clock, clock.monotonic_s())
        self._crashed = False

    def run(self) -> SoakOutcome:
        self._recorder.enter("boot")
        kills_before = oom_kills()
        stderr_path = self._writer.run_dir / STDERR_FILE
        target = BundledTarget(WorkerLaunch(stderr_path, malloc=self._plan.malloc))
        try:
            self._soak(target)
        except WorkerLostError as lost:
            self._crashed = True
            bury(target, self._recorder, self._clock, lost, kills_before)
        except SecondSignalError:
            target.kill()
            self._recorder.event("interrupted", {"signal": self._signal(), "killed": True})
        finally:
            target.stop(_STOP_PATIENCE_S)
        self._manifest["ended_wall_s"] = self._clock.wall_s()
        self._writer.update_manifest(self._manifest)
        code = self._interrupts.exit_code
        return SoakOutcome(self._writer.run_dir, code is not None, self._crashed, code)

    def _soak(self, target: BundledTarget) -> None:
        plan = self._plan
        self._view.note(f"building {plan.model} in a worker process")
        ready = boot_worker(target, plan, self._clock, self._interrupts)
        if ready is None:
            # It builds the engine and would not read a request to leave.
            target.kill()
            self._recorder.event("interrupted", {"signal": self._signal()})
            return
        workload = build_workload(plan.profile, ready.vocab_size, plan.trace, plan.seed)
        self._manifest = with_worker(self._manifest, plan, ready, workload.describe())
        self._writer.update_manifest(self._manifest)
        self._view.note(ready.model_note)
        parts = self._parts(target, ready, workload)
        loop = SoakLoop(parts)
        try:
            SoakSteps(plan, loop, parts).run()
        finally:
            self._manifest["workload_counts"] = dict(workload.counts())
            if loop.truth:
                write_truth(self._writer.run_dir, loop.truth)

    def _parts(self, target: BundledTarget, ready: Ready, workload: Workload) -> LoopParts:
        plan, clock = self._plan, self._clock
        now_s, cadence = clock.monotonic_s(), plan.cadence
        sources = [
            TimedSource(ProcessSource(ready.pid)),
            TimedSource(HarnessSource()),
            TimedSource(PssSource(ready.pid), Beat(_PSS_INTERVAL_S, now_s)),
        ]
        return LoopParts(
            target=target,
            driver=Driver(workload, target),
            sampler=Sampler(sources, Beat(cadence.sample_every_s, now_s), clock),
            census_pace=CensusPace(cadence.collectible_every_s, now_s),
            recorder=self._recorder,
            watchdog=Watchdog(plan.watchdog_s, now_s),
            interrupts=self._interrupts,
            view=self._view,
            status=RunStatus(
                title=f"{plan.model} / {plan.profile.name}",
                model_note=ready.model_note,
                duration_s=plan.duration_s,
            ),
            clock=clock,
        )

    def _signal(self) -> str:
        first = self._interrupts.first
        return "" if first is None else first.name
