"""The prefix tree of models with sliding windows: KV in two pools, which age apart.

Layers with a window read no further back than that, so the KV that the window pool has of a node
may go while longer prefixes still share the node's KV in the full pool: then the node is a
tombstone.  A prefix is reusable up to a node if the window pool has a whole window before its end,
or everything from the root on.

A request locks the full KV of its whole prefix, and that of one window in the window pool; the
receipt says how far the latter reaches.  A leaf without locks is never a tombstone, since nothing
could hit it.

Source: SGLang's SWARadixCache.  Where theirs replaces a tombstone's KV by that of a request that
has computed it again, only the window part moves here: others may be reading the full one.
"""

from __future__ import annotations

import math

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
from hybridbench.engine.cache.tree import PrefixTree, join
from hybridbench.engine.cache.tree_node import TreeNode, empty_root
from hybridbench.engine.memory.indices import IntArray, as_index_array
from hybridbench.engine.memory.owners import REQ, TREE
from hybridbench.engine.memory.swa_pages import SWATokenToKVPoolAllocator

# Ends of the list of the window pool, which has no ring.
_SWA_LIST_ENDS = 2


class SWARadixCache(PrefixTree):
    """Match within windows, insert, locks with receipts, eviction from either pool.

    Attributes:
        full_lru_list: all nodes but the root; swa_lru_list: those that are no tombstones.
        swa_evictable_size_, swa_protected_size_: tokens of the latter, without and with a lock on
            their KV in the window pool.
    """

    def __init__(self, params: CacheInitParams) -> None:
        """Raises ValueError if there is no window, or evictions are not to be by age."""
        super().__init__(params)
        allocator = params.token_to_kv_pool_allocator
        if not isinstance(allocator, SWATokenToKVPoolAllocator):
            raise TypeError(f"a tree with windows needs two pools, not {type(allocator).__name__}")
        if params.eviction_policy != "lru":
            raise ValueError(
                f"a tree with windows evicts by lru only, not {params.eviction_policy!r}"
            )
        if params.sliding_window_size < 1:
            raise ValueError("a tree with windows needs a sliding_window_size of 1 or more")
        self._allocator = allocator
        # What a token behind the prefix reads of it in the window pool.
        self._window_before = params.sliding_window_size - 1
        self._start_order()

    def supports_swa(self) -> bool:
        return True

    def swa_evictable_size(self) -> int:
        return self.swa_evictable_size_

    def swa_protected_size(self) -> int:
        return self.swa_protected_size_

    def live_node_count(self) -> int:
        return self._node_count + 1 + LIST_ENDS + _SWA_LIST_ENDS

    def tree_slots(self) -> TreeSlots:
        slots = super().tree_slots()
        inside = [node.value for node in self.iter_nodes() if not node.swa_tombstone]
        if not inside:
            return slots
        swa = self._allocator.translate_loc_from_full_to_swa(np.concatenate(inside))
        return slots._replace(swa_indices=swa)

    def insert(self, params: InsertParams) -> InsertResult:
        """Put a prefix in, as far as it fills whole pages; the rest stays the caller's.

        Of ``value`` the window pool has what follows ``swa_evicted_seqlen``.  Where the tree has a
        tombstone and the caller a window part, the tree takes that.

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
        path, prefix_len, _ = self._walk(key)
        inside_from = max(params.swa_evicted_seqlen, params.prev_prefix_len)
        path = self._revive(path, value, inside_from)
        self._touch_path(path)
        self._free_duplicates(value, params.prev_prefix_len, prefix_len)
        if prefix_len < total:
            parent = path[-1] if path else self.root_node
            cut = max(prefix_len, inside_from)
            assert cut < total, "a request keeps the window before its end"
            for start, end in ((prefix_len, cut), (cut, total)):
                if start < end:
                    parent = self._add_leaf(parent, key, value, (start, end))
                    if end == cut:
                        self._become_tombstone(parent)
        return InsertResult(prefix_len, total, not_taken)

    def inc_lock_ref(self, node: TreeNode) -> IncLockRefResult:
        if self.disable or node is self.root_node:
            return IncLockRefResult(0)
        if not node.children:
            self.full_lru_list.hold(node)
        return IncLockRefResult(self._lock_path(node), swa_locked_len=self._lock_window(node))

    def dec_lock_ref(
        self, node: TreeNode, params: DecLockRefParams | None = None
    ) -> DecLockRefResult:
        if self.disable or node is self.root_node:
            return DecLockRefResult(0)
        assert params is not None, "only its receipt says how far a lock reaches"
        self._unlock_window(node, params.swa_locked_len)
        delta = self._unlock_path(node)
        if not node.children and node.full_lock_ref == 0:
            freed: list[IntArray] = []
            self._evict_tombstones(node, freed)
            self._free_kv(freed)
        return DecLockRefResult(delta)

    def dec_swa_lock_only(self, node: TreeNode, receipt: DecLockRefParams) -> DecLockRefParams:
        self._unlock_window(node, receipt.swa_locked_len)
        return receipt._replace(swa_locked_len=0)

    def evict(self, params: EvictParams) -> EvictResult:
        """Free KV tokens in both pools, then what is still missing in the window pool alone."""
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
                self._allocator.free_swa(node.value, TREE)
                self._become_tombstone(node)
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
        self._start_order()

    def sanity_check(self) -> None:
        nodes = self._check_structure()
        self.full_lru_list.sanity_check()
        self.swa_lru_list.sanity_check()
        if {node.id for node in nodes} != {node.id for node in self.full_lru_list}:
            raise CacheSanityError("full list: not what the tree says")
        inside = [node for node in nodes if not node.swa_tombstone]
        if {node.id for node in inside} != {node.id for node in self.swa_lru_list}:
            raise CacheSanityError("swa list: not what the tree says")
        leaves = {node.id for node in nodes if not node.children and node.full_lock_ref == 0}
        if leaves != {node.id for node in self.full_lru_list.evictable()}:
            raise CacheSanityError("evictable leaves: not what the tree says", sorted(leaves))
        for node in nodes:
            if node.swa_lock_ref > node.full_lock_ref or node.swa_lock_ref < 0:
                raise CacheSanityError("more window locks than locks, or fewer than 0", [node.id])
            if node.swa_tombstone and (node.swa_lock_ref or node.id in leaves):
                raise CacheSanityError("a tombstone is locked, or an unlocked leaf", [node.id])
        evictable = sum(len(node.value) for node in inside if node.swa_lock_ref == 0)
        protected = sum(len(node.value) for node in inside if node.swa_lock_ref > 0)
        counted = (self.swa_evictable_size_, self.swa_protected_size_)
        if counted != (evictable, protected):
            raise CacheSanityError(
                f"the window pool has {evictable} evictable and {protected} protected tokens of "
                f"nodes, counted are {counted[0]} and {counted[1]}"
            )

    def _match(self, key: RadixKey) -> MatchResult:
        path = self._walk(key.page_aligned(self.page_size)).path
        used = path[: self._reusable(path)]
        if not used:
            return self._no_match()
        self._touch_path(used)
        indices = join(used)
        return MatchResult(indices, used[-1], used[-1], None, len(indices))

    def _reusable(self, path: list[TreeNode]) -> int:
        """How many nodes of a path are a prefix that the window pool allows to go on from."""
        reusable = 0
        # Tokens since the last tombstone; before the root nothing is missing.
        inside: float = math.inf
        for count, node in enumerate(path, start=1):
            inside = 0 if node.swa_tombstone else inside + len(node.value)
            if inside >= self._window_before:
                reusable = count
        return reusable

    def _revive(self, path: list[TreeNode], value: IntArray, inside_from: int) -> list[TreeNode]:
        """Give tombstones on ``path`` the window part that ``value`` has; the path, perhaps cut."""
        whole: list[TreeNode] = []
        end = 0
        for node in path:
            start, end = end, end + len(node.value)
            if node.swa_tombstone and end > inside_from:
                if start < inside_from:
                    whole.append(self._split_node(node, inside_from - start))
                    start = inside_from
                self._allocator.move_swa(value[start:end], node.value, REQ, TREE)
                node.swa_tombstone = False
                self._enter_window(node)
            whole.append(node)
        return whole

    def _add_leaf(
        self, parent: TreeNode, key: RadixKey, value: IntArray, span: tuple[int, int]
    ) -> TreeNode:
        """A new node below ``parent`` with the tokens ``span`` of ``key``."""
        start, end = span
        kept = value[start:end].copy()
        self._allocator.transfer(kept, REQ, TREE)
        raw = key.raw[start * TOKEN_BYTES : end * TOKEN_BYTES]
        node = self._new_node(RadixKey.from_raw(raw, key.extra_key), kept, parent)
        if parent is not self.root_node:
            self.full_lru_list.hold(parent)
        parent.children[self._child_key(parent, node.key)] = node
        self.full_lru_list.insert_mru(node)
        self.full_evictable_size_ += len(kept)
        self._enter_window(node)
        self._note_stored(node)
        return node

    def _evict_leaf(self, leaf: TreeNode, freed: list[IntArray]) -> int:
        """Evict an unlocked leaf and the childless tombstones above it; the tokens they held."""
        self.events.evict_leaf += 1
        self._leave_window(leaf)
        tokens = len(leaf.value)
        return tokens + self._evict_tombstones(self._remove_leaf(leaf, freed), freed)

    def _evict_tombstones(self, node: TreeNode, freed: list[IntArray]) -> int:
        """Evict ``node`` and its parents as long as they are childless, unlocked tombstones."""
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
        """Take an unlocked leaf out of the tree and its list of all nodes; its parent."""
        freed.append(leaf.value)
        self.full_evictable_size_ -= len(leaf.value)
        self.full_lru_list.remove_node(leaf)
        return self._unlink_from_parent(leaf)

    def _become_tombstone(self, node: TreeNode) -> None:
        self.events.swa_tombstones += 1
        self._leave_window(node)
        node.swa_tombstone = True

    def _enter_window(self, node: TreeNode) -> None:
        self.swa_lru_list.insert_mru(node)
        self.swa_evictable_size_ += len(node.value)

    def _leave_window(self, node: TreeNode) -> None:
        self.swa_lru_list.remove_node(node)
        self.swa_evictable_size_ -= len(node.value)

    def _free_kv(self, freed: list[IntArray]) -> None:
        if freed:
            self._allocator.free(np.concatenate(freed), TREE)

    def _lock_window(self, node: TreeNode) -> int:
        """One more lock on the nodes of one window up to the end of ``node``; their tokens."""
        locked = 0
        while locked < self._window_before and node is not self.root_node:
            assert not node.swa_tombstone, f"{node} cannot be gone on from"
            if node.swa_lock_ref == 0:
                self.swa_evictable_size_ -= len(node.value)
                self.swa_protected_size_ += len(node.value)
            node.swa_lock_ref += 1
            locked += len(node.value)
            assert node.parent is not None, f"{node} was taken out of the tree"
            node = node.parent
        return locked

    def _unlock_window(self, node: TreeNode, locked: int) -> None:
        """One lock less on the nodes of the last ``locked`` tokens up to the end of ``node``."""
        while locked > 0:
            assert node.swa_lock_ref > 0, f"{node} was not locked in the window pool"
            node.swa_lock_ref -= 1
            if node.swa_lock_ref == 0:
                self.swa_evictable_size_ += len(node.value)
                self.swa_protected_size_ -= len(node.value)
            locked -= len(node.value)
            assert node.parent is not None, f"{node} was taken out of the tree"
            node = node.parent
        assert locked == 0, "a receipt ends inside a node"

    def _touch_path(self, path: list[TreeNode]) -> None:
        """Make a path the youngest in both lists, each child younger than its parent."""
        if path:
            self._stamp_path(path)
            # Those above the last have children.
            self.full_lru_list.reset_path_mru(path[-1:])
            self.swa_lru_list.reset_path_mru(path)

    def _after_split(self, upper: TreeNode, lower: TreeNode) -> None:
        """Both halves are what the node was, locks included; the lower is the younger."""
        upper.swa_tombstone, upper.swa_lock_ref = lower.swa_tombstone, lower.swa_lock_ref
        lower.last_access_time = self._tick()
        self.full_lru_list.insert_mru(upper)
        self.full_lru_list.hold(upper)
        self.full_lru_list.reset_path_mru([lower])
        if not upper.swa_tombstone:
            self.swa_lru_list.insert_mru(upper)
            self.swa_lru_list.reset_path_mru([lower])

    def _start_order(self) -> None:
        self.full_lru_list = FullLRUList()
        self.swa_lru_list = SWALRUList()
        self.swa_evictable_size_ = 0
        self.swa_protected_size_ = 0
