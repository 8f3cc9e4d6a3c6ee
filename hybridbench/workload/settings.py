"""The groups of keys of a profile, each a frozen record; units are in field names, not in keys.

A YAML key is the field's name without its unit: ``checkpoint.every`` is ``Checkpoint.every_s``.  A
string below a field is its description in the schema and in the reference.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal, TypedDict, Unpack

from annotated_types import Le
from pydantic import ConfigDict, Field, StringConstraints, WithJsonSchema
from pydantic.dataclasses import dataclass

from hybridbench.foundation.engine_config import EngineConfig, EngineSettings, PoolSizes
from hybridbench.foundation.foreign import MIB
from hybridbench.foundation.setting_types import (
    AutoDurationS,
    Count,
    CountOrZero,
    DurationS,
    Flag,
    Share,
    SizeBytes,
    Strict,
    yaml_key,
)
from hybridbench.workload.actions import Malformed
from hybridbench.workload.coverage import CoverageFloor
from hybridbench.workload.fields import (
    Amount,
    BytesPerHour,
    Objects,
    PerSecond,
    Seed,
    ThresholdText,
    TokenRange,
    Tokens,
    ZipfExponent,
)

MalformedKind = Annotated[
    Malformed, WithJsonSchema({"type": "string", "enum": [kind.value for kind in Malformed]})
]

DEFAULT_DURATION_S: Final = 7200.0
DEFAULT_MODEL: Final = "qwen3-next"

SETTINGS: Final = ConfigDict(
    extra="forbid",
    alias_generator=yaml_key,
    validate_default=True,
    use_attribute_docstrings=True,
)


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Warmup:
    """Traffic before the judged window."""

    requests: CountOrZero = 500
    """Finished requests that end the warm-up; a number of requests does not depend on the speed of
    the machine."""


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Checkpoint:
    """Idle checkpoints: drain, wait, take the exact measurements, resume."""

    every_s: AutoDurationS = None
    """Time between two checkpoints; `auto` follows the duration of the run."""
    settle_s: DurationS = 1.0
    """Wait between the drain and the measurements."""
    idle_s: DurationS = 0.0
    """Further idle time with sampling, then a second measurement: shows what grows without work."""
    flush: Flag = False
    """Empty the cache first, so that idle memory is comparable between checkpoints; it is then
    judged as a trend."""


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Bursts:
    """Periods of higher load."""

    every_s: DurationS
    """Time from the start of one burst to the start of the next."""
    length_s: DurationS
    """Duration of a burst."""
    factor: Amount = 2.0
    """Load during a burst, as a multiple of the normal load."""


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Ramp:
    """Load that rises evenly at the start of the run."""

    start: Share = 0.1
    """Share of the full load at the start."""
    over_s: DurationS
    """Time until the full load is reached."""


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Arrival:
    """When requests are sent."""

    process: Literal["closed", "poisson"] = "closed"
    """`closed` keeps `concurrency` requests in flight; `poisson` sends `rate` requests a second at
    random times."""
    concurrency: Count | None = None
    """Requests in flight of a closed loop."""
    think_s: DurationS = 0.0
    """Mean time of a closed loop from an answer to the next request of that client, drawn from half
    to one and a half times this."""
    rate_per_s: PerSecond | None = None
    """Mean rate of Poisson arrivals, such as `40/s` or `90/min`."""
    max_in_flight: Count = 64
    """Poisson arrivals are dropped, and counted, while this number of requests is unfinished."""
    bursts: Bursts | None = None
    """Periods of higher load; null has none."""
    ramp: Ramp | None = None
    """Load that rises at the start; null has none."""


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Prompts:
    """What a prompt consists of: a shared system prompt and the user's own tokens."""

    families: Annotated[Count, Le(1_000_000)] = 16
    """Number of shared system prompts."""
    namespaces: Count = 1
    """Tenants among whom conversations take turns; the cache shares no prefix between two of them
    (`extra_key`). With 1 requests bring no key."""
    system_tokens: Tokens = TokenRange(32, 160)
    """Length of a system prompt, in tokens."""
    user_tokens: Tokens = TokenRange(16, 64)
    """New tokens of the user in each turn."""
    reuse: ZipfExponent = "zipf(1.1)"  # type: ignore[assignment]  # parsed like a key of the file
    """Distribution of conversations over the system prompts: `zipf(EXPONENT)` or `uniform`."""
    long: Share = 0.0
    """Share of turns with `long_tokens` of user input, such as a pasted document."""
    long_tokens: Tokens = TokenRange(384, 640)
    """New tokens of the user in a long turn."""
    warm: Share = 0.0
    """Share of conversations that open with the system prompt alone, so that the tree holds a state
    exactly at its end; the first conversation on each system prompt then always does."""
    payload_bytes: Annotated[SizeBytes, Le(64 * MIB)] = 0
    """Features sent with each prompt, as for an image; 0 sends none."""
    payload_repeat: Share = 0.0
    """Share of requests that send one of eight earlier payloads again; others send their own."""


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Conversations:
    """Chains of turns; each prompt is the conversation so far plus new user tokens."""

    turns: Tokens = TokenRange(1, 1)
    """Number of turns of a conversation."""
    open: Count = 48
    """Conversations in progress at once."""
    branch: Share = 0.0
    """Share of new conversations that begin with the first turns of another one."""
    edit: Share = 0.0
    """Share of turns that go back to a random point of their own conversation and continue from
    there, which splits a node of the tree."""


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Sessions:
    """Conversations in a streaming session of the engine: each turn sends only what is new."""

    share: Share = 0.0
    """Share of conversations held in a session; these neither branch nor go back."""
    think_s: DurationS = 0.0
    """Mean time between two turns, drawn from half to one and a half times this."""
    hold_s: DurationS = 0.0
    """Mean time from the last turn to the close, drawn in the same way."""
    close_busy: Share = 0.0
    """Share of sessions closed during the decode of their last turn."""
    abandon: Share = 0.0
    """Share of sessions that are never closed and time out."""
    timeout_s: DurationS | None = None
    """Time without a turn after which the engine closes a session; null sets no limit."""
    overlong: Share = 0.0
    """Share of turns that are too long and are rejected."""
    at_rest: Literal["open", "closed"] = "open"
    """Whether sessions are closed before each checkpoint; only then are locks in the tree checked
    there."""


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Output:
    """What a request generates."""

    tokens: Tokens = TokenRange(4, 24)
    """Output tokens of a request."""


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class SamplingSettings:
    """How tokens are sampled."""

    temperature: Amount = 1.0
    """Temperature of the requests that are not greedy."""
    top_k: Count | None = None
    """Sample from the k most likely tokens; null from all."""
    top_p: Share = 1.0
    """Sample from the most likely tokens with this total probability."""
    greedy: Share = 0.5
    """Share of requests at temperature 0."""
    stop: Share = 0.0
    """Share of requests with stop tokens; all others run to their full length."""
    stop_ids: Count = 64
    """Number of random stop tokens of such a request."""


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Aborts:
    """Requests that their client aborts or abandons."""

    queued: Share = 0.0
    """Share of requests aborted in the waiting queue."""
    prefill: Share = 0.0
    """Share of requests aborted during prefill; these have a long prompt, because a short one would
    finish before the abort arrives."""
    decode: Share = 0.0
    """Share of requests aborted during decode."""
    disconnect: Share = 0.0
    """Share of requests whose client disconnects during decode without an abort."""
    queue_timeout_s: DurationS | None = None
    """How long a client waits for admission before it aborts; null waits for ever."""


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class PriorityShare:
    """A priority and how many requests have it; the remaining requests have none."""

    value: Annotated[int, Strict()]
    """The priority."""
    share: Share
    """Share of requests with this priority."""


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Controls:
    """Actions of an operator during the run, in traffic time, so that a checkpoint delays them."""

    pause_every_s: DurationS | None = None
    """Time between two pauses of the engine; null never pauses it."""
    pause_for_s: DurationS = 0.2
    """Duration of a pause."""
    pause_mode: Literal["abort", "retract", "in_place"] = "retract"
    """What a pause does with running requests: `retract` returns them to the queue, `in_place`
    keeps them, `abort` ends all requests."""
    abort_all_every_s: DurationS | None = None
    """Time between two aborts of all requests; null never does it."""


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Force:
    """Paths of the engine that pressure alone reaches seldom, forced once in so many of their
    events, at times drawn from the seed. They must change no token and lose no slot; null forces
    none. Counted as `forced_retract` and so on.
    """

    retract: Count | None = None
    """Decode steps for each that pushes one running request back."""
    refuse: Count | None = None
    """Attempts to admit a request for each that is refused although there is room."""
    fail_allocation: Count | None = None
    """Allocations of KV or of a state for each that fails although there is room."""
    delay_transfer: Count | None = None
    """Copies between device and host for each that ends a quarter of a second late."""
    flush: Count | None = None
    """Engine steps for each before which all running requests are pushed back and the cache is
    flushed; never while a session holds anything."""
    abort_queued: Count | None = None
    """Requests for each that the engine aborts before it looks at it."""
    abort_prefill: Count | None = None
    """Chunks of prompts for each after which the engine aborts the request."""
    abort_decode: Count | None = None
    """Decode steps for each with which the engine aborts a running request."""

    def by_path(self) -> dict[str, int]:
        """Return the forced paths and their intervals, by name."""
        return {name: every for name, every in vars(self).items() if every is not None}


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class RequestOptions:
    """Fields of requests that change how a server answers, such as `n`, `stop` or a JSON schema:
    those that the interface has, each with a value of its own; for `soak --url` alone.
    """

    share: Share = 0.0
    """Share of requests that have some."""
    most: Count = 3
    """Options of such a request, at most."""
    without: tuple[str, ...] = ()
    """Options that no request has, by their names in reports: one that the server ends of hides
    what others do."""


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class BadInput:
    """Requests that the engine must reject or truncate."""

    overlong: Share = 0.0
    """Share of requests that are too long and must be rejected."""
    truncate: Share = 0.0
    """Share of requests that are too long and must be truncated."""
    duplicate_ids: Share = 0.0
    """Share of requests that repeat the id of a request in flight."""
    malformed: Share = 0.0
    """Share of requests with something wrong in form, type, value or name, each with a value of its
    own; for `soak --url` alone."""
    large: Share = 0.0
    """Share of malformed requests whose wrong value has 10 kB to 1 MB."""
    without: tuple[MalformedKind, ...] = ()
    """Kinds of malformed requests that are not sent, by their names in reports."""


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Ballast:
    """Long-lived Python objects in the worker; fewer make full collections more frequent."""

    objects: Objects = 1_000_000
    """Number of objects."""


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class GcSettings:
    """The garbage collector of the worker."""

    mode: Literal["default", "freeze-after-warmup"] = "default"
    """`freeze-after-warmup` calls `gc.freeze` at the end of the warm-up."""
    thresholds: tuple[CountOrZero, CountOrZero, CountOrZero] | None = None
    """Thresholds for `gc.set_threshold`; null keeps the interpreter's."""


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Probe:
    """How often the run is measured."""

    sample_every_s: AutoDurationS = None
    """Time between two samples; `auto` follows the duration of the run."""
    collectible_every_s: AutoDurationS = None
    """Time between two heap scans; `auto` follows the duration of the run."""
    max_stall_ms: Amount | None = 5000.0
    """If two heap scans in a row stop the engine for longer, they are not repeated under traffic;
    null sets no limit."""


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Limits:
    """What CLEAN requires of a run of `from` and longer: growth below these rates."""

    from_s: DurationS = 0.0
    """Shortest run that these limits apply to."""
    rss_bytes_per_h: BytesPerHour | None = None
    """Largest growth of private memory, and of device memory, such as `200MiB/h`; without a limit
    both are undecided, and the soak extends itself to a length that has one."""
    collectible_bytes_per_h: BytesPerHour | None = None
    """Largest growth of collectible memory."""
    hit_rate: Share | None = None
    """Smallest share of prompt tokens served by the cache."""
    evict_ms: Amount | None = None
    """Largest CPU time of an eviction, in milliseconds."""
    check_ms: Amount | None = None
    """Largest CPU time of the engine's own checks after a step, in milliseconds."""

    def by_metric(self) -> dict[str, float]:
        """Return the limits that are set, by the name of what they limit; rates are per hour."""
        limits = {
            "rss_anon_swap_bytes": self.rss_bytes_per_h,
            "gc_collectible_bytes": self.collectible_bytes_per_h,
            "hit_rate": self.hit_rate,
            "evict_ms": self.evict_ms,
            "check_ms": self.check_ms,
        }
        return {name: value for name, value in limits.items() if value is not None}


