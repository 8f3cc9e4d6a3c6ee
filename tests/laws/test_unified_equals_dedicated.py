"""The unified tree behaves like the dedicated tree of each kind of model."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize

from hybridbench.engine.cache.base import CacheSanityError, EvictParams, InsertParams
from hybridbench.engine.cache.tree_node import TreeNode
from hybridbench.engine.cache.unified_component import Evicted
from hybridbench.engine.cache.unified_mamba import MambaComponent
from hybridbench.engine.cache.unified_radix_cache import UnifiedRadixCache
from hybridbench.engine.cache.unified_swa import SWAComponent
from tests.laws.test_swa_radix_machine import SWARadixMachine
from tests.laws.tree_machine import MANY, TreeMachine
from tests.laws.tree_world import TreeWorld
from tests.laws.unified_pair import (
    CascadingHybridTree,
    CascadingWindowTree,
    PairWorld,
    WindowPairWorld,
)
from tests.laws.window_world import WindowWorld
from tests.unit.engine.cache.trees import (
    Buffers,
    HybridTree,
    PagedTree,
    UnifiedHybridTree,
    UnifiedPagedTree,
    UnifiedWindowTree,
    WindowTree,
    prefixes,
)


def kv_pair(page_size: int, pages: int = 40) -> PairWorld:
    sizes = (pages * page_size, page_size)
    return PairWorld(TreeWorld(PagedTree(*sizes)), TreeWorld(UnifiedPagedTree(*sizes)))


def states_pair(
    kv_tokens: int, mamba_slots: int, page_size: int = 1, buffers: Buffers | None = None
) -> PairWorld:
    sizes = (kv_tokens, mamba_slots, 5, page_size, buffers)
    dedicated = HybridTree(*sizes, state_refresh="used")
    return PairWorld(TreeWorld(dedicated), TreeWorld(CascadingHybridTree(*sizes)))


def windows_pair(page_size: int, swa_pages: int = 20, window: int = 4) -> WindowPairWorld:
    sizes = (40 * page_size, swa_pages * page_size, page_size, window)
    return WindowPairWorld(
        WindowWorld(WindowTree(*sizes)), WindowWorld(CascadingWindowTree(*sizes))
    )


class KvPairMachine(TreeMachine):
    @initialize(page_size=st.sampled_from([1, 4, 16]))
    def build(self, page_size: int) -> None:
        self.unit = page_size
        self.world = kv_pair(page_size)


TestKvPairMachine = KvPairMachine.TestCase
TestKvPairMachine.settings = settings(stateful_step_count=40)


class StatesPairMachine(TreeMachine):
    @initialize(kv_tokens=st.sampled_from([24, 60]), mamba_slots=st.sampled_from([3, 6, 14]))
    def build(self, kv_tokens: int, mamba_slots: int) -> None:
        self.world = states_pair(kv_tokens, mamba_slots)


TestStatesPairMachine = StatesPairMachine.TestCase
TestStatesPairMachine.settings = settings(stateful_step_count=50)


class TrackingPairMachine(TreeMachine):
    """A hybrid pair with track buffers, in pages."""

    @initialize(
        pages=st.sampled_from([(1, 60), (4, 96)]),
        mamba_slots=st.sampled_from([6, 10, 20]),
        overlap=st.booleans(),
        lazy=st.booleans(),
    )
    def build(self, pages: tuple[int, int], mamba_slots: int, overlap: bool, lazy: bool) -> None:
        page_size, kv_tokens = pages
        buffers = Buffers(grid=max(2, page_size), overlap=overlap, lazy=lazy)
        self.world = states_pair(kv_tokens, mamba_slots, page_size, buffers)


TestTrackingPairMachine = TrackingPairMachine.TestCase
TestTrackingPairMachine.settings = settings(stateful_step_count=50)


class WindowsPairMachine(SWARadixMachine):
    @initialize(
        page_size=st.sampled_from([1, 2, 4]),
        window=st.sampled_from([1, 3, 5]),
        swa_pages=st.sampled_from([14, 24, 40]),
    )
    def build(self, page_size: int, window: int, swa_pages: int) -> None:
        self.unit = page_size
        self.world = windows_pair(page_size, swa_pages, window)


TestWindowsPairMachine = WindowsPairMachine.TestCase
TestWindowsPairMachine.settings = settings(stateful_step_count=50)


def play(world: PairWorld, seed: int, steps: int = 400, unit: int = 1) -> None:
    """Do a random run under pressure: requests in chunks, bare locks, evictions of both kinds."""
    rng = random.Random(seed)
    for _ in range(steps):
        choice = rng.random()
        if choice < 0.35 and len(world.requests) < MANY:
            known = rng.choice([(), *sorted(prefixes(world.tree.cache))])
            fresh = [rng.randint(1, 2) for _ in range(rng.randint(1, 6)) for _ in range(unit)]
            world.start([*known[: rng.randint(0, len(known)) // unit * unit], *fresh][:40])
        elif choice < 0.6 and world.requests:
            world.compute(rng.choice(world.requests), rng.randint(1, 4) * unit)
        elif choice < 0.75 and world.requests:
            world.share(rng.choice(world.requests), chunked=rng.random() < 0.5)
        elif choice < 0.9 and world.requests:
            world.finish(rng.choice(world.requests), is_insert=rng.random() < 0.9)
        elif choice < 0.94:
            kv, states, windows = rng.randint(0, 6 * unit), rng.randint(0, 2), rng.randint(0, 9)
            world.evict(EvictParams(kv, states, windows * unit))
        elif choice < 0.97 and len(world.locked) < MANY and world.lockable():
            world.lock(rng.choice(world.lockable()))
        elif world.locked:
            world.unlock(rng.randrange(len(world.locked)))
        _leave_behind(world, rng)
        world.check_laws()


def _leave_behind(world: PairWorld, rng: random.Random) -> None:
    """With some probability, let a request free the KV behind its window."""
    if isinstance(world, WindowPairWorld) and world.requests and rng.random() < 0.3:
        world.leave_behind(rng.choice(world.requests), rng.randint(0, 60))


PAIRS: dict[str, tuple[Callable[[], PairWorld], int]] = {
    "KV, tokens": (lambda: kv_pair(1), 1),
    "KV, pages of 4": (lambda: kv_pair(4), 4),
    "windows": (lambda: windows_pair(1), 1),
    "windows, pages of 4": (lambda: windows_pair(4), 4),
    "states": (lambda: states_pair(60, 8), 1),
    "states, pages of 4": (lambda: states_pair(200, 13, 4, Buffers(4)), 4),
}
# In `make test`, each kind of pool once; `test_every_cell.py` has pages with all of them.
FEW = ("KV, pages of 4", "windows", "states")
each_pair = pytest.mark.parametrize(
    "pair", [pytest.param(name, marks=() if name in FEW else pytest.mark.slow) for name in PAIRS]
)


@each_pair
def test_the_same_operations_have_the_same_answers(pair: str) -> None:
    build, unit = PAIRS[pair]
    world = build()

    play(world, seed=25, unit=unit)

    seen = world.tree.cache.events
    assert min(seen.prefix_hits, seen.node_splits, seen.evict_leaf) > 5, seen
    if world.tree.cache.supports_mamba():
        assert min(seen.cow_copies, seen.evict_internal_state, seen.evict_cascade) > 5, seen
    if world.tree.cache.supports_swa():
        assert min(seen.swa_tombstones, seen.evict_cascade) > 5, seen


def _split_without_a_touch(self: UnifiedRadixCache, upper: TreeNode, lower: TreeNode) -> None:
    """A mutant: the lower half of a split node keeps its age."""
    upper.creation_time = lower.creation_time
    self.events.tombstones += 1


def _states_beyond_the_request(
    self: MambaComponent, params: EvictParams, evicted: Evicted
) -> Iterator[TreeNode]:
    """A mutant: states that were evicted with KV do not count."""
    already = evicted.states
    while evicted.states - already < params.mamba_num:
        oldest = self.lru_list.get_lru_no_lock()
        if oldest is None:
            return
        yield oldest


def _whole_path(self: MambaComponent, path: Sequence[TreeNode]) -> None:
    """A mutant: a hit refreshes all states of its path."""
    for node in path:
        if node.mamba_value is not None:
            node.state_access_time = node.last_access_time
    self.lru_list.reset_path_mru(path)


def _no_state_for_a_node_with_children(
    self: MambaComponent, node: TreeNode, params: InsertParams
) -> bool:
    """A mutant: a tombstone inside the tree never gets a state again."""
    return not node.children and _commit(self, node, params)


def _any_end(self: SWAComponent, path: Sequence[TreeNode], end: int) -> int:
    """A mutant: a match may end at any node that is no tombstone, without a whole window."""
    return max([n for n, node in enumerate(path[:end], 1) if not node.swa_tombstone], default=0)


def _windows_beyond_the_leaves(
    self: SWAComponent, params: EvictParams, evicted: Evicted
) -> Iterator[TreeNode]:
    """A mutant: window KV that was evicted with leaves does not count."""
    already = evicted.swa_tokens
    while evicted.swa_tokens - already < params.swa_num_tokens:
        oldest = self.window.lru_list.get_lru_no_lock()
        if oldest is None:
            return
        yield oldest


def _no_window_made_young(self: SWAComponent, path: Sequence[TreeNode]) -> None:
    """A mutant: a hit does not refresh windows."""


_commit = MambaComponent.commit_insert_component_data
Mistake: TypeAlias = tuple[type, str, Callable[..., object]]
MISTAKES: list[Mistake] = [
    (UnifiedRadixCache, "_after_split", _split_without_a_touch),
    (MambaComponent, "drive_eviction", _states_beyond_the_request),
    (MambaComponent, "touch", _whole_path),
    (MambaComponent, "commit_insert_component_data", _no_state_for_a_node_with_children),
]


WINDOW_MISTAKES: list[Mistake] = [
    (SWAComponent, "match_end", _any_end),
    (SWAComponent, "drive_eviction", _windows_beyond_the_leaves),
    (SWAComponent, "touch", _no_window_made_young),
]


@pytest.mark.parametrize("mistake", WINDOW_MISTAKES, ids=lambda mistake: mistake[2].__name__)
def test_the_law_sees_a_mistake_of_windows(
    mistake: Mistake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*mistake)

    # Too long a match raises at once; too many evictions are found when both trees are compared.
    with pytest.raises((AssertionError, CacheSanityError)):
        play(windows_pair(1), seed=25)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake[2].__name__)
def test_the_law_sees_a_mistake(mistake: Mistake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*mistake)

    with pytest.raises(AssertionError):
        play(states_pair(60, 8), seed=25)


def test_without_the_rule_of_the_dedicated_tree_the_law_fails() -> None:
    sizes = (60, 8, 5)
    world = PairWorld(TreeWorld(HybridTree(*sizes)), TreeWorld(UnifiedHybridTree(*sizes)))

    with pytest.raises(AssertionError):
        play(world, seed=25)


def test_without_the_rule_of_the_dedicated_tree_the_law_of_windows_fails() -> None:
    sizes = (40, 20, 1, 4)
    dedicated, unified = WindowTree(*sizes), UnifiedWindowTree(*sizes)

    with pytest.raises(AssertionError):
        play(WindowPairWorld(WindowWorld(dedicated), WindowWorld(unified)), seed=25)
