"""What only the unified tree has: leaves without a state, lock receipts, and its refusals."""

from __future__ import annotations

import numpy as np
import pytest

from hybridbench.engine.cache.base import CacheInitParams, EvictParams, EvictResult, InsertParams
from hybridbench.engine.cache.radix_key import RadixKey
from hybridbench.engine.cache.unified_radix_cache import UnifiedRadixCache
from tests.unit.engine.cache.trees import (
    Buffers,
    HybridTree,
    UnifiedHybridTree,
    UnifiedPagedTree,
    UnifiedWindowTree,
    prefixes,
)


def insert_without_state(tree: UnifiedHybridTree, ids: list[int]) -> None:
    value = tree.kv.alloc(len(ids))
    assert value is not None
    assert not tree.cache.insert(InsertParams(RadixKey(ids), value)).mamba_exist


def test_a_tombstone_that_lost_its_last_child_waits_for_the_turn_of_its_kv() -> None:
    tree = UnifiedHybridTree()
    tree.insert([1, 2])
    tree.insert([1, 2, 3])
    tree.cache.evict(EvictParams(mamba_num=1))
    assert tree.node([1, 2]).mamba_value is None

    assert tree.cache.evict(EvictParams(mamba_num=1)) == EvictResult(1, 1)

    left = tree.node([1, 2])
    assert left.mamba_value is None
    assert not left.children
    assert tree.match([1, 2]).prefix_len == 0
    assert tree.cache.evict(EvictParams(num_tokens=1)) == EvictResult(2, 0)
    assert tree.cache.node_count() == 0
    assert (tree.cache.events.evict_leaf, tree.cache.events.evict_cascade) == (1, 1)
    tree.audit()


def test_a_leaf_inserted_without_a_state_is_no_hit_until_a_state_comes() -> None:
    tree = UnifiedHybridTree()
    insert_without_state(tree, [1, 2, 3])
    assert tree.match([1, 2, 3]).prefix_len == 0

    assert tree.insert([1, 2, 3]) == (3, 3, False)

    assert tree.match([1, 2, 3]).prefix_len == 3
    tree.audit()


def test_a_lock_taken_before_the_state_came_gives_only_its_own_back() -> None:
    tree = UnifiedHybridTree()
    insert_without_state(tree, [1, 2])
    node = tree.node([1, 2])
    before = tree.cache.inc_lock_ref(node)
    tree.insert([1, 2])
    after = tree.cache.inc_lock_ref(node)
    assert (before.mamba_locked, after.mamba_locked) == (False, True)

    tree.cache.dec_lock_ref(node, before.to_dec_params())

    assert (node.full_lock_ref, node.mamba_lock_ref) == (1, 1)
    assert tree.cache.evict(EvictParams(10, 10)) == EvictResult(0, 0)
    tree.cache.dec_lock_ref(node, after.to_dec_params())
    assert tree.cache.evict(EvictParams(10, 10)) == EvictResult(2, 1)
    tree.audit()


def test_a_window_tombstone_waits_for_the_turn_of_its_kv_or_for_its_window_to_come_again() -> None:
    tree = UnifiedWindowTree(window=3)
    tree.insert([1, 2, 3])
    tree.insert([1, 2, 3, 4, 5])
    tree.cache.evict(EvictParams(swa_num_tokens=3))
    assert tree.node([1, 2, 3]).swa_tombstone

    went = tree.cache.evict(EvictParams(swa_num_tokens=2))

    assert went == EvictResult(2, swa_num_tokens_evicted=2)
    assert not tree.node([1, 2, 3]).children
    assert tree.match([1, 2, 3]).prefix_len == 0
    assert tree.insert([1, 2, 3]).prefix_len == 3
    assert tree.match([1, 2, 3]).prefix_len == 3
    assert tree.cache.evict(EvictParams(num_tokens=1)) == EvictResult(3, swa_num_tokens_evicted=3)
    assert tree.cache.node_count() == 0
    tree.audit()


def test_a_window_lock_can_go_before_the_lock_of_the_prefix() -> None:
    tree = UnifiedWindowTree(window=3)
    tree.insert([1, 2, 3, 4])
    node = tree.node([1, 2, 3, 4])
    lock = tree.cache.inc_lock_ref(node).to_dec_params()
    assert (lock.swa_locked_len, tree.cache.swa_protected_size()) == (4, 4)

    rest = tree.cache.dec_swa_lock_only(node, lock)

    assert (tree.cache.swa_protected_size(), tree.cache.protected_size()) == (0, 4)
    # The KV is locked, so the leaf stays without its window part.
    assert tree.cache.evict(EvictParams(9, swa_num_tokens=1)) == EvictResult(
        0, swa_num_tokens_evicted=4
    )
    tree.cache.dec_lock_ref(node, rest)
    assert tree.cache.evictable_size() == 4
    assert tree.cache.evict(EvictParams(1)) == EvictResult(4)
    tree.audit()


def test_a_hit_makes_young_the_state_that_it_read_and_no_other() -> None:
    tree = UnifiedHybridTree()
    for ids in ([1, 2], [1, 2, 3], [1, 2, 3, 4], [9]):
        tree.insert(ids)

    tree.match([1, 2, 3, 5])
    tree.cache.evict(EvictParams(mamba_num=3))

    kept = {ids for ids, node in prefixes(tree.cache).items() if node.mamba_value is not None}
    assert kept == {(1, 2, 3)}
    tree.audit()


