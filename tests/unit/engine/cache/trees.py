"""Tiny trees with real pools and allocators, and requests to run on them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch

from hybridbench.engine.cache.base import (
    BasePrefixCache,
    CacheInitParams,
    InsertParams,
    InsertResult,
    MatchPrefixParams,
    MatchResult,
)
from hybridbench.engine.cache.mamba_radix_cache import MambaRadixCache
from hybridbench.engine.cache.radix_cache import RadixCache
from hybridbench.engine.cache.radix_key import RadixKey
from hybridbench.engine.cache.swa_radix_cache import SWARadixCache
from hybridbench.engine.cache.tree_node import TreeNode
from hybridbench.engine.cache.unified_radix_cache import UnifiedRadixCache
from hybridbench.engine.lineage import Writers
from hybridbench.engine.memory.base_pages import KVCache
from hybridbench.engine.memory.mamba_pool import Mamba2CacheParams, Mamba2StateShape, MambaPool
from hybridbench.engine.memory.owners import FREE, REQ, TREE
from hybridbench.engine.memory.pages import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
from hybridbench.engine.memory.req_to_token import HybridReqToTokenPool, ReqToTokenPool
from hybridbench.engine.memory.swa_pages import SWATokenToKVPoolAllocator
from hybridbench.engine.memory.swa_pool import SWAKVPool
from hybridbench.engine.req import ReqKv

STATE_SHAPE = Mamba2StateShape.gated_delta_net(
    num_k_heads=1, num_v_heads=1, head_k_dim=1, head_v_dim=1, conv_kernel=2
)


@dataclass
class TreeReq:
    """A request with only the fields that caches and pools read."""

    rid: str = "r"
    origin_input_ids: list[int] = field(default_factory=list)
    output_ids: list[int] = field(default_factory=list)
    kv: ReqKv = field(default_factory=ReqKv)
    extra_key: str | None = None
    writers: Writers = ()

    @property
    def fill_ids(self) -> list[int]:
        return self.origin_input_ids + self.output_ids

    def goes_on_from(self, writers: Writers) -> None:
        """Do nothing: these tests do not use writers."""


@dataclass(frozen=True)
class Buffers:
    """Track buffers of requests: states are saved at multiples of ``grid`` tokens."""

    grid: int = 4
    overlap: bool = True
    lazy: bool = False


def tokens_in(cache: BasePrefixCache) -> int:
    """Return the number of KV tokens in the tree."""
    return cache.evictable_size() + cache.protected_size()


class AnyHybridTree(ABC):
    """A hybrid tree over ``kv_tokens`` positions and ``mamba_slots`` states."""

    cache: BasePrefixCache

    @abstractmethod
    def build(self, params: CacheInitParams) -> None:
        """Make ``cache``."""

    def __init__(
        self,
        kv_tokens: int = 64,
        mamba_slots: int = 16,
        rows: int = 8,
        page_size: int = 1,
        buffers: Buffers | None = None,
        state_refresh: Literal["path", "used"] = "path",
    ) -> None:
        self.buffers = buffers
        self.mamba_slots = mamba_slots
        self.states = MambaPool(mamba_slots, Mamba2CacheParams(STATE_SHAPE, (0,)), (0,), "cpu")
        self.rows = HybridReqToTokenPool(
            rows,
            mamba_slots,
            kv_tokens,
            "cpu",
            self.states,
            enable_mamba_extra_buffer=buffers is not None,
            enable_mamba_extra_buffer_lazy=buffers is not None and buffers.lazy,
            enable_overlap_schedule=buffers is not None and buffers.overlap,
        )
        self.kv: TokenToKVPoolAllocator | PagedTokenToKVPoolAllocator
        pool = self.kv_pool(kv_tokens, page_size)
        if page_size == 1:
            self.kv = TokenToKVPoolAllocator(kv_tokens, torch.float32, "cpu", pool)
        else:
            self.kv = PagedTokenToKVPoolAllocator(kv_tokens, page_size, torch.float32, "cpu", pool)
        self.mamba = self.rows.mamba_allocator
        self.build(
            CacheInitParams(
                self.rows,
                self.kv,
                page_size,
                state_refresh=state_refresh,
                enable_mamba_extra_buffer=buffers is not None,
                mamba_cache_chunk_size=64 if buffers is None else buffers.grid,
            )
        )

    def kv_pool(self, kv_tokens: int, page_size: int) -> KVCache | None:
        """Return the pool behind the positions; None, as nothing is copied."""
        del kv_tokens, page_size
        return None

    def insert(self, ids: Sequence[int], prev_prefix_len: int = 0) -> InsertResult:
        """Insert new positions and a new state; free the state if the tree has one."""
        value, slots = self.kv.alloc(len(ids)), self.mamba.alloc(1)
        assert value is not None
        assert slots is not None
        params = InsertParams(RadixKey(ids), value, slots[0], prev_prefix_len=prev_prefix_len)
        result = self.cache.insert(params)
        if result.mamba_exist:
            self.mamba.free(slots, REQ)
        return result

    def extend(self, ids: Sequence[int]) -> None:
        """Insert ``ids``, of which the tree lacks only the last token, without any duplicates."""
        known = len(ids) - 1
        value, slots = self.kv.alloc(1), self.mamba.alloc(1)
        assert value is not None
        assert slots is not None
        indices = np.concatenate((np.zeros(known, dtype=np.int64), value))
        self.cache.insert(InsertParams(RadixKey(ids), indices, slots[0], prev_prefix_len=known))

    def match(self, ids: Sequence[int]) -> MatchResult:
        return self.cache.match_prefix(MatchPrefixParams(RadixKey(ids)))

    def node(self, ids: Sequence[int]) -> TreeNode:
        """Return the node that ends at ``ids``, without refreshing its age."""
        return find(self.cache, ids)

    def audit(self) -> None:
        """Check the tree's records against the allocators' ledgers, slot by slot."""
        self.cache.sanity_check()
        held = self.cache.tree_slots()
        assert sorted(held.kv_indices.tolist()) == self.kv.slots_of(TREE).tolist()
        assert sorted(held.mamba_slots) == self.mamba.slots_of(TREE)
        free = {idx // self.kv.page_size for idx in self.kv.slots_of(FREE).tolist()}
        assert sorted(self.kv.free_pages.tolist()) == sorted(free)
        assert sorted(self.mamba.free_slots) == self.mamba.slots_of(FREE)


class HybridTree(AnyHybridTree):
    """A hybrid tree with a MambaRadixCache."""

    cache: MambaRadixCache

    def build(self, params: CacheInitParams) -> None:
        self.cache = MambaRadixCache(params)


class UnifiedHybridTree(AnyHybridTree):
    """A hybrid tree with a UnifiedRadixCache."""

    cache: UnifiedRadixCache

    def build(self, params: CacheInitParams) -> None:
        self.cache = UnifiedRadixCache(params)


class AnyPagedTree(ABC):
    """A tree of KV pages without states, with a table of rows."""

    cache: BasePrefixCache

    @abstractmethod
    def build(self, params: CacheInitParams) -> None:
        """Make ``cache``."""

    def __init__(self, kv_tokens: int = 64, page_size: int = 4, policy: str = "lru") -> None:
        self.rows = ReqToTokenPool(8, kv_tokens)
        pool = self.kv_pool(kv_tokens, page_size)
        self.kv = PagedTokenToKVPoolAllocator(kv_tokens, page_size, torch.float32, "cpu", pool)
        self.build(CacheInitParams(self.rows, self.kv, page_size, eviction_policy=policy))

    def kv_pool(self, kv_tokens: int, page_size: int) -> KVCache | None:
        """Return the pool behind the positions; None, as nothing is copied."""
        del kv_tokens, page_size
        return None

    def insert(self, ids: Sequence[int], prev_prefix_len: int = 0, priority: int = 0) -> int:
        value = self.kv.alloc(len(ids))
        assert value is not None
        params = InsertParams(
            RadixKey(ids), value, prev_prefix_len=prev_prefix_len, priority=priority
        )
        return self.cache.insert(params).prefix_len

    def match(self, ids: Sequence[int]) -> MatchResult:
        return self.cache.match_prefix(MatchPrefixParams(RadixKey(ids)))

    def node(self, ids: Sequence[int]) -> TreeNode:
        return find(self.cache, ids)

    def audit(self) -> None:
        self.cache.sanity_check()
        held = self.cache.tree_slots().kv_indices.tolist()
        assert sorted(held) == self.kv.slots_of(TREE).tolist()
        assert len(set(held)) == len(held)


class PagedTree(AnyPagedTree):
    """A paged tree with a RadixCache."""

    cache: RadixCache

    def build(self, params: CacheInitParams) -> None:
        self.cache = RadixCache(params)


class UnifiedPagedTree(AnyPagedTree):
    """A paged tree with a UnifiedRadixCache."""

    cache: UnifiedRadixCache

    def build(self, params: CacheInitParams) -> None:
        self.cache = UnifiedRadixCache(params)


class AnyWindowTree(ABC):
    """A tree of KV in two pools, with a table of rows."""

    cache: SWARadixCache | UnifiedRadixCache

    def __init__(
        self, kv_tokens: int = 64, swa_tokens: int = 32, page_size: int = 1, window: int = 4
    ) -> None:
        self.window = window
        self.rows = ReqToTokenPool(8, kv_tokens)
        pool = self.kv_pool(kv_tokens, swa_tokens, page_size)
        self.kv = SWATokenToKVPoolAllocator(
            kv_tokens, swa_tokens, page_size, torch.float32, "cpu", pool
        )
        self.build(CacheInitParams(self.rows, self.kv, page_size, sliding_window_size=window))

    def kv_pool(self, kv_tokens: int, swa_tokens: int, page_size: int) -> SWAKVPool | None:
        """Return the pool behind the positions; None, as nothing is copied."""
        del kv_tokens, swa_tokens, page_size
        return None

    @abstractmethod
    def build(self, params: CacheInitParams) -> None: ...

    def insert(
        self, ids: Sequence[int], prev_prefix_len: int = 0, swa_evicted_seqlen: int = 0
    ) -> InsertResult:
        """Insert new positions; those before ``swa_evicted_seqlen`` have left the window pool."""
        value = self.kv.alloc(len(ids))
        assert value is not None
        if prev_prefix_len:
            self.kv.free(value[:prev_prefix_len])
        self.kv.free_swa(value[prev_prefix_len:swa_evicted_seqlen])
        params = InsertParams(
            RadixKey(ids),
            value,
            prev_prefix_len=prev_prefix_len,
            swa_evicted_seqlen=swa_evicted_seqlen,
        )
        return self.cache.insert(params)

    def match(self, ids: Sequence[int]) -> MatchResult:
        return self.cache.match_prefix(MatchPrefixParams(RadixKey(ids)))

    def node(self, ids: Sequence[int]) -> TreeNode:
        return find(self.cache, ids)

    def audit(self) -> None:
        """Check the tree's records against the ledgers of both pools."""
        self.cache.sanity_check()
        held = self.cache.tree_slots()
        assert sorted(held.kv_indices.tolist()) == self.kv.slots_of(TREE).tolist()
        swa = self.kv.swa_attn_allocator
        assert sorted(held.swa_indices.tolist()) == swa.slots_of(TREE).tolist()


