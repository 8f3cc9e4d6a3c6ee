"""The two LRU lists of a hybrid tree, linked through the nodes: one per component.

They are linked through the nodes on purpose, as in the systems this bench is about: a node that
keeps its pointers after it was unlinked drags its old neighbours along (sglang#25770), and that
fault can only be put back where such pointers exist.  ``_remove_node`` is the place.

Two classes with the same few lines, because each works on plain attributes of its own: attribute
names kept in strings made every touch three times as dear.  What needs no pointers is in LRUList.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from hybridbench.engine.cache.base import CacheSanityError
from hybridbench.engine.cache.eviction_queue import last_state_use, last_use
from hybridbench.engine.cache.tree_node import TreeNode


class LRUList(ABC):
    """What both lists have; the field's one class of this name takes the component as a flag.

    Attributes:
        name: of the component, in messages.
        prv, nxt, lock_ref: names of a node's attributes that belong to this list, for tools that
            walk either list the same way.
    """

    name: str
    prv: str
    nxt: str
    lock_ref: str

    @abstractmethod
    def __iter__(self) -> Iterator[TreeNode]:
        """From old to young."""

    @abstractmethod
    def reset_path_mru(self, path: Sequence[TreeNode]) -> None:
        """Move the members on a path, given from the top, to the young end, the last one last."""

    @abstractmethod
    def is_locked(self, node: TreeNode) -> bool:
        """Whether a member may not be evicted from this list."""

    @abstractmethod
    def _add_node(self, node: TreeNode) -> None: ...

    @abstractmethod
    def _remove_node(self, node: TreeNode) -> None: ...

    def __init__(self) -> None:
        # Membership is kept apart from the pointers, so that a list whose unlinking is at fault
        # still refuses a node twice.
        self._members: set[int] = set()

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, node: TreeNode) -> bool:
        return node.id in self._members

    def in_list(self, node: TreeNode | None) -> bool:
        """Whether ``node`` is a member; None is not."""
        return node is not None and node.id in self._members

    @property
    def cache(self) -> dict[int, TreeNode]:
        """The members by their id, in a dict made for the caller; walks the list."""
        return {node.id: node for node in self}

    def insert_mru(self, node: TreeNode) -> None:
        """Put a node that was not a member at the young end."""
        assert node.id not in self._members, f"{node} is in the {self.name} list already"
        self._members.add(node.id)
        self._add_node(node)

    def remove_node(self, node: TreeNode) -> None:
        """Take a member out."""
        try:
            self._members.remove(node.id)
        except KeyError:
            raise AssertionError(f"{node} is not in the {self.name} list") from None
        self._remove_node(node)

    def reset_node_mru(self, node: TreeNode) -> None:
        """Move one member to the young end."""
        assert node.id in self._members, f"{node} is not in the {self.name} list"
        self.reset_path_mru([node])

    def reset_node_and_parents_mru(self, node: TreeNode, root_node: TreeNode) -> None:
        """Move the members from ``node`` up to the root to the young end, ``node`` youngest."""
        path: list[TreeNode] = []
        on_path: TreeNode | None = node
        while on_path is not None and on_path is not root_node:
            path.append(on_path)
            on_path = on_path.parent
        self.reset_path_mru(path[::-1])

    def get_lru_no_lock(self) -> TreeNode | None:
        """The oldest member without a lock; walks past the others."""
        return self._oldest(lambda node: not self.is_locked(node))

    def get_leaf_lru_no_lock(self) -> TreeNode | None:
        """The oldest leaf without a lock; walks past the others."""
        return self._oldest(lambda node: not node.children and not self.is_locked(node))

    def _oldest(self, wanted: Callable[[TreeNode], bool]) -> TreeNode | None:
        return next((node for node in self if wanted(node)), None)


class FullLRUList(LRUList):
    """Every node but the root, youngest first.  A child is younger than its parent."""

    name = "full"
    prv, nxt, lock_ref = "full_prev", "full_next", "full_lock_ref"

    def __init__(self) -> None:
        super().__init__()
        self.head = _list_end(-1)
        self.tail = _list_end(-2)
        self.head.full_next = self.tail
        self.tail.full_prev = self.head

    def __iter__(self) -> Iterator[TreeNode]:
        """From old to young."""
        node = self.tail.full_prev
        while node is not self.head:
            yield node
            node = node.full_prev

    def is_locked(self, node: TreeNode) -> bool:
        return node.full_lock_ref > 0

    def reset_path_mru(self, path: Sequence[TreeNode]) -> None:
        """Move the nodes of a path, given from the top, to the young end, the last one last."""
        head = self.head
        for node in path:
            older, younger = node.full_next, node.full_prev
            younger.full_next = older
            older.full_prev = younger
            first = head.full_next
            node.full_prev = head
            node.full_next = first
            first.full_prev = node
            head.full_next = node

    def dismantle(self) -> None:
        """Unlink everything, so that nothing stays alive through the list."""
        for node in list(self):
            self.remove_node(node)
        self.head.full_next = None  # type: ignore[assignment]
        self.tail.full_prev = None  # type: ignore[assignment]

    def sanity_check(self) -> None:
        """Raise CacheSanityError unless pointers, members and access times agree."""
        _check_order(list(self), self._members, "full", last_use)
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
        # A removed node that still names its neighbours keeps them alive, and they theirs.
        node.full_prev = None  # type: ignore[assignment]
        node.full_next = None  # type: ignore[assignment]


class MambaLRUList(LRUList):
    """Every node with a state, youngest first.  Tombstones are not in it."""

    name = "mamba"
    prv, nxt, lock_ref = "mamba_prev", "mamba_next", "mamba_lock_ref"

    def __init__(self) -> None:
        super().__init__()
        self.head = _list_end(-3)
        self.tail = _list_end(-4)
        self.head.mamba_next = self.tail
        self.tail.mamba_prev = self.head

    def __iter__(self) -> Iterator[TreeNode]:
        """From old to young."""
        node = self.tail.mamba_prev
        while node is not self.head:
            yield node
            node = node.mamba_prev

    def is_locked(self, node: TreeNode) -> bool:
        return node.mamba_lock_ref > 0

    def reset_path_mru(self, path: Sequence[TreeNode]) -> None:
        """Move the nodes of a path that have a state to the young end, the last one last."""
        head = self.head
        for node in path:
            if node.mamba_value is None:
                continue
            older, younger = node.mamba_next, node.mamba_prev
            younger.mamba_next = older
            older.mamba_prev = younger
            first = head.mamba_next
            node.mamba_prev = head
            node.mamba_next = first
            first.mamba_prev = node
            head.mamba_next = node

    def dismantle(self) -> None:
        """Unlink everything, so that nothing stays alive through the list."""
        for node in list(self):
            self.remove_node(node)
        self.head.mamba_next = None  # type: ignore[assignment]
        self.tail.mamba_prev = None  # type: ignore[assignment]

    def sanity_check(self) -> None:
        """Raise CacheSanityError unless pointers, members and access times agree."""
        _check_order(list(self), self._members, "mamba", last_state_use)
        for node in self:
            if node.mamba_next.mamba_prev is not node or node.mamba_prev.mamba_next is not node:
                raise CacheSanityError("mamba list: neighbours disagree", [node.id])
            if node.mamba_value is None:
                raise CacheSanityError("mamba list: a tombstone is in it", [node.id])

    def _add_node(self, node: TreeNode) -> None:
        first = self.head.mamba_next
        node.mamba_prev = self.head
        node.mamba_next = first
        first.mamba_prev = node
        self.head.mamba_next = node

    def _remove_node(self, node: TreeNode) -> None:
        node.mamba_prev.mamba_next = node.mamba_next
        node.mamba_next.mamba_prev = node.mamba_prev
        # A removed node that still names its neighbours keeps them alive, and they theirs.
        node.mamba_prev = None  # type: ignore[assignment]
        node.mamba_next = None  # type: ignore[assignment]


def _list_end(node_id: int) -> TreeNode:
    return TreeNode(node_id)


def _check_order(
    old_to_young: list[TreeNode],
    members: set[int],
    name: str,
    time_of: Callable[[TreeNode], int],
) -> None:
    for older, younger in pairwise(old_to_young):
        if time_of(older) >= time_of(younger):
            raise CacheSanityError(f"{name} list: out of order", [older.id, younger.id])
    listed = {node.id for node in old_to_young}
    if listed != members:
        raise CacheSanityError(f"{name} list: members and links differ", sorted(listed ^ members))
