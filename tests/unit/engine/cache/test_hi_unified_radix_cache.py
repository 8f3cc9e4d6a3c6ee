"""The unified tree with a host tier, node by node: what differs from the dedicated trees.

tests/laws/test_unified_host_equals_dedicated.py shows that it gives the same answers as those trees
wherever both define an answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from hybridbench.engine.cache.base import CacheInitParams, CacheSanityError, EvictParams
from hybridbench.engine.cache.hi_unified_radix_cache import HiUnifiedRadixCache
from hybridbench.engine.memory.owners import FREE, HOST, TREE
from hybridbench.foundation.engine_config import HiCacheWritePolicy
from tests.laws.host_world import HostWindowWorld, HostWorld
from tests.unit.engine.cache.host_trees import HostHybridTree, HostTierSetup, HostWindowTree
from tests.unit.engine.cache.trees import find

TEXT = [1, 2, 3, 4, 5, 6]
SETUP = HostTierSetup(pages=32, states=4)


def states_world(setup: HostTierSetup = SETUP) -> HostWorld:
    return HostWorld(HostHybridTree(setup, kv_tokens=32, mamba_slots=4))


def windows_world(setup: HostTierSetup = SETUP, swa_tokens: int = 24) -> HostWindowWorld:
    """Return a world with windows of 4 tokens: a hit needs the 3 tokens before its end."""
    return HostWindowWorld(HostWindowTree(setup, 32, swa_tokens))


def say(world: HostWorld, ids: list[int]) -> None:
    """Run a request that computes ``ids``, and complete its transfers."""
    assert world.start([*ids, 9])
    req = world.requests[-1]
    assert world.compute(req, len(ids) - req.kv.kv_committed_len)
    world.finish(req, is_insert=True)
    poll(world)


def poll(world: HostWorld, times: int = 2) -> None:
    for _ in range(times):
        world.poll()
        world.check_laws()


def evict(world: HostWorld, tokens: int = 32, states: int = 0, windows: int = 0) -> None:
    world.evict(EvictParams(tokens, states, windows))
    world.check_laws()


def lengths(world: HostWorld, ids: list[int]) -> tuple[int, int]:
    """Return how many tokens of ``ids`` hit on the device, and how many more on the host."""
    found = world.tree.match(ids)
    return found.prefix_len, found.host_hit_length


@pytest.mark.parametrize("build", [states_world, windows_world])
def test_what_the_device_evicts_comes_back_with_its_component(
    build: Callable[[], HostWorld],
) -> None:
    world = build()
    say(world, TEXT)
    evict(world)
    assert lengths(world, TEXT) == (0, 6)

    assert world.load_back(find(world.tree.cache, TEXT))
    world.check_laws()
    assert lengths(world, TEXT) == (0, 6)
    poll(world)

    assert lengths(world, TEXT) == (6, 0)


def test_a_tombstone_on_the_device_stays_until_the_turn_of_its_kv() -> None:
    world = states_world()
    say(world, TEXT)
    say(world, [*TEXT, 7])
    cache = world.tree.cache
    evict(world, tokens=1)
    evict(world, tokens=0, states=1)
    cache.evict_host_part(cache.host_parts[0], 2)
    world.check_laws()

    tombstone = find(cache, TEXT)
    assert (tombstone.mamba_value, tombstone.mamba_host_value) == (None, None)
    assert not tombstone.evicted
    assert lengths(world, TEXT) == (0, 0)
    evict(world, tokens=1)
    assert cache.node_count() == 0


def test_a_leaf_that_nothing_can_hit_is_not_kept_on_the_host() -> None:
    world = states_world(replace(SETUP, states=1))
    say(world, TEXT)
    say(world, [11, 12])
    assert find(world.tree.cache, TEXT).mamba_host_value is None

    evict(world)

    assert lengths(world, TEXT) == (0, 0)
    assert lengths(world, [11, 12]) == (0, 2)
    assert world.tree.host.allocator.held(TREE) == 2


def test_a_window_that_only_the_host_has_is_loaded_alone() -> None:
    world = windows_world()
    say(world, TEXT)
    say(world, [*TEXT, 7, 8, 9, 10])
    evict(world, tokens=0, windows=6)
    assert find(world.tree.cache, TEXT).swa_tombstone
    assert lengths(world, TEXT) == (0, 6)

    assert world.load_back(find(world.tree.cache, TEXT))
    assert world.tree.kv.held(HOST) == 0
    assert world.tree.kv.swa_attn_allocator.held(HOST) == 6
    poll(world)

    assert lengths(world, TEXT) == (6, 0)
    assert world.tree.cache.events.host_load_back_tokens == 0


def test_a_load_brings_the_windows_before_its_end_and_no_others() -> None:
    world = windows_world()
    for end in (2, 4, 6):
        say(world, TEXT[:end])
    evict(world)
    assert lengths(world, TEXT) == (0, 6)

    assert world.load_back(find(world.tree.cache, TEXT))
    assert world.tree.kv.held(HOST) == 6
    assert world.tree.kv.swa_attn_allocator.held(HOST) == 4
    poll(world)

    assert lengths(world, TEXT) == (6, 0)
    assert find(world.tree.cache, TEXT[:2]).swa_tombstone
    assert lengths(world, TEXT[:4]) == (0, 4)


def test_a_window_that_is_computed_again_while_it_is_loaded_is_kept_once() -> None:
    world = windows_world()
    say(world, TEXT)
    evict(world)
    assert world.load_back(find(world.tree.cache, TEXT))
    say(world, TEXT)

    poll(world, 3)

    swa = world.tree.kv.swa_attn_allocator
    assert (world.tree.kv.held(TREE), swa.held(TREE), swa.held(HOST)) == (6, 6, 0)
    assert lengths(world, TEXT) == (6, 0)


def test_a_node_that_is_cut_while_it_is_copied_has_its_window_in_both_halves() -> None:
    world = windows_world()
    assert world.start([*TEXT, 9])
    assert world.compute(world.requests[0], 6)
    world.finish(world.requests[0], is_insert=True)
    world.tree.match([1, 2, 3, 9])
    poll(world)
    evict(world)
    assert world.load_back(find(world.tree.cache, TEXT))
    world.tree.match([1, 2, 3, 4, 9])
    poll(world)

    assert lengths(world, TEXT) == (6, 0)
    arrays = [
        array
        for node in world.tree.cache.iter_nodes()
        for array in (node.value, node.host_value, node.swa_host_value)
    ]
    # A view would keep alive the array of a whole transfer, or of a node that was split later.
    assert [isinstance(a, np.ndarray) and a.base is None for a in arrays] == [True] * 9


@pytest.mark.parametrize("write_policy", ["write_through", "write_back"])
def test_until_a_write_has_ended_the_window_is_not_evicted(
    write_policy: HiCacheWritePolicy,
) -> None:
    world = windows_world(replace(SETUP, write_policy=write_policy, delays=(2,)))
    assert world.start([*TEXT, 9])
    assert world.compute(world.requests[0], 6)
    world.finish(world.requests[0], is_insert=True)

    evict(world, tokens=0, windows=6)

    if write_policy == "write_back":
        assert lengths(world, TEXT) == (0, 6)
    else:
        assert world.tree.cache.swa_protected_size() == 6
        assert lengths(world, TEXT) == (6, 0)
        poll(world, 3)
        assert world.tree.cache.swa_protected_size() == 0


def test_the_host_loses_the_oldest_window_and_keeps_the_kv_inside_the_tree() -> None:
    world = windows_world(replace(SETUP, pages=10))
    say(world, TEXT)
    say(world, [*TEXT, 7, 8, 9])
    evict(world)
    cache = world.tree.cache

    assert cache.evict_host_part(cache.host_parts[0], 1) == 6
    world.check_laws()

    assert lengths(world, TEXT) == (0, 0)
    assert lengths(world, [*TEXT, 7, 8, 9]) == (0, 9)


def test_the_host_does_not_lose_a_window_that_a_load_reads() -> None:
    world = windows_world()
    say(world, TEXT)
    evict(world)
    cache = world.tree.cache
    assert world.load_back(find(cache, TEXT))

    assert cache.evict_host_part(cache.host_parts[0], 1) == 0
    assert cache.host_parts[0].protected_size() == 6
    poll(world)

    assert cache.events.host_evictions_refused == 1
    assert cache.host_parts[0].protected_size() == 0
    assert lengths(world, TEXT) == (6, 0)


@pytest.mark.parametrize(("number", "device", "host"), [(1, 6, 0), (2, 0, 6)])
def test_a_failed_transfer_of_a_window_loses_nothing(number: int, device: int, host: int) -> None:
    """Transfer 1 is the write, transfer 2 the load."""
    world = windows_world(replace(SETUP, failing=number.__eq__))
    say(world, TEXT)
    if number == 2:
        evict(world)
        assert world.load_back(find(world.tree.cache, TEXT))
        poll(world)

    assert lengths(world, TEXT) == (device, host)
    for allocator in (world.tree.kv, world.tree.kv.swa_attn_allocator, world.tree.host.allocator):
        assert allocator.held(HOST) == 0


@pytest.mark.parametrize("tokens", [28, 0])
def test_a_load_without_room_in_either_pool_takes_nothing(tokens: int) -> None:
    world = windows_world()
    say(world, TEXT)
    evict(world)
    kv = world.tree.kv
    assert kv.alloc_full(tokens) is not None
    if tokens == 0:
        assert kv.swa_attn_allocator.alloc(20) is not None

    assert world.load_back(find(world.tree.cache, TEXT)) is False

    cache = world.tree.cache
    assert cache.host_protected_size() == cache.host_parts[0].protected_size() == 0
    assert kv.held(FREE) == 32 - tokens
    assert kv.swa_attn_allocator.held(HOST) == 0


def test_components_and_host_parts_belong_together() -> None:
    tree = states_world().tree
    params = CacheInitParams(tree.rows, tree.kv, page_size=1)

    with pytest.raises(ValueError, match=r"the tree has \['mamba'\], the host tier is for \[\]"):
        HiUnifiedRadixCache(params, tree.cache.cache_controller)


def test_the_sanity_check_finds_a_window_whose_kv_the_host_has_not() -> None:
    world = windows_world()
    say(world, TEXT)
    find(world.tree.cache, TEXT).host_value = None

    with pytest.raises(CacheSanityError):
        world.tree.cache.sanity_check()
