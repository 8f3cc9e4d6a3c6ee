"""The hybrid tree compared with naive models, with KV and states both under pressure."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize

from hybridbench.engine.memory.owners import REQ, Owner
from tests.laws.tree_machine import TreeMachine
from tests.laws.tree_world import TreeWorld
from tests.unit.engine.cache.trees import Buffers, HybridTree


class MambaRadixMachine(TreeMachine):
    @initialize(kv_tokens=st.sampled_from([24, 60]), mamba_slots=st.sampled_from([3, 6, 14]))
    def build(self, kv_tokens: int, mamba_slots: int) -> None:
        self.world = TreeWorld(HybridTree(kv_tokens, mamba_slots, rows=5))


TestMambaRadixMachine = MambaRadixMachine.TestCase
TestMambaRadixMachine.settings = settings(stateful_step_count=50)


class TrackingRadixMachine(TreeMachine):
    """The same with track buffers, where the tree only gets states at multiples of the grid."""

    @initialize(
        pages=st.sampled_from([(1, 60), (2, 48), (4, 96)]),
        mamba_slots=st.sampled_from([6, 10, 20]),
        overlap=st.booleans(),
        lazy=st.booleans(),
    )
    def build(self, pages: tuple[int, int], mamba_slots: int, overlap: bool, lazy: bool) -> None:
        page_size, kv_tokens = pages
        buffers = Buffers(grid=max(2, page_size), overlap=overlap, lazy=lazy)
        self.world = TreeWorld(HybridTree(kv_tokens, mamba_slots, 5, page_size, buffers))


TestTrackingRadixMachine = TrackingRadixMachine.TestCase
TestTrackingRadixMachine.settings = settings(stateful_step_count=50)


def run_script(refuse: int, buffers: Buffers | None = None) -> int:
    """Do a fixed run in which the ``refuse``-th state allocation fails; return their number."""
    tree = HybridTree(kv_tokens=60, mamba_slots=5, buffers=buffers)
    world = TreeWorld(tree)
    asked = 0
    alloc = tree.mamba.alloc

    def sometimes(need_size: int, owner: Owner = REQ) -> list[int] | None:
        nonlocal asked
        asked += 1
        return None if asked == refuse else alloc(need_size, owner)

    tree.mamba.alloc = sometimes  # type: ignore[method-assign]
    for prompt in ([1, 2, 3, 4], [1, 2, 5], [1, 2, 3, 4, 6, 7], [8, 9], [1, 2, 3]):
        if not world.start(prompt):
            world.check_laws()
            continue
        req = world.requests[-1]
        for count, share in ((1, True), (2, True), (3, False)):
            assert world.compute(req, count)
            if share:
                world.share(req, chunked=True)
            world.check_laws()
        world.finish(req, is_insert=True)
        world.check_laws()
    assert (tree.kv.held(REQ), tree.mamba.held(REQ), world.requests) == (0, 0, [])
    assert tree.cache.mamba_protected_size() == tree.cache.protected_size() == 0
    return asked


@pytest.mark.parametrize(
    "buffers", [None, Buffers(2, overlap=False), Buffers(2), Buffers(2, lazy=True)], ids=str
)
def test_when_any_one_state_is_refused_nothing_is_lost_and_nothing_held(
    buffers: Buffers | None,
) -> None:
    needed = run_script(0, buffers)
    assert needed > 15

    for k in range(1, needed + 1):
        assert run_script(k, buffers) >= k
