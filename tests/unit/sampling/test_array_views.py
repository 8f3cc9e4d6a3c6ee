"""Small views of large arrays: counted by holder, with each array once, and without pools."""

from __future__ import annotations

import numpy as np

from hybridbench.sampling.array_views import ArrayViews
from hybridbench.sampling.forked_child import MemoryRange
from hybridbench.sampling.live_paths import LivePaths


class Node:
    def __init__(self, slots: np.ndarray) -> None:
        self.slots = slots


def views_of(*nodes: Node) -> list[tuple[str, int, int, int, int]]:
    walk = LivePaths([list(nodes)], [], [], modules={})
    return [
        (row.holder, row.views, row.view_bytes, row.storages, row.storage_bytes)
        for row in walk.views.rows()
    ]


def test_an_array_with_several_views_counts_once() -> None:
    large, other = np.arange(1000), np.arange(2000)

    found = views_of(Node(large[:2]), Node(large[2:5]), Node(other[:1]))

    assert found == [("Node.slots", 3, 48, 2, 24_000)]


def test_copies_small_arrays_and_views_of_most_of_an_array_keep_nothing_else() -> None:
    large = np.arange(1000)

    assert views_of(Node(large), Node(large[:2].copy()), Node(large[:900])) == []
    assert views_of(Node(np.arange(100)[:2])) == []


def test_views_of_pools_are_left_out() -> None:
    pool = np.zeros(1000, dtype=np.int64)
    views = ArrayViews((MemoryRange(int(pool.ctypes.data), pool.nbytes),))

    views.met(Node(pool[:2]), pool[:2])

    assert views.rows() == []
