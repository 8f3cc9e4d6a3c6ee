"""The hybrid tree: match, insert, split, tombstones, locks, copy-on-write."""

from __future__ import annotations

import numpy as np
import pytest

from hybridbench.engine.cache.base import (
    CacheInitParams,
    InsertParams,
    MatchPrefixParams,
)
from hybridbench.engine.cache.mamba_radix_cache import MambaRadixCache
from hybridbench.engine.cache.radix_key import RadixKey
from hybridbench.engine.memory.owners import REQ, TREE, OwnershipError
from hybridbench.engine.memory.req_to_token import ReqToTokenPool
from tests.unit.engine.cache.trees import HybridTree, TreeReq, full_order, state_order, tokens_in


def test_an_empty_tree_matches_nothing() -> None:
    tree = HybridTree()

    result = tree.match([1, 2])

    assert len(result.device_indices) == 0
    assert result.last_device_node is tree.cache.root_node
    assert len(result.last_device_node.key) == 0


def test_a_whole_prefix_is_found_with_its_positions() -> None:
    tree = HybridTree()
    assert tree.insert([1, 2, 3]) == (0, 3, False)

    result = tree.match([1, 2, 3, 4])

    assert result.device_indices.tolist() == [1, 2, 3]
    assert result.last_device_node is tree.node([1, 2, 3])
    assert result.cache_protected_len == 3
    assert result.mamba_branching_seqlen is None


def test_an_answer_may_be_changed_without_harm_to_the_tree() -> None:
    tree = HybridTree()
    tree.insert([1, 2, 3])

    tree.match([1, 2, 3]).device_indices[:] = 0

    assert tree.match([1, 2, 3]).device_indices.tolist() == [1, 2, 3]


def test_insert_frees_what_the_tree_has_already() -> None:
    tree = HybridTree()
    tree.insert([1, 2, 3])

    assert tree.insert([1, 2, 3, 4]) == (3, 4, False)

    assert tokens_in(tree.cache) == 4
    assert tree.kv.held(REQ) == 0
    assert tree.kv.available_size() == 60
    tree.audit()


@pytest.mark.parametrize(("prev_prefix_len", "freed"), [(0, 3), (2, 1), (3, 0), (4, 0)])
def test_duplicates_are_freed_only_from_prev_prefix_len_on(
    prev_prefix_len: int, freed: int
) -> None:
    tree = HybridTree()
    tree.insert([1, 2, 3])
    before = tree.kv.available_size()

    tree.insert([1, 2, 3, 4], prev_prefix_len)

    assert tree.kv.available_size() == before - 4 + freed


def test_the_exact_prefix_again_leaves_the_state_with_the_caller() -> None:
    tree = HybridTree()
    tree.insert([1, 2])
    slots = tree.mamba.alloc(1)
    value = tree.kv.alloc(2)
    assert slots is not None
    assert value is not None

    result = tree.cache.insert(InsertParams(RadixKey([1, 2]), value, slots[0]))

    assert result == (2, 2, True)
    assert tree.mamba.owner_of(slots[0]) == REQ


def test_insert_refuses_a_prefix_without_state_and_a_wrong_number_of_positions() -> None:
    tree = HybridTree()

    with pytest.raises(ValueError, match="mamba_value is None"):
        tree.cache.insert(InsertParams(RadixKey([1]), np.array([1])))
    with pytest.raises(ValueError, match="2 tokens, but 1 KV"):
        tree.cache.insert(InsertParams(RadixKey([1, 2]), np.array([1]), 1))


def test_positions_that_are_not_the_callers_are_refused_and_not_linked() -> None:
    tree = HybridTree()
    tree.insert([1, 2])

    with pytest.raises(OwnershipError, match="held by TREE, not REQ"):
        tree.cache.insert(InsertParams(RadixKey([7, 8]), np.array([1, 2]), 1))

    assert tree.cache.node_count() == 1
    tree.audit()


