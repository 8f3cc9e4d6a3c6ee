"""The tree with a host tier, node by node: splits, reuse and evictions while transfers run."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import repeat

import numpy as np
import pytest
import torch

from hybridbench.engine.cache.base import (
    CacheInitParams,
    CacheSanityError,
    EvictParams,
    InsertParams,
    MatchPrefixParams,
    MatchResult,
)
from hybridbench.engine.cache.eviction_queue import RecencyQueue
from hybridbench.engine.cache.hiradix_cache import HiRadixCache
from hybridbench.engine.cache.radix_key import RadixKey
from hybridbench.engine.memory.hicache_controller import HiCacheController
from hybridbench.engine.memory.host_pool import MHATokenToKVPoolHost
from hybridbench.engine.memory.kv_pool import MHATokenToKVPool
from hybridbench.engine.memory.owners import FREE, HOST, REQ, TREE
from hybridbench.engine.memory.pages import TokenToKVPoolAllocator
from hybridbench.engine.memory.req_to_token import ReqToTokenPool
from hybridbench.foundation.engine_config import HiCacheWritePolicy
from tests.host_transfers import ChosenTransfers

SIZE = 16


class HostWorld:
    """A tree of 16 device tokens; transfers end at the second poll after their start."""

    def __init__(
        self,
        host_size: int = SIZE,
        write_policy: HiCacheWritePolicy = "write_through",
        failing: frozenset[int] = frozenset(),
    ) -> None:
        pool = MHATokenToKVPool(SIZE, 1, torch.float64, 1, 1, 1, "cpu")
        self.allocator = TokenToKVPoolAllocator(SIZE, torch.float64, "cpu", pool)
        self.host = MHATokenToKVPoolHost(pool, host_size)
        self.keys = pool.k_buffer[0][:, 0, 0]
        self.transfers = ChosenTransfers(repeat(1), failing.__contains__)
        controller = HiCacheController(self.allocator, self.host, self.transfers)
        params = CacheInitParams(ReqToTokenPool(1, SIZE, "cpu"), self.allocator, page_size=1)
        self.tree = HiRadixCache(params, controller, write_policy)

    def insert(self, tokens: list[int]) -> None:
        """Insert a computed request: the KV of a token is the token."""
        value = self.allocator.alloc(len(tokens))
        assert value is not None
        self.keys[torch.from_numpy(value)] = torch.tensor(tokens, dtype=torch.float64)
        self.tree.insert(InsertParams(RadixKey(tokens), value))
        self.check()

    def match(self, tokens: list[int]) -> MatchResult:
        return self.tree.match_prefix(MatchPrefixParams(RadixKey(tokens)))

    def read(self, tokens: list[int]) -> list[float]:
        """Return the KV that a request would read."""
        read: list[float] = self.keys[self.match(tokens).device_indices].tolist()
        return read

    def poll(self, times: int = 2) -> None:
        for _ in range(times):
            self.tree.check_hicache_events()
            self.check()

    def evict(self, tokens: int = SIZE) -> None:
        self.tree.evict(EvictParams(num_tokens=tokens))
        self.check()

    def load_back(self, tokens: list[int]) -> bool:
        started = self.tree.load_back(self.match(tokens).last_host_node)
        self.check()
        return started

    def check(self) -> None:
        """Check the tree, and that both allocators' owners agree with the nodes."""
        self.tree.sanity_check()
        held = self.tree.tree_slots()
        assert sorted(self.allocator.slots_of(TREE)) == sorted(held.kv_indices)
        assert sorted(self.host.allocator.slots_of(TREE)) == sorted(held.host_indices)


TEXT = [1, 2, 3, 4, 5, 6]


def evicted_world(host_size: int = SIZE, failing: frozenset[int] = frozenset()) -> HostWorld:
    """Return a world with TEXT on the host only."""
    world = HostWorld(host_size, failing=failing)
    world.insert(TEXT)
    world.poll()
    world.evict()
    assert world.match(TEXT).host_hit_length == len(TEXT)
    return world


