"""The unified tree compared with naive models: only KV in pages, and KV with states."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize

from tests.laws.tree_machine import TreeMachine
from tests.laws.tree_world import TreeWorld
from tests.unit.engine.cache.trees import Buffers, UnifiedHybridTree, UnifiedPagedTree


class UnifiedKvMachine(TreeMachine):
    @initialize(page_size=st.sampled_from([1, 2, 4]))
    def build(self, page_size: int) -> None:
        self.unit = page_size
        self.world = TreeWorld(UnifiedPagedTree(kv_tokens=40 * page_size, page_size=page_size))


TestUnifiedKvMachine = UnifiedKvMachine.TestCase
TestUnifiedKvMachine.settings = settings(stateful_step_count=40)


class UnifiedStatesMachine(TreeMachine):
    @initialize(kv_tokens=st.sampled_from([24, 60]), mamba_slots=st.sampled_from([3, 6, 14]))
    def build(self, kv_tokens: int, mamba_slots: int) -> None:
        self.world = TreeWorld(UnifiedHybridTree(kv_tokens, mamba_slots, rows=5))


TestUnifiedStatesMachine = UnifiedStatesMachine.TestCase
TestUnifiedStatesMachine.settings = settings(stateful_step_count=50)


class UnifiedTrackingMachine(TreeMachine):
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
        self.world = TreeWorld(UnifiedHybridTree(kv_tokens, mamba_slots, 5, page_size, buffers))


TestUnifiedTrackingMachine = UnifiedTrackingMachine.TestCase
TestUnifiedTrackingMachine.settings = settings(stateful_step_count=50)