def test_a_hit_makes_young_the_one_window_that_it_reads() -> None:
    tree = UnifiedWindowTree(window=3)
    for ids in ([1, 2], [1, 2, 3], [1, 2, 3, 4], [9, 9]):
        tree.insert(ids)

    tree.match([1, 2, 3, 4, 5])
    tree.cache.evict(EvictParams(swa_num_tokens=3))

    whole = {ids for ids, node in prefixes(tree.cache).items() if not node.swa_tombstone}
    # The token after the hit reads the two before it, which are in two nodes.
    assert whole == {(1, 2, 3), (1, 2, 3, 4)}
    tree.audit()


def test_a_window_part_that_came_back_and_is_not_read_goes_first() -> None:
    tree = UnifiedWindowTree(window=3)
    for ids in ([1, 2], [1, 2, 3, 4], [1, 2, 3, 4, 7, 8], [9, 9]):
        tree.insert(ids)
    tree.cache.evict(EvictParams(swa_num_tokens=4))
    assert tree.node([1, 2]).swa_tombstone
    assert tree.node([1, 2, 3, 4]).swa_tombstone

    tree.insert([1, 2, 3, 4, 5, 6])
    assert not tree.node([1, 2]).swa_tombstone
    tree.cache.evict(EvictParams(swa_num_tokens=2))

    left = {ids for ids, node in prefixes(tree.cache).items() if node.swa_tombstone}
    assert left == {(1, 2)}
    assert tree.cache.node_count() == 5
    tree.audit()


def test_a_tree_without_components_leaves_a_state_with_its_giver() -> None:
    tree = UnifiedPagedTree(page_size=1)
    value = tree.kv.alloc(2)
    assert value is not None

    assert tree.cache.insert(InsertParams(RadixKey([1, 2]), value, 7)).mamba_exist

    assert not tree.cache.supports_mamba()
    assert tree.cache.tree_slots().mamba_slots == []


@pytest.mark.parametrize("policy", ["lfu", "fifo", "mru", "filo", "priority", "slru"])
def test_kv_goes_by_the_policy_and_states_by_age(policy: str) -> None:
    tree, plain = UnifiedHybridTree(), UnifiedPagedTree(page_size=1, policy=policy)
    params = CacheInitParams(tree.rows, tree.kv, 1, eviction_policy=policy)
    tree.cache = UnifiedRadixCache(params)
    for ids in ([1, 2], [3], [4], [3, 5]):
        tree.insert(ids)
        plain.insert(ids)

    while plain.cache.node_count():
        went = plain.cache.evict(EvictParams(num_tokens=1)).num_tokens_evicted
        assert tree.cache.evict(EvictParams(num_tokens=1)).num_tokens_evicted == went


@pytest.mark.parametrize("policy", ["lru", "lfu", "fifo", "mru", "filo", "priority", "slru"])
def test_a_leaf_that_was_inserted_again_can_still_be_evicted(policy: str) -> None:
    tree = UnifiedPagedTree(page_size=1, policy=policy)
    for ids in ([1, 2], [3], [1, 2]):
        tree.insert(ids)

    evicted = tree.cache.evict(EvictParams(num_tokens=3)).num_tokens_evicted

    assert evicted == 3
    assert tree.cache.node_count() == 0


def test_what_cannot_be_inserted_is_refused_before_anything_is_taken() -> None:
    tree = UnifiedHybridTree(kv_tokens=64, page_size=4, buffers=Buffers(4))
    value = tree.kv.alloc(8)
    assert value is not None

    with pytest.raises(ValueError, match="inside a page of 4"):
        tree.cache.insert(InsertParams(RadixKey([1, 2, 3, 4, 5]), value[:5], 1))
    with pytest.raises(ValueError, match="8 tokens, but 4 KV indices"):
        tree.cache.insert(InsertParams(RadixKey(range(8)), value[:4]))

    assert tree.cache.node_count() == 0


def test_pages_without_track_buffers_are_refused_as_by_the_dedicated_tree() -> None:
    rows = HybridTree().rows
    kv = UnifiedPagedTree().kv

    with pytest.raises(ValueError, match="needs page_size 1"):
        UnifiedRadixCache(CacheInitParams(rows, kv, 4))


def test_a_disabled_tree_keeps_nothing() -> None:
    tree = UnifiedHybridTree()
    tree.cache = UnifiedRadixCache(CacheInitParams(tree.rows, tree.kv, 1, disable=True))
    value = np.array([1, 2], dtype=np.int64)

    assert tree.cache.insert(InsertParams(RadixKey([1, 2]), value, 1)) == (0, 0, True)
    assert tree.match([1, 2]).prefix_len == 0
    assert tree.cache.inc_lock_ref(tree.cache.root_node).delta == 0


def test_a_reset_forgets_everything_of_every_component() -> None:
    tree = UnifiedHybridTree()
    for ids in ([1, 2], [1, 2, 3], [1, 4]):
        tree.insert(ids)

    tree.cache.reset()

    assert (tree.cache.node_count(), tree.cache.evictable_size()) == (0, 0)
    assert tree.cache.mamba_evictable_size() == 0
    assert tree.match([1, 2]).prefix_len == 0
    tree.cache.sanity_check()
