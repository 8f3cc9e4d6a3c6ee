"""The hybrid tree with a host tier, node by node: where KV and states are stored and removed."""

from __future__ import annotations

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
from hybridbench.engine.cache.hi_mamba_radix_cache import HiMambaRadixCache
from hybridbench.engine.cache.host_part import HostStates
from hybridbench.engine.cache.radix_key import RadixKey
from hybridbench.engine.memory.extra_pools import StatePool
from hybridbench.engine.memory.hicache_controller import HiCacheController
from hybridbench.engine.memory.host_pool import MambaPoolHost, MHATokenToKVPoolHost
from hybridbench.engine.memory.kv_pool import HybridLinearKVPool
from hybridbench.engine.memory.mamba_pool import Mamba2CacheParams, Mamba2StateShape, MambaPool
from hybridbench.engine.memory.owners import FREE, HOST, REQ, TREE
from hybridbench.engine.memory.pages import TokenToKVPoolAllocator
from hybridbench.engine.memory.req_to_token import HybridReqToTokenPool
from hybridbench.foundation.engine_config import HiCacheWritePolicy
from tests.host_transfers import ChosenTransfers

SIZE = 16
STATES = 4
SHAPE = Mamba2StateShape(conv=((2, 1),), temporal=(1, 1, 1), conv_kernel=2)


class HostWorld:
    """A tree of 16 tokens and 4 states; transfers end at the second poll after their start."""

    def __init__(
        self,
        host_size: int = SIZE,
        host_states: int = STATES,
        write_policy: HiCacheWritePolicy = "write_through",
        failing: frozenset[int] = frozenset(),
    ) -> None:
        dtype = torch.float64
        self.states = MambaPool(STATES, Mamba2CacheParams(SHAPE, (0,)), (0,), "cpu", dtype)
        pool = HybridLinearKVPool(SIZE, dtype, 1, 1, 1, [1], "cpu", self.states)
        self.allocator = TokenToKVPoolAllocator(SIZE, dtype, "cpu", pool)
        self.rows = HybridReqToTokenPool(1, STATES, SIZE, "cpu", self.states)
        self.mamba = self.rows.mamba_allocator
        self.host = MHATokenToKVPoolHost(pool, host_size)
        self.host_states = MambaPoolHost(self.states, host_states)
        self.keys = pool.full_kv_pool.k_buffer[0][:, 0, 0]
        self.transfers = ChosenTransfers(repeat(1), failing.__contains__)
        controller = HiCacheController(self.allocator, self.host, self.transfers)
        params = CacheInitParams(self.rows, self.allocator, page_size=1)
        states = HostStates(StatePool(self.mamba, self.states, self.host_states))
        self.tree = HiMambaRadixCache(params, controller, states, write_policy)

    def insert(self, tokens: list[int]) -> None:
        """Insert a computed request: the KV of a token is the token, and the state is their sum."""
        value, slots = self.allocator.alloc(len(tokens)), self.mamba.alloc(1)
        assert value is not None
        assert slots is not None
        self.keys[torch.from_numpy(value)] = torch.tensor(tokens, dtype=torch.float64)
        self.states.mamba_cache.temporal[0, slots[0]] = sum(tokens)
        if self.tree.insert(InsertParams(RadixKey(tokens), value, slots[0])).mamba_exist:
            self.mamba.free(slots)
        self.check()

    def match(self, tokens: list[int]) -> MatchResult:
        return self.tree.match_prefix(MatchPrefixParams(RadixKey(tokens)))

    def read(self, tokens: list[int]) -> tuple[list[float], float]:
        """Return the KV and the state that a request would read."""
        found = self.match(tokens)
        state = found.last_device_node.mamba_value
        assert state is not None
        kv: list[float] = self.keys[found.device_indices].tolist()
        return kv, float(self.states.mamba_cache.temporal[0, state])

    def poll(self, times: int = 2) -> None:
        for _ in range(times):
            self.tree.check_hicache_events()
            self.check()

    def evict(self, tokens: int = SIZE, states: int = 0) -> None:
        self.tree.evict(EvictParams(num_tokens=tokens, mamba_num=states))
        self.check()

    def load_back(self, tokens: list[int]) -> bool:
        started = self.tree.load_back(self.match(tokens).last_host_node)
        self.check()
        return started

    def check(self) -> None:
        """Check the tree, and that every ownership record agrees with the nodes."""
        self.tree.sanity_check()
        held = self.tree.tree_slots()
        assert sorted(self.allocator.slots_of(TREE)) == sorted(held.kv_indices)
        assert self.mamba.slots_of(TREE) == sorted(held.mamba_slots)
        assert sorted(self.host.allocator.slots_of(TREE)) == sorted(held.host_indices)
        assert self.host_states.allocator.slots_of(TREE) == sorted(held.host_slots["host_mamba"])
        events = self.tree.events
        counted = events.evict_leaf + events.evict_cascade + events.host_evictions
        assert events.nodes_removed == counted


