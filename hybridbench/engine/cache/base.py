"""What a scheduler may ask of any prefix cache, and the records that go back and forth."""

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
    """What a cache needs of an allocator of KV positions.

    Attributes:
        device: where index tensors that are given to it live.
    """

    device: torch.device

    def available_size(self) -> int: ...

    def free(self, idx: SlotInput, owner: Owner = ...) -> None: ...

    def transfer(self, idx: SlotInput, giver: Owner, taker: Owner) -> None: ...


class KvRecord(RowRecord, Protocol):
    """What a cache reads and writes in the record of a request, beside its row.

    Attributes:
        mamba_pool_idx: the request's own state slot.  ``match_prefix`` with ``cow_mamba`` may take
            one; ``cache_finished_req`` gives it to the tree or back, and leaves None.
        last_node: node whose lock the request holds.  ``cache_unfinished_req`` moves the lock and
            sets it; ``cache_finished_req`` gives the lock back and sets None.
        prefix_indices: KV indices of the prefix that is in the tree (or already computed).
        lock_receipt: what gives that lock back; None without one.
        cache_protected_len: positions held by that lock, not by the request.
        swa_evicted_seqlen: positions before this have left the window of all sliding layers; of
            the request's own among them only the full pool has KV.
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
    """A request as a cache sees it; the rest of the request is not its business.

    Attributes:
        kv: what it holds.
        extra_key: namespace of its prefixes; None is the common one.
        writers: itself, and whom it went on from; ``goes_on_from`` tells it of more.
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
    """What a cache is built from.

    ``state_refresh`` says which states a hit makes the youngest, where a tree has states alone:
    "path" those of all nodes on the way, "used" only the one that is read.
    ``enable_mamba_extra_buffer`` has a hybrid tree take states from the track buffers of requests;
    the rows must have such buffers.
    ``mamba_cache_chunk_size`` is the grid of lengths at which a prefill can save a state.
    ``sliding_window_size`` is how many tokens a query of a sliding layer sees, its own included.
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
    """Look up ``key``; with ``cow_mamba``, copy a state that was hit into a slot of ``req``."""

    key: RadixKey
    cow_mamba: bool = False
    req: CacheableReq | None = None


class MatchResult(NamedTuple):
    """The longest reusable prefix.

    Attributes:
        device_indices: its KV indices, int64, a copy that belongs to the caller; the positions
            themselves stay the tree's, and are safe to read only while the node is locked.
        last_device_node: deepest node of the prefix; the root if nothing was found.
        last_host_node: the same without a host tier; with one, the deepest node whose KV, and in a
            hybrid tree its state, is on the device or on the host.
        mamba_branching_seqlen: a longer prefix is there but has no state: the aligned length at
            which a state would have made it a hit; else None.
        cache_protected_len: length of ``device_indices``.
        host_hit_length: tokens behind them, down to ``last_host_node``, that must be loaded first.
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
    """Put ``value`` under ``key``; held by REQ from ``prev_prefix_len`` on.

    Attributes:
        key: tokens; those after the last whole page are not kept, and stay the caller's.
        value: KV index of each token; None uses the token ids (only without an allocator).
        mamba_value: state slot after the last token, alone or as the one entry of a list, array
            or tensor; a hybrid tree needs one.
        prev_prefix_len: positions that were the tree's before and are not freed as duplicates.
        swa_evicted_seqlen: positions before this come without their part in the window pool.
        chunked: the request is between two chunks of its prefill.
        priority: for the eviction policy of that name.
        mamba_owner: who gives the state slot: REQ, or TRACK for one of a track buffer.
        writers: who computed it.
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
    """What became of an insert.

    Attributes:
        prefix_len: tokens that were in the tree before.
        total_len: tokens of the key that are in the tree now.
        mamba_exist: the caller's state slot was not taken and stays the caller's.
    """

    prefix_len: int
    total_len: int = 0
    mamba_exist: bool = False


@dataclass(slots=True)
class EvictParams:
    """Make free at least so many KV tokens, state slots, and tokens of the window pool."""

    num_tokens: int = 0
    mamba_num: int = 0
    swa_num_tokens: int = 0


class EvictResult(NamedTuple):
    """What was made free; less than asked if the rest is locked, more since nodes go whole."""

    num_tokens_evicted: int = 0
    mamba_num_evicted: int = 0
    swa_num_tokens_evicted: int = 0


class DecLockRefParams(NamedTuple):
    """The receipt of a lock.

    Attributes:
        mamba_locked: whether the node had a state to lock.
        swa_locked_len: tokens up to the node's end whose window part is locked; they stay the same
            tokens when nodes among them are cut.
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
        """What ``dec_lock_ref`` wants in order to undo exactly this."""
        return DecLockRefParams(self.mamba_locked, self.swa_locked_len)


