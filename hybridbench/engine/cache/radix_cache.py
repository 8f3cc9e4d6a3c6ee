"""The prefix tree of attention-only models: KV shared in whole pages of any size.

Source: SGLang's RadixCache; like that one, it has no linked list.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from hybridbench.engine.cache.base import (
    CacheInitParams,
    CacheSanityError,
    DecLockRefParams,
    DecLockRefResult,
    EvictParams,
    EvictResult,
    IncLockRefResult,
    InsertParams,
    InsertResult,
    KVAllocator,
    MatchResult,
)
from hybridbench.engine.cache.eviction_queue import make_eviction_queue
from hybridbench.engine.cache.radix_key import TOKEN_BYTES, RadixKey
from hybridbench.engine.cache.tree import PrefixTree, join
from hybridbench.engine.cache.tree_node import TreeNode, empty_root
from hybridbench.engine.memory.indices import IntArray, SlotInput, as_index_array
from hybridbench.engine.memory.owners import REQ, TREE, Owner
from hybridbench.engine.memory.req_to_token import ReqToTokenPool


class RadixCache(PrefixTree):
    """A prefix tree of KV alone, which evicts by any of SGLang's policies."""

    def __init__(self, params: CacheInitParams) -> None:
        super().__init__(params)
        self._policy = params.eviction_policy
        self._evictable_leaves = make_eviction_queue(self._policy)

    @classmethod
    def create_simulated(
        cls,
        disable: bool = False,
        mock_allocator: KVAllocator | None = None,
        page_size: int = 1,
        enable_kv_cache_events: bool = False,
        eviction_policy: str = "lru",
    ) -> RadixCache:
        """Build a tree without pools; without an allocator, KV indices are just numbers."""
        return cls(
            CacheInitParams(
                req_to_token_pool=ReqToTokenPool(size=1, max_context_len=1),
                token_to_kv_pool_allocator=mock_allocator or _NoAllocator(),
                page_size=page_size,
                disable=disable,
                eviction_policy=eviction_policy,
                enable_kv_cache_events=enable_kv_cache_events,
            )
        )

    @property
    def evictable_leaves(self) -> set[TreeNode]:
        """The leaves that can be evicted now, as a new set."""
        return set(self._evictable_leaves)

    def reset(self) -> None:
        self._dismantle_nodes()
        self.root_node = empty_root()
        self._node_count = 0
        self.full_evictable_size_ = 0
        self.full_protected_size_ = 0
        self._evictable_leaves = make_eviction_queue(self._policy)

    def live_node_count(self) -> int:
        return self._node_count + 1

    def insert(self, params: InsertParams) -> InsertResult:
        """Insert the whole pages of a prefix; the rest stays the caller's.

        Raises:
            ValueError: fewer KV indices than tokens.
        """
        not_taken = params.mamba_value is not None
        key = params.key.page_aligned(self.page_size)
        total = len(key)
        if self.disable or total == 0:
            return InsertResult(0, 0, not_taken)
        value = self._value_of(params)
        if len(value) < total:
            raise ValueError(f"{total} tokens, but {len(value)} KV indices")
        path, prefix_len, _ = self._walk(key)
        self._touch_path(path, params)
        self._take_or_free(path, value[:prefix_len], params.prev_prefix_len)
        if prefix_len < total:
            path.append(self._add_leaf(path, key, value[prefix_len:total].copy(), params))
        self._after_insert(path, params)
        return InsertResult(prefix_len, total, not_taken)

    def evict(self, params: EvictParams) -> EvictResult:
        self.events.evict_calls += 1
        freed: list[IntArray] = []
        tokens = 0
        for leaf in self._oldest_leaves():
            if tokens >= params.num_tokens:
                break
            tokens += len(leaf.value)
            self._evict_leaf(leaf, freed)
        if freed:
            self.token_to_kv_pool_allocator.free(np.concatenate(freed), TREE)
        return EvictResult(tokens)

    def _oldest_leaves(self) -> Iterator[TreeNode]:
        """Yield unlocked leaves, next victim first; evict each before taking the next.

        Finding one takes the same time however many there are.
        """
        while (leaf := self._evictable_leaves.first()) is not None:
            yield leaf

    def inc_lock_ref(self, node: TreeNode) -> IncLockRefResult:
        if self.disable or node is self.root_node:
            return IncLockRefResult(0)
        self._evictable_leaves.discard(node)
        return IncLockRefResult(self._lock_path(node))

    def dec_lock_ref(
        self, node: TreeNode, params: DecLockRefParams | None = None
    ) -> DecLockRefResult:
        del params
        if self.disable or node is self.root_node:
            return DecLockRefResult(0)
        delta = self._unlock_path(node)
        self._note_leaf(node)
        return DecLockRefResult(delta)

    def sanity_check(self) -> None:
        nodes = self._check_structure()
        leaves = {node.id for node in nodes if self._is_leaf(node) and node.full_lock_ref == 0}
        queued = {node.id for node in self._evictable_leaves}
        if leaves != queued:
            raise CacheSanityError(
                "evictable leaves: inconsistent with the tree", sorted(leaves ^ queued)
            )
        if misplaced := self._evictable_leaves.misplaced():
            raise CacheSanityError("evictable leaves: out of order", misplaced)

    def _match(self, key: RadixKey) -> MatchResult:
        path = self._walk(key.page_aligned(self.page_size)).path
        if not path:
            return self._no_match()
        self._stamp_path(path)
        self._evictable_leaves.touch(path[-1])
        indices = join(path)
        return MatchResult(indices, path[-1], path[-1], None, len(indices))

    def _take_or_free(self, path: list[TreeNode], value: IntArray, start: int) -> None:
        """Free the KV of ``value`` from ``start`` on: the tree already has it in ``path``."""
        del path
        self._free_duplicates(value, start, len(value))

    def _after_insert(self, path: list[TreeNode], params: InsertParams) -> None:
        """Hook, called after an insert that used the nodes of ``path``; does nothing here."""

    def _is_leaf(self, node: TreeNode) -> bool:
        """Whether evicting ``node`` removes no other KV from the device."""
        return not node.children

    def _note_leaf(self, node: TreeNode) -> None:
        """Queue ``node`` if it has become evictable."""
        # ``_is_leaf`` inlined: this runs in each eviction and unlock.
        if not node.children and node.full_lock_ref == 0 and node is not self.root_node:
            self._evictable_leaves.add(node)

    def _touch_path(self, path: list[TreeNode], params: InsertParams) -> None:
        if not path:
            return
        self._stamp_path(path)
        priority, hits = params.priority, 0 if params.chunked else 1
        for node in path:
            if node.priority < priority:  # noqa: PLR1730 - avoids a call of max() per node
                node.priority = priority
            node.hit_count += hits
        self._evictable_leaves.touch(path[-1])

    def _add_leaf(
        self, path: list[TreeNode], key: RadixKey, kept: IntArray, params: InsertParams
    ) -> TreeNode:
        self.token_to_kv_pool_allocator.transfer(kept, REQ, TREE)
        parent = path[-1] if path else self.root_node
        raw = key.raw[len(key.raw) - len(kept) * TOKEN_BYTES :]
        node = self._new_node(RadixKey.from_raw(raw, key.extra_key), kept, parent)
        self._sign(node, params.writers)
        node.priority = params.priority
        node.hit_count = 0 if params.chunked else 1
        self._evictable_leaves.discard(parent)
        parent.children[self._child_key(parent, node.key)] = node
        self.full_evictable_size_ += len(kept)
        self._evictable_leaves.add(node)
        self._note_stored(node)
        return node

    def _evict_leaf(self, leaf: TreeNode, freed: list[IntArray]) -> None:
        self.events.evict_leaf += 1
        freed.append(leaf.value)
        self.full_evictable_size_ -= len(leaf.value)
        self._evictable_leaves.discard(leaf)
        self._note_leaf(self._unlink_from_parent(leaf))

    def _after_split(self, upper: TreeNode, lower: TreeNode) -> None:
        """Copy the creation time; the upper half is no leaf, the lower half keeps its place."""
        upper.creation_time = lower.creation_time

    def _value_of(self, params: InsertParams) -> IntArray:
        value = params.value
        if value is None:
            return np.frombuffer(params.key.raw, dtype=np.int64)
        return as_index_array(value, self.req_to_token_pool.device)


class _NoAllocator:
    """Replaces the allocator of a tree used alone: KV indices have no owners."""

    device = torch.device("cpu")

    def available_size(self) -> int:
        return 0

    def free(self, idx: SlotInput, owner: Owner = REQ) -> None:
        """Do nothing."""

    def transfer(self, idx: SlotInput, giver: Owner, taker: Owner) -> None:
        """Do nothing."""
