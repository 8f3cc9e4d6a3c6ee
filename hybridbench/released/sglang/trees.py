"""Read a released prefix cache by walking its nodes, never from its own counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

from hybridbench.engine.counters import EngineCounters
from hybridbench.foundation.errors import ConfigError

# Pool, the node's slots in it (a tensor), and whether they are locked.
Part: TypeAlias = tuple[str, Any, bool]
Reader: TypeAlias = Callable[[Any], Iterator[Part]]


def _radix(node: Any) -> Iterator[Part]:
    if node.value is not None:
        yield "kv", node.value, node.lock_ref > 0


def _mamba(node: Any) -> Iterator[Part]:
    if node.value is not None:
        yield "kv", node.value, node.full_lock_ref > 0
    if node.mamba_value is not None:
        yield "mamba", node.mamba_value, node.mamba_lock_ref > 0


def _swa(window_of: Callable[[Any], Any], node: Any) -> Iterator[Part]:
    yield "kv", node.value, node.full_lock_ref > 0
    if not node.swa_tombstone:
        slots = window_of(node.value)
        yield "swa", slots[slots > 0], node.swa_lock_ref > 0


def _unified(node: Any) -> Iterator[Part]:
    # Later releases have more components, for pools that are not driven.
    for pool, data in zip(_COMPONENTS, node.component_data, strict=False):
        if data.value is not None:
            yield pool, data.value, data.lock_ref > 0


# The pools of a unified node's components, in order.
_COMPONENTS: Final = ("kv", "swa", "mamba")
_READERS: Mapping[str, Reader] = {
    "RadixCache": _radix,
    "MambaRadixCache": _mamba,
    "UnifiedRadixCache": _unified,
}


def reader_of(cache: object, window_of: Callable[[Any], Any]) -> Reader:
    """Return the function that reads nodes of ``cache``.

    ``window_of`` returns the window-pool slot of each KV slot; 0 if it has none.

    Raises:
        ConfigError: its class is unknown.
    """
    name = type(cache).__name__
    if name == "SWARadixCache":
        return partial(_swa, window_of)
    if name not in _READERS:
        raise ConfigError(f"the prefix cache {name} of this release is not one that is driven.")
    return _READERS[name]


def walk(root: Any) -> Iterator[Any]:
    """Every node below ``root``, excluding ``root``."""
    stack = list(root.children.values())
    while stack:
        node = stack.pop()
        yield node
        stack += node.children.values()


@dataclass(frozen=True, slots=True)
class _Seen:
    """A node at the last walk: whether it had slots besides KV, and its place in the tree."""

    has_state: bool
    parent: int
    children: int


class TreeWatch:
    """Counts a tree's changes from one step to the next, by comparing two walks.

    It keeps the ids of nodes, because keeping the nodes would keep them alive.
    """

    def __init__(
        self,
        root: Callable[[], Any],
        reader: Reader,
        counters: EngineCounters,
        *,
        has_windows: bool,
    ) -> None:
        """``root`` returns the tree's root, which a reset replaces.

        Besides KV, nodes hold window slots if it ``has_windows``, and states otherwise.
        """
        self._root = root
        self._read = reader
        self._counters = counters
        self._has_windows = has_windows
        self._seen: dict[int, _Seen] = {}
        self.gained = 0
        """Number of nodes that gained a state or windows between the last two walks."""

    def sizes(self) -> dict[str, int]:
        """Number of nodes at the last walk."""
        return {"tree_nodes": len(self._seen)}

    def look(self) -> None:
        """Add the changes since the last call to the counters."""
        before, now = self._seen, {node.id: self._note(node) for node in walk(self._root())}
        self._seen = now
        counters = self._counters
        new = now.keys() - before.keys()
        # A split inserts a new node between a node and its parent.
        counters.node_splits += len(
            {now[i].parent for i in now.keys() & before.keys() if now[i].parent in new}
        )
        had = {i for i, seen in before.items() if seen.has_state}
        self.gained = sum(1 for i, seen in now.items() if seen.has_state and i not in had)
        lost = sum(1 for i in now.keys() & before.keys() if before[i].has_state > now[i].has_state)
        if self._has_windows:
            counters.swa_tombstones += lost
        else:
            counters.tombstones += lost
            counters.evict_internal_state += lost
        gone = before.keys() - now.keys()
        # A parent without a state is evicted after its last child.
        after = sum(1 for i in gone if before[i].children and not before[i].has_state)
        counters.evict_cascade += after
        counters.evict_leaf += len(gone) - after
        counters.nodes_evicted += len(gone)

    def _note(self, node: Any) -> _Seen:
        has_state = any(pool != "kv" for pool, _, _ in self._read(node))
        return _Seen(has_state, node.parent.id, len(node.children))
