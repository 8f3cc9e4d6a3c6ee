"""What a soak is asked to do and what came of it, as the command line sees it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hybridbench.errors import ExitCode
from hybridbench.targets.messages import Scalar, Start
from hybridbench.workload.profile import Cadence, Profile
from hybridbench.workload.trace_replay import TraceOptions

WATCHDOG_S = 30.0


@dataclass(frozen=True)
class SoakPlan:
    """One soak.  ``duration_s`` counts from the first request to the last, warm-up included.

    Args:
        model: a preset, or the directory of a checkpoint.
        store: where run directories live; the run makes its own below it.
        defects: slugs, or paths of files that define one.
        malloc: "pinned" fixes the worker's allocator settings, "system" leaves them.
        ui: "live", "plain" or "none"; "auto" is live on a terminal and plain elsewhere.
        census: "fork", "walk", or "auto" for what the device allows.
        watchdog_s: this long without an engine step, with work pending, is a hang.
        command: the arguments as the user gave them, for the manifest.
    """

    profile: Profile
    model: str
    store: Path
    duration_s: float
    seed: int
    device: str = "cpu"
    dtype: str = "float32"
    defects: tuple[str, ...] = ()
    trace: TraceOptions | None = None
    profile_source: str | None = None
    malloc: str = "pinned"
    ui: str = "auto"
    census: str = "auto"
    watchdog_s: float = WATCHDOG_S
    boot_limit_s: float = 900.0
    drain_limit_s: float = 120.0
    command: tuple[str, ...] = ()

    @property
    def cadence(self) -> Cadence:
        """How often this run samples, counts garbage and stops for a checkpoint."""
        return self.profile.cadence(self.duration_s)

    def start_message(self) -> Start:
        """What the worker is told."""
        profile = self.profile
        thresholds = profile.gc.thresholds
        return Start(
            engine=self.engine_settings(),
            defects=list(self.defects),
            gc_mode=profile.gc.mode,
            gc_thresholds=[] if thresholds is None else list(thresholds),
            ballast_objects=profile.ballast.objects,
            census=self.census,
        )

    def engine_settings(self) -> dict[str, Scalar | dict[str, Scalar]]:
        """The fields of the engine's configuration."""
        pools, engine = self.profile.pools, self.profile.engine
        ratio = engine.new_token_ratio
        return {
            "model": self.model,
            "device": self.device,
            "dtype": self.dtype,
            "seed": self.seed,
            "kv_tokens": pools.kv_tokens,
            "page_size": pools.page_size,
            "mamba_slots": pools.mamba_slots,
            "max_context_len": pools.max_context_len,
            "max_running_requests": engine.max_running_requests,
            "chunked_prefill_size": engine.chunked_prefill_size,
            "max_prefill_tokens": engine.max_prefill_tokens,
            "schedule_policy": engine.schedule_policy,
            "cache": engine.cache,
            "check_level": engine.check_level,
            "new_token_ratio": {
                "init": ratio.init,
                "min": ratio.min,
                "decay_steps": ratio.decay_steps,
            },
        }


@dataclass(frozen=True)
class SoakOutcome:
    """Where the evidence is, and how the run ended.

    ``exit_hint`` is 130 or 143 for an interrupted run, which no verdict overrules, and None for one
    that ran to its end or crashed: then the verdict decides.
    """

    run_dir: Path
    interrupted: bool = False
    crashed: bool = False
    exit_hint: ExitCode | None = None
