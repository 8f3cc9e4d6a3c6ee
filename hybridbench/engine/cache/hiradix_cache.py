"""The prefix tree of attention-only models with a host tier behind the device pool.

Source: SGLang's HiRadixCache.
"""

from __future__ import annotations

from collections.abc import Iterator

from hybridbench.engine.cache.base import InsertParams, MatchResult
from hybridbench.engine.cache.radix_cache import RadixCache
from hybridbench.engine.cache.radix_key import RadixKey
from hybridbench.engine.cache.storage_tier import StorageTier
from hybridbench.engine.cache.tree import join
from hybridbench.engine.cache.tree_node import NO_TOKENS, TreeNode
from hybridbench.engine.memory.indices import IntArray


class HiRadixCache(StorageTier, RadixCache):
    """A RadixCache that backs up nodes, evicts in two stages, and loads back."""

    def sanity_check(self) -> None:
        super().sanity_check()
        self._check_host(list(self.iter_nodes()))

    def _match(self, key: RadixKey) -> MatchResult:
        """Match as far as the device has KV, and report how much further the host has it."""
        path = self._walk(key.page_aligned(self.page_size)).path
        if not path:
            return self._no_match()
        self._stamp_path(path)
        self._evictable_host_leaves.touch(path[-1])
        on_device = [node for node in path if not node.evicted]
        last = on_device[-1] if on_device else self.root_node
        self._evictable_leaves.touch(last)
        host_hit_length = sum(len(node.key) for node in path[len(on_device) :])
        indices = join(on_device)
        return MatchResult(indices, last, path[-1], None, len(indices), host_hit_length)

    def _after_insert(self, path: list[TreeNode], params: InsertParams) -> None:
        if not params.chunked:
            self._write_through(path)

    def _set_device_value(self, node: TreeNode, value: IntArray) -> None:
        assert node.parent is not None
        node.value = value
        self.full_evictable_size_ += len(value)
        self._evictable_host_leaves.discard(node)
        self._evictable_leaves.discard(node.parent)
        self._note_leaf(node)

    def _note_leaf(self, node: TreeNode) -> None:
        if node.full_lock_ref == 0 and node is not self.root_node and self._is_leaf(node):
            self._evictable_leaves.add(node)

    def _note_host_leaf(self, node: TreeNode) -> None:
        if node.evicted and not node.children:
            self._evictable_host_leaves.add(node)

    def _oldest_leaves(self) -> Iterator[TreeNode]:
        """Skip leaves whose removal would free protected host slots; they are queued again."""
        refused: list[TreeNode] = []
        try:
            for leaf in super()._oldest_leaves():
                if leaf.host_value is None and self._leads_to_protected(leaf):
                    self.events.host_evictions_refused += 1
                    self._evictable_leaves.discard(leaf)
                    refused.append(leaf)
                else:
                    yield leaf
        finally:
            for leaf in refused:
                self._note_leaf(leaf)

    def _evict_leaf(self, leaf: TreeNode, freed: list[IntArray]) -> None:
        self._write_back(leaf)
        if leaf.host_value is None:
            self._remove_below(leaf)
            super()._evict_leaf(leaf, freed)
        else:
            self._evict_backuped(leaf, freed)

    def _evict_backuped(self, leaf: TreeNode, freed: list[IntArray]) -> None:
        """Free the device slots; the node stays with its host slots."""
        self.events.host_stays += 1
        freed.append(leaf.value)
        self.full_evictable_size_ -= len(leaf.value)
        self._evictable_leaves.discard(leaf)
        leaf.value = NO_TOKENS
        if not leaf.children:
            self._evictable_host_leaves.add(leaf)
        assert leaf.parent is not None
        self._note_leaf(leaf.parent)

    def _after_split(self, upper: TreeNode, lower: TreeNode) -> None:
        super()._after_split(upper, lower)
        self._split_host_part(upper, lower)