class WindowTree(AnyWindowTree):
    """A window tree with a SWARadixCache."""

    cache: SWARadixCache

    def build(self, params: CacheInitParams) -> None:
        self.cache = SWARadixCache(params)


class UnifiedWindowTree(AnyWindowTree):
    """A window tree with a UnifiedRadixCache."""

    cache: UnifiedRadixCache

    def build(self, params: CacheInitParams) -> None:
        self.cache = UnifiedRadixCache(params)


def prefixes(cache: BasePrefixCache) -> dict[tuple[int, ...], TreeNode]:
    """Return every node, keyed by all tokens from the root to its end."""
    known: dict[TreeNode, tuple[int, ...]] = {}

    def ids_to(node: TreeNode | None) -> tuple[int, ...]:
        if node is None:
            return ()
        if node not in known:
            known[node] = (*ids_to(node.parent), *node.key)
        return known[node]

    return {ids_to(node): node for node in cache.iter_nodes()}


def find(cache: BasePrefixCache, ids: Sequence[int]) -> TreeNode:
    return prefixes(cache)[tuple(ids)]


def state_order(tree: HybridTree) -> list[tuple[int, ...]]:
    """Return the keys of nodes with a state, oldest first."""
    return [tuple(node.key) for node in tree.cache.mamba_lru_list]


def full_order(tree: HybridTree) -> list[tuple[int, ...]]:
    """Return all nodes' keys, oldest first; in the LRU list, inner nodes are in no order."""
    nodes = sorted(tree.cache.full_lru_list, key=lambda node: node.last_access_time)
    return [tuple(node.key) for node in nodes]