TEXT = [1, 2, 3, 4, 5, 6]
READ = ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 21.0)


def evicted_world(
    host_size: int = SIZE, host_states: int = STATES, failing: frozenset[int] = frozenset()
) -> HostWorld:
    """Return a world with TEXT and its state on the host only."""
    world = HostWorld(host_size, host_states, failing=failing)
    world.insert(TEXT)
    world.poll()
    world.evict()
    assert world.match(TEXT).host_hit_length == len(TEXT)
    assert world.mamba.held(FREE) == STATES
    return world


def test_kv_and_state_stay_on_the_host_and_come_back() -> None:
    world = evicted_world()

    assert world.load_back(TEXT)
    assert world.match(TEXT).prefix_len == 0
    assert (world.allocator.held(HOST), world.mamba.held(HOST)) == (len(TEXT), 1)
    world.poll()

    assert world.read(TEXT) == READ
    assert world.tree.evictable_size() == len(TEXT)
    assert world.tree.mamba_evictable_size() == 1


def test_a_state_that_only_the_host_has_is_loaded_alone() -> None:
    world = HostWorld()
    world.insert(TEXT)
    world.insert([*TEXT, 7])
    world.poll()
    world.evict(0, states=1)
    found = world.match([*TEXT, 9])
    assert (found.prefix_len, found.host_hit_length) == (0, len(TEXT))

    assert world.load_back(TEXT)
    assert (world.allocator.held(HOST), world.mamba.held(HOST)) == (0, 1)
    world.poll()

    assert world.read(TEXT) == READ
    assert world.tree.events.host_load_back_tokens == 0


def test_until_a_write_has_ended_neither_kv_nor_state_is_evicted() -> None:
    world = HostWorld()
    world.insert(TEXT)

    world.evict(states=1)
    assert world.match(TEXT).prefix_len == len(TEXT)
    assert world.tree.mamba_protected_size() == 1

    world.poll()
    assert world.tree.mamba_protected_size() == world.tree.protected_size() == 0


def test_a_node_split_while_it_is_written_keeps_its_state_at_the_end() -> None:
    world = HostWorld()
    world.insert(TEXT)
    world.match([1, 2, 9])

    world.poll()
    world.evict()
    assert world.load_back(TEXT)
    world.poll()

    assert world.read(TEXT) == READ
    assert world.match([1, 2, 9]).prefix_len == 0


def test_a_run_split_while_it_is_loaded_is_loaded_as_a_whole() -> None:
    world = evicted_world()
    assert world.load_back(TEXT)
    world.match([1, 2, 9])

    world.poll()

    assert world.read(TEXT) == READ
    assert world.tree.host_protected_size() == world.tree.host_mamba_protected_size() == 0


