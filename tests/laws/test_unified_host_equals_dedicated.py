"""The unified tree with a host tier behaves like HiRadixCache and HiMambaRadixCache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize

from hybridbench.engine.cache.hi_unified_radix_cache import HiUnifiedRadixCache
from hybridbench.engine.cache.tree_node import NO_TOKENS, TreeNode
from tests.laws.host_pair import CascadingHostCache, HostPairWorld
from tests.laws.host_world import HostWorld
from tests.laws.test_host_tree_machine import SETUPS, HostTreeMachine, check_empties, play
from tests.unit.engine.cache.host_trees import (
    POLICIES,
    HostHybridTree,
    HostPagedTree,
    HostTierSetup,
)
from tests.unit.engine.cache.trees import Buffers


def kv_pair(setup: HostTierSetup, page_size: int) -> HostPairWorld:
    sizes = (40 * page_size, page_size)
    dedicated = HostPagedTree(replace(setup, unified=None), *sizes)
    return HostPairWorld(HostWorld(dedicated), HostWorld(HostPagedTree(setup, *sizes)))


def states_pair(
    setup: HostTierSetup,
    kv_tokens: int,
    mamba_slots: int,
    page_size: int = 1,
    buffers: Buffers | None = None,
    unified: type[HiUnifiedRadixCache] = CascadingHostCache,
) -> HostPairWorld:
    sizes = (kv_tokens, mamba_slots, page_size, buffers)
    dedicated = HostHybridTree(replace(setup, unified=None), *sizes, "used")
    twin = HostHybridTree(replace(setup, unified=unified), *sizes)
    return HostPairWorld(HostWorld(dedicated), HostWorld(twin))


class KvPairMachine(HostTreeMachine):
    @initialize(setup=SETUPS, page_size=st.sampled_from([1, 4]))
    def build(self, setup: HostTierSetup, page_size: int) -> None:
        self.unit = page_size
        self.world = kv_pair(setup, page_size)


TestKvPairMachine = KvPairMachine.TestCase
TestKvPairMachine.settings = settings(stateful_step_count=40)


class StatesPairMachine(HostTreeMachine):
    @initialize(
        setup=SETUPS, sizes=st.sampled_from([(24, 6), (60, 3), (60, 10)]), tracked=st.booleans()
    )
    def build(self, setup: HostTierSetup, sizes: tuple[int, int], tracked: bool) -> None:
        kv_tokens, slots = sizes
        if tracked:
            self.world = states_pair(setup, 2 * kv_tokens, 2 * slots + 6, 2, Buffers(2))
        else:
            self.world = states_pair(setup, kv_tokens, slots)


TestStatesPairMachine = StatesPairMachine.TestCase
TestStatesPairMachine.settings = settings(stateful_step_count=50)


PAIRS: dict[str, tuple[Callable[[HostTierSetup], HostPairWorld], int]] = {
    "KV, tokens": (lambda setup: kv_pair(setup, 1), 1),
    "KV, pages of 4": (lambda setup: kv_pair(setup, 4), 4),
    "states": (lambda setup: states_pair(setup, 60, 9), 1),
    "states, pages of 4": (lambda setup: states_pair(setup, 200, 14, 4, Buffers(4)), 4),
}
# In `make test`, each kind of pool once; `test_every_cell.py` has pages with all of them.
FEW = ("KV, pages of 4", "windows", "states")
each_pair = pytest.mark.parametrize(
    "pair", [pytest.param(name, marks=() if name in FEW else pytest.mark.slow) for name in PAIRS]
)


@each_pair
def test_the_same_operations_have_the_same_answers(pair: str) -> None:
    build, unit = PAIRS[pair]
    seen: Counter[str] = Counter()

    for seed, policy in enumerate(POLICIES):
        world = build(
            HostTierSetup(24, 6, write_policy=policy, delays=(0, 3, 1), failing=(7).__eq__)
        )
        play(world, seed, steps=150, unit=unit)
        seen.update(world.tree.cache.events.as_dict())
        for req in list(world.requests):
            world.finish(req, is_insert=False)
        assert world.is_over()
        check_empties(world)

    wanted = ["prefix_hits", "node_splits", "host_backups", "host_stays", "host_load_backs",
              "host_evictions"]  # fmt: skip
    if world.tree.cache.supports_mamba():
        wanted += ["cow_copies", "evict_internal_state", "host_evictions_refused"]
    for event in wanted:
        assert seen[event] > 1, (event, seen)


def _keeps_all(self: HiUnifiedRadixCache, node: TreeNode) -> bool:
    """A mutant: leaves that no request can hit stay on the host."""
    return True


def _as_it_comes(self: HiUnifiedRadixCache, node: TreeNode) -> None:
    """A mutant: loaded nodes keep their age."""


MISTAKES = (("_is_worth_keeping", _keeps_all), ("_make_youngest", _as_it_comes))


@pytest.mark.parametrize(("method", "wrong"), MISTAKES)
def test_the_law_sees_a_mistake(
    method: str, wrong: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HiUnifiedRadixCache, method, wrong)
    world = states_pair(HostTierSetup(24, 6, delays=(0, 3, 1)), 60, 9)

    with pytest.raises(AssertionError):
        play(world, seed=0)


def test_the_law_sees_a_state_that_is_never_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state was added when the host already had its node's KV."""
    world = states_pair(HostTierSetup(24, 6, delays=(0, 3, 1)), 60, 9)
    twin = world.twin.tree.cache.host_parts[0]
    healthy = twin.to_write
    monkeypatch.setattr(
        twin, "to_write", lambda n: healthy(n) if n.host_value is None else NO_TOKENS
    )

    with pytest.raises(AssertionError):
        play(world, seed=0)


def test_without_the_rule_of_the_dedicated_tree_the_law_fails() -> None:
    setup = HostTierSetup(24, 6, delays=(0, 3, 1))
    world = states_pair(setup, 60, 9, unified=HiUnifiedRadixCache)

    with pytest.raises(AssertionError):
        play(world, seed=0)
