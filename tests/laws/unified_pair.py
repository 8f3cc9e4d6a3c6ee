"""Run every operation on the unified tree and on the dedicated one, and compare all results.

The two differ by design in two ways.  When a tombstone loses its last child, MambaRadixCache and
SWARadixCache evict it at once and count its KV towards the same eviction; in the unified tree it
stays as a leaf.  And SWARadixCache refreshes the windows of a whole path, the unified tree only the
one that was read, as MambaRadixCache can be set to do with states.  A unified tree that adopts
these rules must do the same as the dedicated one: nodes, victims, slots, counts.  The unified
machines and test_unified_radix_cache.py test the unified tree's own rules.
"""

from __future__ import annotations

from typing import NamedTuple

from hybridbench.engine.cache.base import (
    BasePrefixCache,
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
from tests.laws.window_world import WindowWorld
from tests.unit.engine.cache.trees import (
    AnyHybridTree,
    AnyWindowTree,
    TreeReq,
    UnifiedHybridTree,
    UnifiedWindowTree,
    prefixes,
)


class CascadingCache(UnifiedRadixCache):
    """A unified tree that evicts a tombstone with its last child, as the dedicated trees do."""

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
        whole = all(component.has_value(node) for component in self.components)
        if not whole and node in self._evictable_leaves:
            self._evict_leaf(node, evicted)


class WholePathCache(CascadingCache):
    """A cascading cache in which a hit also refreshes parts of its path that it does not read."""

    def _touch_path(self, path: list[TreeNode]) -> None:
        super()._touch_path(path)
        for length in range(1, len(path) + 1):
            for component in self.components:
                component.touch(path[:length])


class CascadingHybridTree(UnifiedHybridTree):
    def build(self, params: CacheInitParams) -> None:
        self.cache = CascadingCache(params)


class CascadingWindowTree(UnifiedWindowTree):
    def build(self, params: CacheInitParams) -> None:
        self.cache = WholePathCache(params)


class NodeFacts(NamedTuple):
    """Facts of a node, which must agree in both trees."""

    value: list[int]
    state: int | None
    full_locks: int
    mamba_locks: int
    used: int
    state_used: int
    swa_tombstone: bool
    swa_locks: int


class PairWorld(TreeWorld):
    """A world around a dedicated tree that repeats every operation in ``other`` and compares."""

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
        """Check each world's laws, and that nodes, sizes, ages, slots and counts agree."""
        super().check_laws()
        self.other.check_laws()
        assert _nodes(self) == _nodes(self.other)
        assert self.counts(self.tree.cache) == self.counts(self.other.tree.cache)
        assert _free(self) == _free(self.other)
        for req, twin in zip(self.requests, self.other.requests, strict=True):
            assert _lengths(req) == _lengths(twin)

    def counts(self, cache: BasePrefixCache) -> dict[str, int]:
        """Return sizes and events, without ``evict_calls``, which the trees count differently."""
        counts = cache.events.as_dict() | {
            "full_evictable": cache.evictable_size(),
            "full_protected": cache.protected_size(),
            "mamba_evictable": cache.mamba_evictable_size(),
            "mamba_protected": cache.mamba_protected_size(),
            "swa_evictable": cache.swa_evictable_size(),
            "swa_protected": cache.swa_protected_size(),
            "nodes": cache.node_count(),
        }
        del counts["evict_calls"]
        return counts

    def _twin_of(self, req: TreeReq) -> TreeReq:
        return self.other.requests[[known is req for known in self.requests].index(True)]


class WindowPairWorld(PairWorld, WindowWorld):
    """A ``PairWorld`` with a window pool."""

    def __init__(self, dedicated: WindowWorld, unified: WindowWorld) -> None:
        super().__init__(dedicated, unified)
        self._windows = unified

    def leave_behind(self, req: TreeReq, end: int) -> None:
        super().leave_behind(req, end)
        self._windows.leave_behind(self._twin_of(req), end)

    def match_is_longest(self, ids: list[int]) -> None:
        super().match_is_longest(ids)
        self._windows.match_is_longest(ids)


def _nodes(world: TreeWorld) -> dict[tuple[int, ...], NodeFacts]:
    return {
        prefix: NodeFacts(
            node.value.tolist(), node.mamba_value, node.full_lock_ref, node.mamba_lock_ref,
            node.last_access_time, node.state_access_time, node.swa_tombstone, node.swa_lock_ref,
        )
        for prefix, node in prefixes(world.tree.cache).items()
    }  # fmt: skip


def _free(world: TreeWorld) -> tuple[list[int], list[int]]:
    """Return the free slots of both pools in the order of allocation."""
    tree = world.tree
    if isinstance(tree, AnyWindowTree):
        return tree.kv.free_pages.tolist(), tree.kv.swa_attn_allocator.free_pages.tolist()
    states = tree.mamba.free_slots if isinstance(tree, AnyHybridTree) else []
    return tree.kv.free_pages.tolist(), list(states)


def _lengths(req: TreeReq) -> tuple[int | None, ...]:
    return (
        req.kv.cache_protected_len, req.kv.kv_committed_len, req.kv.kv_allocated_len,
        len(req.kv.prefix_indices), req.kv.mamba_last_track_seqlen, req.kv.mamba_pool_idx,
    )  # fmt: skip
