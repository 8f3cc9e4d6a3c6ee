"""Reference counting frees evicted nodes; with the bug of sglang#25770 they pile up."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator

import pytest

from hybridbench.engine.cache.base import EvictParams
from hybridbench.engine.cache.lru import FullLRUList, MambaLRUList
from hybridbench.engine.cache.swa_lru import SWALRUList
from hybridbench.engine.cache.tree_node import TreeNode
from hybridbench.engine.cache.unified_mamba import UnifiedMambaLRUList
from hybridbench.engine.cache.unified_swa import UnifiedSWALRUList
from tests.builders import tree_nodes
from tests.unit.engine.cache.trees import (
    AnyHybridTree,
    AnyWindowTree,
    HybridTree,
    UnifiedHybridTree,
    UnifiedWindowTree,
    WindowTree,
)

# Nodes of engines that other tests keep alive.
EARLIER: list[TreeNode] = []


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    """Disable the collector, so that only reference counting frees nodes during a test."""
    gc.collect()
    gc.disable()
    EARLIER.extend(tree_nodes())
    yield
    EARLIER.clear()
    gc.enable()
    gc.collect()


@pytest.fixture
def stale_pointers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unlink as before the fix: the removed node keeps its own two pointers."""

    def keep_full(self: FullLRUList, node: TreeNode) -> None:
        node.full_prev.full_next = node.full_next
        node.full_next.full_prev = node.full_prev

    def keep_mamba(self: MambaLRUList, node: TreeNode) -> None:
        node.mamba_prev.mamba_next = node.mamba_next
        node.mamba_next.mamba_prev = node.mamba_prev

    def keep_swa(self: SWALRUList, node: TreeNode) -> None:
        node.swa_prev.swa_next = node.swa_next
        node.swa_next.swa_prev = node.swa_prev

    monkeypatch.setattr(FullLRUList, "_remove_node", keep_full)
    for mamba_list in (MambaLRUList, UnifiedMambaLRUList):
        monkeypatch.setattr(mamba_list, "_remove_node", keep_mamba)
    for swa_list in (SWALRUList, UnifiedSWALRUList):
        monkeypatch.setattr(swa_list, "_remove_node", keep_swa)


def stray_nodes(tree: AnyHybridTree | AnyWindowTree) -> int:
    """Return the number of live nodes that are neither in the tree nor ends of its lists."""
    live = len(tree_nodes()) - len(EARLIER)
    return live - tree.cache.live_node_count()


def chat(tree: AnyHybridTree, turns: int, seed: int = 1) -> None:
    """Insert chats that grow by two tokens a turn; states run short before KV does."""
    rng = random.Random(seed)
    prompts = [[1, 2, 3, 4], [1, 2, 5, 6]]
    open_chats = [[*rng.choice(prompts), rng.randrange(100, 10**6)] for _ in range(4)]
    for _ in range(turns):
        place = rng.randrange(4)
        if len(open_chats[place]) > 14:
            open_chats[place] = [*rng.choice(prompts), rng.randrange(100, 10**6)]
        ids = open_chats[place] = [*open_chats[place], *(rng.randrange(100) for _ in range(2))]
        tree.match(ids)
        tree.cache.evict(
            EvictParams(
                num_tokens=max(0, len(ids) - tree.kv.available_size()),
                mamba_num=max(0, 1 - tree.mamba.available_size()),
            )
        )
        tree.insert(ids)


@pytest.mark.parametrize("kind", [HybridTree, UnifiedHybridTree])
def test_healthy_eviction_leaves_no_node_alive_and_nothing_to_collect(
    kind: type[AnyHybridTree],
) -> None:
    tree = kind(kv_tokens=120, mamba_slots=9)

    chat(tree, turns=400)

    assert tree.cache.events.nodes_removed > 300
    assert tree.cache.events.evict_cascade > 100
    assert tree.cache.events.evict_internal_state > 100
    assert stray_nodes(tree) == 0
    tree.audit()


def test_kept_pointers_strand_nearly_every_evicted_node(stale_pointers: None) -> None:
    tree = HybridTree(kv_tokens=120, mamba_slots=9)

    chat(tree, turns=400)

    evicted = tree.cache.events.nodes_removed
    assert evicted > 300
    assert stray_nodes(tree) > 0.95 * evicted
    # The pools balance nevertheless: only host memory can show this leak.
    tree.audit()


def chat_in_windows(turns: int, kind: type[AnyWindowTree] = WindowTree) -> AnyWindowTree:
    """Insert chats as in ``chat``; the window pool runs short long before the full one."""
    tree = kind(kv_tokens=120, swa_tokens=40, window=3)
    rng = random.Random(1)
    open_chats = [[start, start + 1] for start in range(0, 40, 10)]
    for _ in range(turns):
        place = rng.randrange(4)
        if len(open_chats[place]) > 14:
            open_chats[place] = [rng.randrange(100, 10**6), 1]
        ids = open_chats[place] = [*open_chats[place], *(rng.randrange(100) for _ in range(2))]
        tree.cache.evict(
            EvictParams(
                num_tokens=max(0, len(ids) - tree.kv.full_available_size()),
                swa_num_tokens=max(0, len(ids) - tree.kv.swa_available_size()),
            )
        )
        tree.insert(ids)
    return tree


