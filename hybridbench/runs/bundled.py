"""Soak the bundled engine, or another one behind its wire: boot, drive and control it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hybridbench.records.manifest import Manifest
from hybridbench.rundir.layout import ALLOCATIONS, WORKER_STDERR
from hybridbench.rundir.truth import add_truth
from hybridbench.runs.allocations import AllocationRecord
from hybridbench.runs.answers import answer_check_of, record_answers
from hybridbench.runs.begun import BegunRun
from hybridbench.runs.boot import boot_worker, check_same_engine
from hybridbench.runs.driver import Driver
from hybridbench.runs.interim import InterimJudge
from hybridbench.runs.leak_diagnosis import LeakDiagnosis
from hybridbench.runs.manifest import planned_manifest, with_counts, with_segment, with_worker
from hybridbench.runs.plan import Segment, SoakPlan
from hybridbench.runs.steps import SoakSteps
from hybridbench.runs.wire_loop import WireLoop, make_wire_loop
from hybridbench.targets.bundled import BundledTarget
from hybridbench.workload.actions import Workload
from hybridbench.workload.build import build_workload


class BundledUnderSoak:
    """The worker of one soak and its traffic; the soak owns the process."""

    def __init__(self, plan: SoakPlan) -> None:
        self._plan = plan
        self._target: BundledTarget | None = None
        self._served: tuple[Workload, WireLoop] | None = None

    @property
    def plan(self) -> SoakPlan:
        return self._plan

    @property
    def dump_stack(self) -> Callable[[], None] | None:
        return None if self._target is None else self._target.dump_stack

    @property
    def segment(self) -> Segment | None:
        return self._plan.segment

    def planned(self, run_id: str, started_wall_s: float) -> Manifest:
        return planned_manifest(self._plan, run_id, started_wall_s)

    def log_path(self, run_dir: Path) -> Path:
        return run_dir / WORKER_STDERR

    def launch(self, log_path: Path) -> BundledTarget:
        self._target = BundledTarget(self._plan.worker_launch(log_path))
        return self._target

    def begin(self, run: BegunRun) -> SoakSteps | None:
        target, plan, view = self._target, self._plan, run.context.view
        assert target is not None, "nothing was launched"
        view.note(f"building {plan.model} in a worker process")
        ready = boot_worker(target, plan, run.context.interrupts)
        if ready is None:
            return None
        if plan.segment is not None:
            check_same_engine(plan.segment, ready)
        workload = build_workload(plan.profile, ready.vocab_size, plan.trace, plan.traffic_seed)
        manifest = with_worker(run.manifest, plan, ready, workload.describe())
        run.describe(with_segment(manifest, plan, ready, run.started_wall_s))
        view.note(ready.model_note)
        loop = make_wire_loop(plan, run.context, target, Driver(workload, target), ready)
        self._served = (workload, loop)
        loop.answers = answer_check_of(plan, ready, run.context.clock)
        options, judge = plan.options, InterimJudge(run.run_dir)
        memray_s, raw = options.memray_s, run.run_dir / ALLOCATIONS
        return SoakSteps(
            plan,
            loop,
            diagnosis=LeakDiagnosis(options.diagnose, options.hold_s, loop, judge),
            allocations=AllocationRecord(loop, raw, memray_s) if memray_s else None,
        )

    def end(self, run: BegunRun) -> None:
        if self._served is None:
            return
        workload, loop = self._served
        run.manifest = with_counts(run.manifest, workload.counts())
        record_answers(loop, self._plan.options.answers_s)
        if loop.truth is not None:
            add_truth(run.run_dir, loop.truth)
