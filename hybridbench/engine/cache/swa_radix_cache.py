"""The prefix tree of models with sliding windows: KV in two pools, evicted independently.

``swa_window.py`` manages the nodes' parts in the window pool.  An unlocked leaf is never a
tombstone here: since nothing could hit it, it is evicted with its last child or last lock.

Source: SGLang's SWARadixCache.
"""

from __future__ import annotations

import numpy as np

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
    MatchResult,
    TreeSlots,
)
from hybridbench.engine.cache.lru import LIST_ENDS, FullLRUList
from hybridbench.engine.cache.radix_key import TOKEN_BYTES, RadixKey
from hybridbench.engine.cache.swa_lru import SWALRUList
from hybridbench.engine.cache.swa_window import LIST_ENDS as SWA_LIST_ENDS
from hybridbench.engine.cache.swa_window import TreeWindow
from hybridbench.engine.cache.tree import PrefixTree, join
from hybridbench.engine.cache.tree_node import TreeNode, empty_root
from hybridbench.engine.memory.indices import IntArray, as_index_array
from hybridbench.engine.memory.owners import REQ, TREE


class SWARadixCache(PrefixTree):
    """A prefix tree with KV in two pools, which are evicted independently.

    Attributes:
        full_lru_list: all nodes but the root; swa_lru_list: those that are not tombstones.
    """

    def __init__(self, params: CacheInitParams) -> None:
        """Raise ValueError if there is no window, or the eviction policy is not lru."""
        super().__init__(params)
        if params.eviction_policy != "lru":
            raise ValueError(
                f"a tree with windows evicts by lru only, not {params.eviction_policy!r}"
            )
        self._window = TreeWindow(params, self.events)
        self.full_lru_list = FullLRUList()

    @property
    def swa_lru_list(self) -> SWALRUList:
        return self._window.lru_list

    def supports_swa(self) -> bool:
        return True

    def swa_evictable_size(self) -> int:
        return self._window.evictable_size

    def swa_protected_size(self) -> int:
        return self._window.protected_size

    def live_node_count(self) -> int:
        return self._node_count + 1 + LIST_ENDS + SWA_LIST_ENDS

    def tree_slots(self) -> TreeSlots:
        return super().tree_slots()._replace(swa_indices=self._window.indices())

    def insert(self, params: InsertParams) -> InsertResult:
        """Insert the whole pages of a prefix; the rest stays the caller's.

        The window pool has the part of ``value`` from ``swa_evicted_seqlen`` on.  Where the tree
        has a tombstone and the caller has a window part, the tree takes over that part.

        Raises:
            ValueError: fewer KV indices than tokens.
        """
        not_taken = params.mamba_value is not None
        key = params.key.page_aligned(self.page_size)
        total = len(key)
        if self.disable or total == 0:
            return InsertResult(0, 0, not_taken)
        assert params.value is not None, "a tree with windows keeps no prefix without KV"
        value = as_index_array(params.value, self.device)
        if len(value) < total:
            raise ValueError(f"{total} tokens, but {len(value)} KV indices")
        path, prefix_len, split_off = self._walk(key)
        path = self._window.revive(path, value[:prefix_len], params, self._split_node)
        self._touch_path(path)
        if split_off is not None:
            self._touch_path([split_off])
        self._free_duplicates(value, params.prev_prefix_len, prefix_len)
        if prefix_len < total:
            parent = path[-1] if path else self.root_node
            cut = self._window.leaf_cut(prefix_len, params)
            assert cut < total, "a request keeps the window before its end"
            for start, end in ((prefix_len, cut), (cut, total)):
                if start < end:
                    parent = self._add_leaf(parent, key, value, (start, end))
                    self._window.add(parent, end, params)
                    self._sign(parent, params.writers)
        return InsertResult(prefix_len, total, not_taken)

    def inc_lock_ref(self, node: TreeNode) -> IncLockRefResult:
        if self.disable or node is self.root_node:
            return IncLockRefResult(0)
        if not node.children:
            self.full_lru_list.hold(node)
        return IncLockRefResult(self._lock_path(node), swa_locked_len=self._window.lock(node))

    def dec_lock_ref(
        self, node: TreeNode, params: DecLockRefParams | None = None
    ) -> DecLockRefResult:
        if self.disable or node is self.root_node:
            return DecLockRefResult(0)
        assert params is not None, "only its receipt says how far a lock reaches"
        self._window.unlock(node, params.swa_locked_len)
        delta = self._unlock_path(node)
        if not node.children and node.full_lock_ref == 0:
            freed: list[IntArray] = []
            self._evict_tombstones(node, freed)
            self._free_kv(freed)
        return DecLockRefResult(delta)

    def dec_swa_lock_only(self, node: TreeNode, receipt: DecLockRefParams) -> DecLockRefParams:
        self._window.unlock(node, receipt.swa_locked_len)
        return receipt._replace(swa_locked_len=0)

    def evict(self, params: EvictParams) -> EvictResult:
        """Free KV tokens in both pools, then whatever is missing in the window pool alone."""
        self.events.evict_calls += 1
        full = self.evict_full(params.num_tokens)
        swa = self.evict_swa(params.swa_num_tokens - full.swa_num_tokens_evicted)
        return EvictResult(
            full.num_tokens_evicted + swa.num_tokens_evicted,
            swa_num_tokens_evicted=full.swa_num_tokens_evicted + swa.swa_num_tokens_evicted,
        )

    def evict_full(self, num_tokens: int) -> EvictResult:
        """Evict leaves, oldest first, until ``num_tokens`` are free in the full pool."""
        freed: list[IntArray] = []
        tokens = swa_tokens = 0
        while tokens < num_tokens:
            leaf = self.full_lru_list.get_leaf_lru_no_lock()
            if leaf is None:
                break
            swa_tokens += len(leaf.value)
            tokens += self._evict_leaf(leaf, freed)
        self._free_kv(freed)
        return EvictResult(tokens, swa_num_tokens_evicted=swa_tokens)

    def evict_swa(self, num_tokens: int) -> EvictResult:
        """Free ``num_tokens`` of the window pool, oldest nodes first, whether leaves or not."""
        freed: list[IntArray] = []
        tokens = swa_tokens = 0
        while swa_tokens < num_tokens:
            node = self.swa_lru_list.get_lru_no_lock()
            if node is None:
                break
            swa_tokens += len(node.value)
            if node.children or node.full_lock_ref > 0:
                self._window.tombstone(node)
            else:
                tokens += self._evict_leaf(node, freed)
        self._free_kv(freed)
        return EvictResult(tokens, swa_num_tokens_evicted=swa_tokens)

    def reset(self) -> None:
        self.full_lru_list.dismantle()
        self.swa_lru_list.dismantle()
        self._dismantle_nodes()
        self.root_node = empty_root()
        self._node_count = 0
        self.full_evictable_size_ = 0
        self.full_protected_size_ = 0
        self.full_lru_list = FullLRUList()
        self._window.start()

    def sanity_check(self) -> None:
        nodes = self._check_structure()
        self.full_lru_list.sanity_check()
        self._window.sanity_check(nodes)
        if {node.id for node in nodes} != {node.id for node in self.full_lru_list}:
            raise CacheSanityError("full list: inconsistent with the tree")
        leaves = {node.id for node in nodes if not node.children and node.full_lock_ref == 0}
        if leaves != {node.id for node in self.full_lru_list.evictable()}:
            raise CacheSanityError("evictable leaves: inconsistent with the tree", sorted(leaves))
        dead = [node.id for node in nodes if node.swa_tombstone and node.id in leaves]
        if dead:
            raise CacheSanityError("a tombstone is an unlocked leaf", dead)

    def _match(self, key: RadixKey) -> MatchResult:
        path = self._walk(key.page_aligned(self.page_size)).path
        used = path[: self._window.reusable(path, len(path))]
        if not used:
            return self._no_match()
        self._touch_path(used)
        indices = join(used)
        return MatchResult(indices, used[-1], used[-1], None, len(indices))

    def _add_leaf(
        self, parent: TreeNode, key: RadixKey, value: IntArray, span: tuple[int, int]
    ) -> TreeNode:
        """Add a node below ``parent`` with the tokens ``span`` of ``key``."""
        start, end = span
        kept = value[start:end].copy()
        self.token_to_kv_pool_allocator.transfer(kept, REQ, TREE)
        raw = key.raw[start * TOKEN_BYTES : end * TOKEN_BYTES]
        node = self._new_node(RadixKey.from_raw(raw, key.extra_key), kept, parent)
        if parent is not self.root_node:
            self.full_lru_list.hold(parent)
        parent.children[self._child_key(parent, node.key)] = node
        self.full_lru_list.insert_mru(node)
        self.full_evictable_size_ += len(kept)
        self._note_stored(node)
        return node

    def _evict_leaf(self, leaf: TreeNode, freed: list[IntArray]) -> int:
        """Evict an unlocked leaf and childless tombstones above it; return the tokens freed."""
        self.events.evict_leaf += 1
        self._window.leave(leaf)
        tokens = len(leaf.value)
        return tokens + self._evict_tombstones(self._remove_leaf(leaf, freed), freed)

    def _evict_tombstones(self, node: TreeNode, freed: list[IntArray]) -> int:
        """Evict ``node`` and its parents while they are childless, unlocked tombstones."""
        tokens = 0
        while not node.children and node.full_lock_ref == 0 and node is not self.root_node:
            if not node.swa_tombstone:
                self.full_lru_list.release(node)
                break
            self.events.evict_cascade += 1
            tokens += len(node.value)
            node = self._remove_leaf(node, freed)
        return tokens

    def _remove_leaf(self, leaf: TreeNode, freed: list[IntArray]) -> TreeNode:
        """Remove an unlocked leaf from the tree and the list of all nodes; return its parent."""
        freed.append(leaf.value)
        self.full_evictable_size_ -= len(leaf.value)
        self.full_lru_list.remove_node(leaf)
        return self._unlink_from_parent(leaf)

    def _free_kv(self, freed: list[IntArray]) -> None:
        if freed:
            self.token_to_kv_pool_allocator.free(np.concatenate(freed), TREE)

    def _touch_path(self, path: list[TreeNode]) -> None:
        """Make a path the youngest in both lists, each child younger than its parent."""
        if path:
            self._stamp_path(path)
            # Only the last node can be evictable: those above it have children.
            self.full_lru_list.reset_path_mru(path[-1:])
            self.swa_lru_list.reset_path_mru(path)

    def _after_split(self, upper: TreeNode, lower: TreeNode) -> None:
        """Divide the window part, copy the locks, and make the lower half the younger one."""
        lower.last_access_time = self._tick()
        self.full_lru_list.insert_mru(upper)
        self.full_lru_list.hold(upper)
        self.full_lru_list.reset_path_mru([lower])
        self._window.split(upper, lower)
