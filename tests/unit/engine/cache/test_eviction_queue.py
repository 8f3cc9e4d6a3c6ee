"""Queues of evictable nodes: order, nodes added late, stale entries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridbench.engine.cache.eviction_queue import (
    EvictionQueue,
    RecencyQueue,
    make_eviction_queue,
)
from hybridbench.engine.cache.radix_key import RadixKey
from hybridbench.engine.cache.tree_node import NO_TOKENS, TreeNode


def node(node_id: int, time: int) -> TreeNode:
    made = TreeNode(node_id, RadixKey([node_id]), NO_TOKENS, None)
    made.last_access_time = made.creation_time = time
    return made


def drained(queue: EvictionQueue) -> list[int]:
    ids = []
    while (first := queue.first()) is not None:
        ids.append(first.id)
        queue.discard(first)
    return ids


def test_an_empty_queue_has_no_first() -> None:
    assert RecencyQueue().first() is None
    assert make_eviction_queue("lfu").first() is None


def test_a_node_that_was_away_comes_back_to_its_place() -> None:
    queue = RecencyQueue()
    nodes = [node(number, number) for number in range(5)]
    for member in nodes:
        queue.add(member)
    queue.discard(nodes[2])

    queue.add(nodes[2])

    assert drained(queue) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("policy", ["lru", "lfu"])
@pytest.mark.parametrize("used", range(3))
def test_a_node_that_was_used_and_not_touched_is_misplaced(policy: str, used: int) -> None:
    queue = make_eviction_queue(policy)
    # The last one is added late.
    nodes = [node(1, 1), node(3, 3), node(2, 2)]
    for member in nodes:
        queue.add(member)
    assert queue.misplaced() == []

    nodes[used].last_access_time = 4

    # Under LRU the youngest node is in the right place, however recent its time.
    expected = [] if (policy, used) == ("lru", 1) else [1]
    assert len(queue.misplaced()) == len(expected)
    queue.touch(nodes[used])
    assert queue.misplaced() == []


def test_a_late_comer_that_is_used_again_is_the_youngest() -> None:
    queue = RecencyQueue()
    early, late, young = node(1, 1), node(2, 2), node(3, 3)
    for member in (early, young, late):
        queue.add(member)

    late.last_access_time = 4
    queue.touch(late)

    assert drained(queue) == [1, 3, 2]


@pytest.mark.parametrize("policy", ["lru", "fifo"])
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["add", "discard", "touch"]), st.integers(0, 7)), max_size=60
    )
)
def test_the_first_is_always_the_smallest_of_the_members(
    policy: str, steps: list[tuple[str, int]]
) -> None:
    queue = make_eviction_queue(policy)
    nodes = [node(number, number) for number in range(8)]
    members: set[int] = set()
    clock = 8
    for action, number in steps:
        clock += 1
        chosen = nodes[number]
        if action == "add" and number not in members:
            queue.add(chosen)
            members.add(number)
        elif action == "discard":
            queue.discard(chosen)
            members.discard(number)
        elif action == "touch":
            chosen.last_access_time = clock
            queue.touch(chosen)

        def age(member: int) -> int:
            known = nodes[member]
            return known.last_access_time if policy == "lru" else known.creation_time

        expected = min(members, key=age) if members else None
        first = queue.first()
        assert (None if first is None else first.id) == expected
        assert {member.id for member in queue} == members
        assert len(queue) == len(members)
        assert (chosen in queue) == (number in members)


@pytest.mark.parametrize("policy", ["lru", "lfu"])
def test_entries_out_of_date_do_not_pile_up(policy: str) -> None:
    queue = make_eviction_queue(policy)
    first, second, third = node(1, 1), node(2, 2), node(3, 3)
    for member in (first, third, second):
        queue.add(member)

    for _ in range(1000):
        queue.discard(second)
        queue.add(second)

    heaps = [part for part in vars(queue).values() if isinstance(part, list)]
    assert sum(len(heap) for heap in heaps) < 200
    assert drained(queue) == [1, 2, 3]
