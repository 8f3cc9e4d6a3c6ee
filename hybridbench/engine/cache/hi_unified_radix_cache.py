"""The unified tree with a host tier: KV and components on device and host.

On the device, the rules of the tree without a host tier apply.  A node with KV on the device may
have a component only on the host, but a node with KV only on the host has none on the device.  When
the host frees a node's KV, it frees the node's components there as well.  A hit ends where every
component has what it needs on either side; what the device lacks of that is loaded back.

As on the device, a node that lost a component on the host stays until its KV is evicted.  But a
leaf evicted from the device is removed if no request could hit it with what the host has.

Source: SGLang's UnifiedRadixCache, which has its host tier built in.
"""

from __future__ import annotations

from collections.abc import Sequence

from hybridbench.engine.cache.base import (
    CacheInitParams,
    DecLockRefParams,
    EvictParams,
    IncLockRefResult,
    InsertParams,
    MatchResult,
)
from hybridbench.engine.cache.host_part import HostPart, Run
from hybridbench.engine.cache.host_tier import HostTier
from hybridbench.engine.cache.radix_key import RadixKey
from hybridbench.engine.cache.tree import join
from hybridbench.engine.cache.tree_node import NO_TOKENS, TreeNode
from hybridbench.engine.cache.unified_component import Evicted, TreeComponent
from hybridbench.engine.cache.unified_radix_cache import UnifiedRadixCache, common_end
from hybridbench.engine.memory.hicache_controller import HiCacheController
from hybridbench.engine.memory.indices import IntArray
from hybridbench.foundation.engine_config import HiCacheWritePolicy


class HiUnifiedRadixCache(HostTier, UnifiedRadixCache):
    """A UnifiedRadixCache that backs up nodes, evicts in two stages, and loads back."""

    def __init__(
        self,
        params: CacheInitParams,
        cache_controller: HiCacheController,
        host_parts: Sequence[HostPart] = (),
        write_policy: HiCacheWritePolicy = "write_through",
    ) -> None:
        """Raise ValueError unless there is one host part for each component."""
        super().__init__(params, cache_controller, write_policy, host_parts)
        self._component_of = {component.name: component for component in self.components}
        given = [part.pool.name for part in host_parts]
        if sorted(given) != sorted(self._component_of):
            raise ValueError(f"the tree has {[*self._component_of]}, the host tier is for {given}")

    def sanity_check(self) -> None:
        super().sanity_check()
        self._check_host(list(self.iter_nodes()))

    def _match(self, key: RadixKey) -> MatchResult:
        """Match as far as the device has all that is needed, then as far as either side has it."""
        path, walked_len, _ = self._walk(key.page_aligned(self.page_size))
        del path[common_end(path, self.host_parts) :]
        self._touch_path(path)
        on_device = [node for node in path if not node.evicted]
        used = on_device[: common_end(on_device, self.components)]
        indices = join(used)
        return MatchResult(
            indices,
            used[-1] if used else self.root_node,
            path[-1] if path else self.root_node,
            self._branching_seqlen(len(indices), walked_len),
            len(indices),
            sum(len(node.key) for node in path[len(used) :]),
        )

    def _touch_path(self, path: list[TreeNode]) -> None:
        if not path:
            return
        self._stamp_path(path)
        for part in self.host_parts:
            part.queue.touch_all(path)
        self._evictable_host_leaves.touch(path[-1])
        # Only the last node on the device can be evictable: those above it have a child there.
        for node in [node for node in path if not node.evicted][-1:]:
            self._evictable_leaves.touch(node)
        for component in self.components:
            component.touch(path)

    def _after_insert(self, path: list[TreeNode], params: InsertParams) -> None:
        if not params.chunked:
            self._write_through(path)

    def _after_split(self, upper: TreeNode, lower: TreeNode) -> None:
        super()._after_split(upper, lower)
        if self.components:
            self._evictable_host_leaves.touch(lower)
        self._split_host_part(upper, lower)

    # Transfers.

    def _lock_for_transfer(self, node: TreeNode) -> DecLockRefParams:
        """Lock as for a request, except that components may have no value at the node."""
        if node is self.root_node:
            return DecLockRefParams()
        self._evictable_leaves.discard(node)
        lock = IncLockRefResult(self._lock_path(node))
        for component in self.components:
            lock = component.acquire_transfer_lock(node, lock)
        return lock.to_dec_params()

    def _make_device_room(self, run: Run, loads: Sequence[list[Run]]) -> None:
        missing = {"mamba": 0, "swa": 0}
        for part, runs in zip(self.host_parts, loads, strict=True):
            nodes = [node for wanted in runs for node in part.nodes_of(wanted)]
            needed = sum(part.slots_wanted(node) for node in nodes)
            missing[part.pool.name] = needed - part.pool.device_account.available_size()
        tokens = run.tokens - self.cache_controller.mem_pool_device_allocator.full_available_size()
        self.evict(EvictParams(max(0, tokens), max(0, missing["mamba"]), max(0, missing["swa"])))

    def _set_device_value(self, node: TreeNode, value: IntArray) -> None:
        assert node.parent is not None
        node.value = value
        self.full_evictable_size_ += len(value)
        self._evictable_host_leaves.discard(node)
        self._evictable_leaves.discard(node.parent)
        self._note_leaf(node)
        if self.components:
            self._make_youngest(node)

    def _set_device_part(self, part: HostPart, node: TreeNode, device_slots: IntArray) -> None:
        self._component_of[part.pool.name].take_loaded(node, device_slots, self._tick())

    def _make_youngest(self, node: TreeNode) -> None:
        """Make a loaded node the youngest, as HiMambaRadixCache does."""
        node.last_access_time = self._tick()
        self._evictable_leaves.touch(node)
        for part in self.host_parts:
            part.queue.touch(node)

    # Eviction and removal.

    def _evict_leaf(self, leaf: TreeNode, evicted: Evicted) -> None:
        self._write_back(leaf)
        self._evict_written_leaf(leaf, evicted)

    def _evict_written_leaf(self, leaf: TreeNode, evicted: Evicted) -> None:
        if leaf.host_value is not None and self._is_worth_keeping(leaf):
            self._evict_backuped(leaf, evicted)
            return
        self._remove_below(leaf)
        if leaf.host_value is not None:
            self._free_host(leaf)
        super()._evict_leaf(leaf, evicted)

    def _is_worth_keeping(self, leaf: TreeNode) -> bool:
        """Whether a request could hit it, or a node below it, with what the host has."""
        return bool(leaf.children) or all(part.has_value(leaf) for part in self.host_parts)

    def _evict_backuped(self, leaf: TreeNode, evicted: Evicted) -> None:
        """Free the device slots; the node stays because the host has it, or nodes below it."""
        self.events.host_stays += 1
        self._evict_from_device(leaf, evicted)
        leaf.value = NO_TOKENS
        if not leaf.children:
            self._evictable_host_leaves.add(leaf)
        assert leaf.parent is not None
        self._note_leaf(leaf.parent)

    def _make_tombstone(self, component: TreeComponent, node: TreeNode, evicted: Evicted) -> None:
        self._write_back(node)
        self._note_lost_part(node)
        super()._make_tombstone(component, node, evicted)

    def _note_host_leaf(self, node: TreeNode) -> None:
        if node.evicted and not node.children:
            self._evictable_host_leaves.add(node)
