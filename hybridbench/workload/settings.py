"""The groups of keys of a profile, each one frozen record; units are in the names, not in the keys.

A YAML key is the field's name without its unit: ``checkpoint.every`` is ``Checkpoint.every_s``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal, TypedDict, Unpack

from pydantic import ConfigDict, Field, StringConstraints
from pydantic.dataclasses import dataclass

from hybridbench.engine_config import EngineConfig, EngineSettings, PoolSizes
from hybridbench.setting_types import Count, CountOrZero, DurationS, Flag, Share, Strict, yaml_key
from hybridbench.workload.coverage import CoverageFloor
from hybridbench.workload.fields import (
    Amount,
    AutoDurationS,
    BytesPerHour,
    Objects,
    PerSecond,
    Seed,
    SizeBytes,
    ThresholdText,
    TokenRange,
    Tokens,
    ZipfExponent,
)

DEFAULT_DURATION_S: Final = 7200.0
DEFAULT_MODEL: Final = "qwen3-next"

SETTINGS: Final = ConfigDict(extra="forbid", alias_generator=yaml_key, validate_default=True)


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Warmup:
    """Traffic before the judged part, by work done: time-based warm-ups depend on the machine."""

    requests: CountOrZero = 500


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Checkpoint:
    """Quiescent points: drain, wait ``settle_s``, take the exact measures, go on.

    ``flush`` drops the cache before the measures, so that each rest is compared with the last at
    the same load: none.  ``idle_s`` stays idle that much longer, sampling, and measures again: what
    grows without work shows there.
    """

    every_s: AutoDurationS = None
    settle_s: DurationS = 1.0
    idle_s: DurationS = 0.0
    flush: Flag = False


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Bursts:
    """The first ``length_s`` of every ``every_s`` have ``factor`` times the load."""

    every_s: DurationS
    length_s: DurationS
    factor: Amount = 2.0


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Ramp:
    """Load that rises evenly from the share ``start`` to all of it in the first ``over_s``."""

    start: Share = 0.1
    over_s: DurationS


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Arrival:
    """When requests come.

    ``closed`` keeps ``concurrency`` requests in flight; ``poisson`` draws ``rate`` a second and
    drops what comes while ``max_in_flight`` are unfinished, so that a slow machine stays bounded.
    """

    process: Literal["closed", "poisson"] = "closed"
    concurrency: Count | None = None
    rate_per_s: PerSecond | None = None
    max_in_flight: Count = 64
    bursts: Bursts | None = None
    ramp: Ramp | None = None


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Prompts:
    """What is asked: a shared system prompt, drawn by ``reuse``, and the user's own tokens.

    ``long`` is the share of turns that bring ``long_tokens`` of user input (a pasted document).
    ``warm`` is the share of conversations that open with the system prompt alone, so that the tree
    holds a state exactly at its end; the first conversation on each prompt then always does.
    ``payload_bytes`` comes with each prompt, as image features would: ``payload_repeat`` of the
    requests bring one of a few that were sent before, all others one of their own.
    """

    families: Count = 16
    system_tokens: Tokens = TokenRange(32, 160)
    user_tokens: Tokens = TokenRange(16, 64)
    reuse: ZipfExponent = "zipf(1.1)"  # type: ignore[assignment]  # parsed like a key of the file
    long: Share = 0.0
    long_tokens: Tokens = TokenRange(384, 640)
    warm: Share = 0.0
    payload_bytes: SizeBytes = 0
    payload_repeat: Share = 0.0


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Conversations:
    """Chains of turns; each prompt is all that was said before plus new user tokens.

    ``open`` conversations are under way at once.  ``branch`` is the share of new ones that begin
    with the first turns of another; ``edit`` the share of turns that go back to a random point of
    their own past and ask again from there, which splits a node of the tree.
    """

    turns: Tokens = TokenRange(1, 1)
    open: Count = 48
    branch: Share = 0.0
    edit: Share = 0.0


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Sessions:
    """Conversations that are held in a streaming session: each turn sends only what is new.

    ``share`` of the conversations are; those neither branch nor go back.  Clients think for
    ``think_s`` between two turns, and keep the session open for ``hold_s`` after the last one; both
    are drawn from half to one and a half times that.  Of the sessions ``close_busy`` are closed
    while their last turn is answered, and ``abandon`` never, so that they time out: after
    ``timeout_s`` without a turn, None is for ever.  ``overlong`` of the turns are too long and are
    rejected.  ``at_rest`` says whether sessions are closed before each checkpoint; only then do
    locks in the tree say something there.
    """

    share: Share = 0.0
    think_s: DurationS = 0.0
    hold_s: DurationS = 0.0
    close_busy: Share = 0.0
    abandon: Share = 0.0
    timeout_s: DurationS | None = None
    overlong: Share = 0.0
    at_rest: Literal["open", "closed"] = "open"


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Output:
    """How much is answered, in tokens."""

    tokens: Tokens = TokenRange(4, 24)


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class SamplingSettings:
    """How tokens are chosen.

    ``greedy`` is the share of requests at temperature 0; ``stop`` the share that bring
    ``stop_ids`` random stop tokens.  All others run to their full length.  ``top_k`` null is all.
    """

    temperature: Amount = 1.0
    top_k: Count | None = None
    top_p: Share = 1.0
    greedy: Share = 0.5
    stop: Share = 0.0
    stop_ids: Count = 64


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Aborts:
    """Shares of requests that are aborted while queued, in prefill or in decode, or whose client
    leaves in decode without a word.  One aborted in prefill is always a long one, as a short one
    would be through before the abort arrives.

    ``queue_timeout_s`` is how long any client waits for admission before it aborts; None: for ever.
    """

    queued: Share = 0.0
    prefill: Share = 0.0
    decode: Share = 0.0
    disconnect: Share = 0.0
    queue_timeout_s: DurationS | None = None


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class PriorityShare:
    """The share of requests that bring this priority; what all leave over brings none."""

    value: Annotated[int, Strict()]
    share: Share


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Controls:
    """What an operator does meanwhile, in traffic time; None never does it.

    A pause lasts ``pause_for_s``; its mode is what becomes of the requests: ``retract`` sends those
    that run back to the queue, ``in_place`` keeps them as they are, ``abort`` ends all.
    """

    pause_every_s: DurationS | None = None
    pause_for_s: DurationS = 0.2
    pause_mode: Literal["abort", "retract", "in_place"] = "retract"
    abort_all_every_s: DurationS | None = None


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class BadInput:
    """Shares of requests the engine must refuse or cut: ``overlong`` asks for a refusal,
    ``truncate`` for a cut, ``duplicate_ids`` repeats the id of a request in flight.
    """

    overlong: Share = 0.0
    truncate: Share = 0.0
    duplicate_ids: Share = 0.0


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Ballast:
    """Long-lived Python objects in the worker; the collector waits for a quarter of them."""

    objects: Objects = 1_000_000


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class GcSettings:
    """The worker's garbage collector; None leaves the interpreter's thresholds."""

    mode: Literal["default", "freeze-after-warmup"] = "default"
    thresholds: tuple[CountOrZero, CountOrZero, CountOrZero] | None = None


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Probe:
    """How often to sample and to count what the collector would free; None follows the duration.

    A count that holds the engine for longer than ``max_stall_ms`` is not repeated under traffic;
    None sets no limit.  A fork takes tens of milliseconds, a reference walk some seconds.
    """

    sample_every_s: AutoDurationS = None
    collectible_every_s: AutoDurationS = None
    max_stall_ms: Amount | None = 5000.0


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Limits:
    """What CLEAN means for a run of ``from_s`` and longer: growth below these rates.

    A rate that is None has no limit at this length: the metric stays undecided, and a soak extends
    itself to a length that has one.  Limits are measured: ``hybridbench bench limits``.

    A profile for work that decays also limits the least share of prompt tokens that the cache
    serves (``hit_rate``), or the most that an eviction takes (``evict_ms``).
    """

    from_s: DurationS = 0.0
    rss_bytes_per_h: BytesPerHour | None = None
    collectible_bytes_per_h: BytesPerHour | None = None
    hit_rate: Share | None = None
    evict_ms: Amount | None = None

    def by_metric(self) -> dict[str, float]:
        """The limits that there are, by the names of what they limit; rates are per hour."""
        limits = {
            "rss_anon_swap_bytes": self.rss_bytes_per_h,
            "gc_collectible_bytes": self.collectible_bytes_per_h,
            "hit_rate": self.hit_rate,
            "evict_ms": self.evict_ms,
        }
        return {name: value for name, value in limits.items() if value is not None}


class CallerChoices(TypedDict, total=False):
    """What no profile says of an engine."""

    model: str
    device: str
    dtype: str
    seed: int


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class ProfileKeys:
    """All keys of a profile; ``model`` is a preset or a checkpoint directory."""

    name: Annotated[str, StringConstraints(strict=True, pattern=r"^[a-z0-9][a-z0-9._-]*$")]
    description: str = ""
    model: Annotated[str, StringConstraints(strict=True, min_length=1)] = DEFAULT_MODEL
    seed: Seed = 1
    duration_s: DurationS = DEFAULT_DURATION_S
    warmup: Warmup = Warmup()
    checkpoint: Checkpoint = Checkpoint()
    pools: PoolSizes = PoolSizes()
    engine: EngineSettings = EngineSettings()
    arrival: Arrival
    prompts: Prompts = Prompts()
    conversations: Conversations = Conversations()
    sessions: Sessions = Sessions()
    output: Output = Output()
    sampling: SamplingSettings = SamplingSettings()
    priorities: tuple[PriorityShare, ...] = ()
    aborts: Aborts = Aborts()
    controls: Controls = Controls()
    bad_input: BadInput = BadInput()
    assert_coverage: Mapping[str, CoverageFloor] = Field(default_factory=dict)
    ballast: Ballast = Ballast()
    gc: GcSettings = GcSettings()
    probe: Probe = Probe()
    limits: tuple[Limits, ...] = Field(alias="promise")
    thresholds: tuple[ThresholdText, ...] = ()

    def engine_config(self, **chosen: Unpack[CallerChoices]) -> EngineConfig:
        """The engine that the profile asks for, with what the command line says of it.

        Raises:
            EngineConfigError: settings that do not fit together.
        """
        return EngineConfig(**vars(self.pools), **vars(self.engine), **chosen)
