"""The eviction order compared with ordered dicts: hits, splits, tombstones, locks, late unlocks."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hybridbench.engine.cache.base import DecLockRefParams, EvictResult
from hybridbench.engine.cache.tree_node import TreeNode
from tests.laws.eviction_model import EvictionModel, Prefix
from tests.unit.engine.cache.trees import HybridTree, prefixes

# Two tokens and short prompts make shared prefixes, splits and exact repeats likely.
PROMPTS = st.lists(st.integers(1, 2), min_size=1, max_size=7).map(tuple)
ROOM = 400
Refresh = Literal["path", "used"]


class TreeBesideModel:
    """Performs every operation on tree and model, and keeps the held locks."""

    def __init__(self, state_refresh: Refresh) -> None:
        self.tree = HybridTree(ROOM, ROOM, state_refresh=state_refresh)
        self.model = EvictionModel(whole_path=state_refresh == "path")
        self.locks: list[tuple[TreeNode, DecLockRefParams]] = []

    def insert(self, ids: Prefix) -> None:
        self.tree.insert(ids)
        self.model.insert(ids)

    def match(self, ids: Prefix) -> None:
        assert len(self.tree.match(ids).device_indices) == len(self.model.match(ids))

    def lock(self, pick: int) -> None:
        """Lock a random node, regardless of when it was last used."""
        nodes = sorted(prefixes(self.tree.cache).items())
        if nodes:
            prefix, node = nodes[pick % len(nodes)]
            params = self.tree.cache.inc_lock_ref(node).to_dec_params()
            assert params.mamba_locked == self.model.lock(prefix)
            self.locks.append((node, params))

    def unlock(self, pick: int) -> None:
        if self.locks:
            node, params = self.locks.pop(pick % len(self.locks))
            prefix = self.prefix_of(node)
            self.tree.cache.dec_lock_ref(node, params)
            self.model.unlock(prefix, params.mamba_locked)

    def evict_full(self, num_tokens: int) -> None:
        evicted = EvictResult(*self.model.evict_full(num_tokens))
        assert self.tree.cache.evict_full(num_tokens) == evicted

    def evict_mamba(self, mamba_num: int) -> None:
        evicted = EvictResult(*self.model.evict_mamba(mamba_num))
        assert self.tree.cache.evict_mamba(mamba_num) == evicted

    def prefix_of(self, node: TreeNode) -> Prefix:
        return next(ids for ids, found in prefixes(self.tree.cache).items() if found is node)

    def check(self) -> None:
        """Check that tree and model have the same nodes, states and eviction order."""
        cache = self.tree.cache
        ids = {node: prefix for prefix, node in prefixes(cache).items()}
        left = {prefix: node.mamba_value is not None for node, prefix in ids.items()}
        assert left == self.model.with_state()
        assert [ids[node] for node in cache.full_lru_list.evictable()] == self.model.leaves()
        assert [ids[node] for node in cache.mamba_lru_list.evictable()] == self.model.states()
        self.tree.audit()


class EvictionOrderMachine(RuleBasedStateMachine):
    both: TreeBesideModel

    @initialize(state_refresh=st.sampled_from(["path", "used"]))
    def build(self, state_refresh: Refresh) -> None:
        self.both = TreeBesideModel(state_refresh)

    @rule(ids=PROMPTS)
    def insert(self, ids: Prefix) -> None:
        self.both.insert(ids)

    @rule(ids=PROMPTS)
    def match(self, ids: Prefix) -> None:
        self.both.match(ids)

    @precondition(lambda self: len(self.both.locks) < 4)
    @rule(pick=st.integers(0, 30))
    def lock(self, pick: int) -> None:
        self.both.lock(pick)

    @precondition(lambda self: self.both.locks)
    @rule(pick=st.integers(0, 3))
    def unlock(self, pick: int) -> None:
        self.both.unlock(pick)

    @rule(num_tokens=st.integers(1, 4))
    def evict_full(self, num_tokens: int) -> None:
        self.both.evict_full(num_tokens)

    @rule(mamba_num=st.integers(1, 3))
    def evict_mamba(self, mamba_num: int) -> None:
        self.both.evict_mamba(mamba_num)

    @invariant()
    def the_order_is_that_of_the_model(self) -> None:
        self.both.check()

    def teardown(self) -> None:
        """Release all locks and evict node by node, in the model's order."""
        while self.both.locks:
            self.both.unlock(0)
        while self.both.model.nodes:
            self.both.evict_full(1)
            self.both.check()


TestEvictionOrderMachine = EvictionOrderMachine.TestCase
TestEvictionOrderMachine.settings = settings(stateful_step_count=40)

OPERATIONS = st.one_of(
    st.tuples(st.just("insert"), PROMPTS),
    st.tuples(st.just("insert"), PROMPTS),
    st.tuples(st.just("match"), PROMPTS),
    st.tuples(st.sampled_from(["lock", "unlock"]), st.integers(0, 30)),
    st.tuples(st.just("evict_mamba"), st.just(1)),
)
Script = list[tuple[str, Prefix | int]]


def played(state_refresh: Refresh, script: Script) -> TreeBesideModel:
    both = TreeBesideModel(state_refresh)
    for operation, argument in script:
        match operation, argument:
            case "insert", tuple(ids):
                both.insert(ids)
            case "match", tuple(ids):
                both.match(ids)
            case "lock", int(pick):
                both.lock(pick)
            case "unlock", int(pick):
                both.unlock(pick)
            case "evict_mamba", int(mamba_num):
                both.evict_mamba(mamba_num)
    return both


@pytest.mark.parametrize("component", ["full", "mamba"])
@pytest.mark.parametrize("state_refresh", ["path", "used"])
@given(script=st.lists(OPERATIONS, min_size=4, max_size=14))
def test_one_eviction_of_any_size_takes_the_first_of_the_order(
    component: str, state_refresh: Refresh, script: Script
) -> None:
    size, left = 0, 1
    while left:
        size += 1
        both = played(state_refresh, script)
        if component == "full":
            both.evict_full(size)
            left = len(both.model.leaves())
        else:
            both.evict_mamba(size)
            left = len(both.model.states())
        both.check()