def test_what_the_device_evicts_stays_on_the_host_and_comes_back() -> None:
    world = evicted_world()
    assert world.allocator.held(FREE) == SIZE

    assert world.load_back(TEXT)
    assert world.match(TEXT).prefix_len == 0
    assert world.allocator.held(HOST) == len(TEXT)
    world.poll()

    assert world.match(TEXT).host_hit_length == 0
    assert world.read(TEXT) == TEXT
    assert world.tree.evictable_size() == len(TEXT)


def test_until_a_write_has_ended_its_node_is_not_evicted() -> None:
    world = HostWorld()
    world.insert(TEXT)

    world.evict()
    assert world.match(TEXT).prefix_len == len(TEXT)
    assert world.tree.protected_size() == len(TEXT)

    world.poll()
    assert world.tree.protected_size() == 0


def test_a_node_split_while_it_is_written_has_its_host_slots_in_both_halves() -> None:
    world = HostWorld()
    world.insert(TEXT)
    world.match([1, 2, 9])

    world.poll()
    world.evict()
    assert world.load_back(TEXT)
    world.poll()

    assert world.read(TEXT) == TEXT
    assert world.host.allocator.held(TREE) == len(TEXT)


def test_the_upper_half_may_be_written_twice_and_keeps_one_copy() -> None:
    world = HostWorld()
    world.insert(TEXT)
    world.insert([1, 2, 9])

    world.poll(3)

    assert world.host.allocator.held(TREE) == len(TEXT) + 1
    assert world.host.allocator.held(HOST) == 0


def test_a_run_split_while_it_is_loaded_is_loaded_as_a_whole() -> None:
    world = evicted_world()
    assert world.load_back(TEXT)
    world.match([1, 2, 9])

    world.poll()

    assert world.read(TEXT) == TEXT
    assert world.tree.host_protected_size() == 0


def test_tokens_computed_again_while_they_are_loaded_are_kept_once() -> None:
    world = evicted_world()
    assert world.load_back(TEXT)
    world.insert(TEXT[:4])

    world.poll()

    assert world.read(TEXT) == TEXT
    assert world.allocator.held(TREE) == len(TEXT)
    assert world.allocator.held(REQ) == world.allocator.held(HOST) == 0


def test_a_failed_load_leaves_the_host_copy_for_the_next() -> None:
    world = evicted_world(failing=frozenset({2}))
    assert world.load_back(TEXT)
    world.poll()
    assert world.match(TEXT).host_hit_length == len(TEXT)
    assert world.allocator.held(FREE) == SIZE

    assert world.load_back(TEXT)
    world.poll()

    assert world.read(TEXT) == TEXT


def test_a_failed_write_leaves_the_node_on_the_device_and_is_repeated_with_its_next_use() -> None:
    world = HostWorld(failing=frozenset({1}))
    world.insert(TEXT)
    world.poll()
    assert world.host.allocator.held(FREE) == SIZE
    assert world.read(TEXT) == TEXT

    world.insert(TEXT)
    world.poll()

    assert world.host.allocator.held(TREE) == len(TEXT)


def test_the_host_does_not_lose_what_a_load_reads() -> None:
    world = evicted_world(host_size=8)
    assert world.load_back(TEXT)

    assert world.tree.evict_host(1) == 0
    world.poll()

    assert world.tree.events.host_evictions_refused == 1
    assert world.read(TEXT) == TEXT


def test_the_oldest_evicted_leaf_makes_room_on_the_host() -> None:
    world = evicted_world(host_size=8)
    world.insert([11, 12, 13, 14])
    world.poll()

    assert world.match(TEXT).host_hit_length == 0
    assert world.tree.events.host_evictions == 1
    assert world.host.allocator.held(TREE) == 4


def test_a_node_that_the_host_has_not_goes_with_what_it_has_below() -> None:
    # The second insert writes both halves of the text; the write of the first half fails again.
    world = HostWorld(failing=frozenset({1, 2}))
    world.insert(TEXT[:3])
    world.poll()
    world.insert(TEXT)
    world.poll()
    world.evict(3)
    assert world.match(TEXT).host_hit_length == 3

    world.evict()

    assert world.tree.node_count() == 0
    assert world.host.allocator.held(FREE) == SIZE


def test_write_back_copies_at_the_eviction_and_waits() -> None:
    world = HostWorld(write_policy="write_back")
    world.insert(TEXT)
    assert world.transfers.started == 0

    world.evict()

    assert world.match(TEXT).host_hit_length == len(TEXT)
    assert world.allocator.held(FREE) == SIZE


