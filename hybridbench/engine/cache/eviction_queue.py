"""Find the next entry to evict without visiting entries that cannot be evicted.

A queue holds exactly the nodes that may be evicted now: unlocked leaves, or nodes with unlocked
states.  Finding the next one takes as long in a tree of a million nodes as in one of a thousand.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Protocol

from hybridbench.engine.cache.tree_node import TreeNode

Priority = tuple[int, ...]
Strategy = Callable[[TreeNode], Priority]

# A heap is rebuilt when more than half of its entries, and more than this many, are stale.
_STALE_MIN = 64


class EvictionQueue(Protocol):
    """Nodes that may be evicted, next one first."""

    def __len__(self) -> int: ...

    def __contains__(self, node: TreeNode) -> bool: ...

    def __iter__(self) -> Iterator[TreeNode]: ...

    def add(self, node: TreeNode) -> None:
        """Add a node, not yet in the queue, that may be evicted from now on."""

    def discard(self, node: TreeNode) -> None:
        """Remove a node that may no longer be evicted; harmless if it is not in the queue."""

    def touch(self, node: TreeNode) -> None:
        """Make a node that was just used the youngest; harmless if it is not in the queue."""

    def first(self) -> TreeNode | None:
        """The node to evict next, which stays in the queue until it is discarded."""

    def misplaced(self) -> list[int]:
        """The ids of nodes that are out of order; O(n)."""


class RecencyQueue:
    """Least recently used first.

    Nearly all nodes enter at one of the two ends (just used, or a parent whose last child
    was the oldest of all) and are kept in an ordered dict.  The others, which were locked while
    younger nodes were added, are kept in a small heap, ordered by access time.
    """

    def __init__(self) -> None:
        self._order: OrderedDict[int, TreeNode] = OrderedDict()
        self._late: dict[int, TreeNode] = {}
        # (access time, node id): only numbers, so that the heap keeps no node alive.
        self._late_heap: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._order) + len(self._late)

    def __contains__(self, node: TreeNode) -> bool:
        return node.id in self._order or node.id in self._late

    def __iter__(self) -> Iterator[TreeNode]:
        yield from list(self._order.values())
        yield from list(self._late.values())

    def add(self, node: TreeNode) -> None:
        order, time = self._order, node.last_access_time
        if not order or time > order[next(reversed(order))].last_access_time:
            order[node.id] = node
        elif time < order[next(iter(order))].last_access_time:
            order[node.id] = node
            order.move_to_end(node.id, last=False)
        else:
            self._late[node.id] = node
            heapq.heappush(self._late_heap, (time, node.id))
            self._drop_stale_if_many()

    def discard(self, node: TreeNode) -> None:
        if self._order.pop(node.id, None) is None:
            self._late.pop(node.id, None)

    def touch(self, node: TreeNode) -> None:
        if node.id in self._order:
            self._order.move_to_end(node.id)
        elif self._late.pop(node.id, None) is not None:
            self._order[node.id] = node

    def touch_all(self, nodes: Iterable[TreeNode]) -> None:
        """Touch ``nodes`` in order; the last one becomes the youngest."""
        for node in nodes:
            self.touch(node)

    def first(self) -> TreeNode | None:
        oldest = self._order[next(iter(self._order))] if self._order else None
        late = self._first_late()
        if late is None or oldest is None:
            return oldest or late
        return min(late, oldest)

    def misplaced(self) -> list[int]:
        wrong = [b.id for a, b in pairwise(self._order.values()) if not a < b]
        entries = set(self._late_heap)
        late = self._late.values()
        return wrong + [n.id for n in late if (n.last_access_time, n.id) not in entries]

    def _first_late(self) -> TreeNode | None:
        heap = self._late_heap
        while heap:
            time, node_id = heap[0]
            node = self._late.get(node_id)
            if node is not None and node.last_access_time == time:
                return node
            heapq.heappop(heap)
        return None

    def _drop_stale_if_many(self) -> None:
        if len(self._late_heap) > 2 * len(self._late) + _STALE_MIN:
            self._late_heap = [(n.last_access_time, n.id) for n in self._late.values()]
            heapq.heapify(self._late_heap)


class PriorityQueue:
    """Smallest ``strategy(node)`` first, for policies other than LRU.

    A node's priority changes only when it is used, and ``touch`` then pushes a second entry; the
    first is recognised as stale when it reaches the top.
    """

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self._nodes: dict[int, TreeNode] = {}
        self._heap: list[tuple[Priority, int]] = []

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, node: TreeNode) -> bool:
        return node.id in self._nodes

    def __iter__(self) -> Iterator[TreeNode]:
        yield from list(self._nodes.values())

    def add(self, node: TreeNode) -> None:
        self._nodes[node.id] = node
        heapq.heappush(self._heap, (self._strategy(node), node.id))
        self._drop_stale_if_many()

    def discard(self, node: TreeNode) -> None:
        self._nodes.pop(node.id, None)

    def touch(self, node: TreeNode) -> None:
        if node.id in self._nodes:
            self.add(node)

    def first(self) -> TreeNode | None:
        heap = self._heap
        while heap:
            priority, node_id = heap[0]
            node = self._nodes.get(node_id)
            if node is not None and self._strategy(node) == priority:
                return node
            heapq.heappop(heap)
        return None

    def misplaced(self) -> list[int]:
        entries = set(self._heap)
        return [n.id for n in self._nodes.values() if (self._strategy(n), n.id) not in entries]

    def _drop_stale_if_many(self) -> None:
        if len(self._heap) > 2 * len(self._nodes) + _STALE_MIN:
            self._heap = [(self._strategy(node), node.id) for node in self._nodes.values()]
            heapq.heapify(self._heap)


def make_eviction_queue(policy: str) -> EvictionQueue:
    """The queue for an eviction policy, by SGLang's name.

    Raises:
        ValueError: no such policy.
    """
    if policy == "lru":
        return RecencyQueue()
    try:
        return PriorityQueue(_STRATEGIES[policy])
    except KeyError:
        known = ", ".join(["lru", *_STRATEGIES])
        raise ValueError(f"no eviction policy {policy!r}; there are {known}") from None


def _lfu(node: TreeNode) -> Priority:
    return (node.hit_count, node.last_access_time)


def _fifo(node: TreeNode) -> Priority:
    return (node.creation_time,)


def _mru(node: TreeNode) -> Priority:
    return (-node.last_access_time,)


def _filo(node: TreeNode) -> Priority:
    return (-node.creation_time,)


def _by_priority(node: TreeNode) -> Priority:
    return (node.priority, node.last_access_time)


def _slru(node: TreeNode) -> Priority:
    # Segmented: nodes used at least twice are evicted after all that were used once.
    return (int(node.hit_count >= 2), node.last_access_time)


_STRATEGIES: dict[str, Strategy] = {
    "lfu": _lfu,
    "fifo": _fifo,
    "mru": _mru,
    "filo": _filo,
    "priority": _by_priority,
    "slru": _slru,
}
