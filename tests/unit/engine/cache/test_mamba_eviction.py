"""Eviction from the hybrid tree: what is evicted first, what along with it, and what stays."""

from __future__ import annotations

import gc
import sys
from types import FrameType
from typing import Protocol

import pytest

from hybridbench.engine.cache.base import (
    CacheSanityError,
    EvictParams,
    EvictResult,
    MatchPrefixParams,
)
from hybridbench.engine.cache.radix_key import RadixKey
from tests.unit.engine.cache.trees import (
    HybridTree,
    TreeReq,
    UnifiedHybridTree,
    prefixes,
    state_order,
    tokens_in,
)


def test_kv_is_evicted_leaf_by_leaf_oldest_first() -> None:
    tree = HybridTree()
    for ids in ([1, 2], [3, 4], [5, 6]):
        tree.insert(ids)
    tree.match([1, 2])

    result = tree.cache.evict(EvictParams(num_tokens=3))

    assert result == EvictResult(4, 2)
    assert set(prefixes(tree.cache)) == {(1, 2)}
    assert tree.cache.events.evict_leaf == 2
    tree.audit()


def test_the_oldest_state_inside_the_tree_goes_and_its_kv_stays() -> None:
    tree = HybridTree()
    tree.insert([1, 2])
    tree.insert([1, 2, 3])

    result = tree.cache.evict(EvictParams(mamba_num=1))

    assert result == EvictResult(0, 1)
    assert tree.node([1, 2]).mamba_value is None
    assert tokens_in(tree.cache) == 3
    assert tree.match([1, 2, 3]).device_indices.tolist() == [1, 2, 5]
    assert len(tree.match([1, 2]).device_indices) == 0
    events = tree.cache.events
    assert (events.evict_internal_state, events.tombstones, events.evict_leaf) == (1, 1, 0)
    tree.audit()


def test_the_state_of_a_leaf_goes_with_the_whole_leaf() -> None:
    tree = HybridTree()
    tree.insert([1, 2])
    tree.insert([3])

    assert tree.cache.evict(EvictParams(mamba_num=1)) == EvictResult(2, 1)

    assert set(prefixes(tree.cache)) == {(3,)}
    tree.audit()


def test_tombstones_left_without_children_go_with_the_last_of_them() -> None:
    tree = HybridTree()
    tree.insert([1])
    tree.insert([1, 2])
    tree.insert([1, 2, 3])
    tree.cache.evict(EvictParams(mamba_num=2))
    assert state_order(tree) == [(3,)]

    assert tree.cache.evict(EvictParams(num_tokens=1)) == EvictResult(3, 1)

    assert tree.cache.node_count() == 0
    assert (tree.cache.events.evict_leaf, tree.cache.events.evict_cascade) == (1, 2)
    assert tree.kv.available_size() == 64
    tree.audit()


def test_a_cascade_stops_at_a_node_with_a_state() -> None:
    tree = HybridTree()
    tree.insert([1])
    tree.insert([1, 2, 3])
    tree.insert([1, 2, 4])
    tree.cache.evict(EvictParams(num_tokens=2))

    assert set(prefixes(tree.cache)) == {(1,)}
    assert tree.cache.events.evict_cascade == 1
    tree.audit()
    # That node is now a leaf, so it can be evicted next.
    assert tree.cache.evict(EvictParams(num_tokens=1)) == EvictResult(1, 1)


def test_a_cascade_stops_at_a_locked_tombstone_which_goes_when_unlocked() -> None:
    tree = HybridTree()
    tree.insert([1, 2, 3])
    tree.match([1, 2])
    tombstone = tree.node([1, 2])
    tree.cache.inc_lock_ref(tombstone)

    assert tree.cache.evict(EvictParams(num_tokens=9)) == EvictResult(1, 1)
    assert set(prefixes(tree.cache)) == {(1, 2)}
    tree.cache.sanity_check()

    tree.cache.dec_lock_ref(tombstone)
    assert tree.cache.node_count() == 0
    tree.audit()


def test_locked_nodes_are_passed_over_by_both_evictions() -> None:
    tree = HybridTree()
    for ids in ([1, 2], [3, 4], [5, 6]):
        tree.insert(ids)
    tree.cache.inc_lock_ref(tree.node([1, 2]))

    tree.cache.evict(EvictParams(num_tokens=1))
    tree.cache.evict(EvictParams(mamba_num=1))

    assert set(prefixes(tree.cache)) == {(1, 2)}
    assert tree.cache.evict(EvictParams(num_tokens=9, mamba_num=9)) == EvictResult(0, 0)
    tree.audit()


def test_a_locked_leaf_whose_state_is_not_locked_loses_only_the_state() -> None:
    tree = HybridTree()
    tree.insert([1, 2, 3])
    tree.match([1, 2])
    tombstone = tree.node([1, 2])
    early = tree.cache.inc_lock_ref(tombstone)
    tree.cache.evict(EvictParams(num_tokens=1))
    tree.insert([1, 2])

    assert tree.cache.evict(EvictParams(mamba_num=1)) == EvictResult(0, 1)

    assert tree.node([1, 2]) is tombstone
    tree.cache.dec_lock_ref(tombstone, early.to_dec_params())
    assert tree.cache.node_count() == 0
    tree.audit()


