"""What the host holds of tree nodes besides KV: states or windows, each in their own pool.

A part is copied with its node's KV, or alone if the other side already has the KV.  The host frees
a part with the node's KV, or earlier.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from hybridbench.engine.cache.base import CacheSanityError
from hybridbench.engine.cache.eviction_queue import RecencyQueue
from hybridbench.engine.cache.tree_node import NO_TOKENS, TreeNode
from hybridbench.engine.memory.extra_pools import ExtraPool
from hybridbench.engine.memory.indices import IntArray
from hybridbench.engine.memory.owners import TREE


class Run(NamedTuple):
    """The last ``tokens`` tokens up to the end of ``node``, which may be split later."""

    node: TreeNode
    tokens: int


class HostPart(ABC):
    """The nodes' parts in one host pool: their eviction order, and which of them loads are reading.

    Attributes:
        pool: the pool on both sides.
        queue: the nodes that have a part on the host, oldest first.
    """

    def __init__(self, pool: ExtraPool) -> None:
        self.pool = pool
        self.start()

    def start(self) -> None:
        """Reset to an empty tree."""
        self.queue = RecencyQueue()
        self._held = 0
        self._protected = 0

    @property
    def name(self) -> str:
        """The name of the pool on the host."""
        return f"host_{self.pool.name}"

    def evictable_size(self) -> int:
        """Slots on the host that no load reads."""
        return self._held - self._protected

    def protected_size(self) -> int:
        """Slots on the host that a load reads."""
        return self._protected

    def is_protected(self, node: TreeNode) -> bool:
        """Whether a load is reading the host's part of a node."""
        return self._readers(node) > 0

    def is_backed_up(self, node: TreeNode) -> bool:
        """Whether the host has everything that the device has of a node."""
        return self.has_value(node) or not self.on_device(node)

    def to_write(self, node: TreeNode) -> IntArray:
        """The device slots of a node's part if the host lacks it; otherwise empty."""
        return NO_TOKENS if self.has_value(node) else self.device_slots(node)

    def attach_written(self, node: TreeNode, host_slots: IntArray) -> None:
        """Record the host slots written for a node, which may have been split since then."""
        for at, slots in self.divide([Run(node, len(host_slots))], host_slots):
            if self.has_value(at):
                # The node was split, and this half has been written a second time.
                self.pool.host_account.free(slots, TREE)
            else:
                self._set_host_slots(at, slots.copy())
                self._held += len(slots)
                self.queue.add(at)

    def free(self, node: TreeNode) -> None:
        """Free a node's part on the host, which must exist."""
        slots = self.host_slots(node)
        self._set_host_slots(node, NO_TOKENS)
        self.queue.discard(node)
        self._held -= len(slots)
        self.pool.host_account.free(slots, TREE)

    def protect(self, runs: Sequence[Run]) -> None:
        """Mark the host's part of ``runs`` as being read by a load."""
        for run in runs:
            for node in self.nodes_of(run):
                if not self.is_protected(node):
                    self._protected += len(self.host_slots(node))
                self._set_readers(node, self._readers(node) + 1)

    def release(self, runs: Sequence[Run]) -> None:
        """Undo ``protect``."""
        for run in runs:
            for node in self.nodes_of(run):
                assert self.is_protected(node), f"{node} is not protected in {self.name}"
                self._set_readers(node, self._readers(node) - 1)
                if not self.is_protected(node):
                    self._protected -= len(self.host_slots(node))

    def divide(self, runs: Sequence[Run], slots: IntArray) -> Iterator[tuple[TreeNode, IntArray]]:
        """Yield the nodes that the runs consist of now, each with its share of ``slots``."""
        start = 0
        for run in runs:
            for node in self.nodes_of(run):
                end = start + self.slots_wanted(node)
                yield node, slots[start:end]
                start = end
        assert start == len(slots), "a transfer covers whole nodes"

    def sanity_check(self, nodes: Sequence[TreeNode]) -> None:
        """Raise CacheSanityError where nodes, queue and counts disagree."""
        having = [node for node in nodes if self.has_value(node)]
        apart = {node.id for node in having} ^ {node.id for node in self.queue}
        if apart:
            raise CacheSanityError(f"{self.name} queue: inconsistent with the tree", sorted(apart))
        if misplaced := self.queue.misplaced():
            raise CacheSanityError(f"{self.name} queue: out of order", misplaced)
        for node in nodes:
            if self.has_value(node) and node.host_value is None:
                raise CacheSanityError(f"{self.name}: a part of a node without its KV", [node.id])
            if self.on_device(node) and node.evicted:
                raise CacheSanityError(
                    f"{self.pool.name}: a part of a node without its KV", [node.id]
                )
            if self.is_protected(node) and not self.has_value(node):
                raise CacheSanityError(
                    f"{self.name}: a load is reading a part that was freed", [node.id]
                )
        held = sum(len(self.host_slots(node)) for node in having)
        protected = sum(len(self.host_slots(node)) for node in having if self.is_protected(node))
        if (held, protected) != (self._held, self._protected):
            raise CacheSanityError(
                f"{self.name}: nodes hold {held} slots, {protected} of them protected; "
                f"the counters say {self._held} and {self._protected}"
            )

    def has_value(self, node: TreeNode) -> bool:
        """Whether the host has the part of a node."""
        return len(self.host_slots(node)) > 0

    @abstractmethod
    def on_device(self, node: TreeNode) -> bool:
        """Whether the device has the part of a node."""

    @abstractmethod
    def host_slots(self, node: TreeNode) -> IntArray:
        """The part's slots on the host; empty if there are none."""

    @abstractmethod
    def device_slots(self, node: TreeNode) -> IntArray:
        """The part's slots on the device; empty if there are none."""

    @abstractmethod
    def slots_wanted(self, node: TreeNode) -> int:
        """The number of slots that a node's part needs."""

    @abstractmethod
    def nodes_of(self, run: Run) -> list[TreeNode]:
        """The nodes whose part a run covers, from the top."""

    @abstractmethod
    def match_end(self, path: Sequence[TreeNode], end: int) -> int:
        """How many of the first ``end`` nodes a match may cover, with parts on either side."""

    @abstractmethod
    def to_load(self, last_host_node: TreeNode) -> list[Run]:
        """The runs that the device lacks for a match that ends at ``last_host_node``."""

    @abstractmethod
    def split(self, upper: TreeNode, lower: TreeNode) -> None:
        """Update after a split; ``lower`` is the original node."""

    @abstractmethod
    def _set_host_slots(self, node: TreeNode, slots: IntArray) -> None: ...

    @abstractmethod
    def _readers(self, node: TreeNode) -> int: ...

    @abstractmethod
    def _set_readers(self, node: TreeNode, readers: int) -> None: ...


