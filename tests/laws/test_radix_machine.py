"""The attention-only tree compared with naive models, for several page sizes."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize

from tests.laws.tree_machine import TreeMachine
from tests.laws.tree_world import TreeWorld
from tests.unit.engine.cache.trees import PagedTree


class RadixMachine(TreeMachine):
    @initialize(page_size=st.sampled_from([1, 2, 4]))
    def build(self, page_size: int) -> None:
        self.unit = page_size
        self.world = TreeWorld(PagedTree(kv_tokens=40 * page_size, page_size=page_size))


TestRadixMachine = RadixMachine.TestCase
TestRadixMachine.settings = settings(stateful_step_count=40)
