"""The unified tree beside the dedicated one: every operation on both, every answer compared.

The two differ by design in one thing.  When a tombstone loses its last child, MambaRadixCache
evicts it at once and counts its KV towards the same eviction; in the unified tree it waits, as a
leaf.  With this one rule taken over, everything must be the same: nodes, victims, slots, counts.
That the rule itself is kept, test_unified_radix_machine.py shows.
"""

from __future__ import annotations

from typing import NamedTuple

from hybridbench.engine.cache.base import (
    CacheInitParams,
    DecLockRefParams,
    DecLockRefResult,
    EvictParams,
    EvictResult,
)
from hybridbench.engine.cache.tree_node import TreeNode
from hybridbench.engine.cache.unified_component import Evicted
from hybridbench.engine.cache.unified_radix_cache import UnifiedRadixCache
from hybridbench.engine.memory.owners import TREE
from tests.laws.tree_world import TreeWorld
from tests.unit.engine.cache.trees import AnyHybridTree, TreeReq, UnifiedHybridTree, prefixes


class CascadingCache(UnifiedRadixCache):
    """A unified tree in which a tombstone goes with its last child, as in MambaRadixCache."""

    def _evict_leaf(self, leaf: TreeNode, evicted: Evicted) -> None:
        super()._evict_leaf(leaf, evicted)
        assert leaf.parent is not None
        self._evict_tombstone(leaf.parent, evicted)

    def dec_lock_ref(
        self, node: TreeNode, params: DecLockRefParams | None = None
    ) -> DecLockRefResult:
        result = super().dec_lock_ref(node, params)
        evicted = Evicted()
        self._evict_tombstone(node, evicted)
        for value in evicted.kv:
            self.token_to_kv_pool_allocator.free(value, TREE)
        return result

    def _evict_tombstone(self, node: TreeNode, evicted: Evicted) -> None:
        if node.is_tombstone and node in self._evictable_leaves:
            self._evict_leaf(node, evicted)


class CascadingHybridTree(UnifiedHybridTree):
    def build(self, params: CacheInitParams) -> None:
        self.cache = CascadingCache(params)


class NodeFacts(NamedTuple):
    """A node as both trees must have it."""

    value: list[int]
    state: int | None
    full_locks: int
    mamba_locks: int
    used: int
    state_used: int


class PairWorld(TreeWorld):
    """A world around a dedicated tree that does the same in ``other``, and compares."""

    def __init__(self, dedicated: TreeWorld, unified: TreeWorld) -> None:
        super().__init__(dedicated.tree)
        self.other = unified

    def start(self, ids: list[int]) -> bool:
        started = super().start(ids)
        assert self.other.start(ids) == started
        return started

    def compute(self, req: TreeReq, count: int) -> bool:
        computed = super().compute(req, count)
        assert self.other.compute(self._twin_of(req), count) == computed
        return computed

    def share(self, req: TreeReq, chunked: bool) -> None:
        super().share(req, chunked)
        self.other.share(self._twin_of(req), chunked)

    def finish(self, req: TreeReq, is_insert: bool) -> None:
        twin = self._twin_of(req)
        super().finish(req, is_insert)
        self.other.finish(twin, is_insert)

    def lock(self, node: TreeNode) -> None:
        prefix = next(ids for ids, known in prefixes(self.tree.cache).items() if known is node)
        super().lock(node)
        self.other.lock(prefixes(self.other.tree.cache)[prefix])

    def unlock(self, place: int) -> None:
        super().unlock(place)
        self.other.unlock(place)

    def evict(self, params: EvictParams) -> EvictResult:
        evicted = self.tree.cache.evict(params)
        assert self.other.tree.cache.evict(params) == evicted
        return evicted

    def check_laws(self) -> None:
        """The laws of each, and that nodes, sizes, ages, slots and counts are the same."""
        super().check_laws()
        self.other.check_laws()
        assert _nodes(self) == _nodes(self.other)
        assert _counts(self) == _counts(self.other)
        assert _free(self) == _free(self.other)
        for req, twin in zip(self.requests, self.other.requests, strict=True):
            assert _lengths(req) == _lengths(twin)

    def _twin_of(self, req: TreeReq) -> TreeReq:
        return self.other.requests[[known is req for known in self.requests].index(True)]


def _nodes(world: TreeWorld) -> dict[tuple[int, ...], NodeFacts]:
    return {
        prefix: NodeFacts(
            node.value.tolist(), node.mamba_value, node.full_lock_ref, node.mamba_lock_ref,
            node.last_access_time, node.state_access_time,
        )
        for prefix, node in prefixes(world.tree.cache).items()
    }  # fmt: skip


def _counts(world: TreeWorld) -> dict[str, int]:
    """Sizes and events, but for one: making room for a state is an evict call here alone."""
    cache = world.tree.cache
    counts = cache.events.as_dict() | {
        "full_evictable": cache.full_evictable_size(),
        "full_protected": cache.full_protected_size(),
        "mamba_evictable": cache.mamba_evictable_size(),
        "mamba_protected": cache.mamba_protected_size(),
        "nodes": cache.node_count(),
    }
    del counts["evict_calls"]
    return counts


def _free(world: TreeWorld) -> tuple[list[int], list[int]]:
    """What is free of both pools, in the order in which it will be taken."""
    tree = world.tree
    states = tree.mamba.free_slots if isinstance(tree, AnyHybridTree) else []
    return tree.kv.free_pages.tolist(), list(states)


def _lengths(req: TreeReq) -> tuple[int | None, ...]:
    return (
        req.cache_protected_len, req.kv_committed_len, req.kv_allocated_len,
        len(req.prefix_indices), req.mamba_last_track_seqlen, req.mamba_pool_idx,
    )  # fmt: skip