def test_a_lock_below_protects_kv_above_but_not_the_state_above() -> None:
    tree = HybridTree()
    tree.insert([1, 2])
    tree.insert([1, 2, 3])
    tree.cache.inc_lock_ref(tree.node([1, 2, 3]))

    assert tree.cache.evict(EvictParams(mamba_num=9)) == EvictResult(0, 1)

    assert tree.node([1, 2]).mamba_value is None
    assert tree.cache.evict(EvictParams(num_tokens=9)) == EvictResult(0, 0)
    tree.audit()


def test_an_unlocked_old_leaf_takes_its_old_place_in_the_order() -> None:
    tree = HybridTree()
    for ids in ([1], [2], [3], [4]):
        tree.insert(ids)
    second = tree.node([2])
    tree.cache.inc_lock_ref(second)
    tree.cache.dec_lock_ref(second)

    gone = []
    while tree.cache.node_count():
        before = set(prefixes(tree.cache))
        tree.cache.evict(EvictParams(num_tokens=1))
        gone += list(before - set(prefixes(tree.cache)))

    assert gone == [(1,), (2,), (3,), (4,)]


def test_states_freed_along_with_kv_count_towards_those_asked_for() -> None:
    tree = HybridTree()
    for ids in ([1, 2], [3, 4], [5, 6]):
        tree.insert(ids)

    assert tree.cache.evict(EvictParams(num_tokens=3, mamba_num=2)) == EvictResult(4, 2)

    assert tree.cache.node_count() == 1


def test_evicting_from_an_empty_tree_frees_nothing() -> None:
    tree = HybridTree()

    assert tree.cache.evict(EvictParams(num_tokens=5, mamba_num=5)) == EvictResult(0, 0)
    assert tree.cache.events.evict_calls == 1


def test_sanity_check_names_the_node_that_lost_its_state_by_hand() -> None:
    tree = HybridTree()
    tree.insert([1, 2])
    node = tree.node([1, 2])
    node.mamba_value = None

    with pytest.raises(CacheSanityError, match=rf"nodes \[{node.id}\]") as caught:
        tree.cache.sanity_check()

    assert caught.value.node_ids == [node.id]


def test_sanity_check_sees_a_wrong_size_a_wrong_order_and_a_wrong_lock() -> None:
    for spoil in ("size", "order", "lock", "parent"):
        tree = HybridTree()
        tree.insert([1, 2])
        tree.insert([1, 2, 3])
        tree.insert([4])
        if spoil == "size":
            tree.cache.full_evictable_size_ += 1
        elif spoil == "order":
            tree.node([1, 2, 3]).last_access_time = 10_000
        elif spoil == "lock":
            tree.node([1, 2, 3]).full_lock_ref = 1
        else:
            tree.node([1, 2, 3]).parent = tree.cache.root_node
        with pytest.raises(CacheSanityError):
            tree.cache.sanity_check()


class Tracer(Protocol):
    def __call__(self, frame: FrameType, event: str, arg: object, /) -> Tracer: ...


def lines_run_by_an_eviction(nodes: int) -> int:
    """Count the Python lines that an eviction runs in a half-locked, mostly internal tree."""
    tree = HybridTree(kv_tokens=nodes, mamba_slots=nodes)
    for chain in range(nodes // 10):
        ids: list[int] = []
        for level in range(10):
            ids.append(chain * 10 + level)
            tree.extend(ids)
        if chain < nodes // 20:
            tree.cache.inc_lock_ref(tree.match(ids).last_device_node)
    lines = 0

    def count(frame: FrameType, event: str, arg: object) -> Tracer:
        nonlocal lines
        lines += event == "line"
        return count

    before = sys.gettrace()
    # A garbage collection would add the lines of its callbacks.
    gc.disable()
    sys.settrace(count)
    try:
        tree.cache.evict(EvictParams(num_tokens=5, mamba_num=8))
    finally:
        sys.settrace(before)
        gc.enable()
    tree.audit()
    return lines


def test_an_eviction_looks_at_no_node_that_cannot_go() -> None:
    assert lines_run_by_an_eviction(nodes=1_000) == lines_run_by_an_eviction(nodes=100)


@pytest.mark.parametrize("make", [HybridTree, UnifiedHybridTree])
def test_a_state_slot_refused_although_a_state_could_be_evicted_is_found(
    make: type[HybridTree | UnifiedHybridTree], monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = make(mamba_slots=3)
    for ids in ([1, 2], [3, 4], [5, 6]):
        tree.insert(ids)

    def hit() -> int:
        req = TreeReq("r", [1, 2, 9])
        params = MatchPrefixParams(RadixKey([1, 2]), cow_mamba=True, req=req)
        return len(tree.cache.match_prefix(params).device_indices)

    assert hit() == 2  # the copy takes the slot of [3, 4]
    tree.cache.sanity_check()

    for name in {"evict", "evict_mamba"} & set(dir(tree.cache)):
        monkeypatch.setattr(tree.cache, name, lambda *_: EvictResult(0, 0))
    assert hit() == 0

    with pytest.raises(CacheSanityError, match=r"1 state slot.* refused although"):
        tree.cache.sanity_check()
