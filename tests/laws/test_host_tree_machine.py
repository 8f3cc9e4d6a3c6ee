"""Trees with a host tier: requests, transfers that end late or fail, evictions on both sides.

After every step each slot of each pool has one holder, and each readable number is that of its
tokens.  Covers the dedicated trees and the unified one: KV only, with states, with windows.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from hybridbench.engine.cache.base import CacheSanityError, EvictParams
from hybridbench.engine.cache.hi_unified_radix_cache import HiUnifiedRadixCache
from hybridbench.engine.cache.host_part import HostPart, Run
from hybridbench.engine.cache.host_tier import HostTier
from hybridbench.engine.cache.host_window import HostWindows
from hybridbench.engine.cache.tree_node import TreeNode
from hybridbench.engine.memory.owners import OwnershipError
from tests.laws.host_world import HostWindowWorld, HostWorld, make_world
from tests.laws.tree_machine import MANY, TreeMachine
from tests.unit.engine.cache.host_trees import (
    POLICIES,
    HostHybridTree,
    HostPagedTree,
    HostTierSetup,
    HostTree,
    HostWindowTree,
)
from tests.unit.engine.cache.trees import Buffers, prefixes

SETUPS = st.builds(
    HostTierSetup,
    pages=st.sampled_from([12, 40]),
    states=st.sampled_from([3, 9]),
    write_policy=st.sampled_from(POLICIES),
    delays=st.lists(st.integers(0, 4), min_size=1, max_size=4).map(tuple),
    failing=st.sets(st.integers(1, 20)).map(lambda numbers: numbers.__contains__),
)


class HostTreeMachine(TreeMachine):
    world: HostWorld

    @rule()
    def poll(self) -> None:
        self.world.poll()

    @rule(data=st.data())
    def load_back(self, data: st.DataObject) -> None:
        ends = self.world.loadable()
        if ends:
            self.world.load_back(ends[data.draw(st.integers(0, len(ends) - 1))])

    @rule(data=st.data())
    def load_back_now(self, data: st.DataObject) -> None:
        ends = self.world.loadable()
        if ends:
            self.world.load_back_now(ends[data.draw(st.integers(0, len(ends) - 1))])

    @rule(num_tokens=st.integers(1, 6))
    def evict_host(self, num_tokens: int) -> None:
        self.world.evict_host(num_tokens)

    @rule(slots=st.integers(1, 3))
    def evict_host_part(self, slots: int) -> None:
        self.world.evict_host_part(slots)

    @rule(data=st.data())
    def match(self, data: st.DataObject) -> None:
        known = sorted(prefixes(self.world.tree.cache))
        if known:
            ids = known[data.draw(st.integers(0, len(known) - 1))]
            self.world.match_is_longest([*ids[: data.draw(st.integers(1, len(ids)))], 9])

    def teardown(self) -> None:
        """End all requests; then nothing may be held, and both sides can be evicted entirely."""
        world: HostWorld | None = self.world
        if world is None:
            return
        while world.locked:
            world.unlock(0)
        for req in list(world.requests):
            world.finish(req, is_insert=False)
        assert world.is_over()
        check_empties(world)


class KvMachine(HostTreeMachine):
    @initialize(setup=SETUPS, page_size=st.sampled_from([1, 4]), unified=st.booleans())
    def build(self, setup: HostTierSetup, page_size: int, unified: bool) -> None:
        self.unit = page_size
        setup = setup if unified else replace(setup, unified=None)
        self.world = make_world(HostPagedTree(setup, 40 * page_size, page_size))


TestKvMachine = KvMachine.TestCase
TestKvMachine.settings = settings(stateful_step_count=50)


class StatesMachine(HostTreeMachine):
    @initialize(
        setup=SETUPS,
        sizes=st.sampled_from([(24, 6), (60, 3), (60, 10)]),
        unified=st.booleans(),
        tracked=st.booleans(),
    )
    def build(
        self, setup: HostTierSetup, sizes: tuple[int, int], unified: bool, tracked: bool
    ) -> None:
        setup = setup if unified else replace(setup, unified=None)
        kv_tokens, slots = sizes
        if tracked:
            tree = HostHybridTree(setup, 2 * kv_tokens, 2 * slots + 6, 2, Buffers(2))
        else:
            tree = HostHybridTree(setup, kv_tokens, slots)
        self.world = make_world(tree)


TestStatesMachine = StatesMachine.TestCase
TestStatesMachine.settings = settings(stateful_step_count=50)


class WindowsMachine(HostTreeMachine):
    world: HostWindowWorld

    @initialize(
        setup=SETUPS,
        page_size=st.sampled_from([1, 2, 4]),
        window=st.sampled_from([1, 3, 5]),
        swa_pages=st.sampled_from([14, 24, 40]),
    )
    def build(self, setup: HostTierSetup, page_size: int, window: int, swa_pages: int) -> None:
        self.unit = page_size
        tree = HostWindowTree(setup, 40 * page_size, swa_pages * page_size, page_size, window)
        self.world = HostWindowWorld(tree)

    @rule(data=st.data(), end=st.integers(0, 40))
    def leave_behind(self, data: st.DataObject, end: int) -> None:
        if self.world.requests:
            self.world.leave_behind(self.a_request(data), end)

    @rule(num_tokens=st.integers(0, 6), swa_num_tokens=st.integers(0, 12))
    def evict_of_each_pool(self, num_tokens: int, swa_num_tokens: int) -> None:
        self.world.evict(EvictParams(num_tokens, swa_num_tokens=swa_num_tokens))


TestWindowsMachine = WindowsMachine.TestCase
TestWindowsMachine.settings = settings(stateful_step_count=50)


def check_empties(world: HostWorld) -> None:
    world.evict(EvictParams(10**6, 10**6, 10**6))
    world.check_laws()
    world.evict_host(10**6)
    world.check_laws()
    assert world.tree.cache.node_count() == 0
    assert world.tree.host.available_size() == world.tree.host.size


def play(world: HostWorld, seed: int, steps: int = 500, unit: int = 1) -> None:
    """Do a random run under pressure on both sides, checking the laws after each step."""
    rng = random.Random(seed)
    for _ in range(steps):
        if rng.random() < 0.64:
            a_request_goes_on(world, rng, unit)
        else:
            something_moves(world, rng, unit)
        if isinstance(world, HostWindowWorld) and world.requests and rng.random() < 0.3:
            world.leave_behind(rng.choice(world.requests), rng.randint(0, 60))
        world.check_laws()


def a_request_goes_on(world: HostWorld, rng: random.Random, unit: int) -> None:
    """Start, compute, share or finish a request."""
    choice = rng.random()
    if choice < 0.34 and len(world.requests) < MANY:
        known = rng.choice([(), *sorted(prefixes(world.tree.cache))])
        fresh = [rng.randint(1, 2) for _ in range(rng.randint(1, 6)) for _ in range(unit)]
        world.start([*known[: rng.randint(0, len(known)) // unit * unit], *fresh][: 30 * unit])
    elif not world.requests:
        return
    elif choice < 0.65:
        world.compute(rng.choice(world.requests), rng.randint(1, 4) * unit)
    elif choice < 0.78:
        world.share(rng.choice(world.requests), chunked=rng.random() < 0.5)
    else:
        world.finish(rng.choice(world.requests), is_insert=rng.random() < 0.9)


def something_moves(world: HostWorld, rng: random.Random, unit: int) -> None:
    """Evict on either side, load, or poll."""
    choice, ends = rng.random(), world.loadable()
    if choice < 0.28:
        kv, states, windows = rng.randint(0, 8 * unit), rng.randint(0, 2), rng.randint(0, 9)
        world.evict(EvictParams(kv, states, windows * unit))
    elif choice < 0.56:
        if ends:
            load = world.load_back if rng.random() < 0.7 else world.load_back_now
            load(rng.choice(ends))
    elif choice < 0.64:
        world.evict_host(rng.randint(1, 4 * unit))
        world.evict_host_part(rng.randint(1, 2))
    else:
        world.poll()


TREES: dict[str, tuple[Callable[[HostTierSetup], HostTree], int]] = {
    "KV": (lambda setup: HostPagedTree(setup, 40, 1), 1),
    "KV, pages of 4": (lambda setup: HostPagedTree(setup, 160, 4), 4),
    "states": (lambda setup: HostHybridTree(setup, 60, 9), 1),
    "states, pages of 4": (lambda setup: HostHybridTree(setup, 200, 14, 4, Buffers(4)), 4),
    "windows": (lambda setup: HostWindowTree(setup, 40, 24), 1),
    "windows, pages of 4": (lambda setup: HostWindowTree(setup, 160, 96, 4, 5), 4),
}


@pytest.mark.parametrize("steps", [150, pytest.param(500, marks=pytest.mark.slow)])
@pytest.mark.parametrize("tree", TREES)
def test_plays_of_the_unified_tree_meet_all_that_there_is(tree: str, steps: int) -> None:
    build, unit = TREES[tree]
    seen: Counter[str] = Counter()

    for seed, policy in enumerate(POLICIES):
        setup = HostTierSetup(
            pages=24, states=6, write_policy=policy, delays=(0, 3, 1), failing=(7).__eq__
        )
        world = make_world(build(setup))
        play(world, seed, steps, unit)
        seen.update(world.tree.cache.events.as_dict())
        seen["failures"] += world.tree.cache.cache_controller.failures
        seen["late_acks"] += world.tree.cache.cache_controller.late_acks
        for req in list(world.requests):
            world.finish(req, is_insert=False)
        assert world.is_over()
        check_empties(world)

    for event, least in (
        ("prefix_hits", 20), ("node_splits", 10), ("host_backups", 50), ("host_stays", 20),
        ("host_load_backs", 10), ("host_evictions", 20), ("host_evictions_refused", 1),
        ("failures", 3), ("late_acks", 20),
    ):  # fmt: skip
        # Half of what 300 steps bring about.
        assert seen[event] >= max(1, least * steps // 300 // 2), (event, seen)


def _forgotten(self: HostTier, *_: object) -> bool:
    """A mutant: host evictions ignore readers of a node (sglang#23696)."""
    return False


def _runs_of_the_last_node(self: HostWindows, last_host_node: TreeNode) -> list[Run]:
    """A mutant: a load brings only the last node's window part."""
    lacks_it = last_host_node.swa_tombstone and self.has_value(last_host_node)
    return [Run(last_host_node, len(last_host_node.key))] if lacks_it else []


def _uncut(self: HostWindows, upper: TreeNode, lower: TreeNode) -> None:
    """A mutant: a split leaves the upper half without a host copy."""
    del upper
    if lower.swa_host_value is not None:
        lower.swa_host_value = lower.swa_host_value[-len(lower.key) :].copy()


def _written_once(self: HostPart, node: TreeNode, host_slots: object) -> None:
    """A mutant: written host slots are not attached to their node."""


MISTAKES = {
    "protection": ("states", HostTier, "_is_host_protected", _forgotten),
    "window loads": ("windows", HostWindows, "to_load", _runs_of_the_last_node),
    "window splits": ("windows", HostWindows, "split", _uncut),
    "written parts": ("states", HostPart, "attach_written", _written_once),
    "locks of transfers": (
        "windows", HiUnifiedRadixCache, "_lock_for_transfer", HostTier._lock_for_transfer,
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_laws_see_a_mistake(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tree, owner, method, wrong = MISTAKES[mistake]
    monkeypatch.setattr(owner, method, wrong)
    build, unit = TREES[tree]

    with pytest.raises((AssertionError, CacheSanityError, OwnershipError)):
        plays(build, unit)


def plays(build: Callable[[HostTierSetup], HostTree], unit: int) -> None:
    for seed in range(4):
        world = make_world(build(HostTierSetup(pages=24, states=6, delays=(0, 3, 1))))
        play(world, seed, unit=unit)
        assert world.is_over()
