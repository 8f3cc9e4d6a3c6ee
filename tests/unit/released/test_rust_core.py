"""SGLang's tree with a Rust core: what can be read from it without its nodes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hybridbench.engine.counters import EngineCounters
from hybridbench.released.sglang.rust_core import (
    RustCoreWatch,
    parts,
    rust_core,
)

# The window-pool slot of each KV slot; 0 if it has none.
WINDOWS = torch.tensor([0, 0, 7, 8, 9])


class RustUnifiedTreeCore:
    """A fake core with four KV slots, three of them with windows, and three states."""

    def __init__(self) -> None:
        self.states = torch.tensor([4, 5, 6])
        self.freed: dict[int, list[torch.Tensor]] = {}
        self.node_id: int | None = None

    def all_values_flatten(self) -> torch.Tensor:
        return torch.tensor([1, 2, 3, 4])

    def all_mamba_values_flatten(self) -> torch.Tensor:
        return self.states

    def walk_for_kv_canary(self, *, unlocked_only: bool, swa_resident_only: bool) -> Any:
        assert (unlocked_only, swa_resident_only) == (False, True)
        return SimpleNamespace(slot_indices=torch.tensor([2, 3, 4]))

    def full_evictable_size(self) -> int:
        return 3

    def swa_evictable_size(self) -> int:
        return 0

    def mamba_evictable_size(self) -> int:
        return 3

    def evict_device_next_node(self, component: int, tracker: dict[int, int]) -> Any:
        del component, tracker
        return SimpleNamespace(made_progress=True, node_id=self.node_id, device_frees=self.freed)

    def evict_device_leaf(self, node_id: int, is_write_back: bool) -> Any:
        del node_id, is_write_back
        return SimpleNamespace(device_frees=self.freed)


def test_only_the_core_in_rust_is_read_in_this_way() -> None:
    core = RustUnifiedTreeCore()

    assert rust_core(SimpleNamespace(tree_core=core)) is core
    assert rust_core(SimpleNamespace(tree_core=object())) is None
    assert rust_core(SimpleNamespace()) is None


def test_the_slots_of_all_nodes_are_listed_and_the_locked_ones_counted() -> None:
    found = [
        (pool, slots.tolist(), locked)
        for pool, slots, locked in parts(
            RustUnifiedTreeCore(), WINDOWS.__getitem__, {"swa": 0, "mamba": 0}
        )
    ]

    assert found == [
        ("kv", [1, 2, 3], False),
        ("kv", [4], True),
        ("swa", [], False),
        ("swa", [7, 8, 9], True),
        ("mamba", [4, 5, 6], False),
        ("mamba", [], True),
    ]
    assert {pool for pool, _, _ in parts(RustUnifiedTreeCore(), WINDOWS.__getitem__, {})} == {"kv"}


@pytest.mark.parametrize("has_windows", [False, True])
def test_evictions_are_counted_by_the_calls_that_make_them(has_windows: bool) -> None:
    core, counters = RustUnifiedTreeCore(), EngineCounters()
    watch = RustCoreWatch(core, counters, has_windows=has_windows)

    core.evict_device_next_node(2, {})
    core.node_id = 9
    core.evict_device_next_node(2, {})
    core.evict_device_leaf(9, False)

    assert (counters.evict_leaf, counters.nodes_evicted) == (1, 1)
    states, windows = (0, 1) if has_windows else (1, 0)
    assert counters.tombstones == counters.evict_internal_state == states
    assert counters.swa_tombstones == windows
    assert watch.sizes() == {}


def test_states_that_were_gained_and_lost_since_are_counted() -> None:
    core = RustUnifiedTreeCore()
    watch = RustCoreWatch(core, EngineCounters(), has_windows=False)
    watch.look()

    core.freed = {0: [torch.tensor([1])], 2: [torch.tensor([4]), torch.tensor([5])]}
    core.evict_device_leaf(9, False)
    core.states = torch.tensor([6, 7])
    first = watch.gained
    watch.look()

    assert (first, watch.gained) == (3, 1)