def test_what_is_computed_again_while_it_is_loaded_is_kept_once() -> None:
    world = evicted_world()
    assert world.load_back(TEXT)
    world.insert(TEXT)

    world.poll(3)

    assert world.read(TEXT) == READ
    assert (world.allocator.held(TREE), world.mamba.held(TREE)) == (len(TEXT), 1)
    for account in (world.allocator, world.mamba):
        assert account.held(REQ) == account.held(HOST) == 0


def test_a_new_state_on_a_node_that_the_host_has_is_written_alone() -> None:
    world = HostWorld()
    world.insert(TEXT)
    world.match([1, 2, 9])
    world.poll()
    world.insert([1, 2])
    assert world.host.allocator.held(HOST) == 0
    assert world.host_states.allocator.held(HOST) == 1

    world.poll()
    world.evict()

    assert world.match([1, 2]).host_hit_length == 2
    assert world.host_states.allocator.held(TREE) == 2


def test_a_failed_load_leaves_the_host_copy_for_the_next() -> None:
    world = evicted_world(failing=frozenset({2}))
    assert world.load_back(TEXT)
    world.poll()
    assert world.match(TEXT).host_hit_length == len(TEXT)
    assert (world.allocator.held(FREE), world.mamba.held(FREE)) == (SIZE, STATES)

    assert world.load_back(TEXT)
    world.poll()

    assert world.read(TEXT) == READ


def test_a_failed_write_leaves_the_node_on_the_device() -> None:
    world = HostWorld(failing=frozenset({1}))
    world.insert(TEXT)
    world.poll()

    assert world.host.allocator.held(FREE) == SIZE
    assert world.host_states.allocator.held(FREE) == STATES
    assert world.read(TEXT) == READ


def test_the_host_does_not_lose_a_state_that_a_load_reads() -> None:
    world = evicted_world()
    assert world.load_back(TEXT)

    assert world.tree.evict_host_states(1) == 0
    world.check()
    world.poll()

    assert world.tree.events.host_evictions_refused == 1
    assert world.read(TEXT) == READ


def test_the_oldest_state_makes_room_on_the_host_and_a_leaf_goes_with_it() -> None:
    world = evicted_world(host_states=1)

    world.insert([11, 12])
    world.poll()

    assert world.match(TEXT).host_hit_length == 0
    assert world.tree.node_count() == 1
    assert world.host.allocator.held(TREE) == 2


def test_a_state_inside_the_tree_goes_from_the_host_and_leaves_its_kv() -> None:
    world = HostWorld()
    world.insert(TEXT)
    world.insert([*TEXT, 7])
    world.poll()
    world.evict()

    assert world.tree.evict_host_states(1) == 1
    world.check()

    assert world.match(TEXT).host_hit_length == 0
    assert world.match([*TEXT, 7]).host_hit_length == 7


def test_host_nodes_without_descendants_are_removed_with_the_last_leaf() -> None:
    world = evicted_world()
    world.match([1, 2, 9])
    assert world.tree.node_count() == 2

    assert world.tree.evict_host(1) == 4
    world.check()

    assert world.tree.node_count() == 0
    assert world.host.allocator.held(FREE) == SIZE


def test_a_tombstone_on_the_device_goes_when_the_host_loses_all_below_it() -> None:
    world = HostWorld()
    world.insert(TEXT)
    world.poll()
    world.match([1, 2, 9])
    world.evict(4)
    assert world.match(TEXT).host_hit_length == len(TEXT)
    assert world.allocator.held(TREE) == 2

    world.tree.evict_host(4)
    world.check()

    assert world.tree.node_count() == 0
    assert world.allocator.held(FREE) == SIZE


def test_a_device_leaf_without_a_host_state_is_evicted_as_without_a_host_tier() -> None:
    world = HostWorld(host_states=1)
    world.insert(TEXT)
    world.insert([11, 12])
    world.poll()

    world.evict()

    assert world.match([11, 12]).host_hit_length == 0
    assert world.match(TEXT).host_hit_length == len(TEXT)


