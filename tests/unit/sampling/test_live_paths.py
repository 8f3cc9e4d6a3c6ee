"""Counting objects by the path that holds them, on a few objects made by hand."""

from __future__ import annotations

from collections.abc import Sequence

from hybridbench.records.heap import RetainedObjects
from hybridbench.sampling.live_paths import LivePaths, Place, counts_by_class
from hybridbench.sampling.retained_growth import retained_growth, shortened


class Engine:
    def __init__(self) -> None:
        self.cache = Tree()
        self.recorder: list[object] = []
        self.sizes: dict[str, list[int]] = {"a": [1]}


class Tree:
    def __init__(self) -> None:
        self.root = Node(None)


class Node:
    __slots__ = ("children", "key", "next", "parent")

    def __init__(self, parent: Node | None) -> None:
        self.parent = parent
        self.children: dict[int, Node] = {}
        self.next: Node | None = None
        self.key = [len(self.children)] * 40

    def add(self, key: int) -> Node:
        child = self.children[key] = Node(self)
        return child


class Event:
    __slots__ = ("what",)

    def __init__(self, what: list[int]) -> None:
        self.what = what


def walk(engine: Engine, ignored: Sequence[list[object]] = ()) -> LivePaths:
    return LivePaths([engine], [], ignored, modules={})


def places(live: LivePaths) -> dict[str, int]:
    return {place.path: len(place.objects) for place in live.top.walk() if place.objects}


def tables(engine: Engine) -> tuple[dict[str, tuple[int, int]], dict[str, int]]:
    live = walk(engine)
    return live.table(1, 1), dict(counts_by_class(live.top))


def grown(
    engine: Engine, before: tuple[dict[str, tuple[int, int]], dict[str, int]]
) -> list[RetainedObjects]:
    return list(retained_growth(walk(engine), *before))


def test_a_tree_is_one_place_however_many_levels_it_has() -> None:
    engine = Engine()
    node = engine.cache.root
    for key in range(30):
        node = node.add(key)

    found = places(walk(engine))

    (path,) = [path for path in found if path.endswith("Node")]
    assert found[path] == 31
    assert not any("~" in path for path in found)


def test_what_only_neighbour_pointers_reach_is_told_apart() -> None:
    engine = Engine()
    inside = engine.cache.root.add(1)
    outside = Node(inside)
    inside.next = outside
    outside.next = Node(inside)

    live = walk(engine)

    found = places(live)
    assert sum(count for path, count in found.items() if path.endswith(" > Node")) == 2
    assert sum(count for path, count in found.items() if path.endswith("~Node")) == 2
    assert live.chain(outside)[-2:] == ("dict[1]".replace("1", "*"), "Node.next")


def test_a_chain_names_every_attribute_from_the_root_on() -> None:
    engine = Engine()
    event = Event([1])
    engine.recorder.append(event)

    assert walk(engine).chain(event) == ("Engine.recorder", "list[*]")


def test_ignored_lists_and_their_members_are_left_out() -> None:
    engine = Engine()
    ballast: list[object] = [[i] for i in range(50)]
    engine.recorder.append(ballast)

    assert sum(places(walk(engine, [ballast])).values()) == sum(places(walk(Engine())).values())


def test_a_list_of_objects_that_grew_is_told_with_its_owner_and_length() -> None:
    engine = Engine()
    before = tables(engine)
    engine.recorder += [Event([i] * 200) for i in range(500)]

    (row,) = grown(engine, before)

    assert (row.type_name, row.count, row.dragged) == ("Event", 500, False)
    assert (row.holder, row.entries) == ("Engine.recorder", 500)
    assert row.chain == ("Engine.recorder", "list[*]")
    assert row.chain_share == 1.0
    assert row.size_bytes > 500 * 200 * 8


def test_a_list_of_what_the_collector_does_not_see_is_told_all_the_same() -> None:
    engine = Engine()
    before = tables(engine)
    engine.recorder += [f"a line of the log {i}" for i in range(5000)]

    (row,) = grown(engine, before)

    assert (row.type_name, row.count, row.entries, row.item_type) == ("list", 0, 5000, "str")
    assert row.chain == ("Engine.recorder",)
    assert row.size_bytes > 5000 * 60


def test_objects_that_only_moved_are_no_growth() -> None:
    engine = Engine()
    engine.recorder += [Event([i] * 200) for i in range(500)]
    before = tables(engine)
    engine.sizes["moved"] = engine.recorder  # type: ignore[assignment]
    engine.recorder = []

    assert grown(engine, before) == []


def test_dragged_nodes_are_one_row_a_class_apart_from_the_tree_that_grew() -> None:
    engine = Engine()
    before = tables(engine)
    for key in range(100):
        inside = engine.cache.root.add(key)
        inside.next = Node(inside)
        inside.next.next = Node(inside)

    rows = {row.dragged: row for row in grown(engine, before)}

    assert rows[False].count == 100
    assert rows[True].count == 200
    assert rows[True].holder == "Node.next"
    assert rows[True].chain[-1] == "Node.next"
    assert abs(rows[True].size_bytes - 2 * rows[False].size_bytes) < rows[False].size_bytes


def test_long_walks_along_neighbours_are_told_once() -> None:
    chain = ["Tree.root", "Node.children", "dict[*]", "Node.children", "dict[*]"]
    chain += ["Node.next", "Node.next", "Node.parent", "Node.next"]

    assert shortened(chain) == ("Tree.root", "Node.children", "dict[*]", "Node.(next|parent)")


def test_containers_of_different_owners_are_different_places() -> None:
    top = Place("", None)
    engine = top.step(Engine, dragged=False)
    attributes = engine.step(dict, dragged=False)
    tree = attributes.step(Tree, dragged=False)

    assert tree.step(dict, dragged=False) is not attributes
    assert tree.step(Engine, dragged=False) is engine
