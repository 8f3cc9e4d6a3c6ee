"""The plan and the outcome of a soak, as the command line sees them."""

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
# Answers sampled, for requests with and without reuse each: more than a healthy run has time for,
# so that a run with wrong answers has enough of them to show their common traits.
ANSWERS_KEPT = 1024

# In less time than this a new worker would not even warm up.
_SHORTEST_SEGMENT_S = 20.0
_SEED_STRIDE = 1_000_003
# Planned samples of a run that is only observed; the interval is one to ten seconds.
_SAMPLES = 1200


def default_extend_s(duration_s: float) -> float:
    """Return how long an undecided run may be extended: its duration, but at least ten minutes."""
    return max(duration_s, EXTEND_LEAST_S)


def default_answers_s(duration_s: float) -> float:
    """Return how long answers may be recomputed after the traffic: a tenth of its duration, between
    10 seconds and 2 minutes.
    """
    return min(max(duration_s / 10, 10.0), 120.0)


@dataclass(frozen=True)
class Segment:
    """Where an interrupted soak resumes.

    Args:
        run_dir: the run that is resumed.
        index: the segment's index; the first of a run is 0.
        start_s: run time at which it begins.
        away_s: seconds during which nothing ran; None if unknown.
        served_s: traffic of the earlier segments, including warm-ups.
        manifest: the manifest of the run so far.
    """

    run_dir: Path
    index: int
    start_s: float
    away_s: float | None
    served_s: float
    manifest: Manifest


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """Options common to all runs; sufficient for a target that is only observed.

    Args:
        name: the target's name, for the run's name and its pages; "" for the bundled engine.
        store: where run directories live; the run creates its own in it.
        duration_s: time from the first sample or request of ours to the last, including warm-up.
        ui: "live", "plain" or "none"; "auto" is live on a terminal and plain elsewhere.
        thresholds: pass/fail thresholds besides those of the profile, as written.
        options: how the run is observed and ended.
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
        """The title of the live view."""
        return self.name

    @property
    def named_by(self) -> tuple[str, str, tuple[str, ...]]:
        """The parts of the run directory's name after the time."""
        return self.name, "observed", ()

    @property
    def cadence(self) -> Cadence:
        """How often this run samples, counts garbage and stops for a checkpoint."""
        return Cadence(min(max(self.duration_s / _SAMPLES, 1.0), 10.0), math.inf, math.inf)

    @property
    def traffic_s(self) -> float:
        """Seconds of traffic that this process will serve or observe."""
        return self.duration_s

    @property
    def warmup_requests(self) -> int:
        """Number of our requests before the judged part begins."""
        return 0

    @property
    def checkpoint(self) -> Checkpoint:
        """What is done at an idle checkpoint."""
        return Checkpoint()


@dataclass(frozen=True, kw_only=True)
class SoakPlan(RunPlan):
    """A soak of an engine that is driven with the traffic of ``profile``.

    Args:
        model: a preset, or the directory of a checkpoint.
        defects: slugs, or paths of files that define one.
        defects_as_of: releases of other engines from which ``defects`` were chosen, for the report.
        malloc: "pinned" fixes the worker's allocator settings, "system" keeps the defaults.
        segment: where an interrupted run resumes; None for a new one.
        program: the engine to run, and its interpreter.
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
        """Longest time one probe may stop the engine under traffic; None for no limit."""
        budget_ms = self.profile.probe.max_stall_ms
        return None if budget_ms is None else budget_ms / 1000.0

    @property
    def traffic_s(self) -> float:
        """Seconds of traffic for this process: all of it, or what earlier segments left."""
        if self.segment is None:
            return self.duration_s
        return max(self.duration_s - self.segment.served_s, _SHORTEST_SEGMENT_S)

    @property
    def traffic_seed(self) -> int:
        """Seed of the prompts: each segment has different ones, reproducibly."""
        return self.seed + (0 if self.segment is None else _SEED_STRIDE * self.segment.index)

    def worker_launch(self, stderr_path: Path) -> WorkerLaunch:
        """Return how to start the worker."""
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
        """Whether finished answers are recomputed; released engines have no reference model."""
        if self.program.released:
            return False
        return self.options.answers_s > 0 and is_measured(self.device, self.dtype)


@dataclass(frozen=True)
class SoakOutcome:
    """Where the results are, and how the run ended.

    ``exit_hint`` is 130 or 143 for an interrupted run, which overrides any verdict, and None for
    one that ran to its end or crashed: then the verdict decides.  ``unwritten`` is the disk's error
    if the results could not be written.
    """

    run_dir: Path
    crashed: bool = False
    exit_hint: ExitCode | None = None
    unwritten: str = ""
