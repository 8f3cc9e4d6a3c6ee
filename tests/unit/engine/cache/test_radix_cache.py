"""The attention-only tree: pages, eviction policies, locks."""

from __future__ import annotations

import numpy as np
import pytest

from hybridbench.engine.cache.base import (
    CacheSanityError,
    EvictParams,
    InsertParams,
    MatchPrefixParams,
)
from hybridbench.engine.cache.radix_cache import RadixCache
from hybridbench.engine.cache.radix_key import RadixKey
from tests.unit.engine.cache.trees import PagedTree, prefixes, tokens_in


def pages(*numbers: int, page_size: int = 4) -> list[int]:
    """Return the tokens of whole pages; each page repeats one number."""
    return [number for number in numbers for _ in range(page_size)]


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_a_simulated_tree_needs_no_pools(page_size: int) -> None:
    cache = RadixCache.create_simulated(page_size=page_size)
    ids = pages(1, 2, page_size=page_size)

    assert cache.insert(InsertParams(RadixKey(ids))).prefix_len == 0
    found = cache.match_prefix(MatchPrefixParams(RadixKey(ids))).device_indices

    assert found.tolist() == ids
    assert (cache.evictable_size(), cache.protected_size()) == (2 * page_size, 0)
    cache.reset()
    assert (cache.evictable_size(), cache.protected_size()) == (0, 0)


def test_a_disabled_tree_keeps_and_finds_nothing() -> None:
    cache = RadixCache.create_simulated(disable=True)

    assert cache.insert(InsertParams(RadixKey([1, 2]))) == (0, 0, False)
    assert len(cache.match_prefix(MatchPrefixParams(RadixKey([1, 2]))).device_indices) == 0


def test_only_whole_pages_are_kept_and_matched() -> None:
    tree = PagedTree(page_size=4)
    value = tree.kv.alloc(8)
    assert value is not None

    result = tree.cache.insert(InsertParams(RadixKey([*pages(1), 2, 2]), value[:6]))

    assert result == (0, 4, False)
    assert tokens_in(tree.cache) == 4
    assert tree.match([1, 1, 1]).device_indices.tolist() == []
    assert tree.match([*pages(1), 2, 2, 2]).device_indices.tolist() == [4, 5, 6, 7]


def test_a_split_falls_on_a_page_border() -> None:
    tree = PagedTree(page_size=4)
    tree.insert(pages(1, 2, 3))

    # Two tokens of the second page agree, which is not enough to share it.
    assert tree.insert([*pages(1), 2, 2, 9, 9]) == 4

    assert set(prefixes(tree.cache)) == {
        tuple(pages(1)),
        tuple(pages(1, 2, 3)),
        (*pages(1), 2, 2, 9, 9),
    }
    tree.audit()


def test_duplicate_pages_are_freed_whole() -> None:
    tree = PagedTree(page_size=4)
    tree.insert(pages(1, 2))

    assert tree.insert(pages(1, 2, 3)) == 8

    assert tree.kv.available_size() == 64 - 12
    assert tree.insert(pages(1, 2, 3), prev_prefix_len=12) == 12
    assert tree.kv.available_size() == 64 - 24


def evicted_in_order(tree: PagedTree) -> list[int]:
    """Evict everything; return the first token of each leaf, in order of eviction."""
    gone = []
    while tree.cache.node_count():
        before = {node.id: next(iter(node.key)) for node in tree.cache.iter_nodes()}
        tree.cache.evict(EvictParams(num_tokens=1))
        left = {node.id for node in tree.cache.iter_nodes()}
        gone += [token for node_id, token in before.items() if node_id not in left]
        tree.audit()
    return gone


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        ("lru", [2, 3, 4, 1]),
        ("mru", [1, 4, 3, 2]),
        ("fifo", [1, 2, 3, 4]),
        ("filo", [4, 3, 2, 1]),
        ("lfu", [3, 4, 1, 2]),
        ("slru", [3, 4, 1, 2]),
        ("priority", [3, 1, 2, 4]),
    ],
)
def test_each_policy_evicts_in_its_order(policy: str, order: list[int]) -> None:
    tree = PagedTree(page_size=4, policy=policy)
    priorities = {1: 1, 2: 1, 3: 0, 4: 2}
    for number in (1, 2, 3, 4):
        tree.insert(pages(number), priority=priorities[number])
    if policy in ("lfu", "slru"):
        tree.insert(pages(1))
        tree.insert(pages(2))
    elif policy != "priority":
        tree.match(pages(1))

    assert evicted_in_order(tree) == order


def test_an_unknown_policy_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="no eviction policy 'random'; there are lru, lfu"):
        RadixCache.create_simulated(eviction_policy="random")


def test_parents_go_when_their_last_child_is_gone() -> None:
    tree = PagedTree(page_size=4)
    tree.insert(pages(1, 2))
    tree.insert(pages(1, 3))
    assert len(tree.cache.evictable_leaves) == 2

    assert tree.cache.evict(EvictParams(num_tokens=9)).num_tokens_evicted == 12

    assert tree.cache.node_count() == 0
    assert tree.kv.available_size() == 64


def test_locked_paths_are_not_evicted() -> None:
    tree = PagedTree(page_size=4)
    tree.insert(pages(1, 2))
    tree.insert(pages(1, 3))
    node = tree.node(pages(1, 2))

    assert tree.cache.inc_lock_ref(node).delta == -8
    assert tree.cache.evict(EvictParams(num_tokens=99)).num_tokens_evicted == 4
    assert tree.cache.protected_size() == 8

    tree.cache.dec_lock_ref(node)
    assert tree.cache.evict(EvictParams(num_tokens=99)).num_tokens_evicted == 8
    tree.audit()


def test_unlocking_what_was_not_locked_is_a_bug_and_says_so() -> None:
    tree = PagedTree(page_size=4)
    tree.insert(pages(1))

    with pytest.raises(AssertionError, match="was not locked"):
        tree.cache.dec_lock_ref(tree.node(pages(1)))


def test_sanity_check_names_a_leaf_that_is_not_in_the_queue() -> None:
    tree = PagedTree(page_size=4)
    tree.insert(pages(1))
    leaf = tree.node(pages(1))
    tree.cache._evictable_leaves.discard(leaf)

    with pytest.raises(CacheSanityError, match=rf"evictable leaves.*nodes \[{leaf.id}\]"):
        tree.cache.sanity_check()


def test_fewer_positions_than_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="2 tokens, but 1 KV"):
        RadixCache.create_simulated().insert(InsertParams(RadixKey([1, 2]), np.array([1])))


def test_a_state_offered_to_an_attention_only_tree_stays_with_the_caller() -> None:
    result = RadixCache.create_simulated().insert(InsertParams(RadixKey([1]), mamba_value=3))

    assert result.mamba_exist


def test_hits_are_counted_for_requests_only() -> None:
    tree = PagedTree(page_size=4)
    tree.insert(pages(1))

    tree.match(pages(1))

    assert tree.cache.events.prefix_hits == 0
    assert tree.cache.events.as_dict()["nodes_created"] == 1