def test_a_split_leaves_a_tombstone_above_and_the_state_below() -> None:
    tree = HybridTree()
    tree.insert([1, 2, 3, 4])
    below = tree.node([1, 2, 3, 4])

    assert tree.insert([1, 2, 7]) == (2, 3, False)

    upper = tree.node([1, 2])
    assert upper.mamba_value is None
    assert tree.node([1, 2, 3, 4]) is below
    assert list(below.key) == [3, 4]
    assert upper.value.tolist() == [1, 2]
    assert below.value.tolist() == [3, 4]
    assert full_order(tree) == [(1, 2), (3, 4), (7,)]
    assert tree.cache.events.node_splits == 1
    assert tree.cache.events.tombstones == 1
    tree.audit()


def test_both_halves_of_a_split_own_their_arrays() -> None:
    tree = HybridTree()
    tree.insert([1, 2, 3, 4])

    tree.match([1, 2])

    assert all(node.value.base is None for node in tree.cache.iter_nodes())


def test_a_match_that_ends_in_a_node_splits_it_and_falls_back_to_the_last_state() -> None:
    tree = HybridTree()
    tree.insert([1, 2])
    tree.insert([1, 2, 3, 4])

    result = tree.match([1, 2, 3])

    assert result.device_indices.tolist() == [1, 2]
    assert result.last_device_node is tree.node([1, 2])
    assert tree.node([1, 2, 3]).mamba_value is None
    # A node that was used is younger than one that was only split.
    assert full_order(tree) == [(3,), (4,), (1, 2)]
    tree.audit()


def test_inserting_at_a_tombstone_revives_it() -> None:
    tree = HybridTree()
    tree.insert([1, 2, 3])
    tree.match([1, 2])
    assert tree.node([1, 2]).mamba_value is None

    assert tree.insert([1, 2]) == (2, 2, False)

    assert tree.node([1, 2]).mamba_value is not None
    assert tree.match([1, 2]).device_indices.tolist() == [1, 2]
    tree.audit()


def test_inserting_at_a_point_inside_a_node_gives_the_upper_half_the_state() -> None:
    tree = HybridTree()
    tree.insert([1, 2, 3])

    assert tree.insert([1, 2]) == (2, 2, False)

    assert state_order(tree) == [(1, 2), (3,)]
    tree.audit()


@pytest.mark.parametrize(
    ("matched", "hit", "expected"), [(63, 0, None), (64, 0, 64), (130, 0, 128), (130, 128, None)]
)
def test_branching_length_is_the_aligned_length_that_would_have_been_a_hit(
    matched: int, hit: int, expected: int | None
) -> None:
    tree = HybridTree(kv_tokens=512)
    if hit:
        tree.insert(range(hit))
    tree.insert(range(matched))
    tree.insert([*range(matched), 1000])
    # Evict the state at the end of the shared part, but keep its KV.
    for ids in (range(matched),):
        node = tree.node(ids)
        assert node.mamba_value is not None
        tree.cache._evict_internal_state(node)

    result = tree.match([*range(matched), 2000])

    assert len(result.device_indices) == hit
    assert result.mamba_branching_seqlen == expected


def test_the_path_of_a_hit_becomes_young_children_younger_than_parents() -> None:
    tree = HybridTree()
    tree.insert([1])
    tree.insert([1, 2])
    tree.insert([9])

    tree.match([1, 2])

    assert full_order(tree) == [(9,), (1,), (2,)]
    assert state_order(tree) == [(9,), (1,), (2,)]


def test_namespaces_do_not_share_prefixes() -> None:
    tree = HybridTree()
    for extra_key in ("a", "b", None):
        value, slots = tree.kv.alloc(3), tree.mamba.alloc(1)
        assert slots is not None
        key = RadixKey([1, 2, 3], extra_key)
        assert tree.cache.insert(InsertParams(key, value, slots[0])).prefix_len == 0

    found = {
        extra_key: tree.cache.match_prefix(
            MatchPrefixParams(RadixKey([1, 2, 3], extra_key))
        ).device_indices.tolist()
        for extra_key in ("a", "b", None, "c")
    }

    assert found == {"a": [1, 2, 3], "b": [4, 5, 6], None: [7, 8, 9], "c": []}
    tree.audit()


