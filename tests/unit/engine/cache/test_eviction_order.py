"""The LRU lists define the order of eviction: a broken list yields other victims, or none."""

from __future__ import annotations

import pytest

from hybridbench.engine.cache.base import EvictParams
from hybridbench.engine.cache.lru import FullLRUList, LRUList, MambaLRUList
from tests.unit.engine.cache.trees import HybridTree, prefixes

Prefix = tuple[int, ...]
BOTH = pytest.mark.parametrize("list_class", [FullLRUList, MambaLRUList])


def used_tree() -> HybridTree:
    """Return a tree of five prompts: [4] is locked, [5] was; [1], then [3], were hit last."""
    tree = HybridTree()
    for ids in ([1], [1, 2], [3], [4], [5]):
        tree.insert(ids)
    tree.cache.inc_lock_ref(tree.node([4]))
    lock = tree.cache.inc_lock_ref(tree.node([5]))
    tree.cache.dec_lock_ref(tree.node([5]), lock.to_dec_params())
    tree.match([1])
    tree.match([3])
    return tree


def victims(list_class: type[LRUList]) -> list[Prefix] | str:
    """Return prefixes in the order in which they lose their state, or the name of the error."""
    params = EvictParams(num_tokens=1) if list_class is FullLRUList else EvictParams(mamba_num=1)
    gone: list[Prefix] = []
    try:
        tree = used_tree()
        before = with_state(tree)
        while any(tree.cache.evict(params)):
            left = with_state(tree)
            gone += sorted(before - left)
            before = left
    except (AssertionError, AttributeError, KeyError) as error:
        return type(error).__name__
    return gone


def with_state(tree: HybridTree) -> set[Prefix]:
    found = prefixes(tree.cache).items()
    return {ids for ids, node in found if node.mamba_value is not None}


def does_nothing(self: LRUList, *args: object) -> None:
    del self, args


HEALTHY = [(1, 2), (5,), (1,), (3,)]


@BOTH
def test_the_least_recently_used_that_is_not_locked_goes_first(list_class: type[LRUList]) -> None:
    assert victims(list_class) == HEALTHY


@pytest.mark.parametrize(
    ("list_class", "method"),
    [
        (FullLRUList, "insert_mru"),
        (FullLRUList, "reset_path_mru"),
        (FullLRUList, "remove_node"),
        (FullLRUList, "hold"),
        (FullLRUList, "release"),
        (MambaLRUList, "insert_mru"),
        (MambaLRUList, "reset_path_mru"),
        (MambaLRUList, "remove_node"),
    ],
)
def test_without_an_operation_of_its_list_an_eviction_fails_or_takes_others(
    list_class: type[LRUList], method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(list_class, method, does_nothing)

    assert victims(list_class) != HEALTHY


@BOTH
def test_with_a_list_that_does_nothing_nobody_can_be_evicted(
    list_class: type[LRUList], monkeypatch: pytest.MonkeyPatch
) -> None:
    for method in ("insert_mru", "reset_path_mru", "remove_node", "hold", "release"):
        monkeypatch.setattr(list_class, method, does_nothing)

    assert victims(list_class) == []
