"""What an engine is made of: one frozen record, checked once, passed as an argument."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from hybridbench.errors import ConfigError

SchedulePolicyName: TypeAlias = Literal["fcfs", "lpm"]
CacheKind: TypeAlias = Literal["radix", "chunk"]
CheckLevel: TypeAlias = Literal["off", "idle", "busy"]
SpeculativeAlgorithm: TypeAlias = Literal["NGRAM"]
StateRefresh: TypeAlias = Literal["path", "used"]
PauseMode: TypeAlias = Literal["abort", "retract", "in_place"]
MambaSchedulerStrategy: TypeAlias = Literal["no_buffer", "extra_buffer", "extra_buffer_lazy"]


@dataclass(frozen=True)
class NewTokenRatio:
    """How much of the running requests' remaining output the admission keeps free.

    1.0 admits only what can never be retracted; lower values bet that requests stop early.  The
    ratio starts at ``init``, falls by ``(init - min) / decay_steps`` each decode step down to
    ``min``, and is estimated anew after a retract.  Source: SGLang's scheduler.
    """

    init: float = 0.7
    min: float = 0.1
    decay_steps: int = 600

    @property
    def decay(self) -> float:
        """What one decode step takes off the ratio."""
        return (self.init - self.min) / self.decay_steps


@dataclass(frozen=True)
class EngineConfig:
    """One engine.  Sizes count slots: KV tokens, state slots, request rows.

    Args:
        model: a preset name, or the path of a Hugging Face checkpoint directory.
        dtype: of weights, KV and activations: "float32", "float64", "bfloat16".
        seed: of random weights and of the sampling of requests that bring no seed of their own.
        chunked_prefill_size: tokens of prefill per step; None computes a prompt at once.
        page_size: KV tokens that are given out and shared together.  A model with recurrent layers
            needs a mamba_scheduler_strategy with track buffers for more than 1.
        kv_tokens: a multiple of the page size.
        mamba_slots: state slots; a model without recurrent layers has none, whatever is given.
        max_prefill_tokens: tokens of all prompts of one prefill step, the first one excepted.
        schedule_policy: "fcfs" serves in order of arrival, "lpm" the longest cached prefix first.
        cache: "radix" reuses prefixes, "chunk" reuses nothing.
        cache_branching_states: end a chunk where a prompt leaves what another one computed, so
            that the tree has a state there and later prompts hit.
        mamba_scheduler_strategy: where the states of the prefix cache come from.  "no_buffer" takes
            a request's own where a step ends; "extra_buffer" has steps save copies at aligned
            lengths in 1 further slot for each request, 2 with overlapped scheduling;
            "extra_buffer_lazy" takes the second of these only while it is needed.
        mamba_track_interval: a decode step saves the state of a request whose length is a multiple
            of this; whole pages, and 2 tokens at least.
        mamba_cache_chunk_size: the same for prefill; a larger page counts instead.
        state_refresh: which states a hit makes the youngest: "path" those of all nodes on the way,
            as released hybrid trees do, "used" only the one that is read (sglang#31648).
        enable_kv_cache_events: tell after each step which KV blocks the tree stored and removed.
        enable_overlap_schedule: form each batch before the results of the one before it are
            processed, as SGLang does unless told otherwise.
        speculative_algorithm: who guesses tokens ahead, for decode steps to verify ("NGRAM": what
            followed before follows again); None guesses nothing.
        speculative_num_draft_tokens: tokens of one request in a step that verifies guesses: its
            last one and the guesses behind it.
        max_queued_requests: the waiting queue's limit; None has none.  A full queue refuses the
            newest request, or with priority scheduling the least important.
        req_waiting_timeout_s: requests that wait for longer are aborted; None lets them wait.
        enable_priority_scheduling: serve by priority first; larger goes first.
        schedule_low_priority_values_first: smaller goes first.
        default_priority_value: of requests that bring none.
        disable_priority_preemption: priority decides whose turn it is, and takes nothing from those
            who run.
        priority_scheduling_preemption_threshold: running requests whose priority is lower by more
            than this are retracted for a waiting one that does not fit without.
        check_level: which invariants a step checks: none, those of idleness, those of every step.
        check_fatal: raise InvariantError on a violation instead of only counting it.
        check_owners: the allocators refuse to take back what the giver does not hold.  Without it
            they only count such mistakes, as engines do that keep no account of holders.

    Raises:
        ConfigError: one sentence on the first size that cannot be.
    """

    model: str = "qwen3-next-tiny"
    device: str = "cpu"
    dtype: str = "float32"
    seed: int = 0
    max_running_requests: int = 32
    max_context_len: int = 1024
    page_size: int = 1
    kv_tokens: int = 16384
    mamba_slots: int = 256
    chunked_prefill_size: int | None = 512
    max_prefill_tokens: int = 2048
    schedule_policy: SchedulePolicyName = "fcfs"
    cache: CacheKind = "radix"
    cache_branching_states: bool = True
    enable_kv_cache_events: bool = False
    enable_overlap_schedule: bool = False
    speculative_algorithm: SpeculativeAlgorithm | None = None
    speculative_num_draft_tokens: int = 4
    new_token_ratio: NewTokenRatio = NewTokenRatio()
    mamba_scheduler_strategy: MambaSchedulerStrategy = "no_buffer"
    mamba_track_interval: int = 256
    mamba_cache_chunk_size: int = 64
    state_refresh: StateRefresh = "path"
    max_queued_requests: int | None = None
    req_waiting_timeout_s: float | None = None
    enable_priority_scheduling: bool = False
    schedule_low_priority_values_first: bool = False
    default_priority_value: int = 0
    disable_priority_preemption: bool = False
    priority_scheduling_preemption_threshold: int = 10
    check_level: CheckLevel = "idle"
    check_fatal: bool = False
    check_owners: bool = True

    def __post_init__(self) -> None:
        for name, value, least in (
            ("max_running_requests", self.max_running_requests, 1),
            ("max_context_len", self.max_context_len, 2),
            ("page_size", self.page_size, 1),
            ("kv_tokens", self.kv_tokens, 2 * self.page_size + 1),
            ("mamba_slots", self.mamba_slots, 1),
            ("max_prefill_tokens", self.max_prefill_tokens, 1),
            ("speculative_num_draft_tokens", self.speculative_num_draft_tokens, 2),
            ("mamba_track_interval", self.mamba_track_interval, 2),
            ("mamba_cache_chunk_size", self.mamba_cache_chunk_size, 1),
        ):
            if value < least:
                raise ConfigError(f"engine: {name} is {value}; it must be at least {least}.")
        self._check_choices()
        self._check_pages()
        self._check_queue()

    @property
    def max_request_len(self) -> int:
        """Longest prompt plus output, in tokens, that an otherwise empty engine surely serves."""
        return min(self.max_context_len, self.kv_tokens - self.page_size)

    @property
    def tracks_states(self) -> bool:
        """Whether requests have track buffers, if the model has states at all."""
        return self.mamba_scheduler_strategy != "no_buffer" and self.cache == "radix"

    @property
    def track_buffer_size(self) -> int:
        """State slots that a request may hold beside its own."""
        return (2 if self.enable_overlap_schedule else 1) if self.tracks_states else 0

    @property
    def longest_chain(self) -> int:
        """Most tokens of one request in a step that keeps states apart; 0 if no step does."""
        if self.speculative_algorithm is not None:
            return self.speculative_num_draft_tokens
        return int(self.enable_overlap_schedule)

    @property
    def cache_chunk_size(self) -> int:
        """The grid of lengths at which a prefill saves states, in tokens: whole pages."""
        return max(self.mamba_cache_chunk_size, self.page_size)

    def _check_choices(self) -> None:
        for name, value, choices in (
            ("schedule_policy", self.schedule_policy, ("fcfs", "lpm")),
            ("cache", self.cache, ("radix", "chunk")),
            ("check_level", self.check_level, ("off", "idle", "busy")),
            ("state_refresh", self.state_refresh, ("path", "used")),
            ("speculative_algorithm", self.speculative_algorithm, (None, "NGRAM")),
            (
                "mamba_scheduler_strategy",
                self.mamba_scheduler_strategy,
                ("no_buffer", "extra_buffer", "extra_buffer_lazy"),
            ),
        ):
            if value not in choices:
                known = " or ".join(map(str, choices))
                raise ConfigError(f"engine: {name} is {value!r}; it must be {known}.")
        ratio = self.new_token_ratio
        if not 0.0 <= ratio.min <= ratio.init <= 1.0 or ratio.decay_steps < 1:
            raise ConfigError(
                f"engine: new_token_ratio falls from {ratio.init} to {ratio.min} in "
                f"{ratio.decay_steps} steps; it must fall within 0 to 1, in one step or more."
            )

    def _check_pages(self) -> None:
        whole = self.kv_tokens // self.page_size * self.page_size
        if self.kv_tokens != whole:
            raise ConfigError(
                f"engine: kv_tokens is {self.kv_tokens}; it must be a multiple of the page size "
                f"{self.page_size}, such as {whole}."
            )
        chunk = self.chunked_prefill_size
        if chunk is not None and (chunk < 1 or chunk % self.page_size):
            raise ConfigError(
                f"engine: chunked_prefill_size is {chunk}; it must be a positive multiple of the "
                f"page size {self.page_size}, or None."
            )
        for name, value in (
            ("mamba_track_interval", self.mamba_track_interval),
            ("mamba_cache_chunk_size", self.cache_chunk_size),
        ):
            if self.tracks_states and value % self.page_size:
                raise ConfigError(
                    f"engine: {name} is {value}; it must be a multiple of the page size "
                    f"{self.page_size}, because the tree takes states at page borders only."
                )

    def _check_queue(self) -> None:
        limit, timeout_s = self.max_queued_requests, self.req_waiting_timeout_s
        if limit is not None and limit < 1:
            raise ConfigError(
                f"engine: max_queued_requests is {limit}; it must be at least 1, or None."
            )
        if timeout_s is not None and timeout_s <= 0:
            raise ConfigError(
                f"engine: req_waiting_timeout_s is {timeout_s}; it must be more than 0, or None."
            )
        threshold = self.priority_scheduling_preemption_threshold
        if threshold < 0:
            raise ConfigError(
                f"engine: priority_scheduling_preemption_threshold is {threshold}; it must be at "
                "least 0."
            )