def test_a_split_below_a_namespace_keeps_the_path() -> None:
    tree = HybridTree()
    for ids in ([1, 2, 3], [1, 2, 4]):
        value, slots = tree.kv.alloc(3), tree.mamba.alloc(1)
        assert slots is not None
        tree.cache.insert(InsertParams(RadixKey(ids, "a"), value, slots[0]))

    tree.audit()
    key = RadixKey([1, 2, 4], "a")
    found = tree.cache.match_prefix(MatchPrefixParams(key)).device_indices
    assert found.tolist() == [1, 2, 6]


def test_a_lock_covers_the_kv_of_the_path_and_the_state_of_the_node() -> None:
    tree = HybridTree()
    tree.insert([1, 2])
    tree.insert([1, 2, 3])

    locked = tree.cache.inc_lock_ref(tree.node([1, 2, 3]))

    assert (locked.delta, locked.mamba_locked) == (-3, True)
    assert (tree.cache.evictable_size(), tree.cache.protected_size()) == (0, 3)
    assert (tree.cache.mamba_evictable_size(), tree.cache.mamba_protected_size()) == (1, 1)
    assert tree.node([1, 2]).full_lock_ref == 1
    assert tree.node([1, 2]).mamba_lock_ref == 0
    tree.audit()

    tree.cache.dec_lock_ref(tree.node([1, 2, 3]))
    assert (tree.cache.protected_size(), tree.cache.mamba_protected_size()) == (0, 0)
    tree.audit()


def test_sizes_move_only_with_the_first_lock_and_the_last_unlock() -> None:
    tree = HybridTree()
    tree.insert([1, 2])
    node = tree.node([1, 2])

    assert tree.cache.inc_lock_ref(node).delta == -2
    assert tree.cache.inc_lock_ref(node).delta == 0
    tree.cache.dec_lock_ref(node)
    assert tree.cache.protected_size() == 2
    tree.cache.dec_lock_ref(node)
    assert tree.cache.protected_size() == 0


def test_a_split_of_a_locked_node_keeps_the_path_locked() -> None:
    tree = HybridTree()
    tree.insert([1, 2, 3])
    node = tree.node([1, 2, 3])
    tree.cache.inc_lock_ref(node)

    tree.match([1, 9])

    assert tree.node([1]).full_lock_ref == 1
    assert tree.cache.protected_size() == 3
    tree.cache.dec_lock_ref(node)
    assert tree.cache.protected_size() == 0
    tree.audit()


def test_locking_the_root_does_nothing() -> None:
    tree = HybridTree()

    assert tree.cache.inc_lock_ref(tree.cache.root_node).delta == 0
    tree.cache.dec_lock_ref(tree.cache.root_node)

    assert tree.cache.root_node.full_lock_ref == 1  # permanently


def test_a_lock_from_before_a_revival_does_not_unlock_the_state_of_others() -> None:
    tree = HybridTree()
    tree.insert([1, 2, 3])
    tree.match([1, 2])
    tombstone = tree.node([1, 2])
    early = tree.cache.inc_lock_ref(tombstone)
    tree.insert([1, 2])
    tree.cache.inc_lock_ref(tombstone)

    tree.cache.dec_lock_ref(tombstone, early.to_dec_params())

    assert tombstone.mamba_lock_ref == 1
    tree.cache.dec_lock_ref(tombstone)
    tree.audit()


def test_a_hit_copies_the_state_into_a_slot_of_the_requests_own() -> None:
    tree = HybridTree()
    tree.insert([1, 2])
    slot = tree.node([1, 2]).mamba_value
    assert slot is not None
    tree.states.mamba_cache.temporal[:, slot] = 5.0
    tree.states.mamba_cache.conv[0][:, slot] = 6.0
    req = TreeReq()

    tree.cache.match_prefix(MatchPrefixParams(RadixKey([1, 2, 3]), cow_mamba=True, req=req))

    own = req.kv.mamba_pool_idx
    assert own is not None
    assert own != slot
    assert tree.mamba.owner_of(own) == REQ
    assert bool((tree.states.mamba_cache.temporal[:, own] == 5).all())
    assert bool((tree.states.mamba_cache.conv[0][:, own] == 6).all())
    events = tree.cache.events
    assert (events.prefix_hits, events.prefix_hit_tokens, events.cow_copies) == (1, 2, 1)


