"""SGLang's tests of RadixKey, TreeNode and RadixCache, run on ours through the shim."""

from __future__ import annotations

import weakref
from unittest.mock import Mock

import pytest
import torch

from tests.peers.shim import EvictParams, InsertParams, RadixCache, RadixKey, TreeNode


def tree(page_size: int = 1, disable: bool = False) -> RadixCache:
    made = RadixCache.create_simulated(
        disable=disable, page_size=page_size, enable_kv_cache_events=False
    )
    assert isinstance(made, RadixCache)
    return made


def put(cache: RadixCache, ids: list[int], extra_key: str | None = None, factor: int = 10) -> int:
    value = torch.tensor([token * factor for token in ids], dtype=torch.int64)
    return cache.insert(InsertParams(key=RadixKey(ids, extra_key), value=value)).prefix_len


def test_keys_slice_and_iterate_like_lists_and_keep_their_namespace() -> None:
    key = RadixKey([10, 20, 30], "tenant")

    assert key.token_ids == list(key) == [10, 20, 30]
    assert key[-1].token_ids == [30]
    assert key[1:].token_ids == [20, 30]
    assert key[2:2].token_ids == []
    assert key[1:].extra_key == "tenant"
    assert len(RadixKey([])) == 0
    with pytest.raises(IndexError):
        key[10]
    assert "extra_key='tenant'" in repr(key)
    assert "..." in repr(RadixKey(list(range(15))))


def test_a_node_can_be_made_bare_and_orders_by_use() -> None:
    older, younger = TreeNode(), TreeNode(id=42)
    younger.last_access_time = 1

    assert (younger.id, len(older.children), older.parent, older.full_lock_ref) == (42, 0, None, 0)
    assert {getattr(older, name) for name in ("full_prev", "full_next")} == {None}
    assert older < younger
    assert not younger < older


def test_a_new_cache_is_empty_and_knows_its_settings() -> None:
    cache = tree(page_size=4)

    assert (cache.page_size, cache.disable, cache.device) == (4, False, torch.device("cpu"))
    assert len(cache.root_node.key) == 0
    assert cache.root_node.full_lock_ref == 1
    assert cache.total_size() == cache.evictable_size() == cache.protected_size() == 0


def test_what_was_inserted_is_matched_whole_or_in_part() -> None:
    cache = tree()

    assert put(cache, [1, 2, 3]) == 0

    assert cache.match(RadixKey([1, 2, 3])).device_indices.tolist() == [10, 20, 30]
    assert cache.match(RadixKey([1, 2])).device_indices.tolist() == [10, 20]
    assert cache.match(RadixKey([1, 2])).device_indices.dtype == torch.int64
    assert cache.total_size() == cache.evictable_size() == 3
    cache.reset()
    assert cache.total_size() == 0


def test_a_disabled_cache_keeps_nothing() -> None:
    cache = tree(disable=True)

    assert put(cache, [1, 2, 3]) == 0
    assert cache.total_size() == 0


def test_without_a_value_the_token_ids_stand_in() -> None:
    cache = tree()

    assert cache.insert(InsertParams(key=RadixKey([1, 2, 3]), value=None)).prefix_len == 0
    assert cache.match(RadixKey([1, 2, 3])).device_indices.tolist() == [1, 2, 3]


def test_namespaces_do_not_see_each_other() -> None:
    cache = tree()
    put(cache, [1, 2], "a", 10)
    put(cache, [1, 2], "b", 20)
    put(cache, [1, 2], None, 30)

    assert cache.match(RadixKey([1, 2], "a")).device_indices.tolist() == [10, 20]
    assert cache.match(RadixKey([1, 2], "b")).device_indices.tolist() == [20, 40]
    assert cache.match(RadixKey([1, 2])).device_indices.tolist() == [30, 60]
    assert len(cache.match(RadixKey([1, 2], "c")).device_indices) == 0


def test_a_lock_moves_tokens_from_evictable_to_protected() -> None:
    cache = tree()
    put(cache, [1, 2, 3])
    node = cache.match(RadixKey([1, 2, 3])).last_device_node

    assert cache.inc_lock_ref(node).delta == -3
    assert (cache.evictable_size(), cache.protected_size()) == (0, 3)
    assert cache.evict(EvictParams(num_tokens=99)).num_tokens_evicted == 0
    assert cache.dec_lock_ref(node).delta == 3
    assert (cache.evictable_size(), cache.protected_size()) == (3, 0)


def test_eviction_gives_indices_back_to_the_allocator() -> None:
    allocator = Mock()
    allocator.device = torch.device("cpu")
    allocator.available_size.return_value = 10
    cache = RadixCache.create_simulated(mock_allocator=allocator)
    assert isinstance(cache, RadixCache)
    put(cache, [1, 2])
    put(cache, [3, 4])
    node = weakref.ref(cache.match(RadixKey([1, 2])).last_device_node)

    assert cache.evict(EvictParams(num_tokens=2)).num_tokens_evicted == 2
    assert cache.total_size() == 2
    assert allocator.free.call_args.args[0].tolist() == [30, 40]
    assert node() is not None
    cache.evict(EvictParams(num_tokens=99))

    assert node() is None
    assert cache.total_size() == 0
    assert "evictable 0" in cache.available_and_evictable_str()


@pytest.mark.parametrize(("page_size", "length"), [(1, 5), (2, 5), (4, 6)])
def test_only_whole_pages_are_kept(page_size: int, length: int) -> None:
    cache = tree(page_size)
    put(cache, list(range(length)), factor=1)

    matched = cache.match(RadixKey(list(range(length)))).device_indices

    assert len(matched) == length // page_size * page_size


@pytest.mark.parametrize("page_size", [1, 2])
def test_splits_inside_nodes_lose_nothing(page_size: int) -> None:
    cache = tree(page_size)
    long, branch = [1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 9, 10]
    put(cache, long)
    assert put(cache, branch) == 2

    assert cache.match(RadixKey([1, 2, 3, 4, 99, 98])).device_indices.tolist() == [10, 20, 30, 40]
    assert len(cache.match(RadixKey([1, 2, 3, 4, 5, 6, 97, 96])).device_indices) == 6
    assert cache.match(RadixKey(long)).device_indices.tolist() == [t * 10 for t in long]
    assert cache.match(RadixKey(branch)).device_indices.tolist() == [10, 20, 90, 100]
    assert cache.total_size() == 10
    assert sorted(cache.all_values_flatten().tolist()) == [t * 10 for t in [*long, 9, 10]]
    assert "RadixKey" in cache.pretty_print()