@pytest.mark.parametrize("kind", [WindowTree, UnifiedWindowTree])
def test_healthy_eviction_from_windows_leaves_no_node_alive(kind: type[AnyWindowTree]) -> None:
    tree = chat_in_windows(turns=400, kind=kind)

    assert tree.cache.events.nodes_removed > 300
    assert tree.cache.events.swa_tombstones > 200
    assert stray_nodes(tree) == 0
    tree.audit()


def test_kept_pointers_of_the_window_list_strand_evicted_nodes(stale_pointers: None) -> None:
    tree = chat_in_windows(turns=400)

    assert stray_nodes(tree) > 0.9 * tree.cache.events.nodes_removed > 300
    tree.audit()


def long_chats(tree: AnyHybridTree, turns: int, seed: int = 1) -> None:
    """Insert turns of many chats in random order, with few states compared to their KV."""
    rng = random.Random(seed)
    open_chats = [[chat_id] for chat_id in range(1000, 1048)]
    for turn in range(turns):
        place = rng.randrange(len(open_chats))
        if len(open_chats[place]) > 20:
            open_chats[place] = [2000 + turn]
        ids = open_chats[place] = [*open_chats[place], *(rng.randrange(100) for _ in range(2))]
        tree.cache.evict(
            EvictParams(
                num_tokens=max(0, len(ids) - tree.kv.available_size()),
                mamba_num=max(0, 1 - tree.mamba.available_size()),
            )
        )
        tree.insert(ids)


def test_in_a_unified_tree_the_chains_hang_from_living_tombstones_and_survive_a_collection(
    stale_pointers: None,
) -> None:
    tree = UnifiedHybridTree(kv_tokens=800, mamba_slots=100)
    long_chats(tree, turns=1200)
    evicted = tree.cache.events.nodes_removed
    assert evicted > 800
    assert stray_nodes(tree) > 0.95 * evicted

    gc.collect()

    assert stray_nodes(tree) > 0.8 * evicted
    # The chains become garbage only when the tombstones are removed.
    tree.cache.reset()
    gc.collect()
    assert stray_nodes(tree) == 0


def test_the_same_chats_leave_the_dedicated_tree_with_garbage_alone(stale_pointers: None) -> None:
    tree = HybridTree(kv_tokens=800, mamba_slots=100)
    long_chats(tree, turns=1200)
    assert stray_nodes(tree) > 0.95 * tree.cache.events.nodes_removed

    gc.collect()

    assert stray_nodes(tree) < 0.1 * tree.cache.events.nodes_removed


def test_kept_pointers_without_a_tombstone_and_its_child_strand_nothing(
    stale_pointers: None,
) -> None:
    tree = HybridTree(kv_tokens=64, mamba_slots=8)

    for start in range(50):
        tree.cache.evict(EvictParams(num_tokens=max(0, 2 - tree.kv.available_size()), mamba_num=1))
        tree.insert([100 + start, 200 + start])

    assert tree.cache.events.nodes_removed > 40
    assert stray_nodes(tree) <= 1


def test_one_pair_of_parent_and_child_drags_later_neighbours_along(
    stale_pointers: None,
) -> None:
    tree = HybridTree(kv_tokens=200, mamba_slots=120)
    tree.insert([1])
    tree.insert([1, 2])
    tree.cache.evict(EvictParams(mamba_num=1))
    for leaf in range(100):
        tree.insert([1000 + leaf])

    while tree.cache.node_count():
        tree.cache.evict(EvictParams(num_tokens=1))

    assert stray_nodes(tree) == 102
    gc.collect()
    assert stray_nodes(tree) == 0


def test_a_parent_that_loses_its_state_while_a_request_holds_its_child_makes_the_cycle(
    stale_pointers: None,
) -> None:
    tree = HybridTree()
    for ids in ([1], [1, 2], [3]):
        tree.insert(ids)
    lock = tree.cache.inc_lock_ref(tree.node([1, 2]))
    tree.cache.evict(EvictParams(mamba_num=1))
    assert tree.node([1]).mamba_value is None
    tree.cache.dec_lock_ref(tree.node([1, 2]), lock.to_dec_params())

    tree.cache.evict(EvictParams(num_tokens=2))

    assert tree.cache.node_count() == 1
    assert stray_nodes(tree) == 2


def test_a_reset_leaves_nothing_for_the_collector_either() -> None:
    tree = HybridTree()
    for ids in ([1, 2], [1, 2, 3], [1, 4], [5]):
        tree.insert(ids)

    tree.cache.reset()

    assert stray_nodes(tree) == 0