class CallerChoices(TypedDict, total=False):
    """Engine settings that no profile contains."""

    model: str
    device: str
    dtype: str
    seed: int


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class ProfileKeys:
    """All keys of a profile."""

    name: Annotated[str, StringConstraints(strict=True, pattern=r"^[a-z0-9][a-z0-9._-]*$")]
    """Name of the profile, part of the names of its runs."""
    description: str = ""
    """What the profile is for; `hybridbench profiles list` prints it."""
    model: Annotated[str, StringConstraints(strict=True, min_length=1)] = DEFAULT_MODEL
    """A preset or a checkpoint directory; `--model` takes precedence."""
    seed: Seed = 1
    """Seed for weights and traffic; `--seed` takes precedence."""
    duration_s: DurationS = DEFAULT_DURATION_S
    """Planned length of the traffic; `--duration` takes precedence."""
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
    """Priorities and the share of requests with each; needs `engine.enable_priority_scheduling`."""
    aborts: Aborts = Aborts()
    controls: Controls = Controls()
    bad_input: BadInput = BadInput()
    options: RequestOptions = RequestOptions()
    force: Force = Force()
    assert_coverage: Mapping[str, CoverageFloor] = Field(default_factory=dict)
    """Counters and the least count of each, such as `>5/min`; a run that stays below is INVALID."""
    ballast: Ballast = Ballast()
    gc: GcSettings = GcSettings()
    probe: Probe = Probe()
    limits: tuple[Limits, ...] = Field(alias="promise")
    """Limits of CLEAN; the entry with the largest `from` that the run reaches applies."""
    thresholds: tuple[ThresholdText, ...] = ()
    """Additional limits of every run, such as `rss.slope<200MiB/h`."""

    def engine_config(self, **chosen: Unpack[CallerChoices]) -> EngineConfig:
        """Return the engine configuration, from the profile and the command line's choices.

        Raises:
            EngineConfigError: settings that do not fit together.
        """
        return EngineConfig(**vars(self.pools), **vars(self.engine), **chosen)
