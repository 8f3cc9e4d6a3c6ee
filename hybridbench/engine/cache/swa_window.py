"""The part of a prefix tree in the window pool: eviction order, locks and tombstones.

Sliding layers read only one window back, so a node's KV in the window pool may be evicted while
longer prefixes still share its KV in the full pool; the node is then a tombstone.  A prefix is
reusable up to a node if the window pool has a whole window before its end, or everything from the
root on.

A request locks its whole prefix in the full pool, and one window in the window pool; the receipt
records how far the latter lock reaches.

Source: SGLang's SWARadixCache.  It replaces a tombstone's KV with that of a request that has
recomputed it.  Here, only the window part moves, since other requests may be reading the full KV.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hybridbench.engine.cache.base import (
    CacheEvents,
    CacheInitParams,
    CacheSanityError,
    InsertParams,
    no_indices,
)
from hybridbench.engine.cache.swa_lru import SWALRUList
from hybridbench.engine.cache.tree_node import TreeNode
from hybridbench.engine.lineage import joined
from hybridbench.engine.memory.indices import IntArray
from hybridbench.engine.memory.owners import REQ, TREE
from hybridbench.engine.memory.swa_pages import SWATokenToKVPoolAllocator

# Sentinels of the list, which has no ring.
LIST_ENDS = 2


class TreeWindow:
    """The window pool's part of a tree.

    Attributes:
        lru_list: the nodes that are not tombstones.
        evictable_size, protected_size: tokens of these, without and with a lock on their KV in
            the window pool.
    """

    def __init__(
        self,
        params: CacheInitParams,
        events: CacheEvents,
        list_class: type[SWALRUList] = SWALRUList,
    ) -> None:
        """Raise TypeError if there is only one pool, ValueError if there is no window."""
        allocator = params.token_to_kv_pool_allocator
        if not isinstance(allocator, SWATokenToKVPoolAllocator):
            raise TypeError(f"a tree with windows needs two pools, not {type(allocator).__name__}")
        if params.sliding_window_size < 1:
            raise ValueError("a tree with windows needs a sliding_window_size of 1 or more")
        self._allocator = allocator
        self._events = events
        self._list_class = list_class
        # How many tokens of a prefix the next token reads in the window pool.
        self._before = params.sliding_window_size - 1
        self.start()

    def start(self) -> None:
        """Reset to an empty tree."""
        self.lru_list = self._list_class()
        self.evictable_size = 0
        self.protected_size = 0

    def indices(self) -> IntArray:
        """Window-pool locations of all nodes that have any."""
        inside = [node.value for node in self.lru_list]
        if not inside:
            return no_indices()
        return self._allocator.translate_loc_from_full_to_swa(np.concatenate(inside))

    def reusable(self, path: Sequence[TreeNode], end: int) -> int:
        """How many of the first ``end`` nodes of a path are reusable, given the window pool."""
        # Tokens before ``end`` that the window pool is known to have.
        inside, start = 0, end
        while start and inside < self._before:
            start -= 1
            if path[start].swa_tombstone:
                inside, end = 0, start
            else:
                inside += len(path[start].value)
        return end

    def read_of(self, path: Sequence[TreeNode]) -> Sequence[TreeNode]:
        """The nodes of the last window of a path, which the next token reads; at least one node."""
        start, left = len(path), max(1, self._before)
        while start and left > 0:
            start -= 1
            left -= len(path[start].key)
        return path[start:]

    def revive(
        self,
        path: list[TreeNode],
        value: IntArray,
        params: InsertParams,
        split: Callable[[TreeNode, int], TreeNode],
    ) -> list[TreeNode]:
        """Give tombstones on ``path``, whose KV the caller has as ``value``, their window part.

        Return the path, after splits.  Until the path is touched, they are the oldest nodes, so
        parts that no request reads are evicted first.
        """
        inside_from = _inside_from(params)
        if inside_from >= len(value):
            return path
        whole: list[TreeNode] = []
        end = 0
        for node in path:
            start, end = end, end + len(node.key)
            if node.swa_tombstone and end > inside_from:
                if start < inside_from:
                    whole.append(split(node, inside_from - start))
                    start = inside_from
                # An evicted node takes over that KV as a whole, later, with its window part.
                if not node.evicted:
                    self._allocator.move_swa(value[start:end], node.value, REQ, TREE)
                node.swa_tombstone = False
                node.writers = joined(params.writers[:1], node.writers, params.writers[1:])
                self.lru_list.insert_lru(node)
                self.evictable_size += len(node.key)
            whole.append(node)
        return whole

    def leaf_cut(self, prefix_len: int, params: InsertParams) -> int:
        """The position from which new tokens, starting at ``prefix_len``, have a window part."""
        return max(prefix_len, _inside_from(params))

    def add(self, node: TreeNode, end: int, params: InsertParams) -> None:
        """Add a new node whose key ends after ``end`` tokens from the root."""
        self._enter(node)
        if end <= _inside_from(params):
            self.become_tombstone(node)

    def split(self, upper: TreeNode, lower: TreeNode) -> None:
        """Divide the window part, copy the locks, and make the lower half the younger one."""
        upper.swa_tombstone, upper.swa_lock_ref = lower.swa_tombstone, lower.swa_lock_ref
        if not upper.swa_tombstone:
            self.lru_list.insert_mru(upper)
            self.lru_list.reset_path_mru([lower])

    def tombstone(self, node: TreeNode) -> None:
        """Free the window part of a node; its KV in the full pool stays."""
        self._allocator.free_swa(node.value, TREE)
        self.become_tombstone(node)

    def become_tombstone(self, node: TreeNode) -> None:
        """Mark a node whose window part has been freed."""
        self._events.swa_tombstones += 1
        self.leave(node)
        node.swa_tombstone = True

    def attach(self, node: TreeNode, swa_indices: IntArray) -> None:
        """Give a tombstone window-pool locations that the tree owns; it becomes the youngest."""
        self._allocator.attach_swa(node.value, swa_indices)
        node.swa_tombstone = False
        self._enter(node)

    def leave(self, node: TreeNode) -> None:
        """Remove from the list a node that is evicted or loses its window part."""
        self.lru_list.remove_node(node)
        self.evictable_size -= len(node.value)

    def lock(self, node: TreeNode) -> int:
        """Lock the nodes of one window up to the end of ``node``; return the tokens locked."""
        locked, tombstone = self._lock_up(node, self._before)
        assert tombstone is None, (
            f"no request can continue from {node}: tombstone {tombstone} is in its window"
        )
        return locked

    def lock_present(self, node: TreeNode) -> int:
        """The same, but stop at a tombstone; ``node`` is always locked unless it is one."""
        return self._lock_up(node, max(1, self._before))[0]

    def unlock(self, node: TreeNode, locked: int) -> None:
        """Release one lock on the nodes of the last ``locked`` tokens up to the end of ``node``."""
        while locked > 0:
            assert node.swa_lock_ref > 0, f"{node} was not locked in the window pool"
            node.swa_lock_ref -= 1
            if node.swa_lock_ref == 0:
                self.evictable_size += len(node.value)
                self.protected_size -= len(node.value)
            locked -= len(node.value)
            assert node.parent is not None, f"{node} was removed from the tree"
            node = node.parent
        assert locked == 0, "a receipt ends inside a node"

    def sanity_check(self, nodes: Sequence[TreeNode]) -> None:
        """Raise CacheSanityError where nodes, list and counts disagree."""
        self.lru_list.sanity_check()
        inside = [node for node in nodes if not node.swa_tombstone]
        if {node.id for node in inside} != {node.id for node in self.lru_list}:
            raise CacheSanityError("swa list: inconsistent with the tree")
        for node in nodes:
            if node.swa_lock_ref > node.full_lock_ref or node.swa_lock_ref < 0:
                raise CacheSanityError("more window locks than locks, or fewer than 0", [node.id])
            if node.swa_tombstone and node.swa_lock_ref:
                raise CacheSanityError("a tombstone is locked", [node.id])
        evictable = sum(len(node.value) for node in inside if node.swa_lock_ref == 0)
        protected = sum(len(node.value) for node in inside if node.swa_lock_ref > 0)
        counted = (self.evictable_size, self.protected_size)
        if counted != (evictable, protected):
            raise CacheSanityError(
                f"the window pool has {evictable} evictable and {protected} protected tokens of "
                f"nodes, but the counters say {counted[0]} and {counted[1]}"
            )

    def _lock_up(self, node: TreeNode, wanted: int) -> tuple[int, TreeNode | None]:
        """Lock from ``node`` upwards; return the tokens locked, and the tombstone met, if any."""
        locked = 0
        above = node.parent
        while locked < wanted and above is not None:
            if node.swa_tombstone:
                return locked, node
            if node.swa_lock_ref == 0:
                self.evictable_size -= len(node.value)
                self.protected_size += len(node.value)
            node.swa_lock_ref += 1
            locked += len(node.value)
            node, above = above, above.parent
        return locked, None

    def _enter(self, node: TreeNode) -> None:
        self.lru_list.insert_mru(node)
        self.evictable_size += len(node.value)


def _inside_from(params: InsertParams) -> int:
    """The first token for which the caller has a window part."""
    return max(params.swa_evicted_seqlen, params.prev_prefix_len)