def test_write_back_copies_at_the_eviction_and_waits() -> None:
    world = HostWorld(write_policy="write_back")
    world.insert(TEXT)
    world.insert([*TEXT, 7])
    assert world.transfers.started == 0

    world.evict(0, states=1)
    assert world.transfers.started == 1
    world.evict()

    assert world.match(TEXT).host_hit_length == len(TEXT)
    assert world.match([*TEXT, 7]).host_hit_length == 7


def test_a_selective_write_waits_for_the_second_use() -> None:
    world = HostWorld(write_policy="write_through_selective")

    world.insert(TEXT)
    assert world.transfers.started == 0

    world.insert(TEXT)
    assert world.transfers.started == 1


@pytest.mark.parametrize("write_policy", ["write_through", "write_through_selective"])
def test_a_state_may_go_while_the_kv_of_its_node_is_written(
    write_policy: HiCacheWritePolicy,
) -> None:
    world = HostWorld(write_policy=write_policy)
    world.insert(TEXT)
    world.insert([1, 2, 9])
    # The write of [1, 2] began before the node had a state, so it protects only its KV.
    world.insert([1, 2])

    world.evict(tokens=0, states=3)

    assert world.tree.events.evict_internal_state == 1
    world.poll()
    assert world.tree.events.host_backups > 0


def test_what_the_host_evicted_since_the_match_is_not_loaded() -> None:
    world = evicted_world()
    matched = world.match(TEXT).last_host_node
    assert world.tree.evict_host(len(TEXT)) >= len(TEXT)

    assert not world.tree.load_back(matched)

    assert world.tree.host_protected_size() == world.tree.host_mamba_protected_size() == 0
    assert not world.tree.has_transfers


@pytest.mark.parametrize(("tokens", "slots"), [(SIZE - 2, 0), (0, STATES)])
def test_a_load_without_room_takes_nothing(tokens: int, slots: int) -> None:
    world = evicted_world()
    assert world.allocator.alloc(tokens) is not None
    assert world.mamba.alloc(slots) is not None

    assert not world.load_back(TEXT)

    assert world.tree.host_protected_size() == world.tree.host_mamba_protected_size() == 0
    assert world.allocator.held(FREE) == SIZE - tokens
    assert world.mamba.held(FREE) == STATES - slots


def test_room_for_a_load_is_made_of_what_is_older() -> None:
    world = evicted_world(host_size=2 * SIZE, host_states=2 * STATES)
    for first in (10, 20, 30, 40):
        world.insert([first, 7, 8, 9])
        world.poll()

    assert world.load_back(TEXT)
    world.poll()

    assert world.read(TEXT) == READ


def test_reset_forgets_the_host_as_well() -> None:
    world = evicted_world()
    held = world.tree.tree_slots()
    world.host.allocator.free(held.host_indices, TREE)
    world.host_states.allocator.free(held.host_slots["host_mamba"], TREE)

    world.tree.reset()
    world.check()

    assert world.tree.host_evictable_size() == world.tree.host_mamba_evictable_size() == 0
    world.insert(TEXT)
    world.poll()
    assert world.read(TEXT) == READ


def test_the_sanity_check_finds_a_state_whose_kv_the_host_has_not() -> None:
    world = HostWorld()
    world.insert(TEXT)
    world.poll()
    node = next(world.tree.iter_nodes())
    node.host_value = None

    with pytest.raises(CacheSanityError):
        world.tree.sanity_check()


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


def test_the_sanity_check_finds_a_node_that_went_while_it_was_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The fault of sglang#23696: eviction does not check whether a node is being read."""
    world = evicted_world()
    assert world.load_back(TEXT)
    monkeypatch.setattr(HiMambaRadixCache, "_is_host_protected", lambda *_: False)

    assert world.tree.evict_host(1) == len(TEXT)

    with pytest.raises(CacheSanityError, match="while being loaded"):
        world.tree.sanity_check()
