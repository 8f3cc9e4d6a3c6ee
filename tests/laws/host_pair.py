"""Run every operation on the unified tree with a host tier and on the dedicated one, and compare.

Without states, the two behave the same.  With states, HiMambaRadixCache removes nodes at once that
no request can hit on device or host, while the unified tree keeps them until their KV is evicted.
A unified tree that adopts this rule must do the same as the dedicated one if both refresh the age
of the state that was read: nodes, victims, slots on both sides, transfers, counts.
"""

from __future__ import annotations

from typing import NamedTuple

from hybridbench.engine.cache.base import BasePrefixCache, DecLockRefParams, DecLockRefResult
from hybridbench.engine.cache.hi_unified_radix_cache import HiUnifiedRadixCache
from hybridbench.engine.cache.tree_node import TreeNode
from hybridbench.engine.cache.unified_component import Evicted, TreeComponent
from hybridbench.engine.cache.unified_radix_cache import UnifiedRadixCache
from tests.laws.host_world import HostWorld
from tests.laws.unified_pair import PairWorld
from tests.unit.engine.cache.host_trees import HostHybridTree
from tests.unit.engine.cache.trees import prefixes


class CascadingHostCache(HiUnifiedRadixCache):
    """A unified tree that removes nodes that no request can hit, as HiMambaRadixCache does."""

    def _is_wanted(self, node: TreeNode) -> bool:
        states = (node.mamba_value, node.mamba_host_value)
        return bool(node.children) or any(state is not None for state in states)

    def _evict_written_leaf(self, leaf: TreeNode, evicted: Evicted) -> None:
        if leaf not in self._evictable_leaves:
            # Making room on the host evicted the nodes below this one, and then the node itself.
            return
        super()._evict_written_leaf(leaf, evicted)
        assert leaf.parent is not None
        self._cascade(leaf.parent, evicted)

    def dec_lock_ref(
        self, node: TreeNode, params: DecLockRefParams | None = None
    ) -> DecLockRefResult:
        result = super().dec_lock_ref(node, params)
        evicted = Evicted()
        self._cascade(node, evicted)
        self._free_kv(evicted)
        return result

    def _make_tombstone(self, component: TreeComponent, node: TreeNode, evicted: Evicted) -> None:
        super()._make_tombstone(component, node, evicted)
        self._drop_if_unwanted(node)

    def _lost_host_part(self, node: TreeNode) -> None:
        self._drop_if_unwanted(node)

    def _note_host_leaf(self, node: TreeNode) -> None:
        while node.evicted and not self._is_wanted(node):
            node = self._remove_host_leaf(node)
        super()._note_host_leaf(node)
        self._drop_if_unwanted(node)

    def _drop_if_unwanted(self, node: TreeNode) -> None:
        if node not in self._evictable_leaves or self._is_wanted(node):
            return
        evicted = Evicted()
        self._cascade(node, evicted)
        self._free_kv(evicted)

    def _cascade(self, node: TreeNode, evicted: Evicted) -> None:
        while node in self._evictable_leaves and not self._is_wanted(node):
            if node.host_value is not None:
                self._free_host(node)
            UnifiedRadixCache._evict_leaf(self, node, evicted)
            assert node.parent is not None
            node = node.parent


class HostFacts(NamedTuple):
    """Host-side facts of a node, which must agree in both trees."""

    host_value: list[int] | None
    state: int | None
    readers: int
    state_readers: int
    evicted: bool


class HostPairWorld(PairWorld, HostWorld):
    """A world around a dedicated tree that repeats every operation on ``unified`` and compares."""

    def __init__(self, dedicated: HostWorld, unified: HostWorld) -> None:
        super().__init__(dedicated, unified)
        self.twin = unified

    def poll(self) -> None:
        super().poll()
        self.twin.poll()

    def load_back(self, node: TreeNode) -> bool | None:
        twin = self.twin_node(node)
        started = super().load_back(node)
        assert self.twin.load_back(twin) == started
        return started

    def evict_host(self, num_tokens: int) -> int:
        evicted = super().evict_host(num_tokens)
        assert self.twin.evict_host(num_tokens) == evicted
        return evicted

    def evict_host_part(self, slots: int) -> int:
        evicted = super().evict_host_part(slots)
        assert self.twin.evict_host_part(slots) == evicted
        return evicted

    def match_is_longest(self, ids: list[int]) -> None:
        super().match_is_longest(ids)
        self.twin.match_is_longest(ids)

    def check_laws(self) -> None:
        super().check_laws()
        assert _host_facts(self) == _host_facts(self.twin)
        assert _host_free(self) == _host_free(self.twin)

    def counts(self, cache: BasePrefixCache) -> dict[str, int]:
        """Count cascades as leaves; the unified tree counts leaves without a device state so."""
        counts = super().counts(cache)
        counts["evict_leaf"] += counts.pop("evict_cascade")
        return counts

    def twin_node(self, node: TreeNode) -> TreeNode:
        prefix = next(ids for ids, known in prefixes(self.tree.cache).items() if known is node)
        return prefixes(self.twin.tree.cache)[prefix]


def _host_facts(world: HostWorld) -> dict[tuple[int, ...], HostFacts]:
    return {
        prefix: HostFacts(
            None if node.host_value is None else node.host_value.tolist(),
            node.mamba_host_value,
            node.host_ref_counter,
            node.mamba_host_ref_counter,
            node.evicted,
        )
        for prefix, node in prefixes(world.tree.cache).items()
    }


def _host_free(world: HostWorld) -> list[list[int]]:
    """Return the host pools' free slots in the order of allocation, and the host sizes."""
    tree, cache = world.tree, world.tree.cache
    states = tree.host_states.allocator.free_slots if isinstance(tree, HostHybridTree) else []
    sizes = [cache.host_evictable_size(), cache.host_protected_size()]
    sizes += [size for p in cache.host_parts for size in (p.evictable_size(), p.protected_size())]
    return [tree.host.allocator.free_pages.tolist(), list(states), sizes]
