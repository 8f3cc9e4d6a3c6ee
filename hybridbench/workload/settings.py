"""A profile's key groups, each a frozen record.

A YAML key is the field's name without its unit: ``checkpoint.every`` is ``Checkpoint.every_s``.
The string below a field is its description in the schema and in the reference.
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
    """Number of finished requests that ends the warm-up; unlike a duration, it does not depend on
    the machine's speed."""


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Checkpoint:
    """Idle checkpoints: drain, wait, take the exact measurements, resume."""

    every_s: AutoDurationS = None
    """Time between two checkpoints; `auto` follows the duration of the run."""
    settle_s: DurationS = 1.0
    """Wait between the drain and the measurements."""
    idle_s: DurationS = 0.0
    """Additional idle time with sampling, then a second measurement; reveals growth while idle."""
    flush: Flag = False
    """Flush the cache first, so that idle memory is comparable between checkpoints; its trend is
    then judged."""


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
    """Load that rises linearly at the start of the run."""

    start: Share = 0.1
    """Share of the full load at the start."""
    over_s: DurationS
    """Time until the full load is reached."""


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Arrival:
    """When requests are sent."""

    process: Literal["closed", "poisson"] = "closed"
    """`closed` keeps `concurrency` requests in flight; `poisson` sends requests at random times, at
    a mean of `rate`."""
    concurrency: Count | None = None
    """Number of requests that a closed loop keeps in flight."""
    think_s: DurationS = 0.0
    """Mean time between an answer and the same client's next request in a closed loop, drawn from
    half to one and a half times this."""
    rate_per_s: PerSecond | None = None
    """Mean rate of Poisson arrivals, such as `40/s` or `90/min`."""
    max_in_flight: Count = 64
    """Poisson arrivals are dropped and counted while this many requests are unfinished."""
    bursts: Bursts | None = None
    """Periods of higher load; null for none."""
    ramp: Ramp | None = None
    """Load that rises at the start; null for none."""


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Prompts:
    """What a prompt consists of: a shared system prompt and the user's own tokens."""

    families: Annotated[Count, Le(1_000_000)] = 16
    """Number of shared system prompts."""
    namespaces: Count = 1
    """Number of tenants, assigned to conversations in rotation; the cache shares no prefix across
    tenants (`extra_key`). With 1, requests have no key."""
    system_tokens: Tokens = TokenRange(32, 160)
    """Length of a system prompt, in tokens."""
    user_tokens: Tokens = TokenRange(16, 64)
    """New user tokens in each turn."""
    reuse: ZipfExponent = "zipf(1.1)"  # type: ignore[assignment]  # parsed like a key of the file
    """How conversations are distributed over system prompts: `zipf(EXPONENT)` or `uniform`."""
    long: Share = 0.0
    """Share of turns with `long_tokens` of user input, such as a pasted document."""
    long_tokens: Tokens = TokenRange(384, 640)
    """New user tokens in a long turn."""
    warm: Share = 0.0
    """Share of conversations that begin with the system prompt alone, so that the tree has a state
    exactly at its end; if above 0, the first conversation with each system prompt always does."""
    payload_bytes: Annotated[SizeBytes, Le(64 * MIB)] = 0
    """Size of the features sent with each prompt, such as an image's; 0 sends none."""
    payload_repeat: Share = 0.0
    """Share of requests that repeat one of eight earlier payloads; the others send new ones."""


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Conversations:
    """Chains of turns; each prompt is the conversation so far plus new user tokens."""

    turns: Tokens = TokenRange(1, 1)
    """Number of turns in a conversation."""
    open: Count = 48
    """Conversations in progress at once."""
    branch: Share = 0.0
    """Share of new conversations that begin with the first turns of another conversation."""
    edit: Share = 0.0
    """Share of turns that go back to a random point of their conversation and continue from there,
    which splits a node of the tree."""


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Sessions:
    """Conversations held in an engine's streaming session: each turn sends only its new tokens."""

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
    """Idle time after which the engine closes a session; null sets no limit."""
    overlong: Share = 0.0
    """Share of turns that are too long and are rejected."""
    overlap: Share = 0.0
    """Share of turns during which the client sends another one and, when that is rejected, tries
    once more."""
    at_rest: Literal["open", "closed"] = "open"
    """Whether sessions stay open at checkpoints or are closed first; locks in the tree are checked
    there only if sessions are closed."""


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
    logprobs: Share = 0.0
    """Share of requests to the bundled engine that ask for the logprobs of their tokens."""


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Aborts:
    """Requests that clients abort or abandon."""

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
    """How long a client waits for admission before it aborts; null waits forever."""


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class PriorityShare:
    """A priority and how many requests have it; the remaining requests have none."""

    value: Annotated[int, Strict()]
    """The priority."""
    share: Share
    """Share of requests with this priority."""


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Controls:
    """Operator actions during the run, measured in traffic time, so that checkpoints delay them."""

    pause_every_s: DurationS | None = None
    """Time between two pauses of the engine; null never pauses it."""
    pause_for_s: DurationS = 0.2
    """Duration of a pause."""
    pause_mode: Literal["abort", "retract", "in_place"] = "retract"
    """What a pause does with running requests: `retract` returns them to the queue, `in_place`
    keeps them, `abort` ends all requests."""
    abort_all_every_s: DurationS | None = None
    """Time between two aborts of all requests; null never aborts all."""


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Force:
    """Engine paths that load alone rarely reaches. Each key is the mean number of events per forced
    one, which the seed selects; null forces none. Forced paths must change no token and lose no
    slot. They are counted as `forced_retract` and so on.
    """

    retract: Count | None = None
    """Decode steps per forced retract of one running request."""
    refuse: Count | None = None
    """Admission attempts per refusal of a request that would fit."""
    fail_allocation: Count | None = None
    """KV or state allocations per allocation that fails although there is room."""
    delay_transfer: Count | None = None
    """Copies between device and host per copy that ends a quarter of a second late."""
    flush: Count | None = None
    """Engine steps per forced flush of the cache, for which all running requests are retracted;
    never while a session holds KV."""
    abort_queued: Count | None = None
    """Requests queued, new or retracted, per abort by the engine before admission considers one."""
    abort_prefill: Count | None = None
    """Prefill chunks per abort of a request by the engine between two of its chunks."""
    abort_decode: Count | None = None
    """Decode steps per abort of a running request by the engine."""

    def by_path(self) -> dict[str, int]:
        """Return the forced paths and their intervals, by name."""
        return {name: every for name, every in vars(self).items() if every is not None}


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class RequestOptions:
    """Request fields that change how a server answers, such as `n`, `stop` or a JSON schema: those
    that the interface has, each with a new value; only for `soak --url`.
    """

    share: Share = 0.0
    """Share of requests that have options."""
    most: Count = 3
    """Maximum number of options of such a request."""
    without: tuple[str, ...] = ()
    """Options never sent, by their names in reports; one that crashes the server would hide what
    others do."""


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
    """Share of requests that are invalid in form, type, value or name, each with a new value; only
    for `soak --url`."""
    large: Share = 0.0
    """Share of malformed requests whose invalid value has 10 kB to 1 MB."""
    without: tuple[MalformedKind, ...] = ()
    """Kinds of malformed requests never sent, by their names in reports."""


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Ballast:
    """Long-lived Python objects in the worker; with fewer, full collections are more frequent."""

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
    """After two consecutive heap scans that each stop the engine for longer than this, scans under
    traffic end; null sets no limit."""


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Limits:
    """Limits that a run of length `from` or longer must meet to be CLEAN."""

    from_s: DurationS = 0.0
    """Length of the shortest run that these limits apply to."""
    rss_bytes_per_h: BytesPerHour | None = None
    """Maximum growth of private memory, and of device memory, such as `200MiB/h`; without a limit
    both are undecided, and the soak extends itself to a length that has one."""
    collectible_bytes_per_h: BytesPerHour | None = None
    """Maximum growth of collectible memory."""
    hit_rate: Share | None = None
    """Minimum share of prompt tokens served by the cache."""
    evict_ms: Amount | None = None
    """Maximum CPU time of an eviction, in milliseconds."""
    check_ms: Amount | None = None
    """Maximum CPU time of the engine's own checks after a step, in milliseconds."""

    def by_metric(self) -> dict[str, float]:
        """Return the limits that are set, by metric; rates are per hour."""
        limits = {
            **self.growth_by_metric(),
            "hit_rate": self.hit_rate,
            "evict_ms": self.evict_ms,
            "check_ms": self.check_ms,
        }
        return {name: value for name, value in limits.items() if value is not None}

    def growth_by_metric(self) -> dict[str, float]:
        """Return the limits on growth that are set, by metric, per hour."""
        limits = {
            "rss_anon_swap_bytes": self.rss_bytes_per_h,
            "gc_collectible_bytes": self.collectible_bytes_per_h,
        }
        return {name: value for name, value in limits.items() if value is not None}


class CallerChoices(TypedDict, total=False):
    """Engine settings outside a profile's ``pools`` and ``engine`` groups."""

    model: str
    device: str
    dtype: str
    seed: int


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class ProfileKeys:
    """All keys of a profile."""

    name: Annotated[str, StringConstraints(strict=True, pattern=r"^[a-z0-9][a-z0-9._-]*$")]
    """Name of the profile; its runs' names contain it."""
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
    """Minimum count of each named counter, such as `>5/min`; a run below a minimum is INVALID."""
    ballast: Ballast = Ballast()
    gc: GcSettings = GcSettings()
    probe: Probe = Probe()
    limits: tuple[Limits, ...] = Field(alias="promise")
    """Limits for CLEAN; the entry with the largest `from` not above the run's length applies."""
    thresholds: tuple[ThresholdText, ...] = ()
    """Additional limits for every run, such as `rss.slope<200MiB/h`."""

    def engine_config(self, **chosen: Unpack[CallerChoices]) -> EngineConfig:
        """Return the engine configuration from the profile and the command line.

        Raises:
            EngineConfigError: settings that do not fit together.
        """
        return EngineConfig(**vars(self.pools), **vars(self.engine), **chosen)
