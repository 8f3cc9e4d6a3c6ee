"""The engine's settings, each declared once with its default, bounds and meaning.

Profiles, their JSON Schema, ``--set``, the wire format and the engine all read this declaration;
no other place lists the settings.  The string below a field is its description in the schema.
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

# At least two: a step between two state copies, and a draft token after a request's last token.
_TwoOrMore: TypeAlias = Annotated[int, Strict(), Ge(2)]
_Fault: TypeAlias = tuple[tuple[str, ...], str]


class EngineConfigError(ConfigError):
    """An invalid setting: ``path`` names its field, ``complaint`` is the rest of the sentence."""

    def __init__(self, path: tuple[str, ...], complaint: str) -> None:
        super().__init__(f"engine: {'.'.join(path)} {complaint}.")
        self.path = path
        self.complaint = complaint


@dataclass(frozen=True, kw_only=True)
class NewTokenRatio(ProfileGroup):
    """Share of the running requests' remaining output for which admission keeps room free.

    At 1.0 no admitted request ever has to be retracted; lower values bet that requests stop early.
    The ratio falls by ``(init - min) / decay_steps`` each decode step and is re-estimated after a
    retract.  Source: SGLang's scheduler.
    """

    init: Share = 0.7
    """Initial value of the ratio."""
    min: Share = 0.1
    """Lowest value of the ratio."""
    decay_steps: Count = 600
    """Number of decode steps in which the ratio falls from ``init`` to ``min``."""

    @property
    def decay(self) -> float:
        """Decrease of the ratio per decode step."""
        return (self.init - self.min) / self.decay_steps


@dataclass(frozen=True, kw_only=True)
class HiCacheStorage(ProfileGroup):
    """Storage behind the host tier of attention-only models: what the host pool receives is also
    written to it, and new requests read from it.  Source: SGLang's HiCache storage backends.
    """

    ratio: Annotated[float, Strict(), Ge(0.0)] = 0.0
    """Size of the storage, as a multiple of ``kv_tokens``; 0 disables it."""
    prefetch_policy: PrefetchPolicy = "best_effort"
    """How long a request waits for the stored part of its prompt: "best_effort" until the request
    could be admitted, "wait_complete" until the whole part is loaded, "timeout" at most
    ``prefetch_timeout``."""
    prefetch_timeout_s: Annotated[float, Ge(0.0), DURATION] = 0.1
    """Longest wait with ``prefetch_policy`` "timeout"."""
    prefetch_threshold: Count = 64
    """Prefetches of fewer tokens than this are skipped."""
    page_time_s: Annotated[float, Ge(0.0), DURATION] = 0.0
    """Minimum time to read or write one page."""
    error_rate: Share = 0.0
    """Share of page reads and writes that fail; failures must lose nothing."""


@dataclass(frozen=True, kw_only=True)
class HiCache(ProfileGroup):
    """A host tier: main memory keeps what the device evicts from the cache, for loading back.

    It holds KV, recurrent states and, with ``cache`` "unified", the KV of sliding windows.  Needs
    ``cache`` "radix" or "unified".  Source: SGLang's HiCache.
    """

    ratio: Annotated[float, Strict(), Ge(0.0)] = 0.0
    """Size of the host pools, as a multiple of the device pools; 0 disables the tier."""
    write_policy: HiCacheWritePolicy = "write_through"
    """When cached data is copied to the host: "write_through" when it enters the tree,
    "write_through_selective" when it is used again, "write_back" when the device evicts it."""
    copy_time_s: Annotated[float, Ge(0.0), DURATION] = 0.0
    """Minimum time of one copy; without it, copies of small models within main memory are faster
    than copies over a bus."""


@dataclass(frozen=True, kw_only=True)
class PoolSizes(ProfileGroup):
    """Pool sizes in slots (KV tokens, recurrent states); longest prompt plus output in tokens."""

    kv_tokens: Count = 16384
    """Total KV tokens; a multiple of ``page_size``."""
    page_size: Count = 1
    """KV tokens per page, the unit of allocation and sharing; above 1, a model with recurrent
    layers needs a ``mamba_scheduler_strategy`` with track buffers."""
    swa_full_tokens_ratio: Share = 0.8
    """Size of the window pool (KV of sliding-window layers), as a share of ``kv_tokens``; only for
    caches that discard this KV outside the windows."""
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
    """"fcfs" serves in order of arrival, "lpm" by longest cached prefix."""
    cache: CacheKind = "auto"
    """"radix" shares prefixes in a tree for one kind of model, "unified" in one tree for all kinds;
    "chunk" shares none.  "swa" and "swa_chunk" are "radix" and "chunk" for models with sliding
    windows and keep the KV of sliding layers only within the windows, as "unified" does for such
    models.  "auto" is "swa" for a model with sliding windows and "radix" for others."""
    check_level: CheckLevel = "idle"
    """Invariants to check: none, cheap ones and those of an idle engine, or all in every step."""
    check_owners: Flag = True
    """Allocators refuse to free slots that the caller does not hold; if false they accept, like
    engines that do not track holders, and count such errors in ``truth.json``."""
    eviction_policy: EvictionPolicy = "lru"
    """Which leaf of the prefix cache is evicted first; only the tree of attention-only models and
    the unified tree support policies other than "lru"."""
    state_refresh: StateRefresh = "path"
    """States that a prefix hit marks as most recently used: "path" all on the matched path, as in
    released hybrid trees; "used" only the one it reads (sglang#31648).  The unified tree always
    marks only the state and the window that a hit reads."""
    max_queued_requests: Count | None = None
    """Maximum length of the waiting queue; null sets no limit.  A full queue rejects the newest
    request or, with priority scheduling, the one of lowest priority."""
    req_waiting_timeout_s: Annotated[float, Gt(0), DURATION] | None = None
    """Requests that wait longer than this are aborted; null sets no limit."""
    enable_priority_scheduling: Flag = False
    """Schedule by priority first; larger values come first."""
    schedule_low_priority_values_first: Flag = False
    """Smaller priority values come first."""
    disable_priority_preemption: Flag = False
    """Priority orders the waiting queue but preempts no running request."""
    priority_scheduling_preemption_threshold: CountOrZero = 10
    """A waiting request that does not fit preempts running requests whose priority is lower by
    more than this."""
    mamba_scheduler_strategy: MambaSchedulerStrategy = "no_buffer"
    """Source of the states in the prefix cache.  "no_buffer": the request's own state at the end of
    a step.  "extra_buffer": copies that steps save at aligned lengths, in 1 extra slot per request,
    or 2 with overlapped scheduling.  "extra_buffer_lazy": the same, but the second slot is held
    only while needed."""
    mamba_track_interval: _TwoOrMore = 256
    """Decode saves states at multiples of this length, in tokens; a multiple of ``page_size``."""
    mamba_cache_chunk_size: Count = 64
    """Prefill saves states at multiples of this length, in tokens, or of a larger ``page_size``."""
    enable_kv_cache_events: Flag = False
    """After each step, publish which KV blocks the tree stored and removed."""
    enable_overlap_schedule: Flag = False
    """Form each batch before the previous one's results are processed; the default in SGLang."""
    cuda_graph_max_bs: CountOrZero = 0
    """Largest batch size whose decode steps replay CUDA graphs, recorded for a few batch sizes when
    the engine starts; 0 records none.  Needs a CUDA device."""
    speculative_algorithm: SpeculativeAlgorithm | None = None
    """Method that proposes draft tokens ("NGRAM": from repeated n-grams); null disables
    speculative decoding."""
    speculative_num_draft_tokens: _TwoOrMore = 4
    """Tokens per request in a verify step: the request's last token and the draft tokens."""
    new_token_ratio: NewTokenRatio = NewTokenRatio()
    """Share of the running requests' remaining output for which admission keeps room free."""
    hicache: HiCache = HiCache()
    """The host tier."""
    hicache_storage: HiCacheStorage = HiCacheStorage()
    """The storage behind the host tier."""


@dataclass(frozen=True, kw_only=True)
class EngineConfig(EngineSettings, PoolSizes):
    """Configuration of one engine: a profile's ``engine`` and ``pools``, and the caller's choices.

    Raises:
        EngineConfigError: one sentence about the first invalid value.
    """

    model: str = "qwen3-next-tiny"
    """A preset name, or the path of a Hugging Face checkpoint directory."""
    device: str = "cpu"
    dtype: str = "float32"
    """Data type of weights, KV and activations: "float32", "float64", "bfloat16"."""
    seed: int = 0
    """Seed for random weights, and for the storage's injected errors.  How a request is sampled
    depends on its own seed alone."""
    cache_branching_states: bool = True
    """End a chunk where a prompt diverges from an earlier one, so that the tree has a state there
    that later prompts can hit."""
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
        """Whether KV of sliding layers is kept only within their windows, in its own pool.

        Args:
            sliding: whether the model has such layers.
        """
        return self.cache in {"swa", "swa_chunk"} or (sliding and self.cache in {"auto", "unified"})

    @property
    def swa_tokens(self) -> int:
        """KV tokens in the pool for sliding layers: whole pages, at least one."""
        pages = int(self.kv_tokens * self.swa_full_tokens_ratio) // self.page_size
        return max(1, pages) * self.page_size

    def least_swa_tokens(self, sliding_window: int) -> int:
        """KV tokens that one request needs at its peak in the pool for sliding layers."""
        chunk = self.chunked_prefill_size or self.max_request_len
        step = max(1, self.longest_chain)
        # In a prefill: a chunk, and the window before it, which the tree locks in whole nodes.
        prefill = 2 * chunk + sliding_window + step
        # When decoding: its own window, and the prompt's last one until decoding has passed that.
        # A node is a chunk, or the window at the end of an answer.
        node = max(chunk, sliding_window + 2 * (self.page_size + step))
        decode = 2 * sliding_window + node + step
        # And two partial pages.
        return min(max(prefill, decode), self.max_request_len) + 2 * self.page_size

    @property
    def track_buffer_size(self) -> int:
        """State slots that a request may hold in addition to its own."""
        return (2 if self.enable_overlap_schedule else 1) if self.tracks_states else 0

    @property
    def least_mamba_slots(self) -> int:
        """State slots of a request with a prefix hit: its own, its buffer, and the one it hit."""
        return 2 + self.track_buffer_size

    @property
    def longest_chain(self) -> int:
        """Maximum tokens per request in a step with draft buffers for states; 0 if none has."""
        if self.speculative_algorithm is not None:
            return self.speculative_num_draft_tokens
        return int(self.enable_overlap_schedule)

    @property
    def cache_chunk_size(self) -> int:
        """Prefill saves states at multiples of this length, in tokens; it is at least a page."""
        return max(self.mamba_cache_chunk_size, self.page_size)

    def _conflicts(self) -> Iterator[_Fault]:
        """Yield settings that contradict each other."""
        page = self.page_size
        if self.kv_tokens <= 2 * page:
            yield ("kv_tokens",), f"is {self.kv_tokens}; it must be at least {2 * page + 1}"
        in_pages = [("kv_tokens", self.kv_tokens)]
        if self.chunked_prefill_size is not None:
            in_pages.append(("chunked_prefill_size", self.chunked_prefill_size))
        if self.tracks_states:
            # The tree takes states only at page boundaries.
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
    """Yield the fields whose values violate their declared types."""
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
    """Return the requirement of ``hint`` that ``value`` violates; empty for none."""
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