class HostStates(HostPart):
    """Recurrent states: one slot for the last token of a node."""

    def on_device(self, node: TreeNode) -> bool:
        return node.mamba_value is not None

    def has_value(self, node: TreeNode) -> bool:
        return node.mamba_host_value is not None

    def host_slots(self, node: TreeNode) -> IntArray:
        return _single(node.mamba_host_value)

    def device_slots(self, node: TreeNode) -> IntArray:
        return _single(node.mamba_value)

    def slots_wanted(self, node: TreeNode) -> int:
        return 1

    def nodes_of(self, run: Run) -> list[TreeNode]:
        """The run's node: in a split, this object becomes the lower half and keeps the state."""
        return [run.node]

    def match_end(self, path: Sequence[TreeNode], end: int) -> int:
        while end and path[end - 1].mamba_value is None and path[end - 1].mamba_host_value is None:
            end -= 1
        return end

    def to_load(self, last_host_node: TreeNode) -> list[Run]:
        lacks_it = self.has_value(last_host_node) and not self.on_device(last_host_node)
        return [Run(last_host_node, 1)] if lacks_it else []

    def split(self, upper: TreeNode, lower: TreeNode) -> None:
        """Make ``lower`` the youngest; the upper half has no state on the host either."""
        self.queue.touch(lower)

    def _set_host_slots(self, node: TreeNode, slots: IntArray) -> None:
        node.mamba_host_value = int(slots[0]) if len(slots) else None

    def _readers(self, node: TreeNode) -> int:
        return node.mamba_host_ref_counter

    def _set_readers(self, node: TreeNode, readers: int) -> None:
        node.mamba_host_ref_counter = readers


def last_nodes(run: Run) -> list[TreeNode]:
    """The nodes that a run consists of, from the top."""
    node, tokens = run
    nodes = []
    while tokens > 0:
        nodes.append(node)
        tokens -= len(node.key)
        assert node.parent is not None
        node = node.parent
    assert tokens == 0, "a transfer covers whole nodes"
    return nodes[::-1]


def _single(slot: int | None) -> IntArray:
    return NO_TOKENS if slot is None else np.array([slot], dtype=np.int64)
