"""The walk: the same answer as the collector's, with nothing done to anybody."""

from __future__ import annotations

import gc
import sys
import weakref

from hybridbench.records.heap import InstanceCount
from hybridbench.sampling.reference_walk import WalkScan, unreachable
from tests.unit.sampling.garbage import Node, drop_pair, undisturbed


def test_it_finds_what_the_collector_then_finds_and_kills_no_weak_reference() -> None:
    with undisturbed():
        died: list[str] = []
        node = Node()
        node.other = node
        reference = weakref.ref(node, lambda _: died.append("dead"))
        del node
        for _ in range(50):
            drop_pair([1, 2, 3])
        taker = WalkScan(lambda: {"Node": (Node, 0)})
        interval_s = sys.getswitchinterval()
        stop_s = taker.start()
        report = taker.poll()
        alive = reference() is not None
        gc.enable()
        found = gc.collect()

    assert report is not None
    assert stop_s > 0.0
    assert report.instances["Node"] == InstanceCount(live=101, expected=0, collectible=101)
    assert report.collectible_objects <= found <= report.collectible_objects + 20
    assert alive, "a collection would have cleared it"
    assert died == ["dead"]
    assert sys.getswitchinterval() == interval_s


def test_the_answer_is_given_once() -> None:
    taker = WalkScan(dict)
    assert taker.poll() is None
    taker.start()
    assert taker.poll() is not None
    assert taker.poll() is None
    taker.start()
    taker.close()
    assert taker.poll() is None
    assert gc.isenabled()


def test_what_hangs_from_something_held_is_not_garbage() -> None:
    with undisturbed():
        held = Node()
        held.other = Node()
        held.other.other = held
        chain = Node(held)
        objects = gc.get_objects()
        dead = unreachable(objects)
        found = {id(item) for item in dead}
        known = {id(held), id(held.other), id(chain)}
        del objects, dead

    assert not found & known
