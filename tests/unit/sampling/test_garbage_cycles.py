"""Cycles made by hand, named by the attributes that close them."""

from __future__ import annotations

import random

from hybridbench.sampling.garbage_cycles import garbage_cycles


class Node:
    __slots__ = ("items", "next", "parent", "payload")

    def __init__(self) -> None:
        self.next: object = None
        self.parent: object = None
        self.items: object = None
        self.payload: object = None


class Loose:
    """A class with a dict instead of slots."""


def all_of(*found: object) -> list[object]:
    return list(found)


def test_two_nodes_that_point_at_each_other_are_one_cycle_of_two_attributes() -> None:
    child, parent = Node(), Node()
    child.parent, parent.next = parent, child

    cycles = garbage_cycles(all_of(child, parent))

    assert (cycles.components, cycles.objects, cycles.hanging) == (1, 2, 0)
    assert cycles.types == (("Node", 2),)
    assert [(shape.edges, shape.share) for shape in cycles.shapes] == [
        (("Node.next", "Node.parent"), 1.0)
    ]


def test_a_cycle_through_an_instance_dict_names_the_attribute() -> None:
    one, other = Loose(), Loose()
    one.peer, other.owner = other, one  # type: ignore[attr-defined]

    cycles = garbage_cycles(all_of(one, vars(one), other, vars(other)))

    assert cycles.types == (("Loose", 2),)
    assert cycles.shapes[0].edges == ("Loose.owner", "Loose.peer")


def test_a_cycle_through_containers_says_which() -> None:
    node = Node()
    held = {"back": [node]}
    node.items = held

    cycles = garbage_cycles(all_of(node, held, held["back"]))

    assert cycles.types == (("Node", 1),)
    assert cycles.shapes[0].edges == ("Node.items", "dict['back']", "list[*]")


def test_what_hangs_from_a_cycle_is_not_on_it() -> None:
    knot, tail, end = Node(), Node(), [1]
    knot.next, knot.payload = knot, tail
    tail.payload = end

    cycles = garbage_cycles(all_of(knot, tail, end))

    assert (cycles.components, cycles.objects, cycles.hanging) == (1, 1, 2)
    assert cycles.shapes[0].edges == ("Node.next",)


def test_shapes_are_counted_by_the_share_of_objects_that_have_them() -> None:
    found: list[object] = []
    for index in range(40):
        one, other = Node(), Node()
        one.next = other
        if index < 10:
            other.parent = one
        else:
            other.next = one
        found += [one, other]
    random.Random(5).shuffle(found)

    cycles = garbage_cycles(found)

    assert cycles.components == 40
    assert [(shape.edges, shape.share) for shape in cycles.shapes] == [
        (("Node.next", "Node.next"), 0.75),
        (("Node.next", "Node.parent"), 0.25),
    ]


def test_a_long_ring_is_one_component_however_deep() -> None:
    ring = [Node() for _ in range(20_000)]
    for left, right in zip(ring, [*ring[1:], ring[0]], strict=True):
        left.next = right

    cycles = garbage_cycles(list[object](ring))

    assert (cycles.components, cycles.objects) == (1, 20_000)


def test_no_garbage_has_no_cycles() -> None:
    assert garbage_cycles([]).components == 0
