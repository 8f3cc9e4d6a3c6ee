"""Naming references as the source code does."""

from __future__ import annotations

import types
from collections import deque

import pytest

from hybridbench.sampling.edge_names import Neighbours, edge_name, instance_dict, slot_values


class Slotted:
    __slots__ = ("next", "value")
    next: object
    value: object


class Child(Slotted):
    __slots__ = ("parent",)
    parent: object


class Open:
    def __init__(self, **attributes: object) -> None:
        self.__dict__.update(attributes)


class Nosy:
    """Raises when an attribute is read, like lazily loaded modules of some libraries."""

    def __getattribute__(self, name: str) -> object:
        raise AssertionError(f"somebody asked for {name}")


TARGET = [object()]


def test_a_slot_is_named_with_its_class_also_an_inherited_one() -> None:
    node = Child()
    node.next = node.parent = None
    node.value = TARGET

    assert edge_name(node, TARGET) == "Child.value"


def test_an_attribute_is_named_whether_the_dict_was_made_or_not() -> None:
    fresh = Open(recorder=TARGET)

    assert edge_name(fresh, TARGET) == "Open.recorder"


@pytest.mark.parametrize(
    ("holder", "name"),
    [
        ([1, TARGET], "list[*]"),
        ((TARGET,), "tuple[*]"),
        (deque([TARGET]), "deque[*]"),
        ({"log": TARGET}, "dict['log']"),
        ({7: TARGET}, "dict[*]"),
        ({**{str(i): i for i in range(100)}, "x": TARGET}, "dict[*]"),
    ],
)
def test_items_are_generalised_and_small_dicts_keep_their_keys(holder: object, name: str) -> None:
    assert edge_name(holder, TARGET) == name


def test_globals_and_class_attributes_say_where_they_live() -> None:
    module = types.ModuleType("recorder")
    module.LOG = TARGET  # type: ignore[attr-defined]
    kind = type("Registry", (), {"instances": TARGET})

    assert edge_name(module, TARGET) == "module recorder.LOG"
    assert edge_name(kind, TARGET) == "class Registry.instances"


def test_unset_slots_are_passed_over() -> None:
    node = Child()
    node.value = 3

    assert dict(slot_values(node)) == {"value": 3}


def test_looking_runs_no_code_of_the_object() -> None:
    nosy = Nosy()

    assert instance_dict(nosy) == {}
    assert Neighbours.like(nosy) is None


def test_neighbour_pointers_are_those_called_prev_next_or_parent() -> None:
    up, side, down = Open(), Open(), Open()
    node = Open(parent=up, lru_next=side, child=down, previous=down)
    slotted = Child()
    slotted.next, slotted.parent, slotted.value = side, None, down

    of_open, of_slotted = Neighbours.like(node), Neighbours.like(slotted)
    assert of_open is not None
    assert of_slotted is not None
    assert of_open.of(node) == [up, side]
    assert of_slotted.of(slotted) == [side]
