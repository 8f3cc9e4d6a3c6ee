"""mini-sglang's tests of its prefix cache, run on ours through its shim."""

from __future__ import annotations

import pytest
import torch

from tests.peers.mini_shim import RadixPrefixCache


def tokens(*ids: int) -> torch.Tensor:
    return torch.tensor(ids, dtype=torch.int32)


def test_a_hit_returns_the_indices_and_a_longer_prefix_shares_the_shorter() -> None:
    cache = RadixPrefixCache()
    assert cache.insert_prefix(tokens(1, 2, 3), tokens(10, 11, 12)) == 0
    assert cache.insert_prefix(tokens(1, 2, 9), tokens(10, 11, 22)) == 2

    handle, indices = cache.match_prefix(tokens(1, 2, 9, 4))

    assert handle.cached_len == 3
    assert indices.tolist() == [10, 11, 22]
    assert cache.size_info.total_size == 4
    cache.check_integrity()


def test_a_miss_has_an_empty_handle() -> None:
    cache = RadixPrefixCache()
    cache.insert_prefix(tokens(1, 2), tokens(5, 6))

    handle, indices = cache.match_prefix(tokens(7))

    assert handle.cached_len == 0
    assert indices.tolist() == []


def test_nested_locks_protect_until_the_last_is_given_back() -> None:
    cache = RadixPrefixCache()
    cache.insert_prefix(tokens(1, 2, 3), tokens(7, 8, 9))
    handle, _ = cache.match_prefix(tokens(1, 2, 3))

    cache.lock_handle(handle)
    cache.lock_handle(handle)
    cache.lock_handle(handle, unlock=True)
    assert cache.size_info == (0, 3)
    with pytest.raises(RuntimeError):
        cache.evict(1)
    cache.lock_handle(handle, unlock=True)

    assert cache.size_info == (3, 0)


def test_eviction_says_which_indices_are_free_oldest_first() -> None:
    cache = RadixPrefixCache()
    cache.insert_prefix(tokens(1, 2), tokens(10, 20))
    cache.insert_prefix(tokens(3, 4), tokens(30, 40))
    cache.match_prefix(tokens(1, 2))

    assert cache.evict(0).tolist() == []
    assert cache.evict(1).tolist() == [30, 40]
    assert cache.size_info == (2, 0)


@pytest.mark.parametrize("page_size", [4, 8])
def test_what_eviction_gives_back_are_whole_pages(page_size: int) -> None:
    cache = RadixPrefixCache(page_size)
    ids = torch.arange(page_size * 3, dtype=torch.int32)
    cache.insert_prefix(ids, ids)
    # The second branch splits the first after one page.
    other = torch.cat((ids[:page_size], ids[:page_size] + 1000))
    cache.insert_prefix(other, torch.cat((ids[:page_size], ids[:page_size] + page_size * 3)))

    freed = cache.evict(page_size + 1)

    starts = freed[::page_size]
    assert len(freed) % page_size == 0
    assert (starts % page_size == 0).all()
    assert len(set(freed.tolist())) == len(freed)
    for start in starts.tolist():
        assert set(range(start, start + page_size)) <= set(freed.tolist())
    cache.check_integrity()


def test_reset_forgets_everything() -> None:
    cache = RadixPrefixCache()
    cache.insert_prefix(tokens(1), tokens(1))

    cache.reset()

    assert cache.size_info.total_size == 0
