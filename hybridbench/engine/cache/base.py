"""The scheduler's interface to any prefix cache, and its parameter and result records."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol

import numpy as np
import torch

from hybridbench.engine.cache.kv_events import KvEvent, KvEventRecorder
from hybridbench.engine.cache.radix_key import RadixKey
from hybridbench.engine.cache.tree_node import NO_TOKENS, TreeNode
from hybridbench.engine.lineage import Writers
from hybridbench.engine.memory.indices import IntArray, SlotInput
from hybridbench.engine.memory.owners import REQ, Owner
from hybridbench.engine.memory.req_to_token import ReqToTokenPool, RowHolder, RowRecord


class KVAllocator(Protocol):
    """The allocator interface that a cache needs.

    Attributes:
        device: the device of index tensors passed to it.
    """

    device: torch.device

    def available_size(self) -> int: ...

    def free(self, idx: SlotInput, owner: Owner = ...) -> None: ...

    def transfer(self, idx: SlotInput, giver: Owner, taker: Owner) -> None: ...


class KvRecord(RowRecord, Protocol):
    """The fields of a request's record that a cache uses, besides its row.

    Attributes:
        mamba_pool_idx: the request's own state slot.  ``match_prefix`` with ``cow_mamba`` may
            allocate it; ``cache_finished_req`` gives it to the tree or frees it, and sets None.
        last_node: node whose lock the request holds.  ``cache_unfinished_req`` moves the lock and
            sets it; ``cache_finished_req`` releases the lock and sets None.
        prefix_indices: KV indices of the prefix that is in the tree (or already computed).
        lock_receipt: the receipt that releases that lock; None without a lock.
        cache_protected_len: positions held by that lock, not by the request.
        swa_evicted_seqlen: positions before this are outside the windows of all sliding layers; the
            request's own positions among them have KV only in the full pool.
        kv_committed_len: positions whose KV is final.
        kv_allocated_len: positions that have a KV index.
    """

    last_node: TreeNode | None
    lock_receipt: DecLockRefParams | None
    prefix_indices: IntArray
    cache_protected_len: int
    swa_evicted_seqlen: int
    kv_committed_len: int
    kv_allocated_len: int


class CacheableReq(RowHolder, Protocol):
    """The part of a request that a cache uses.

    Attributes:
        kv: what it holds.
        extra_key: namespace of its prefixes; None is the common one.
        writers: this request, and those that it builds on; ``goes_on_from`` adds more.
    """

    @property
    def kv(self) -> KvRecord: ...

    @property
    def origin_input_ids(self) -> Sequence[int]: ...

    @property
    def output_ids(self) -> Sequence[int]: ...

    @property
    def fill_ids(self) -> Sequence[int]: ...

    @property
    def extra_key(self) -> str | None: ...

    @property
    def writers(self) -> Writers: ...

    def goes_on_from(self, writers: Writers) -> None: ...


@dataclass(frozen=True)
class CacheInitParams:
    """The parameters of a cache.

    ``state_refresh`` selects the states that a hit makes the youngest: "path" those of all nodes on
    the matched path, "used" only the one that is read.
    ``enable_mamba_extra_buffer`` makes a hybrid tree take states from the track buffers of
    requests; the rows must have such buffers.
    ``mamba_cache_chunk_size`` is the spacing of the lengths at which a prefill can save a state.
    ``sliding_window_size`` is the number of tokens that a sliding layer's query reads, including
    its own.
    """

    req_to_token_pool: ReqToTokenPool
    token_to_kv_pool_allocator: KVAllocator
    page_size: int
    disable: bool = False
    eviction_policy: str = "lru"
    state_refresh: Literal["path", "used"] = "path"
    enable_kv_cache_events: bool = False
    enable_mamba_extra_buffer: bool = False
    mamba_cache_chunk_size: int = 64
    sliding_window_size: int = 0


@dataclass(slots=True)
class MatchPrefixParams:
    """Look up ``key``; with ``cow_mamba``, copy the state of a hit into a slot of ``req``."""

    key: RadixKey
    cow_mamba: bool = False
    req: CacheableReq | None = None


class MatchResult(NamedTuple):
    """The longest reusable prefix.

    Attributes:
        device_indices: its KV indices, int64, a copy owned by the caller; the positions
            themselves stay the tree's, and are safe to read only while the node is locked.
        last_device_node: deepest node of the prefix; the root if nothing was found.
        last_host_node: the same without a host tier; with one, the deepest node whose KV, and in a
            hybrid tree its state, is on the device or on the host.
        mamba_branching_seqlen: the aligned length at which a saved state would have extended the
            hit, if a longer prefix exists without a state; else None.
        cache_protected_len: length of ``device_indices``.
        host_hit_length: tokens after these, up to the end of ``last_host_node``, which must be
            loaded first.
    """

    device_indices: IntArray
    last_device_node: TreeNode
    last_host_node: TreeNode
    mamba_branching_seqlen: int | None = None
    cache_protected_len: int = 0
    host_hit_length: int = 0

    @property
    def prefix_len(self) -> int:
        """Tokens that are reusable now."""
        return len(self.device_indices)


@dataclass(slots=True)
class InsertParams:
    """Insert ``value`` under ``key``; REQ owns it from ``prev_prefix_len`` on.

    Attributes:
        key: tokens; those after the last whole page are not kept, and stay the caller's.
        value: KV index of each token; None uses the token ids (only without an allocator).
        mamba_value: state slot after the last token, alone or as the only entry of a list, array
            or tensor; a hybrid tree needs one.
        prev_prefix_len: leading positions that the tree already owns; not freed as duplicates.
        swa_evicted_seqlen: positions before this have no part in the window pool.
        chunked: the request is between two chunks of its prefill.
        priority: for the eviction policy of that name.
        mamba_owner: the owner of the state slot: REQ, or TRACK for one of a track buffer.
        writers: the requests that computed it.
    """

    key: RadixKey
    value: SlotInput | None = None
    mamba_value: SlotInput | None = None
    prev_prefix_len: int = 0
    swa_evicted_seqlen: int = 0
    chunked: bool = False
    priority: int = 0
    mamba_owner: Owner = REQ
    writers: Writers = ()


class InsertResult(NamedTuple):
    """The outcome of an insert.

    Attributes:
        prefix_len: tokens that were in the tree before.
        total_len: tokens of the key that are in the tree now.
        mamba_exist: whether the caller's state slot was not taken and stays the caller's.
    """

    prefix_len: int
    total_len: int = 0
    mamba_exist: bool = False


@dataclass(slots=True)
class EvictParams:
    """Free at least this many KV tokens, state slots, and tokens of the window pool."""

    num_tokens: int = 0
    mamba_num: int = 0
    swa_num_tokens: int = 0


class EvictResult(NamedTuple):
    """The amounts freed.

    Less than requested if the rest is locked; possibly more, since nodes are evicted whole.
    """

    num_tokens_evicted: int = 0
    mamba_num_evicted: int = 0
    swa_num_tokens_evicted: int = 0


class DecLockRefParams(NamedTuple):
    """The receipt of a lock.

    Attributes:
        mamba_locked: whether the node had a state to lock.
        swa_locked_len: tokens up to the node's end whose window part is locked; splitting nodes
            does not change which tokens these are.
    """

    mamba_locked: bool = False
    swa_locked_len: int = 0


class IncLockRefResult(NamedTuple):
    """What a lock changed.

    Attributes:
        delta: KV tokens that can no longer be evicted, as a negative number.
        mamba_locked, swa_locked_len: as in the receipt.
    """

    delta: int
    mamba_locked: bool = False
    swa_locked_len: int = 0

    def to_dec_params(self) -> DecLockRefParams:
        """The receipt with which ``dec_lock_ref`` undoes exactly this lock."""
        return DecLockRefParams(self.mamba_locked, self.swa_locked_len)


class DecLockRefResult(NamedTuple):
    """What an unlock changed.

    Attributes:
        delta: KV tokens that became evictable, including those evicted at once.
    """

    delta: int


@dataclass(slots=True)
class CacheEvents:
    """Event counts since the cache was built; ``reset`` keeps them."""

    prefix_hits: int = 0
    prefix_hit_tokens: int = 0
    blocks_stored: int = 0
    cow_copies: int = 0
    node_splits: int = 0
    tombstones: int = 0
    evict_internal_state: int = 0
    evict_leaf: int = 0
    evict_cascade: int = 0
    swa_tombstones: int = 0
    nodes_created: int = 0
    nodes_removed: int = 0
    evict_calls: int = 0
    lock_calls: int = 0
    unlock_calls: int = 0
    track_donations: int = 0
    host_backups: int = 0
    host_stays: int = 0
    host_load_backs: int = 0
    host_load_back_tokens: int = 0
    host_evictions: int = 0
    host_evictions_refused: int = 0
    host_writes_refused: int = 0
    host_loads_refused: int = 0
    storage_prefetches: int = 0
    storage_prefetched_tokens: int = 0
    storage_early_stops: int = 0
    storage_backups: int = 0

    def as_dict(self) -> dict[str, int]:
        """All counters by name."""
        return asdict(self)


class TreeSlots(NamedTuple):
    """What the tree holds according to its nodes, found by walking them.

    ``swa_indices`` are locations in the window pool, ``host_indices`` in the host's KV pool;
    ``host_slots`` are the slots in its other pools, by name.
    """

    kv_indices: IntArray
    mamba_slots: list[int]
    swa_indices: IntArray
    host_indices: IntArray = NO_TOKENS
    host_slots: Mapping[str, list[int]] = MappingProxyType({})


@dataclass
class CacheSanityError(RuntimeError):
    """The cache is inconsistent; ``node_ids`` are the nodes concerned, as far as known."""

    message: str
    node_ids: list[int] = field(default_factory=list)

    def __str__(self) -> str:
        nodes = f" (nodes {self.node_ids})" if self.node_ids else ""
        return f"{self.message}{nodes}"


class BasePrefixCache(ABC):
    """The interface of prefix caches; the size of anything that a cache lacks is 0.

    Attributes:
        root_node: where every walk begins; locking it does nothing.
    """

    req_to_token_pool: ReqToTokenPool
    token_to_kv_pool_allocator: KVAllocator
    root_node: TreeNode
    page_size: int
    disable: bool
    device: torch.device
    events: CacheEvents
    kv_events: KvEventRecorder

    @abstractmethod
    def reset(self) -> None:
        """Forget everything.  The caller must clear the allocators as well."""

    @abstractmethod
    def match_prefix(self, params: MatchPrefixParams) -> MatchResult:
        """Return the longest reusable prefix of a key, without locking it.

        With ``cow_mamba`` a hit allocates a state slot (owner REQ) for a request without one and
        copies the state into it; if no slot can be allocated, nothing is reused.
        """

    @abstractmethod
    def cache_finished_req(self, req: CacheableReq, is_insert: bool = True) -> None:
        """Take over or free a request's KV and state, and release its lock.

        Afterwards everything in [cache_protected_len, kv_allocated_len) of its row is the tree's
        or free, and the request has no state slot.  The caller frees the row itself.
        """

    @abstractmethod
    def cache_unfinished_req(self, req: CacheableReq, chunked: bool = False) -> None:
        """Share what a request has computed so far, between two chunks of its prefill."""

    @abstractmethod
    def evict(self, params: EvictParams) -> EvictResult:
        """Free unlocked entries, oldest first."""

    @abstractmethod
    def inc_lock_ref(self, node: TreeNode) -> IncLockRefResult:
        """Forbid the eviction of a node and of the path to it."""

    @abstractmethod
    def dec_lock_ref(
        self, node: TreeNode, params: DecLockRefParams | None = None
    ) -> DecLockRefResult:
        """Undo one ``inc_lock_ref`` of the same node, given its receipt.

        Without a receipt, release a lock on the node's state if there is one.  A tree with windows
        requires the receipt.
        """

    def dec_swa_lock_only(self, node: TreeNode, receipt: DecLockRefParams) -> DecLockRefParams:
        """Release only the window part of a lock, which its holder no longer reads.

        Returns:
            The receipt of what is still locked.
        """
        del node
        return receipt

    @abstractmethod
    def tree_slots(self) -> TreeSlots:
        """Every KV index and state slot that the nodes hold, found by walking them."""

    @abstractmethod
    def iter_nodes(self) -> Iterator[TreeNode]:
        """Every node but the root, parents before children."""

    @abstractmethod
    def sanity_check(self) -> None:
        """Walk everything and raise CacheSanityError at the first inconsistency."""

    def insert(self, params: InsertParams) -> InsertResult:
        """Insert a prefix; the cache owns what it keeps and frees what it already had."""
        raise NotImplementedError(f"{type(self).__name__} does not keep prefixes")

    def take_events(self) -> list[KvEvent]:
        """What the tree stored and removed since the last call; empty unless enabled."""
        return self.kv_events.take()

    def node_count(self) -> int:
        """Nodes in the tree, without the root."""
        return sum(1 for _ in self.iter_nodes())

    def live_node_count(self) -> int:
        """TreeNode objects that this cache may keep alive, including root and list sentinels."""
        return 0

    def evictable_size(self) -> int:
        """KV tokens that ``evict`` could free."""
        return 0

    def protected_size(self) -> int:
        """KV tokens under a lock."""
        return 0

    def mamba_evictable_size(self) -> int:
        """State slots that ``evict`` could free."""
        return 0

    def mamba_protected_size(self) -> int:
        """State slots under a lock."""
        return 0

    def swa_evictable_size(self) -> int:
        """Tokens of the window pool that ``evict`` could free."""
        return 0

    def swa_protected_size(self) -> int:
        """Tokens of the window pool under a lock."""
        return 0

    def session_held_tokens(self, active_pool_idxs: set[int] | None = None) -> int:
        """KV tokens that sessions hold between turns; 0 without sessions."""
        del active_pool_idxs
        return 0

    def session_held_swa_tokens(self, active_pool_idxs: set[int] | None = None) -> int:
        """Tokens of the window pool that sessions hold between turns; 0 without sessions."""
        del active_pool_idxs
        return 0

    def session_held_mamba_slots(self, active_pool_idxs: set[int] | None = None) -> int:
        """State slots that sessions hold between turns; 0 without sessions."""
        del active_pool_idxs
        return 0

    def session_held_req_count(self, active_pool_idxs: set[int] | None = None) -> int:
        """Request rows that sessions hold between turns; 0 without sessions."""
        del active_pool_idxs
        return 0

    def supports_mamba(self) -> bool:
        """Whether recurrent states are kept as well."""
        return False

    def supports_swa(self) -> bool:
        """Whether KV of sliding layers is kept only within their windows."""
        return False


def no_indices() -> IntArray:
    """A new empty index array."""
    return np.empty(0, dtype=np.int64)
