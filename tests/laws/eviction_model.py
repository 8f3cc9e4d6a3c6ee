"""A model of eviction from a prefix tree: plain dicts, with ordered dicts for the two LRU orders.

Source: SGLang's MambaRadixCache, where both orders also hold nodes that cannot be evicted, and the
victim is found by walking past them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

Prefix = tuple[int, ...]
ROOT: Prefix = ()


@dataclass
class ModelNode:
    """A node; its key is all tokens from the root to its end."""

    parent: Prefix
    has_state: bool = False
    full_locks: int = 0
    mamba_locks: int = 0


@dataclass
class EvictionModel:
    """A hybrid tree with pages of one token.

    Attributes:
        whole_path: whether a hit refreshes the age of all states on its path, not only of the one
            it reads.
        full, mamba: all nodes, and nodes with a state, oldest first.
    """

    whole_path: bool
    nodes: dict[Prefix, ModelNode] = field(default_factory=dict)
    full: OrderedDict[Prefix, None] = field(default_factory=OrderedDict)
    mamba: OrderedDict[Prefix, None] = field(default_factory=OrderedDict)

    def match(self, ids: Prefix) -> Prefix:
        """Return the prefix that can be reused."""
        path, _ = self._walk(ids)
        while path and not self.nodes[path[-1]].has_state:
            path.pop()
        self._touch(path)
        return path[-1] if path else ROOT

    def insert(self, ids: Prefix) -> None:
        path, below = self._walk(ids)
        self._touch(path)
        if path and path[-1] == ids:
            self._give_state(ids)
        self._touch(below)
        if not path or path[-1] != ids:
            self.nodes[ids] = ModelNode(path[-1] if path else ROOT)
            self.full[ids] = None
            self._give_state(ids)

    def lock(self, prefix: Prefix) -> bool:
        """Lock a node; return whether a state was locked as well."""
        node = self.nodes[prefix]
        node.mamba_locks += node.has_state
        for above in self._upwards(prefix):
            self.nodes[above].full_locks += 1
        return node.has_state

    def unlock(self, prefix: Prefix, with_state: bool) -> None:
        self.nodes[prefix].mamba_locks -= with_state
        for above in self._upwards(prefix):
            self.nodes[above].full_locks -= 1
        self._cascade(prefix)

    def evict_full(self, num_tokens: int) -> tuple[int, int]:
        """Evict leaves; return the numbers of evicted tokens and states."""
        tokens = states = 0
        while tokens < num_tokens and (leaves := self.leaves()):
            states += self.nodes[leaves[0]].has_state
            tokens += self._remove(leaves[0])
        return tokens, states

    def evict_mamba(self, mamba_num: int) -> tuple[int, int]:
        """Evict states; return the numbers of evicted tokens and states."""
        tokens = states = 0
        while states < mamba_num and (unlocked := self.states()):
            states += 1
            if self._is_leaf(unlocked[0]):
                tokens += self._remove(unlocked[0])
            else:
                self._drop_state(unlocked[0])
        return tokens, states

    def leaves(self) -> list[Prefix]:
        """Leaves that can be evicted, oldest first."""
        return [prefix for prefix in self.full if self._is_leaf(prefix)]

    def states(self) -> list[Prefix]:
        """Nodes whose state can be evicted, oldest first."""
        return [prefix for prefix in self.mamba if not self.nodes[prefix].mamba_locks]

    def with_state(self) -> dict[Prefix, bool]:
        """Every node, and whether it has a state."""
        return {prefix: node.has_state for prefix, node in self.nodes.items()}

    def _walk(self, ids: Prefix) -> tuple[list[Prefix], list[Prefix]]:
        """Return the nodes on the path of ``ids``, and the lower half if the last one was split."""
        path: list[Prefix] = []
        while child := self._child(path[-1] if path else ROOT, ids):
            if child != ids[: len(child)]:
                upper = _common(child, ids)
                self._split(upper, child)
                return [*path, upper], [child]
            path.append(child)
        return path, []

    def _child(self, parent: Prefix, ids: Prefix) -> Prefix | None:
        end = len(parent) + 1
        if len(ids) < end:
            return None
        children = (prefix for prefix, node in self.nodes.items() if node.parent == parent)
        return next((child for child in children if child[:end] == ids[:end]), None)

    def _split(self, upper: Prefix, lower: Prefix) -> None:
        below = self.nodes[lower]
        self.nodes[upper] = ModelNode(below.parent, full_locks=below.full_locks)
        below.parent = upper
        self.full[upper] = None
        self._use(lower)

    def _touch(self, path: list[Prefix]) -> None:
        """Refresh ``path`` after a hit or insert; each node becomes younger than its parent."""
        for prefix in path:
            self.full.move_to_end(prefix)
        for prefix in path if self.whole_path else path[-1:]:
            if self.nodes[prefix].has_state:
                self.mamba.move_to_end(prefix)

    def _use(self, prefix: Prefix) -> None:
        """Make this node the youngest."""
        self.full.move_to_end(prefix)
        if self.nodes[prefix].has_state:
            self.mamba.move_to_end(prefix)

    def _give_state(self, prefix: Prefix) -> None:
        self.nodes[prefix].has_state = True
        self.mamba.setdefault(prefix)

    def _drop_state(self, prefix: Prefix) -> None:
        self.nodes[prefix].has_state = False
        del self.mamba[prefix]

    def _remove(self, leaf: Prefix) -> int:
        """Remove a leaf and the tombstones that become leaves; return the number of tokens."""
        if self.nodes[leaf].has_state:
            self._drop_state(leaf)
        parent = self.nodes.pop(leaf).parent
        del self.full[leaf]
        return len(leaf) - len(parent) + self._cascade(parent)

    def _cascade(self, prefix: Prefix) -> int:
        if prefix == ROOT or self.nodes[prefix].has_state or not self._is_leaf(prefix):
            return 0
        return self._remove(prefix)

    def _is_leaf(self, prefix: Prefix) -> bool:
        """Return whether the node has neither children nor locks."""
        if self.nodes[prefix].full_locks:
            return False
        return all(node.parent != prefix for node in self.nodes.values())

    def _upwards(self, prefix: Prefix) -> Iterator[Prefix]:
        while prefix != ROOT:
            yield prefix
            prefix = self.nodes[prefix].parent


def _common(one: Prefix, other: Prefix) -> Prefix:
    same = next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )
    return one[:same]
