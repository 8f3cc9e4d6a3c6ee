"""What the host holds of a tree's windows: KV of sliding layers, one slot for each token.

A hit needs the parts of all nodes in the last window before its end, on either side.  A load copies
those parts that the device lacks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hybridbench.engine.cache.host_part import HostPart, Run, last_nodes
from hybridbench.engine.cache.tree_node import NO_TOKENS, TreeNode
from hybridbench.engine.memory.extra_pools import WindowPool
from hybridbench.engine.memory.indices import IntArray


class HostWindows(HostPart):
    """The window parts of nodes."""

    def __init__(self, pool: WindowPool, sliding_window_size: int) -> None:
        super().__init__(pool)
        self._allocator = pool.allocator
        # How many tokens of a prefix the next token reads.
        self._before = sliding_window_size - 1

    def on_device(self, node: TreeNode) -> bool:
        return not node.swa_tombstone

    def host_slots(self, node: TreeNode) -> IntArray:
        return NO_TOKENS if node.swa_host_value is None else node.swa_host_value

    def device_slots(self, node: TreeNode) -> IntArray:
        if node.swa_tombstone:
            return NO_TOKENS
        return self._allocator.translate_loc_from_full_to_swa(node.value)

    def slots_wanted(self, node: TreeNode) -> int:
        return len(node.key)

    def nodes_of(self, run: Run) -> list[TreeNode]:
        return last_nodes(run)

    def match_end(self, path: Sequence[TreeNode], end: int) -> int:
        reusable = 0
        # Tokens since the last node without a part; nothing is missing before the root.
        inside: float = math.inf
        for count, node in enumerate(path[:end], start=1):
            is_there = not node.swa_tombstone or node.swa_host_value is not None
            inside = inside + len(node.key) if is_there else 0
            if inside >= self._before:
                reusable = count
        return reusable

    def to_load(self, last_host_node: TreeNode) -> list[Run]:
        runs: list[Run] = []
        node, above, left = last_host_node, last_host_node.parent, self._before
        while left > 0 and above is not None:
            if node.swa_tombstone and node.swa_host_value is not None:
                runs.append(Run(node, len(node.key)))
            left -= len(node.key)
            node, above = above, above.parent
        return runs[::-1]

    def split(self, upper: TreeNode, lower: TreeNode) -> None:
        """Divide the part between the two halves; the lower one is the younger."""
        upper.swa_host_ref_counter = lower.swa_host_ref_counter
        if lower.swa_host_value is not None:
            tokens = len(upper.key)
            upper.swa_host_value = lower.swa_host_value[:tokens].copy()
            lower.swa_host_value = lower.swa_host_value[tokens:].copy()
            self.queue.add(upper)
            self.queue.touch(lower)

    def _set_host_slots(self, node: TreeNode, slots: IntArray) -> None:
        node.swa_host_value = slots if len(slots) else None

    def _readers(self, node: TreeNode) -> int:
        return node.swa_host_ref_counter

    def _set_readers(self, node: TreeNode, readers: int) -> None:
        node.swa_host_ref_counter = readers
