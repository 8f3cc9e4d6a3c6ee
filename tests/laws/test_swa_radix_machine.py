"""Trees with sliding windows compared with naive models, with both pools under pressure."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from hybridbench.engine.cache.base import EvictParams
from tests.laws.tree_machine import TreeMachine
from tests.laws.window_world import WindowWorld
from tests.unit.engine.cache.trees import AnyWindowTree, UnifiedWindowTree, WindowTree, prefixes


class SWARadixMachine(TreeMachine):
    world: WindowWorld
    kind: type[AnyWindowTree] = WindowTree

    @initialize(
        page_size=st.sampled_from([1, 2, 4]),
        window=st.sampled_from([1, 3, 5]),
        swa_pages=st.sampled_from([14, 24, 40]),
    )
    def build(self, page_size: int, window: int, swa_pages: int) -> None:
        self.unit = page_size
        tree = self.kind(40 * page_size, swa_pages * page_size, page_size, window)
        self.world = WindowWorld(tree)

    @precondition(lambda self: self.world.requests)
    @rule(data=st.data(), end=st.integers(0, 40))
    def leave_behind(self, data: st.DataObject, end: int) -> None:
        self.world.leave_behind(self.a_request(data), end)

    @rule(swa_num_tokens=st.integers(1, 12))
    def evict_windows(self, swa_num_tokens: int) -> None:
        self.world.evict(EvictParams(swa_num_tokens=swa_num_tokens))

    @rule(num_tokens=st.integers(0, 6), swa_num_tokens=st.integers(0, 12))
    def evict_of_each_pool(self, num_tokens: int, swa_num_tokens: int) -> None:
        self.world.evict(EvictParams(num_tokens, swa_num_tokens=swa_num_tokens))

    @rule(data=st.data())
    def match(self, data: st.DataObject) -> None:
        known = sorted(prefixes(self.world.tree.cache))
        if known:
            ids = known[data.draw(st.integers(0, len(known) - 1))]
            self.world.match_is_longest([*ids[: data.draw(st.integers(1, len(ids)))], 9])


TestSWARadixMachine = SWARadixMachine.TestCase
TestSWARadixMachine.settings = settings(stateful_step_count=50)


class UnifiedWindowMachine(SWARadixMachine):
    kind = UnifiedWindowTree


TestUnifiedWindowMachine = UnifiedWindowMachine.TestCase
TestUnifiedWindowMachine.settings = settings(stateful_step_count=50)
