"""What a soak is asked to do and what came of it, as the command line sees it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from hybridbench.foundation.errors import ExitCode
from hybridbench.records.answers import is_measured
from hybridbench.records.manifest import Manifest, Options
from hybridbench.records.messages import Start
from hybridbench.targets.bundled import WorkerLaunch, WorkerProgram
from hybridbench.workload.profile import Cadence, Profile
from hybridbench.workload.settings import Checkpoint
from hybridbench.workload.trace_replay import TraceOptions

EXTEND_LEAST_S = 600.0
# Answers in the sample, of requests that reused something and of those that did not: more than a
# healthy run has the time for, so that a run with wrong ones has enough to find what they share.
ANSWERS_KEPT = 1024

# Below this a new worker would not even be warm.
_SHORTEST_SEGMENT_S = 20.0
_SEED_STRIDE = 1_000_003
# Of a run that is only observed, at intervals of one to ten seconds.
_SAMPLES = 1200


def default_extend_s(duration_s: float) -> float:
    """How long an undecided run may go on: as long again, and ten minutes at least."""
    return max(duration_s, EXTEND_LEAST_S)


def default_answers_s(duration_s: float) -> float:
    """How long answers may be computed anew after the traffic: a tenth of its time, 10 seconds at
    least and 2 minutes at most.
    """
    return min(max(duration_s / 10, 10.0), 120.0)


@dataclass(frozen=True)
class Segment:
    """Where a soak goes on that was cut off.

    Args:
        run_dir: the run that goes on.
        index: of this segment; the first of a run is 0.
        start_s: time of the run at which it begins.
        away_s: seconds that nothing ran; None if the clock cannot tell.
        served_s: traffic of the segments before, warm-ups included.
        manifest: of the run so far.
    """

    run_dir: Path
    index: int
    start_s: float
    away_s: float | None
    served_s: float
    manifest: Manifest


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """What every run is asked, whatever is under soak; this alone for a target that is observed.

    Args:
        name: what is under soak, for the run's name and its pages; "" for the bundled engine.
        store: where run directories live; the run makes its own below it.
        duration_s: from the first sample, or request of ours, to the last; warm-up included.
        ui: "live", "plain" or "none"; "auto" is live on a terminal and plain elsewhere.
        thresholds: what the run is held against besides those of its profile, as written.
        options: how the run is watched and ended.
        command: the arguments as the user gave them, for the manifest.
        drain_limit_s: how long the target may take to become idle.
    """

    name: str = ""
    store: Path
    duration_s: float
    ui: str = "auto"
    thresholds: tuple[str, ...] = ()
    options: Options = field(default_factory=Options)
    command: tuple[str, ...] = ()
    drain_limit_s: float = 120.0

    @property
    def title(self) -> str:
        """Of the live view."""
        return self.name

    @property
    def named_by(self) -> tuple[str, str, tuple[str, ...]]:
        """What the run's directory is named by, after the time."""
        return self.name, "observed", ()

    @property
    def cadence(self) -> Cadence:
        """How often this run samples, counts garbage and stops for a checkpoint."""
        return Cadence(min(max(self.duration_s / _SAMPLES, 1.0), 10.0), math.inf, math.inf)

    @property
    def traffic_s(self) -> float:
        """Traffic that this process is to serve, or to see."""
        return self.duration_s

    @property
    def warmup_requests(self) -> int:
        """Requests of ours before the judged part begins."""
        return 0

    @property
    def checkpoint(self) -> Checkpoint:
        """What happens at a rest."""
        return Checkpoint()


@dataclass(frozen=True, kw_only=True)
class SoakPlan(RunPlan):
    """One soak of an engine that is driven: its traffic is that of ``profile``.

    Args:
        model: a preset, or the directory of a checkpoint.
        defects: slugs, or paths of files that define one.
        defects_as_of: releases of other engines that ``defects`` were taken from, for the report.
        malloc: "pinned" fixes the worker's allocator settings, "system" leaves them.
        segment: where a run goes on that was cut off; None for a new one.
        program: the engine that runs, and its interpreter.
    """

    profile: Profile
    model: str
    seed: int
    device: str = "cpu"
    dtype: str = "float32"
    defects: tuple[str, ...] = ()
    defects_as_of: tuple[str, ...] = ()
    trace: TraceOptions | None = None
    profile_source: str | None = None
    malloc: str = "pinned"
    boot_limit_s: float = 900.0
    segment: Segment | None = None
    program: WorkerProgram = field(default_factory=WorkerProgram)

    @property
    def title(self) -> str:
        return " / ".join(filter(None, (self.name, self.model, self.profile.name)))

    @property
    def named_by(self) -> tuple[str, str, tuple[str, ...]]:
        return self.name or self.model, self.profile.name, self.defects

    @property
    def warmup_requests(self) -> int:
        return self.profile.warmup.requests

    @property
    def checkpoint(self) -> Checkpoint:
        return self.profile.checkpoint

    @property
    def cadence(self) -> Cadence:
        return self.profile.cadence(self.duration_s)

    @property
    def stall_max_s(self) -> float | None:
        """How long one probe may hold the engine under traffic; None is no limit."""
        budget_ms = self.profile.probe.max_stall_ms
        return None if budget_ms is None else budget_ms / 1000.0

    @property
    def traffic_s(self) -> float:
        """Traffic that this process is to serve: all of it, or what earlier segments left."""
        if self.segment is None:
            return self.duration_s
        return max(self.duration_s - self.segment.served_s, _SHORTEST_SEGMENT_S)

    @property
    def traffic_seed(self) -> int:
        """Of the prompts: a later segment brings others, the same ones every time."""
        return self.seed + (0 if self.segment is None else _SEED_STRIDE * self.segment.index)

    def worker_launch(self, stderr_path: Path) -> WorkerLaunch:
        """How its worker is started."""
        return WorkerLaunch(stderr_path, self.malloc, self.program)

    def start_message(self) -> Start:
        """The first message to the worker: what to build."""
        profile = self.profile
        config = profile.engine_config(
            model=self.model, device=self.device, dtype=self.dtype, seed=self.seed
        )
        thresholds = profile.gc.thresholds
        return Start(
            engine=msgspec.to_builtins(config),
            defects=list(self.defects),
            gc_mode=profile.gc.mode,
            gc_thresholds=[] if thresholds is None else list(thresholds),
            ballast_objects=profile.ballast.objects,
            force=profile.force.by_path(),
            answers_kept=ANSWERS_KEPT if self.compares_answers else 0,
            released=self.program.released,
        )

    @property
    def compares_answers(self) -> bool:
        """Whether finished answers are computed anew; a released engine has no model here."""
        if self.program.released:
            return False
        return self.options.answers_s > 0 and is_measured(self.device, self.dtype)


@dataclass(frozen=True)
class SoakOutcome:
    """Where the evidence is, and how the run ended.

    ``exit_hint`` is 130 or 143 for an interrupted run, which no verdict overrules, and None for one
    that ran to its end or crashed: then the verdict decides.  ``unwritten`` is what the disk said
    when it refused the evidence.
    """

    run_dir: Path
    crashed: bool = False
    exit_hint: ExitCode | None = None
    unwritten: str = ""
