"""The two LRU lists, linked through the nodes: the order in which KV and states are evicted.

A list has two parts.  Members that may be evicted now are between head and tail, the youngest at
the head; the victim is at the tail.  The other members (with children, or locked) are in a separate
ring, which no search visits, so finding the victim takes the same time however many there are.  A
member that becomes evictable again is inserted where its last use puts it.

The lists are linked through the nodes on purpose, as in the engines that this bench tests.  A node
that keeps its pointers after it was unlinked keeps its old neighbours alive (sglang#25770).  The
bench injects that bug into ``_remove_node``, which is only possible with such pointers.

Two classes repeat the same few lines, because each works on attributes of its own: access by
attribute name tripled the cost of a touch.  LRUList has the code that needs no pointers.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from hybridbench.engine.cache.base import CacheSanityError
from hybridbench.engine.cache.tree_node import TreeNode

# Sentinel nodes of each list: head, tail, and the one that closes the ring.
LIST_ENDS = 3


class LRUList(ABC):
    """The common part of both lists; SGLang has one class, with the component as a flag.

    Attributes:
        name: the component, for messages.
        prv, nxt, lock_ref: names of this list's node attributes, for tools that
            walk either list the same way.
    """

    name: str
    prv: str
    nxt: str
    lock_ref: str

    @abstractmethod
    def evictable(self) -> Iterator[TreeNode]:
        """The members that may be evicted, next victim first."""

    @abstractmethod
    def held(self) -> Iterator[TreeNode]:
        """The members that may not be evicted, in no particular order."""

    @abstractmethod
    def hold(self, node: TreeNode) -> None:
        """Make a member not evictable."""

    @abstractmethod
    def release(self, node: TreeNode) -> None:
        """Make a member evictable, after all members that were used before it.

        Nearly all return at one of the two ends, in one step.  A member held while others were
        used costs one step per evictable member between its position and the nearer end.
        """

    @abstractmethod
    def reset_path_mru(self, path: Sequence[TreeNode]) -> None:
        """Move the members on a path (top first) to the young end; the last is then the youngest.

        A node whose KV is held is skipped: its time of last use determines its position when it
        is released.
        """

    @abstractmethod
    def _add_node(self, node: TreeNode) -> None: ...

    @abstractmethod
    def _remove_node(self, node: TreeNode) -> None: ...

    def __init__(self) -> None:
        # Membership is separate from the pointers, so that even with faulty unlinking, the list
        # refuses a node that it already has.
        self._members: set[int] = set()

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, node: TreeNode) -> bool:
        return node.id in self._members

    def __iter__(self) -> Iterator[TreeNode]:
        """Evictable members from old to young, then the others."""
        yield from self.evictable()
        yield from self.held()

    def in_list(self, node: TreeNode | None) -> bool:
        """Whether ``node`` is a member; None never is."""
        return node is not None and node.id in self._members

    def insert_mru(self, node: TreeNode) -> None:
        """Add an evictable node, not yet a member, at the young end."""
        assert node.id not in self._members, f"{node} is in the {self.name} list already"
        self._members.add(node.id)
        self._add_node(node)

    def remove_node(self, node: TreeNode) -> None:
        """Remove a member."""
        try:
            self._members.remove(node.id)
        except KeyError:
            raise AssertionError(f"{node} is not in the {self.name} list") from None
        self._remove_node(node)


class FullLRUList(LRUList):
    """Every node but the root; unlocked leaves may be evicted."""

    name = "full"
    prv, nxt, lock_ref = "full_prev", "full_next", "full_lock_ref"

    def __init__(self) -> None:
        super().__init__()
        self.head, self.tail, self.ring = _list_ends()
        self.head.full_next = self.tail
        self.tail.full_prev = self.head
        self.ring.full_prev = self.ring.full_next = self.ring

    def evictable(self) -> Iterator[TreeNode]:
        """Leaves without a lock, oldest first."""
        node = self.tail.full_prev
        while node is not self.head:
            yield node
            node = node.full_prev

    def held(self) -> Iterator[TreeNode]:
        """Nodes with children or with a lock."""
        node = self.ring.full_prev
        while node is not self.ring:
            yield node
            node = node.full_prev

    def get_leaf_lru_no_lock(self) -> TreeNode | None:
        """The oldest leaf without a lock."""
        oldest = self.tail.full_prev
        return None if oldest is self.head else oldest

    def hold(self, node: TreeNode) -> None:
        node.full_prev.full_next = node.full_next
        node.full_next.full_prev = node.full_prev
        ring = self.ring
        first = ring.full_next
        node.full_prev = ring
        node.full_next = first
        first.full_prev = node
        ring.full_next = node

    def release(self, node: TreeNode) -> None:
        node.full_prev.full_next = node.full_next
        node.full_next.full_prev = node.full_prev
        time = node.last_access_time
        young, old = self.head.full_next, self.tail.full_prev
        # Search from both ends at once; the times of head and tail terminate the search.
        while young.last_access_time > time and old.last_access_time < time:
            young, old = young.full_next, old.full_prev
        older = young if young.last_access_time < time else old.full_next
        younger = older.full_prev
        node.full_prev = younger
        node.full_next = older
        older.full_prev = node
        younger.full_next = node

    def reset_path_mru(self, path: Sequence[TreeNode]) -> None:
        head = self.head
        for node in path:
            if node.children or node.full_lock_ref:
                continue
            older, younger = node.full_next, node.full_prev
            younger.full_next = older
            older.full_prev = younger
            first = head.full_next
            node.full_prev = head
            node.full_next = first
            first.full_prev = node
            head.full_next = node

    def dismantle(self) -> None:
        """Unlink everything, so that the list keeps nothing alive."""
        for node in list(self):
            self.remove_node(node)
        for end in (self.head, self.tail, self.ring):
            end.full_prev = end.full_next = None  # type: ignore[assignment]

    def sanity_check(self) -> None:
        """Raise CacheSanityError unless pointers, members and access times agree."""
        _check_order(list(self.evictable()), "full", lambda node: node.last_access_time)
        _check_members(self, self._members)
        for node in self:
            if node.full_next.full_prev is not node or node.full_prev.full_next is not node:
                raise CacheSanityError("full list: neighbours disagree", [node.id])

    def _add_node(self, node: TreeNode) -> None:
        first = self.head.full_next
        node.full_prev = self.head
        node.full_next = first
        first.full_prev = node
        self.head.full_next = node

    def _remove_node(self, node: TreeNode) -> None:
        node.full_prev.full_next = node.full_next
        node.full_next.full_prev = node.full_prev
        # A removed node that keeps its pointers keeps its neighbours alive, and they theirs.
        node.full_prev = None  # type: ignore[assignment]
        node.full_next = None  # type: ignore[assignment]


class MambaLRUList(LRUList):
    """Every node with a state; those without a lock on their state may be evicted.

    Tombstones are not members.  A locked state keeps its position until an eviction meets it at
    the old end, and only then moves to the ring.  A parent's state can thus be evicted while a
    request locks its child's; since the two are neighbours at that time, the cycle of sglang#25770
    can form.
    """

    name = "mamba"
    prv, nxt, lock_ref = "mamba_prev", "mamba_next", "mamba_lock_ref"

    def __init__(self) -> None:
        super().__init__()
        self.head, self.tail, self.ring = _list_ends()
        self.head.mamba_next = self.tail
        self.tail.mamba_prev = self.head
        self.ring.mamba_prev = self.ring.mamba_next = self.ring
        self._in_ring: set[int] = set()

    def evictable(self) -> Iterator[TreeNode]:
        """Nodes whose state has no lock, oldest first."""
        node = self.tail.mamba_prev
        while node is not self.head:
            if not node.mamba_lock_ref:
                yield node
            node = node.mamba_prev

    def held(self) -> Iterator[TreeNode]:
        """Nodes whose state is locked."""
        for first, end in ((self.tail.mamba_prev, self.head), (self.ring.mamba_prev, self.ring)):
            node = first
            while node is not end:
                if node.mamba_lock_ref or end is self.ring:
                    yield node
                node = node.mamba_prev

    def get_lru_no_lock(self) -> TreeNode | None:
        """The node with the oldest unlocked state; moves the locked ones it meets to the ring."""
        oldest = self.tail.mamba_prev
        while oldest.mamba_lock_ref:
            locked, oldest = oldest, oldest.mamba_prev
            self.hold(locked)
        return None if oldest is self.head else oldest

    def hold(self, node: TreeNode) -> None:
        self._in_ring.add(node.id)
        node.mamba_prev.mamba_next = node.mamba_next
        node.mamba_next.mamba_prev = node.mamba_prev
        ring = self.ring
        first = ring.mamba_next
        node.mamba_prev = ring
        node.mamba_next = first
        first.mamba_prev = node
        ring.mamba_next = node

    def release(self, node: TreeNode) -> None:
        if node.id not in self._in_ring:
            return
        self._in_ring.remove(node.id)
        node.mamba_prev.mamba_next = node.mamba_next
        node.mamba_next.mamba_prev = node.mamba_prev
        time = node.state_access_time
        young, old = self.head.mamba_next, self.tail.mamba_prev
        # Search from both ends at once; the times of head and tail terminate the search.
        while young.state_access_time > time and old.state_access_time < time:
            young, old = young.mamba_next, old.mamba_prev
        older = young if young.state_access_time < time else old.mamba_next
        younger = older.mamba_prev
        node.mamba_prev = younger
        node.mamba_next = older
        older.mamba_prev = node
        younger.mamba_next = node

    def reset_path_mru(self, path: Sequence[TreeNode]) -> None:
        head = self.head
        for node in path:
            if node.mamba_value is None:
                continue
            self._in_ring.discard(node.id)
            older, younger = node.mamba_next, node.mamba_prev
            younger.mamba_next = older
            older.mamba_prev = younger
            first = head.mamba_next
            node.mamba_prev = head
            node.mamba_next = first
            first.mamba_prev = node
            head.mamba_next = node

    def dismantle(self) -> None:
        """Unlink everything, so that the list keeps nothing alive."""
        for node in list(self):
            self.remove_node(node)
        for end in (self.head, self.tail, self.ring):
            end.mamba_prev = end.mamba_next = None  # type: ignore[assignment]

    def sanity_check(self) -> None:
        """Raise CacheSanityError unless pointers, members and access times agree."""
        _check_order(list(self.evictable()), "mamba", lambda node: node.state_access_time)
        _check_members(self, self._members)
        for node in self:
            if node.mamba_next.mamba_prev is not node or node.mamba_prev.mamba_next is not node:
                raise CacheSanityError("mamba list: neighbours disagree", [node.id])
            if node.mamba_value is None:
                raise CacheSanityError("mamba list: contains a tombstone", [node.id])
        # An eviction never visits members in the ring.
        kept = [node.id for node in self.held() if not node.mamba_lock_ref]
        if kept:
            raise CacheSanityError("mamba list: the ring keeps states without a lock", kept)

    def _add_node(self, node: TreeNode) -> None:
        first = self.head.mamba_next
        node.mamba_prev = self.head
        node.mamba_next = first
        first.mamba_prev = node
        self.head.mamba_next = node

    def _remove_node(self, node: TreeNode) -> None:
        node.mamba_prev.mamba_next = node.mamba_next
        node.mamba_next.mamba_prev = node.mamba_prev
        # A removed node that keeps its pointers keeps its neighbours alive, and they theirs.
        node.mamba_prev = None  # type: ignore[assignment]
        node.mamba_next = None  # type: ignore[assignment]


def _list_ends() -> tuple[TreeNode, TreeNode, TreeNode]:
    """Head, tail and ring: younger than all nodes, older than all nodes, and neither."""
    head, tail, ring = TreeNode(-1), TreeNode(-2), TreeNode(-3)
    head.last_access_time = head.state_access_time = sys.maxsize
    tail.last_access_time = tail.state_access_time = -1
    return head, tail, ring


def _check_order(
    old_to_young: list[TreeNode], name: str, time_of: Callable[[TreeNode], int]
) -> None:
    for older, younger in pairwise(old_to_young):
        if time_of(older) >= time_of(younger):
            raise CacheSanityError(f"{name} list: out of order", [older.id, younger.id])


def _check_members(linked: LRUList, members: set[int]) -> None:
    listed = {node.id for node in linked}
    if listed != members:
        raise CacheSanityError(
            f"{linked.name} list: members and links differ", sorted(listed ^ members)
        )
