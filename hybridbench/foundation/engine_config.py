"""The settings of an engine, each declared once with its default, bounds and meaning.

The groups of a profile, its JSON Schema, ``--set``, the wire and the engine read this declaration;
the settings are listed nowhere else.  The string below a field is its description in the schema.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass
from functools import cache
from itertools import chain
from types import NoneType
from typing import Annotated, ClassVar, Literal, TypeAlias, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le

from hybridbench.foundation.errors import ConfigError
from hybridbench.foundation.setting_types import (
    DURATION,
    Count,
    CountOrZero,
    Flag,
    ProfileGroup,
    Share,
    Strict,
    WithOff,
)

SchedulePolicyName: TypeAlias = Literal["fcfs", "lpm"]
CacheKind: TypeAlias = Literal["auto", "radix", "unified", "chunk", "swa", "swa_chunk"]
CheckLevel: TypeAlias = Annotated[Literal["off", "idle", "busy"], WithOff()]
SpeculativeAlgorithm: TypeAlias = Literal["NGRAM"]
EvictionPolicy: TypeAlias = Literal["lru", "lfu", "fifo", "mru", "filo", "slru"]
StateRefresh: TypeAlias = Literal["path", "used"]
PauseMode: TypeAlias = Literal["abort", "retract", "in_place"]
HiCacheWritePolicy: TypeAlias = Literal["write_through", "write_through_selective", "write_back"]
PrefetchPolicy: TypeAlias = Literal["best_effort", "wait_complete", "timeout"]
MambaSchedulerStrategy: TypeAlias = Literal["no_buffer", "extra_buffer", "extra_buffer_lazy"]

# At least 2: a step between two saved states, and a draft token after a request's last token.
_TwoOrMore: TypeAlias = Annotated[int, Strict(), Ge(2)]
_Fault: TypeAlias = tuple[tuple[str, ...], str]


class EngineConfigError(ConfigError):
    """An invalid setting: ``path`` of its field, and the rest of the sentence after the path."""

    def __init__(self, path: tuple[str, ...], complaint: str) -> None:
        super().__init__(f"engine: {'.'.join(path)} {complaint}.")
        self.path = path
        self.complaint = complaint


@dataclass(frozen=True, kw_only=True)
class NewTokenRatio(ProfileGroup):
    """How much of the running requests' remaining output the admission keeps free.

    1.0 admits only what can never be retracted; lower values bet that requests stop early.  The
    ratio falls by ``(init - min) / decay_steps`` each decode step, and is estimated anew after a
    retract.  Source: SGLang's scheduler.
    """

    init: Share = 0.7
    """Initial value of the ratio."""
    min: Share = 0.1
    """Lowest value of the ratio."""
    decay_steps: Count = 600
    """Decode steps in which it falls from ``init`` to ``min``."""

    @property
    def decay(self) -> float:
        """Decrease of the ratio per decode step."""
        return (self.init - self.min) / self.decay_steps


@dataclass(frozen=True, kw_only=True)
class HiCacheStorage(ProfileGroup):
    """Storage behind the host tier of attention-only models: written as the host pool is, and read
    for new requests.  Source: SGLang's HiCache storage backends.
    """

    ratio: Annotated[float, Strict(), Ge(0.0)] = 0.0
    """Size of the storage, as a multiple of ``kv_tokens``; 0 has none."""
    prefetch_policy: PrefetchPolicy = "best_effort"
    """How long a request waits for what the storage has of its prompt: "best_effort" until it could
    be admitted, "wait_complete" until all of it is there, "timeout" for ``prefetch_timeout`` at
    most."""
    prefetch_timeout_s: Annotated[float, Ge(0.0), DURATION] = 0.1
    """With prefetch_policy "timeout"."""
    prefetch_threshold: Count = 64
    """Fewest tokens that are read from the storage for a request."""
    page_time_s: Annotated[float, Ge(0.0), DURATION] = 0.0
    """The least time that reading or writing one page takes."""
    error_rate: Share = 0.0
    """Share of reads and writes of pages that fail, which must lose nothing."""


@dataclass(frozen=True, kw_only=True)
class HiCache(ProfileGroup):
    """A host tier: what the device evicts of the cache stays in main memory, and is loaded back.

    KV, recurrent states and, with ``cache`` unified, sliding windows; that and radix have one.
    Source: SGLang's HiCache.
    """

    ratio: Annotated[float, Strict(), Ge(0.0)] = 0.0
    """Size of the host pools, as a multiple of those on the device; 0 has none."""
    write_policy: HiCacheWritePolicy = "write_through"
    """When a part of the cache is copied to the host: "write_through" when it enters the tree,
    "write_through_selective" when it is used again, "write_back" when the device evicts it."""
    copy_time_s: Annotated[float, Ge(0.0), DURATION] = 0.0
    """The least time that one copy takes: copies of small models within main memory are faster
    than those over a bus."""


@dataclass(frozen=True, kw_only=True)
class PoolSizes(ProfileGroup):
    """Sizes in slots: KV tokens, recurrent states; the longest prompt plus output in tokens."""

    kv_tokens: Count = 16384
    """Total KV tokens; a multiple of ``page_size``."""
    page_size: Count = 1
    """KV tokens per page, the unit of allocation and sharing; above 1, a model with recurrent
    layers needs a ``mamba_scheduler_strategy`` with track buffers."""
    swa_full_tokens_ratio: Share = 0.8
    """Size of the window pool (KV of sliding-window layers), as a share of ``kv_tokens``; only for
    caches that keep this KV within the windows."""
    mamba_slots: Count = 160
    """Slots for recurrent states; ignored for a model without recurrent layers."""
    max_context_len: _TwoOrMore = 2048
    """Longest prompt plus output, in tokens."""


@dataclass(frozen=True, kw_only=True)
class EngineSettings(ProfileGroup):
    """How the bundled engine schedules, caches and checks itself."""

    max_running_requests: Count = 32
    """Maximum number of running requests; also the number of request rows."""
    chunked_prefill_size: Count | None = 256
    """Prefill tokens per step, a multiple of ``page_size``; null computes whole prompts at once."""
    max_prefill_tokens: Count = 2048
    """Maximum total of prompt tokens in one prefill step; the first prompt may exceed it."""
    schedule_policy: SchedulePolicyName = "fcfs"
    """"fcfs" serves in order of arrival, "lpm" the longest cached prefix first."""
    cache: CacheKind = "auto"
    """"radix" shares prefixes in a tree for the kind of model, "unified" in one tree for all kinds;
    "chunk" shares none.  "swa" and "swa_chunk" are "radix" and "chunk" for a model with sliding
    windows, and keep KV of its sliding layers only within the windows, as "unified" does for such
    a model.  "auto" is "swa" for such a model and "radix" for others."""
    check_level: CheckLevel = "idle"
    """Invariants to check: none, those of an idle engine, or those of every step."""
    check_owners: Flag = True
    """Allocators refuse a free by anyone but the holder; if false they only count such errors (in
    ``truth.json``), like engines that do not track holders."""
    eviction_policy: EvictionPolicy = "lru"
    """Which leaf of the prefix cache is evicted first; other than "lru" only in the tree of
    attention-only models and in the unified tree."""
    state_refresh: StateRefresh = "path"
    """States that a prefix hit marks as most recently used: "path" those of all matched nodes, as
    released hybrid trees do; "used" only the one that is read (sglang#31648).  The unified tree
    always marks what is read, of states and of windows."""
    max_queued_requests: Count | None = None
    """Maximum length of the waiting queue; null sets no limit.  A full queue rejects the newest
    request or, with priority scheduling, the one of lowest priority."""
    req_waiting_timeout_s: Annotated[float, Gt(0), DURATION] | None = None
    """Waiting requests are aborted after this time; null sets no limit."""
    enable_priority_scheduling: Flag = False
    """Schedule by priority first; the larger value goes first."""
    schedule_low_priority_values_first: Flag = False
    """The smaller priority value goes first."""
    disable_priority_preemption: Flag = False
    """Priority orders the waiting queue but preempts no running request."""
    priority_scheduling_preemption_threshold: CountOrZero = 10
    """A waiting request that does not fit preempts running requests whose priority is lower by
    more than this."""
    mamba_scheduler_strategy: MambaSchedulerStrategy = "no_buffer"
    """Source of the states in the prefix cache.  "no_buffer": the request's own state where a step
    ends.  "extra_buffer": copies that steps save at aligned lengths, in 1 further slot per request,
    2 with overlapped scheduling.  "extra_buffer_lazy": the same, but the second slot is held only
    while it is needed."""
    mamba_track_interval: _TwoOrMore = 256
    """Decode steps save states at multiples of this length, in tokens; whole pages."""
    mamba_cache_chunk_size: Count = 64
    """The same for prefill; a larger page size takes precedence."""
    enable_kv_cache_events: Flag = False
    """After each step, publish which KV blocks the tree stored and removed."""
    enable_overlap_schedule: Flag = False
    """Form each batch before the results of the previous one are processed; SGLang's default."""
    cuda_graph_max_bs: CountOrZero = 0
    """Largest batch whose decode steps replay CUDA graphs, which are recorded for a few batch sizes
    when the engine starts; 0 records none.  Needs a CUDA device."""
    speculative_algorithm: SpeculativeAlgorithm | None = None
    """Method that proposes draft tokens ("NGRAM": from repeated n-grams); null disables
    speculative decoding."""
    speculative_num_draft_tokens: _TwoOrMore = 4
    """Tokens per request in a verify step: its last token and the draft tokens."""
    new_token_ratio: NewTokenRatio = NewTokenRatio()
    """The share of the running requests' remaining output that admission keeps free."""
    hicache: HiCache = HiCache()
    """The host tier."""
    hicache_storage: HiCacheStorage = HiCacheStorage()
    """The storage behind the host tier."""


@dataclass(frozen=True, kw_only=True)
class EngineConfig(EngineSettings, PoolSizes):
    """One engine's configuration: two groups of a profile, and the caller's choices.

    Raises:
        EngineConfigError: one sentence on the first invalid value.
    """

    model: str = "qwen3-next-tiny"
    """A preset name, or the path of a Hugging Face checkpoint directory."""
    device: str = "cpu"
    dtype: str = "float32"
    """Data type of weights, KV and activations: "float32", "float64", "bfloat16"."""
    seed: int = 0
    """Seed of random weights, and for sampling requests without their own seed."""
    cache_branching_states: bool = True
    """End a chunk where a prompt diverges from one computed before, so that the tree has a state
    there for later prompts."""
    default_priority_value: int = 0
    """Priority of requests without one."""
    check_fatal: bool = False
    """Raise InvariantError on a violation instead of only counting it."""

    def __post_init__(self) -> None:
        for path, complaint in chain(_values_out_of_bounds(self), self._conflicts()):
            raise EngineConfigError(path, complaint)

    @property
    def max_request_len(self) -> int:
        """Longest prompt plus output, in tokens, that an otherwise empty engine always serves."""
        return min(self.max_context_len, self.kv_tokens - self.page_size)

    @property
    def tracks_states(self) -> bool:
        """Whether requests have track buffers, provided that the model has states."""
        return self.mamba_scheduler_strategy != "no_buffer" and self.cache != "chunk"

    def keeps_windows_only(self, *, sliding: bool) -> bool:
        """Whether KV of sliding layers is kept only within their windows, in a separate pool.

        Args:
            sliding: whether the model has such layers.
        """
        return self.cache in {"swa", "swa_chunk"} or (sliding and self.cache in {"auto", "unified"})

    @property
    def swa_tokens(self) -> int:
        """KV tokens of the pool for sliding layers: whole pages, at least one."""
        pages = int(self.kv_tokens * self.swa_full_tokens_ratio) // self.page_size
        return max(1, pages) * self.page_size

    def least_swa_tokens(self, sliding_window: int) -> int:
        """KV tokens that one request needs at its peak in the pool for sliding layers."""
        # A chunk, the window before it, which the tree locks in whole nodes, and two partial pages.
        chunk = self.chunked_prefill_size or self.max_request_len
        peak = 2 * chunk + sliding_window + max(1, self.longest_chain)
        return min(peak, self.max_request_len) + 2 * self.page_size

    @property
    def track_buffer_size(self) -> int:
        """State slots that a request may hold in addition to its own."""
        return (2 if self.enable_overlap_schedule else 1) if self.tracks_states else 0

    @property
    def least_mamba_slots(self) -> int:
        """State slots for one request with a prefix hit: its own, its buffer, and the tree's."""
        return 2 + self.track_buffer_size

    @property
    def longest_chain(self) -> int:
        """Maximum tokens per request in a step that uses draft buffers; 0 if no step does."""
        if self.speculative_algorithm is not None:
            return self.speculative_num_draft_tokens
        return int(self.enable_overlap_schedule)

    @property
    def cache_chunk_size(self) -> int:
        """The grid of lengths at which a prefill saves states, in tokens: whole pages."""
        return max(self.mamba_cache_chunk_size, self.page_size)

    def _conflicts(self) -> Iterator[_Fault]:
        """Combinations of settings that contradict each other."""
        page = self.page_size
        if self.kv_tokens <= 2 * page:
            yield ("kv_tokens",), f"is {self.kv_tokens}; it must be at least {2 * page + 1}"
        in_pages = [("kv_tokens", self.kv_tokens)]
        if self.chunked_prefill_size is not None:
            in_pages.append(("chunked_prefill_size", self.chunked_prefill_size))
        if self.tracks_states:
            # The tree takes states at page borders only.
            in_pages.append(("mamba_track_interval", self.mamba_track_interval))
            in_pages.append(("mamba_cache_chunk_size", self.cache_chunk_size))
        for name, tokens in in_pages:
            if tokens % page:
                near = max(page, tokens - tokens % page)
                yield (name,), f"{tokens} is not a multiple of page_size {page}; {near} is"
        if self.hicache_storage.ratio and not self.hicache.ratio:
            yield (
                ("hicache_storage", "ratio"),
                f"{self.hicache_storage.ratio} needs a host tier; set hicache.ratio as well",
            )
        ratio = self.new_token_ratio
        if ratio.min > ratio.init:
            yield (
                ("new_token_ratio", "min"),
                f"{ratio.min} is above init {ratio.init}; it is what the ratio falls to",
            )


def _values_out_of_bounds(record: object, path: tuple[str, ...] = ()) -> Iterator[_Fault]:
    """The fields of a record whose value violates the field's type."""
    kind: type = type(record)
    for name, hint in _hints(kind).items():
        value: object = getattr(record, name)
        where = (*path, name)
        if is_dataclass(value):
            yield from _values_out_of_bounds(value, where)
            continue
        options = get_args(hint)
        if value is None and NoneType in options:
            continue
        wanted = _unmet(hint, value)
        if wanted:
            or_none = ", or None" if NoneType in options else ""
            yield where, f"is {value!r}; it must be {wanted}{or_none}"


@cache
def _hints(record: type) -> dict[str, object]:
    """The type of each field, including bounds."""
    hints = get_type_hints(record, include_extras=True)
    return {name: hint for name, hint in hints.items() if get_origin(hint) is not ClassVar}


def _unmet(hint: object, value: object) -> str:
    """What a value of the type ``hint`` must be; empty if ``value`` is valid."""
    if isinstance(hint, type) or hint is NoneType:
        return ""
    parts = get_args(hint)
    if all(isinstance(part, str) for part in parts):
        return "" if value in parts else " or ".join(parts)
    unmet = (_unmet_bound(part, value) or _unmet(part, value) for part in parts)
    return next(filter(None, unmet), "")


def _unmet_bound(bound: object, value: object) -> str:
    if not isinstance(value, int | float):
        return ""
    match bound:
        case Ge(ge=least) if value < least:  # type: ignore[operator]  # bounds here are numbers
            return f"at least {least}"
        case Gt(gt=limit) if value <= limit:  # type: ignore[operator]
            return f"more than {limit}"
        case Le(le=most) if value > most:  # type: ignore[operator]
            return f"at most {most}"
    return ""
