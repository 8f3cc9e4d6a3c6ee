"""The window pool's part of a unified tree: KV of sliding layers, evicted independently.

As in SWARadixCache, a match ends where the window pool has a whole window, and a node whose window
part is evicted stays as a tombstone.  A tombstone that loses its last child, or its last lock, also
stays, as a leaf, until its KV is evicted or a request restores its window part.

Source: the SWAComponent of SGLang's UnifiedRadixCache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from hybridbench.engine.cache.base import (
    CacheableReq,
    CacheEvents,
    CacheInitParams,
    DecLockRefParams,
    EvictParams,
    IncLockRefResult,
    InsertParams,
)
from hybridbench.engine.cache.swa_lru import SWALRUList
from hybridbench.engine.cache.swa_window import LIST_ENDS, TreeWindow
from hybridbench.engine.cache.tree_node import TreeNode
from hybridbench.engine.cache.unified_component import Evicted, TreeComponent
from hybridbench.engine.memory.indices import IntArray


class UnifiedSWALRUList(SWALRUList):
    """A list with its own ``_remove_node``, as upstream, so that a defect can affect it alone.

    It is ordered by its own count of moves, since using a node does not always use its window part.
    """

    def __init__(self) -> None:
        super().__init__()
        self._moves = 0
        self._oldest = 0

    def insert_lru(self, node: TreeNode) -> None:
        super().insert_lru(node)
        self._oldest -= 1
        node.swa_access_time = self._oldest

    def _age(self, node: TreeNode) -> int:
        return node.swa_access_time

    def _add_node(self, node: TreeNode) -> None:
        self._moves += 1
        node.swa_access_time = self._moves
        super()._add_node(node)

    def _remove_node(self, node: TreeNode) -> None:
        node.swa_prev.swa_next = node.swa_next
        node.swa_next.swa_prev = node.swa_prev
        node.swa_prev = None  # type: ignore[assignment]
        node.swa_next = None  # type: ignore[assignment]


class SWAComponent(TreeComponent):
    """The window parts of nodes; ``TreeWindow`` does the work."""

    name = "swa"
    list_ends = LIST_ENDS

    def __init__(self, params: CacheInitParams, events: CacheEvents) -> None:
        """Raise ValueError if there is no window."""
        self.window = TreeWindow(params, events, UnifiedSWALRUList)

    def evictable_size(self) -> int:
        return self.window.evictable_size

    def protected_size(self) -> int:
        return self.window.protected_size

    def reset(self) -> None:
        self.window.lru_list.dismantle()
        self.window.start()

    def has_value(self, node: TreeNode) -> bool:
        return not node.swa_tombstone

    def match_end(self, path: Sequence[TreeNode], end: int) -> int:
        return self.window.reusable(path, end)

    def touch(self, path: Sequence[TreeNode]) -> None:
        """Refresh only the last window of a path, which is the one that is read."""
        self.window.lru_list.reset_path_mru(self.window.read_of(path))

    def redistribute_on_node_split(self, upper: TreeNode, lower: TreeNode) -> None:
        self.window.split(upper, lower)

    def update_on_insert_overlap(
        self,
        path: list[TreeNode],
        value: IntArray,
        params: InsertParams,
        split: Callable[[TreeNode, int], TreeNode],
    ) -> list[TreeNode]:
        return self.window.revive(path, value, params, split)

    def leaf_cut(self, prefix_len: int, params: InsertParams) -> int:
        return self.window.leaf_cut(prefix_len, params)

    def add_node(self, node: TreeNode, end: int, params: InsertParams) -> None:
        self.window.add(node, end, params)

    def acquire_component_lock(self, node: TreeNode, lock: IncLockRefResult) -> IncLockRefResult:
        return IncLockRefResult(lock.delta, lock.mamba_locked, self.window.lock(node))

    def acquire_transfer_lock(self, node: TreeNode, lock: IncLockRefResult) -> IncLockRefResult:
        """Lock the parts of one window up to the node's end, as far as the first gap."""
        return IncLockRefResult(lock.delta, lock.mamba_locked, self.window.lock_present(node))

    def release_component_lock(self, node: TreeNode, receipt: DecLockRefParams | None) -> None:
        assert receipt is not None, "only its receipt says how far a lock reaches"
        self.window.unlock(node, receipt.swa_locked_len)

    def drive_eviction(self, params: EvictParams, evicted: Evicted) -> Iterator[TreeNode]:
        while evicted.swa_tokens < params.swa_num_tokens:
            oldest = self.window.lru_list.get_lru_no_lock()
            if oldest is None:
                return
            yield oldest

    def evict_component(self, node: TreeNode, evicted: Evicted) -> None:
        """Count the window part, which is freed with the KV."""
        if not node.swa_tombstone:
            self.window.leave(node)
            node.swa_tombstone = True
            evicted.swa_tokens += len(node.value)

    def make_tombstone(self, node: TreeNode, evicted: Evicted) -> None:
        self.window.tombstone(node)
        evicted.swa_tokens += len(node.value)

    def take_loaded(self, node: TreeNode, slots: IntArray, time: int) -> None:
        del time
        self.window.attach(node, slots)

    def cacheable_len(self, req: CacheableReq) -> int:
        return req.kv.kv_committed_len

    def sanity_check(self, nodes: Sequence[TreeNode]) -> None:
        self.window.sanity_check(nodes)
