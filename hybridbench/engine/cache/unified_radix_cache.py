"""One prefix tree for every model: KV at every node, plus any number of components.

For a model with full attention in all layers there are no components, and the tree behaves like
RadixCache.  Recurrent layers add ``MambaComponent``, a pool for sliding windows adds
``SWAComponent``; the tree then behaves like MambaRadixCache or SWARadixCache, with two exceptions:

* A tombstone that lost its last child stays until its own KV is evicted.  It is then in no LRU list
  of its component, but still in the tree.  If it keeps a stale reference to a removed neighbour,
  that neighbour stays reachable, and the garbage collector cannot free it (sglang#25770).
* A hit refreshes only what the request reads: all KV of its path, but only the last state and one
  window.  Window parts that a request restores before that window are the first to be evicted.

A match ends where every component has what it needs.  Evicting KV removes a leaf with all its
components.  Evicting a component does the same to a leaf, but frees only that value of an inner
node.

Source: SGLang's UnifiedRadixCache as of 0.5.12, and as of 0.5.23 for what a hit refreshes.  That
class includes streaming sessions; here, they wrap this tree like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from hybridbench.engine.cache.base import (
    CacheableReq,
    CacheInitParams,
    CacheSanityError,
    DecLockRefParams,
    DecLockRefResult,
    EvictParams,
    EvictResult,
    IncLockRefResult,
    InsertParams,
    InsertResult,
    MatchPrefixParams,
    MatchResult,
    TreeSlots,
)
from hybridbench.engine.cache.eviction_queue import make_eviction_queue
from hybridbench.engine.cache.mamba_radix_cache import check_same
from hybridbench.engine.cache.radix_key import TOKEN_BYTES, RadixKey
from hybridbench.engine.cache.tree import PrefixTree, join
from hybridbench.engine.cache.tree_node import TreeNode, empty_root
from hybridbench.engine.cache.unified_component import CachingReq, Evicted, TreeComponent
from hybridbench.engine.cache.unified_mamba import MambaComponent
from hybridbench.engine.cache.unified_swa import SWAComponent
from hybridbench.engine.memory.indices import IntArray, as_index_array
from hybridbench.engine.memory.owners import REQ, TREE
from hybridbench.engine.memory.req_to_token import HybridReqToTokenPool
from hybridbench.engine.memory.swa_pages import SWATokenToKVPoolAllocator


class MatchEnd(Protocol):
    """Limits where a match may end."""

    def match_end(self, path: Sequence[TreeNode], end: int) -> int:
        """The maximum number of the first ``end`` nodes of a path that a match may cover."""


class UnifiedRadixCache(PrefixTree):
    """A prefix tree that matches, inserts, locks and evicts for all its components at once.

    Attributes:
        components: those required by rows and allocator, in the order in which they are called.
        mamba, swa: the components of recurrent states and of sliding windows, or None.
    """

    def __init__(self, params: CacheInitParams) -> None:
        super().__init__(params)
        self._policy = params.eviction_policy
        self._evictable_leaves = make_eviction_queue(self._policy)
        hybrid = isinstance(params.req_to_token_pool, HybridReqToTokenPool)
        self.mamba = MambaComponent(params, self.events) if hybrid else None
        two_pools = isinstance(params.token_to_kv_pool_allocator, SWATokenToKVPoolAllocator)
        self.swa = SWAComponent(params, self.events) if two_pools else None
        self.components: tuple[TreeComponent, ...] = tuple(
            component for component in (self.swa, self.mamba) if component is not None
        )

    def supports_mamba(self) -> bool:
        return self.mamba is not None

    def supports_swa(self) -> bool:
        return self.swa is not None

    def mamba_evictable_size(self) -> int:
        return self.mamba.evictable_size() if self.mamba else 0

    def mamba_protected_size(self) -> int:
        return self.mamba.protected_size() if self.mamba else 0

    def swa_evictable_size(self) -> int:
        return self.swa.evictable_size() if self.swa else 0

    def swa_protected_size(self) -> int:
        return self.swa.protected_size() if self.swa else 0

    def live_node_count(self) -> int:
        return self._node_count + 1 + sum(component.list_ends for component in self.components)

    def tree_slots(self) -> TreeSlots:
        slots = super().tree_slots()
        return slots if self.swa is None else slots._replace(swa_indices=self.swa.window.indices())

    def reset(self) -> None:
        for component in self.components:
            component.reset()
        self._dismantle_nodes()
        self.root_node = empty_root()
        self._node_count = 0
        self.full_evictable_size_ = 0
        self.full_protected_size_ = 0
        self._evictable_leaves = make_eviction_queue(self._policy)

    def match_prefix(self, params: MatchPrefixParams) -> MatchResult:
        if self.disable or not params.key.raw:
            return self._no_match()
        result = self._match(params.key)
        req, node = params.req, result.last_device_node
        if req is None or node is self.root_node:
            return result
        if params.cow_mamba:
            for component in self.components:
                if not component.finalize_match_result(self, req, node):
                    return self._no_match()
        self.events.prefix_hits += 1
        self.events.prefix_hit_tokens += len(result.device_indices)
        return result

    def insert(self, params: InsertParams) -> InsertResult:
        """Insert the whole pages of a prefix, with the values that components add.

        Raises:
            ValueError: fewer KV indices than tokens, or a state after a token inside a page.
        """
        mamba_exist = params.mamba_value is not None
        key = params.key.page_aligned(self.page_size)
        total = len(key)
        if mamba_exist and self.mamba is not None and key is not params.key:
            raise ValueError(
                f"a state after {len(params.key)} tokens is inside a page of {self.page_size}"
            )
        if self.disable or total == 0:
            return InsertResult(0, 0, mamba_exist)
        assert params.value is not None, "a unified tree keeps no prefix without KV"
        value = as_index_array(params.value, self.req_to_token_pool.device)
        if len(value) < total:
            raise ValueError(f"{total} tokens, but {len(value)} KV indices")
        path, prefix_len, split_off = self._walk(key)
        known = value[:prefix_len]
        for component in self.components:
            path = component.update_on_insert_overlap(path, known, params, self._split_node)
        # As in the dedicated trees: with components, a split makes both halves younger.
        below = [split_off] if split_off is not None and self.components else []
        # Before the touch, at which the queue of leaves computes the nodes' priorities.
        self._note_use(path, params)
        self._touch_path(path)
        self._take_or_free(path, known, params.prev_prefix_len)
        if prefix_len < total:
            self._touch_path(below)
            self._add_leaves(path, key, value, prefix_len, params)
        for component in self.components:
            if component.commit_insert_component_data(path[-1], params):
                mamba_exist = False
        if prefix_len == total:
            self._touch_path(below)
        self._after_insert(path, params)
        return InsertResult(prefix_len, total, mamba_exist)

    def evict(self, params: EvictParams) -> EvictResult:
        """Free KV first, then whatever is missing of each component."""
        self.events.evict_calls += 1
        evicted = Evicted()
        while evicted.tokens < params.num_tokens:
            leaf = self._evictable_leaves.first()
            if leaf is None:
                break
            self._evict_leaf(leaf, evicted)
        self._free_kv(evicted)
        for component in self.components:
            for node in component.drive_eviction(params, evicted):
                if node.children or node.full_lock_ref:
                    self._make_tombstone(component, node, evicted)
                else:
                    self._evict_leaf(node, evicted)
        self._free_kv(evicted)
        return EvictResult(evicted.tokens, evicted.states, evicted.swa_tokens)

    def inc_lock_ref(self, node: TreeNode) -> IncLockRefResult:
        if self.disable or node is self.root_node:
            return IncLockRefResult(0)
        self._evictable_leaves.discard(node)
        lock = IncLockRefResult(self._lock_path(node))
        for component in self.components:
            lock = component.acquire_component_lock(node, lock)
        return lock

    def dec_lock_ref(
        self, node: TreeNode, params: DecLockRefParams | None = None
    ) -> DecLockRefResult:
        if self.disable or node is self.root_node:
            return DecLockRefResult(0)
        for component in self.components:
            component.release_component_lock(node, params)
        delta = self._unlock_path(node)
        self._note_leaf(node)
        return DecLockRefResult(delta)

    def dec_swa_lock_only(self, node: TreeNode, receipt: DecLockRefParams) -> DecLockRefParams:
        if self.swa is None:
            return super().dec_swa_lock_only(node, receipt)
        self.swa.release_component_lock(node, receipt)
        return receipt._replace(swa_locked_len=0)

    def cache_finished_req(self, req: CacheableReq, is_insert: bool = True) -> None:
        length = self._cacheable_len(req) if is_insert and not self.disable else 0
        caching = CachingReq(req, self._insert_params(req, length), finished=True)
        result = self._insert_prepared(caching)
        for component in self.components:
            component.cleanup_after_caching_req(caching, result)
        # The range starts on a page border: the tree never owned the partly filled last page.
        self._free_row_from(req, max(length, req.kv.cache_protected_len))
        self._give_lock_back(req)

    def cache_unfinished_req(self, req: CacheableReq, chunked: bool = False) -> None:
        """Share what every component can cache, and move the lock to the longer prefix."""
        value = self._row_indices(req, req.kv.kv_committed_len)
        req.kv.prefix_indices = value
        length = 0 if self.disable else self._cacheable_len(req)
        caching = CachingReq(req, self._insert_params(req, length, chunked), finished=False)
        result = self._insert_prepared(caching)
        if caching.params is None or result is None:
            return
        for component in self.components:
            component.cleanup_after_caching_req(caching, result)
        matched = self._match(caching.params.key)
        assert matched.prefix_len == length, f"request {req.rid}: the tree lost its prefix"
        self._move_to_tree(req, matched)
        req.kv.prefix_indices = np.concatenate((matched.device_indices, value[length:]))

    def sanity_check(self) -> None:
        nodes = self._check_structure()
        leaves = {node.id for node in nodes if self._is_leaf(node) and node.full_lock_ref == 0}
        check_same(leaves, {node.id for node in self._evictable_leaves}, "evictable leaves")
        if misplaced := self._evictable_leaves.misplaced():
            raise CacheSanityError("evictable leaves: out of order", misplaced)
        for component in self.components:
            component.sanity_check(nodes)

    def _cacheable_len(self, req: CacheableReq) -> int:
        """The tokens of ``req``, in whole pages, that every component can cache now."""
        lengths = [component.cacheable_len(req) for component in self.components]
        return min([req.kv.kv_committed_len, *lengths]) // self.page_size * self.page_size

    def _insert_params(
        self, req: CacheableReq, length: int, chunked: bool = False
    ) -> InsertParams | None:
        """The first ``length`` tokens of ``req``, for an insert; None if there are none."""
        if length == 0:
            return None
        return InsertParams(
            self._committed_key(req, length),
            self._row_indices(req, length),
            prev_prefix_len=req.kv.cache_protected_len,
            swa_evicted_seqlen=req.kv.swa_evicted_seqlen,
            chunked=chunked,
            writers=req.writers,
        )

    def _insert_prepared(self, caching: CachingReq) -> InsertResult | None:
        """Insert what a request hands over; None if there is nothing, or a component refuses."""
        if caching.params is None:
            return None
        for component in self.components:
            if not component.prepare_for_caching_req(self, caching):
                return None
        return self.insert(caching.params)

    def _match(self, key: RadixKey) -> MatchResult:
        """Match as far as all components allow, and make the matched nodes the youngest of all."""
        path, walked_len, _ = self._walk(key.page_aligned(self.page_size))
        used = path[: common_end(path, self.components)]
        self._touch_path(used)
        indices = join(used)
        node = used[-1] if used else self.root_node
        branching = self._branching_seqlen(len(indices), walked_len)
        return MatchResult(indices, node, node, branching, len(indices))

    def _branching_seqlen(self, prefix_len: int, walked_len: int) -> int | None:
        """``mamba_branching_seqlen`` for a hit of ``prefix_len`` of the ``walked_len`` tokens."""
        return self.mamba.branching_seqlen(prefix_len, walked_len) if self.mamba else None

    def _touch_path(self, path: list[TreeNode]) -> None:
        """Make the KV of a path the youngest, each child younger than its parent.

        Components do the same for the values that were read.
        """
        if not path:
            return
        self._stamp_path(path)
        # Only the last node can be evictable: those above it have children.
        self._evictable_leaves.touch(path[-1])
        for component in self.components:
            component.touch(path)

    def _note_use(self, path: list[TreeNode], params: InsertParams) -> None:
        """Update what eviction policies other than LRU depend on."""
        priority, hits = params.priority, 0 if params.chunked else 1
        for node in path:
            if node.priority < priority:  # noqa: PLR1730 - avoids a call of max() per node
                node.priority = priority
            node.hit_count += hits

    def _add_leaves(
        self,
        path: list[TreeNode],
        key: RadixKey,
        value: IntArray,
        start: int,
        params: InsertParams,
    ) -> None:
        """Append a leaf for ``key`` from ``start`` on, split where a component requires."""
        cut = start
        for component in self.components:
            cut = max(cut, component.leaf_cut(start, params))
        for begin, end in ((start, cut), (cut, len(key))):
            if begin == end:
                continue
            kept = value[begin:end].copy()
            self.token_to_kv_pool_allocator.transfer(kept, REQ, TREE)
            parent = path[-1] if path else self.root_node
            raw = key.raw[begin * TOKEN_BYTES : end * TOKEN_BYTES]
            node = self._new_node(RadixKey.from_raw(raw, key.extra_key), kept, parent)
            self._sign(node, params.writers)
            node.priority = params.priority
            node.hit_count = 0 if params.chunked else 1
            self._evictable_leaves.discard(parent)
            parent.children[self._child_key(parent, node.key)] = node
            self.full_evictable_size_ += len(kept)
            self._evictable_leaves.add(node)
            self._note_stored(node)
            for component in self.components:
                component.add_node(node, end, params)
            path.append(node)

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
        if node.full_lock_ref == 0 and self._is_leaf(node) and node is not self.root_node:
            self._evictable_leaves.add(node)

    def _evict_leaf(self, leaf: TreeNode, evicted: Evicted) -> None:
        """Evict an unlocked leaf with all its values; a tombstone above it stays."""
        for component in self.components:
            if not component.has_value(leaf):
                self.events.evict_cascade += 1
                break
        else:
            self.events.evict_leaf += 1
        self._evict_from_device(leaf, evicted)
        self._note_leaf(self._unlink_from_parent(leaf))

    def _evict_from_device(self, leaf: TreeNode, evicted: Evicted) -> None:
        evicted.kv.append(leaf.value)
        evicted.tokens += len(leaf.value)
        self.full_evictable_size_ -= len(leaf.value)
        self._evictable_leaves.discard(leaf)
        for component in self.components:
            component.evict_component(leaf, evicted)

    def _make_tombstone(self, component: TreeComponent, node: TreeNode, evicted: Evicted) -> None:
        """Free a component's value of a node; its KV stays for longer prefixes."""
        component.make_tombstone(node, evicted)

    def _free_kv(self, evicted: Evicted) -> None:
        if evicted.kv:
            values = evicted.kv
            kv = values[0] if len(values) == 1 else np.concatenate(values)
            self.token_to_kv_pool_allocator.free(kv, TREE)
            evicted.kv.clear()

    def _after_split(self, upper: TreeNode, lower: TreeNode) -> None:
        """Update both halves; the upper one is no leaf, and components divide their values."""
        upper.creation_time = lower.creation_time
        if self.components:
            lower.last_access_time = self._tick()
            self._evictable_leaves.touch(lower)
            for component in self.components:
                component.redistribute_on_node_split(upper, lower)


def common_end(path: list[TreeNode], parts: Sequence[MatchEnd]) -> int:
    """The number of leading nodes of ``path`` after which all ``parts`` allow a match to end."""
    end, before = len(path), -1
    # A part that accepted one end may reject a smaller one, so check all parts again.
    while end != before:
        before = end
        for part in parts:
            end = part.match_end(path, end)
    return end
