"""The prefix tree of hybrid models with a host tier: KV and states on device and host.

On the device, the rules of the tree without a host tier apply.  A node with KV on the device may
have its state only on the host, but a node with KV only on the host has no state on the device.
When the host frees a node's KV, it frees the state there as well.  A hit ends at the deepest node
with a state on either side; what the device lacks of that path is loaded back, with that node's
state.  The host also evicts states alone.  A node that no request can hit any more on either side
is removed at once.

Source: SGLang's HiMambaRadixCache.
"""

from __future__ import annotations

from collections.abc import Sequence

from hybridbench.engine.cache.base import (
    CacheInitParams,
    CacheSanityError,
    EvictParams,
    InsertParams,
    MatchResult,
)
from hybridbench.engine.cache.host_part import HostPart, HostStates, Run
from hybridbench.engine.cache.host_tier import HostTier
from hybridbench.engine.cache.lru import FullLRUList
from hybridbench.engine.cache.mamba_radix_cache import MambaRadixCache
from hybridbench.engine.cache.radix_key import RadixKey
from hybridbench.engine.cache.tree import join
from hybridbench.engine.cache.tree_node import NO_TOKENS, TreeNode
from hybridbench.engine.memory.hicache_controller import HiCacheController
from hybridbench.engine.memory.indices import IntArray
from hybridbench.foundation.engine_config import HiCacheWritePolicy


class DeviceLRUList(FullLRUList):
    """The nodes with device slots; unlocked ones are evictable if no child has device slots."""

    def reset_path_mru(self, path: Sequence[TreeNode]) -> None:
        for node in path:
            has_child = any(not child.evicted for child in node.children.values())
            if not (node.evicted or node.full_lock_ref or has_child):
                self._remove_node(node)
                self._add_node(node)


