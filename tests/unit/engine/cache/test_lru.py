"""The two LRU lists, linked through the nodes."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridbench.engine.cache.base import CacheSanityError
from hybridbench.engine.cache.lru import FullLRUList, MambaLRUList
from hybridbench.engine.cache.radix_key import RadixKey
from hybridbench.engine.cache.tree_node import NO_TOKENS, TreeNode
from hybridbench.engine.cache.unified_mamba import UnifiedMambaLRUList

Lists = type[FullLRUList] | type[MambaLRUList]
BOTH = pytest.mark.parametrize("list_class", [FullLRUList, MambaLRUList, UnifiedMambaLRUList])


def three(list_class: Lists) -> tuple[FullLRUList | MambaLRUList, list[TreeNode]]:
    linked = list_class()
    return linked, list(add_members(linked, (1, 2, 3)).values())


def add_members(linked: FullLRUList | MambaLRUList, numbers: Iterable[int]) -> dict[int, TreeNode]:
    """Add new nodes, last used in the order of their numbers."""
    nodes = {number: TreeNode(number, RadixKey([number]), NO_TOKENS, None) for number in numbers}
    for number, node in nodes.items():
        node.mamba_value = number
        node.last_access_time = node.state_access_time = number
        linked.insert_mru(node)
    return nodes


def ids(linked: FullLRUList | MambaLRUList) -> list[int]:
    return [node.id for node in linked]


def neighbours(node: TreeNode) -> list[TreeNode]:
    """Return the nodes that ``node`` still points to."""
    pointers: list[TreeNode | None] = [
        node.full_prev,
        node.full_next,
        node.mamba_prev,
        node.mamba_next,
    ]
    return [pointer for pointer in pointers if pointer is not None]


@BOTH
def test_iteration_goes_from_old_to_young(list_class: Lists) -> None:
    linked, nodes = three(list_class)

    assert ids(linked) == [1, 2, 3]
    assert len(linked) == 3
    assert nodes[0] in linked
    linked.sanity_check()


@BOTH
def test_a_path_moves_to_the_young_end_its_last_node_last(list_class: Lists) -> None:
    linked, nodes = three(list_class)

    linked.reset_path_mru([nodes[1], nodes[0]])

    assert ids(linked) == [3, 2, 1]


@BOTH
def test_a_removed_node_names_no_neighbour(list_class: Lists) -> None:
    linked, nodes = three(list_class)

    linked.remove_node(nodes[1])

    assert ids(linked) == [1, 3]
    assert neighbours(nodes[1]) == []
    linked.sanity_check()


@BOTH
def test_a_node_goes_in_once_and_out_once(list_class: Lists) -> None:
    linked, nodes = three(list_class)

    with pytest.raises(AssertionError, match="list already"):
        linked.insert_mru(nodes[0])
    linked.remove_node(nodes[0])
    with pytest.raises(AssertionError, match="not in the"):
        linked.remove_node(nodes[0])


@BOTH
def test_dismantling_unlinks_everything(list_class: Lists) -> None:
    linked, nodes = three(list_class)

    linked.dismantle()

    assert [neighbours(node) for node in nodes] == [[], [], []]
    assert len(linked) == 0


@BOTH
@given(held=st.permutations(range(1, 8)).map(lambda order: order[:5]), data=st.data())
def test_who_was_held_comes_back_to_the_place_of_its_last_use(
    list_class: Lists, held: list[int], data: st.DataObject
) -> None:
    linked = list_class()
    nodes = add_members(linked, range(1, 8))
    for number in held:
        nodes[number].mamba_lock_ref = 1
        linked.hold(nodes[number])
        assert number not in [node.id for node in linked.evictable()]
    assert sorted(node.id for node in linked.held()) == sorted(held)

    for number in data.draw(st.permutations(held)):
        nodes[number].mamba_lock_ref = 0
        linked.release(nodes[number])
        linked.sanity_check()

    assert [node.id for node in linked.evictable()] == list(range(1, 8))


def test_a_held_node_is_passed_over_when_a_path_moves() -> None:
    linked, nodes = three(FullLRUList)
    nodes[0].full_lock_ref = 1
    linked.hold(nodes[0])

    linked.reset_path_mru(nodes[:2])

    assert [node.id for node in linked.evictable()] == [3, 2]
    assert list(linked.held()) == [nodes[0]]


def test_a_locked_state_keeps_its_neighbours_until_an_eviction_meets_it() -> None:
    linked = MambaLRUList()
    nodes = add_members(linked, (1, 2, 3))
    nodes[1].mamba_lock_ref = nodes[3].mamba_lock_ref = 1

    assert linked.get_lru_no_lock() is nodes[2]

    assert nodes[2].mamba_prev is nodes[3]
    assert (nodes[2].mamba_next, nodes[1].mamba_next) == (linked.tail, linked.ring)
    nodes[1].mamba_lock_ref = nodes[3].mamba_lock_ref = 0
    linked.release(nodes[3])
    linked.release(nodes[1])
    assert ids(linked) == [1, 2, 3]


@BOTH
def test_a_held_member_can_be_removed_and_names_no_neighbour_either(list_class: Lists) -> None:
    linked, nodes = three(list_class)
    linked.hold(nodes[1])
    linked.hold(nodes[2])

    linked.remove_node(nodes[1])

    assert neighbours(nodes[1]) == []
    assert ids(linked) == [1, 3]


def test_tombstones_are_passed_over_when_a_path_moves() -> None:
    linked, nodes = three(MambaLRUList)
    linked.remove_node(nodes[1])
    nodes[1].mamba_value = None

    linked.reset_path_mru(nodes)

    assert ids(linked) == [1, 3]


@BOTH
def test_sanity_check_sees_a_broken_order_and_a_broken_link(list_class: Lists) -> None:
    linked, nodes = three(list_class)
    nodes[0].last_access_time = nodes[0].state_access_time = 9
    with pytest.raises(CacheSanityError, match=r"out of order \(nodes \[1, 2\]\)"):
        linked.sanity_check()

    linked, nodes = three(list_class)
    linked._members.add(7)
    with pytest.raises(CacheSanityError, match=r"members and links differ \(nodes \[7\]\)"):
        linked.sanity_check()

    linked, nodes = three(list_class)
    nodes[1].full_next = nodes[1].mamba_next = nodes[2]
    with pytest.raises(CacheSanityError, match="neighbours disagree"):
        linked.sanity_check()


def test_sanity_check_sees_a_tombstone_in_the_mamba_list() -> None:
    linked, nodes = three(MambaLRUList)
    nodes[1].mamba_value = None

    with pytest.raises(CacheSanityError, match="tombstone"):
        linked.sanity_check()


def test_sanity_check_sees_an_unlocked_state_that_no_eviction_meets() -> None:
    linked, nodes = three(MambaLRUList)
    nodes[1].mamba_lock_ref = 1
    linked.hold(nodes[1])
    linked.sanity_check()
    nodes[1].mamba_lock_ref = 0

    with pytest.raises(CacheSanityError, match="without a lock"):
        linked.sanity_check()