def test_a_request_with_a_slot_gets_the_copy_in_place() -> None:
    tree = HybridTree()
    tree.insert([1, 2])
    req = TreeReq()
    tree.rows.alloc([req])
    own = req.kv.mamba_pool_idx

    tree.cache.match_prefix(MatchPrefixParams(RadixKey([1, 2]), cow_mamba=True, req=req))

    assert req.kv.mamba_pool_idx == own
    assert tree.mamba.held(REQ) == 1


def test_a_miss_takes_no_slot() -> None:
    tree = HybridTree()
    req = TreeReq()

    tree.cache.match_prefix(MatchPrefixParams(RadixKey([1, 2]), cow_mamba=True, req=req))

    assert req.kv.mamba_pool_idx is None
    assert tree.mamba.held(REQ) == 0


def test_on_a_full_pool_a_hit_evicts_another_state_never_its_own() -> None:
    tree = HybridTree(mamba_slots=2)
    tree.insert([1, 2])
    tree.insert([1, 2, 3])
    req = TreeReq()

    # The hit has the older of the two states, so it would be evicted if it were not locked.
    result = tree.cache.match_prefix(
        MatchPrefixParams(RadixKey([1, 2, 9]), cow_mamba=True, req=req)
    )

    assert result.device_indices.tolist() == [1, 2]
    assert result.last_device_node.mamba_value is not None
    assert req.kv.mamba_pool_idx is not None
    assert tree.cache.node_count() == 1
    tree.audit()


def test_if_no_slot_can_be_had_the_hit_is_given_up_and_nothing_is_taken() -> None:
    tree = HybridTree(mamba_slots=1)
    tree.insert([1, 2])
    req = TreeReq()

    result = tree.cache.match_prefix(MatchPrefixParams(RadixKey([1, 2]), cow_mamba=True, req=req))

    assert len(result.device_indices) == 0
    assert result.last_device_node is tree.cache.root_node
    assert req.kv.mamba_pool_idx is None
    assert tree.cache.mamba_protected_size() == 0
    assert tree.cache.events.prefix_hits == 0
    assert len(tree.match([1, 2]).device_indices) == 2
    tree.audit()


def test_a_disabled_tree_keeps_and_finds_nothing() -> None:
    tree = HybridTree()
    cache = MambaRadixCache(CacheInitParams(tree.rows, tree.kv, 1, disable=True))
    value, slots = tree.kv.alloc(2), tree.mamba.alloc(1)
    assert slots is not None

    result = cache.insert(InsertParams(RadixKey([1, 2]), value, slots[0]))

    assert result == (0, 0, True)
    assert tree.kv.held(TREE) == 0
    found = cache.match_prefix(MatchPrefixParams(RadixKey([1, 2]))).device_indices
    assert len(found) == 0


def test_what_a_hybrid_tree_cannot_do_is_said_at_once() -> None:
    tree = HybridTree()

    with pytest.raises(ValueError, match="page_size 1, not 16"):
        MambaRadixCache(CacheInitParams(tree.rows, tree.kv, 16))
    with pytest.raises(TypeError, match="HybridReqToTokenPool"):
        MambaRadixCache(CacheInitParams(ReqToTokenPool(1, 1), tree.kv, 1))
    with pytest.raises(ValueError, match="lru only"):
        MambaRadixCache(CacheInitParams(tree.rows, tree.kv, 1, eviction_policy="lfu"))


def test_reset_forgets_the_nodes_but_not_the_events() -> None:
    tree = HybridTree()
    tree.insert([1, 2])
    tree.cache.inc_lock_ref(tree.node([1, 2]))

    tree.cache.reset()
    tree.kv.clear()
    tree.rows.clear()

    assert (tree.cache.node_count(), tokens_in(tree.cache)) == (0, 0)
    assert (tree.cache.mamba_evictable_size(), tree.cache.mamba_protected_size()) == (0, 0)
    assert tree.cache.events.nodes_created == 1
    tree.audit()
    tree.insert([3])
    tree.audit()