class HiMambaRadixCache(HostTier, MambaRadixCache):
    """A MambaRadixCache that backs up nodes with their states, and loads both back."""

    def __init__(
        self,
        params: CacheInitParams,
        cache_controller: HiCacheController,
        host_states: HostStates,
        write_policy: HiCacheWritePolicy = "write_through",
    ) -> None:
        super().__init__(params, cache_controller, write_policy, (host_states,))
        self._host_states = host_states

    def host_mamba_evictable_size(self) -> int:
        """Host slots of states that no load reads."""
        return self._host_states.evictable_size()

    def host_mamba_protected_size(self) -> int:
        """Host slots of states that a load reads."""
        return self._host_states.protected_size()

    def evict_host_states(self, mamba_num: int) -> int:
        """Evict states from the host, oldest first, evicting leaves whole; return their number."""
        return self.evict_host_part(self._host_states, mamba_num)

    def sanity_check(self) -> None:
        super().sanity_check()
        nodes = list(self.iter_nodes())
        self._check_host(nodes)
        for node in nodes:
            if not node.children and node.evicted and node.mamba_host_value is None:
                raise CacheSanityError("a leaf on the host without a state", [node.id])

    def _full_list(self) -> FullLRUList:
        return DeviceLRUList()

    # Match and insert.

    def _match(self, key: RadixKey) -> MatchResult:
        """Match as far as the device has KV and a state, then as far as either side has them."""
        path, matched, _ = self._walk(key.page_aligned(self.page_size))
        del path[self._host_states.match_end(path, len(path)) :]
        self._touch_path(path)
        reusable = len(path)
        while reusable and path[reusable - 1].mamba_value is None:
            reusable -= 1
        indices = join(path[:reusable])
        branching = matched // self.mamba_cache_chunk_size * self.mamba_cache_chunk_size
        return MatchResult(
            indices,
            path[reusable - 1] if reusable else self.root_node,
            path[-1] if path else self.root_node,
            branching if branching > len(indices) else None,
            len(indices),
            sum(len(node.key) for node in path[reusable:]),
        )

    def _touch_path(self, path: list[TreeNode]) -> None:
        if not path:
            return
        self._stamp_path(path)
        for node in path:
            self._host_states.queue.touch(node)
        self._evictable_host_leaves.touch(path[-1])
        # Only the last node on the device can be evictable: those above it have a child there.
        self.full_lru_list.reset_path_mru([node for node in path if not node.evicted][-1:])
        self._refresh_states(path)

    def _after_insert(self, path: list[TreeNode], params: InsertParams) -> None:
        if params.chunked:
            return
        for node in path:
            node.hit_count += 1
        self._write_through(path)

    def _after_split(self, upper: TreeNode, lower: TreeNode) -> None:
        """Count the upper half as a tombstone: it has no state on either side."""
        if lower.evicted:
            self.events.tombstones += 1
            self._touch_path([lower])
        else:
            super()._after_split(upper, lower)
        self._split_host_part(upper, lower)

    # Transfers.

    def _make_device_room(self, run: Run, loads: Sequence[list[Run]]) -> None:
        del loads
        missing = run.tokens - self.token_to_kv_pool_allocator.available_size()
        lacks_state = self.mamba_allocator.available_size() == 0
        self.evict(EvictParams(num_tokens=max(0, missing), mamba_num=int(lacks_state)))

    def _set_device_part(self, part: HostPart, node: TreeNode, device_slots: IntArray) -> None:
        node.mamba_value = int(device_slots[0])
        node.state_access_time = self._tick()
        self.mamba_lru_list.insert_mru(node)
        self.mamba_evictable_size_ += 1

    def _set_device_value(self, node: TreeNode, value: IntArray) -> None:
        node.value = value
        self.full_evictable_size_ += len(value)
        self._evictable_host_leaves.discard(node)
        node.last_access_time = self._tick()
        self._host_states.queue.touch(node)
        self.full_lru_list.insert_mru(node)
        assert node.parent is not None
        if node.parent is not self.root_node:
            self.full_lru_list.hold(node.parent)

    # Eviction and removal.

    def _is_wanted(self, node: TreeNode) -> bool:
        on_host = node.mamba_host_value is not None
        return on_host or bool(node.children) or super()._is_wanted(node)

    def _evict_leaf(self, leaf: TreeNode, freed: list[IntArray]) -> int:
        self._write_back(leaf)
        if not self.full_lru_list.in_list(leaf):
            # The write-back removed it, since it had no state, to make room on the host.
            return 0
        reachable = leaf.children or leaf.mamba_host_value is not None
        if leaf.host_value is None or not reachable:
            self._remove_below(leaf)
            return super()._evict_leaf(leaf, freed)
        return self._evict_backuped(leaf, freed)

    def _evict_backuped(self, leaf: TreeNode, freed: list[IntArray]) -> int:
        """Free the device slots; the node stays because the host has it, or nodes below it."""
        self.events.host_stays += 1
        tokens = len(leaf.value)
        if leaf.mamba_value is not None:
            self._free_state(leaf)
        freed.append(leaf.value)
        self.full_evictable_size_ -= tokens
        self.full_lru_list.remove_node(leaf)
        leaf.value = NO_TOKENS
        if not leaf.children:
            self._evictable_host_leaves.add(leaf)
        assert leaf.parent is not None
        return tokens + self._evict_cascade(leaf.parent, freed)

    def _evict_internal_state(self, node: TreeNode) -> None:
        self._write_back(node)
        self._note_lost_part(node)
        super()._evict_internal_state(node)
        self._drop_if_unwanted(node)

    def _remove_leaf(self, leaf: TreeNode, freed: list[IntArray]) -> TreeNode:
        if leaf.host_value is not None:
            self._free_host(leaf)
        return super()._remove_leaf(leaf, freed)

    def _lost_host_part(self, node: TreeNode) -> None:
        self._drop_if_unwanted(node)

    def _note_host_leaf(self, node: TreeNode) -> None:
        while node.evicted and not node.children and not self._is_wanted(node):
            node = self._remove_host_leaf(node)
        if node.evicted and not node.children:
            self._evictable_host_leaves.add(node)
        elif not node.evicted:
            self._drop_if_unwanted(node)

    def _drop_if_unwanted(self, node: TreeNode) -> None:
        """Remove a node on the device if no request can hit it, or a node below it, any more."""
        if not (node.evicted or self._is_wanted(node)):
            freed: list[IntArray] = []
            self._evict_cascade(node, freed)
            self._free_kv(freed)