class DecLockRefResult(NamedTuple):
    """What an unlock changed.

    Attributes:
        delta: KV tokens that became evictable; those evicted at once are among them.
    """

    delta: int


@dataclass(slots=True)
class CacheEvents:
    """How often what happened, since the cache was built; ``reset`` does not touch it."""

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
    track_donations: int = 0
    host_backups: int = 0
    host_stays: int = 0
    host_load_backs: int = 0
    host_load_back_tokens: int = 0
    host_evictions: int = 0
    host_evictions_refused: int = 0
    storage_prefetches: int = 0
    storage_prefetched_tokens: int = 0
    storage_early_stops: int = 0
    storage_backups: int = 0

    def as_dict(self) -> dict[str, int]:
        """All counters by name."""
        return asdict(self)


class TreeSlots(NamedTuple):
    """What the tree's own nodes say it holds, found by walking them.

    ``swa_indices`` are locations in the window pool, ``host_indices`` in the host's pool of KV;
    ``host_slots`` are those in its other pools, by name.
    """

    kv_indices: IntArray
    mamba_slots: list[int]
    swa_indices: IntArray
    host_indices: IntArray = NO_TOKENS
    host_slots: Mapping[str, list[int]] = MappingProxyType({})


@dataclass
class CacheSanityError(RuntimeError):
    """The cache contradicts itself; ``node_ids`` are the nodes concerned, as far as known."""

    message: str
    node_ids: list[int] = field(default_factory=list)

    def __str__(self) -> str:
        nodes = f" (nodes {self.node_ids})" if self.node_ids else ""
        return f"{self.message}{nodes}"


class BasePrefixCache(ABC):
    """The interface; sizes of what a cache does not have are 0.

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
        """Forget everything.  The allocators are not told: the caller clears them as well."""

    @abstractmethod
    def match_prefix(self, params: MatchPrefixParams) -> MatchResult:
        """The longest reusable prefix of a key.  Takes no lock.

        With ``cow_mamba`` a hit takes a state slot (owner REQ) for a request that has none and
        copies the state into it; if no slot can be had, the answer is "no reuse".
        """

    @abstractmethod
    def cache_finished_req(self, req: CacheableReq, is_insert: bool = True) -> None:
        """Take over a request's KV and state, or free them, and give its lock back.

        Everything in [cache_protected_len, kv_allocated_len) of its row is the tree's or free
        afterwards, and the request has no state slot.  The row itself stays the caller's to free.
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
        """Undo one ``inc_lock_ref`` of the same node, by its receipt.

        Without a receipt the node's present state decides; a tree with windows must have it.
        """

    def dec_swa_lock_only(self, node: TreeNode, receipt: DecLockRefParams) -> DecLockRefParams:
        """Unlock the window part alone, which nobody behind the lock reads any more.

        Returns:
            The receipt of what is still locked.
        """
        del node
        return receipt

    @abstractmethod
    def tree_slots(self) -> TreeSlots:
        """Every KV index and state slot the nodes hold, by walking them: the holder's own word."""

    @abstractmethod
    def iter_nodes(self) -> Iterator[TreeNode]:
        """Every node but the root, parents before children."""

    @abstractmethod
    def sanity_check(self) -> None:
        """Walk everything and raise CacheSanityError at the first contradiction."""

    def insert(self, params: InsertParams) -> InsertResult:
        """Put a prefix in; the cache owns what it keeps and frees what was there already."""
        raise NotImplementedError(f"{type(self).__name__} does not keep prefixes")

    def take_events(self) -> list[KvEvent]:
        """What the tree stored and removed since the last call; empty unless that is enabled."""
        return self.kv_events.take()

    def node_count(self) -> int:
        """Nodes in the tree, the root not counted."""
        return sum(1 for _ in self.iter_nodes())

    def live_node_count(self) -> int:
        """TreeNode objects that may be alive because of this cache: root and list ends included."""
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
        """KV tokens that sessions hold between turns: none without sessions."""
        del active_pool_idxs
        return 0

    def session_held_swa_tokens(self, active_pool_idxs: set[int] | None = None) -> int:
        """Tokens of the window pool that sessions hold between turns: none without sessions."""
        del active_pool_idxs
        return 0

    def session_held_mamba_slots(self, active_pool_idxs: set[int] | None = None) -> int:
        """State slots that sessions hold between turns: none without sessions."""
        del active_pool_idxs
        return 0

    def session_held_req_count(self, active_pool_idxs: set[int] | None = None) -> int:
        """Request rows that sessions hold between turns: none without sessions."""
        del active_pool_idxs
        return 0

    def supports_mamba(self) -> bool:
        """Whether recurrent states are kept, too."""
        return False

    def supports_swa(self) -> bool:
        """Whether KV of sliding layers is kept within their windows only."""
        return False


def no_indices() -> IntArray:
    """An empty index array of its own."""
    return np.empty(0, dtype=np.int64)