def test_a_selective_write_waits_for_the_second_use() -> None:
    world = HostWorld(write_policy="write_through_selective")

    world.insert(TEXT)
    assert world.transfers.started == 0

    world.insert(TEXT)
    assert world.transfers.started == 1


def test_a_load_without_room_takes_nothing() -> None:
    world = evicted_world()
    taken = world.allocator.alloc(SIZE - 2)
    assert taken is not None

    assert not world.load_back(TEXT)

    assert world.tree.events.host_loads_refused == 1
    assert world.tree.host_protected_size() == 0
    assert world.allocator.held(FREE) == 2


def test_a_load_refused_although_an_eviction_could_make_room_is_a_contradiction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = evicted_world(host_size=2 * SIZE)
    world.insert(list(range(11, 23)))
    world.poll()
    monkeypatch.setattr(HiRadixCache, "_make_device_room", lambda self, run, loads: None)

    assert not world.tree.load_back(world.match(TEXT).last_host_node)

    with pytest.raises(
        CacheSanityError, match=r"1 transfer.* \(the first: kv pool: 6 slot.*, 4 free"
    ):
        world.check()


def test_a_write_refused_although_the_host_could_evict_is_a_contradiction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = evicted_world(host_size=8)
    monkeypatch.setattr(HiRadixCache, "_make_host_room", lambda self, node: None)

    with pytest.raises(CacheSanityError, match=r"first: host_kv pool: 4 slot\(s\) wanted, 2 free"):
        world.insert([11, 12, 13, 14])

    assert world.tree.events.host_writes_refused == 1


def test_write_back_that_evicts_without_writing_is_a_contradiction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = HostWorld(write_policy="write_back")
    world.insert(TEXT)
    monkeypatch.setattr(HiRadixCache, "_write_back", lambda self, node: None)

    with pytest.raises(
        CacheSanityError, match=r"1 node.* without a copy on the host, but 0 write.* refused"
    ):
        world.evict()


@pytest.mark.parametrize(
    ("write_policy", "inserts", "is_due"),
    [
        ("write_through", 1, True),
        ("write_through_selective", 1, False),
        ("write_through_selective", 2, True),
    ],
)
def test_kv_that_was_due_on_the_host_and_is_lost_without_a_write_is_a_contradiction(
    write_policy: HiCacheWritePolicy,
    inserts: int,
    is_due: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(HiRadixCache, "_write_through", lambda self, path: None)
    world = HostWorld(write_policy=write_policy)
    for _ in range(inserts):
        world.insert(TEXT)

    said = r"1 node.* never written to the host, although no write was refused or failed"
    with pytest.raises(CacheSanityError, match=said) if is_due else nullcontext():
        world.evict()


def test_kv_whose_write_failed_may_be_lost() -> None:
    world = HostWorld(failing=frozenset({1}))
    world.insert(TEXT)
    world.poll()

    world.evict()

    assert world.tree.node_count() == 0


def test_a_write_back_that_failed_excuses_one_lost_node() -> None:
    world = HostWorld(write_policy="write_back", failing=frozenset({1}))
    world.insert(TEXT)

    world.evict()

    assert world.tree.node_count() == 0


def test_a_hit_that_does_not_make_its_leaf_on_the_host_the_youngest_is_a_contradiction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = evicted_world(host_size=2 * SIZE)
    world.insert([11, 12, 13])
    world.poll()
    world.evict()
    monkeypatch.setattr(RecencyQueue, "touch", lambda self, node: None)

    world.match(TEXT)

    with pytest.raises(CacheSanityError, match="evictable host leaves: out of order"):
        world.check()


def test_nodes_keep_arrays_of_their_own() -> None:
    """A view would keep alive the array of a whole transfer, or of a node that was split later."""
    world = HostWorld()
    world.insert(TEXT)
    world.match([1, 2, 9])
    world.poll()
    world.evict()
    world.load_back(TEXT)
    world.poll()

    arrays = [a for node in world.tree.iter_nodes() for a in (node.value, node.host_value)]

    assert [isinstance(array, np.ndarray) and array.base is None for array in arrays] == [True] * 4
