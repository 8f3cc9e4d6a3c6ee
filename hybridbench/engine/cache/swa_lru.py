"""The LRU list of a tree with sliding windows: the order in which KV leaves the window pool."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hybridbench.engine.cache.base import CacheSanityError
from hybridbench.engine.cache.tree_node import TreeNode


class SWALRUList:
    """Every node with KV in the window pool, the youngest at the head; no tombstones.

    Locked nodes keep their place, and an eviction skips them; they are few, since a request locks
    only one window.  The list is linked through the nodes for the same reason as those of
    ``lru.py``.
    """

    def __init__(self) -> None:
        self._members: set[int] = set()
        self.head, self.tail = TreeNode(-1), TreeNode(-2)
        self.head.swa_next = self.tail
        self.tail.swa_prev = self.head

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[TreeNode]:
        """The members from old to young."""
        node = self.tail.swa_prev
        while node is not self.head:
            yield node
            node = node.swa_prev

    def get_lru_no_lock(self) -> TreeNode | None:
        """The oldest member whose KV in the window pool has no lock."""
        oldest = self.tail.swa_prev
        # The head has no lock.
        while oldest.swa_lock_ref:
            oldest = oldest.swa_prev
        return None if oldest is self.head else oldest

    def insert_mru(self, node: TreeNode) -> None:
        """Add a node, not yet a member, at the young end."""
        assert node.id not in self._members, f"{node} is in the swa list already"
        self._members.add(node.id)
        self._add_node(node)

    def insert_lru(self, node: TreeNode) -> None:
        """Add a node, not yet a member, at the old end."""
        assert node.id not in self._members, f"{node} is in the swa list already"
        self._members.add(node.id)
        last = self.tail.swa_prev
        node.swa_prev = last
        node.swa_next = self.tail
        last.swa_next = node
        self.tail.swa_prev = node

    def remove_node(self, node: TreeNode) -> None:
        """Remove a member."""
        assert node.id in self._members, f"{node} is not in the swa list"
        self._members.remove(node.id)
        self._remove_node(node)

    def reset_path_mru(self, path: Sequence[TreeNode]) -> None:
        """Move the members on a path (top first) to the young end; the last is the youngest."""
        for node in path:
            if not node.swa_tombstone:
                node.swa_prev.swa_next = node.swa_next
                node.swa_next.swa_prev = node.swa_prev
                self._add_node(node)

    def dismantle(self) -> None:
        """Unlink everything, so that the list keeps nothing alive."""
        for node in list(self):
            self.remove_node(node)
        self.head.swa_next = self.tail.swa_prev = None  # type: ignore[assignment]

    def sanity_check(self) -> None:
        """Raise CacheSanityError unless pointers, members and access times agree."""
        listed = list(self)
        if {node.id for node in listed} != self._members:
            raise CacheSanityError("swa list: members and links differ", sorted(self._members))
        older = self.tail
        for node in listed:
            if node.swa_next is not older or older.swa_prev is not node:
                raise CacheSanityError("swa list: neighbours disagree", [node.id])
            if older is not self.tail and self._age(older) >= self._age(node):
                raise CacheSanityError("swa list: out of order", [older.id, node.id])
            if node.swa_tombstone:
                raise CacheSanityError("swa list: contains a tombstone", [node.id])
            older = node

    def _age(self, node: TreeNode) -> int:
        """The access time by which the list is ordered."""
        return node.last_access_time

    def _add_node(self, node: TreeNode) -> None:
        first = self.head.swa_next
        node.swa_prev = self.head
        node.swa_next = first
        first.swa_prev = node
        self.head.swa_next = node

    def _remove_node(self, node: TreeNode) -> None:
        node.swa_prev.swa_next = node.swa_next
        node.swa_next.swa_prev = node.swa_prev
        # A removed node that keeps its pointers keeps its neighbours alive, and they theirs.
        node.swa_prev = None  # type: ignore[assignment]
        node.swa_next = None  # type: ignore[assignment]
