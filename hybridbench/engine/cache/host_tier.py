"""What the prefix trees with a host tier share: transfers, the host's part of nodes, its evictions.

A node is *backed up* once the host pool has its KV, too.  When its device slots are wanted it stays
in the tree without them, *evicted*, and a request that hits it waits until they are loaded back.
So nodes with device slots reach from the root to some depth, and below them all are evicted.

Transfers run beside the steps.  Until one has ended and ``check_hicache_events`` has met its
answer, what it reads is kept: a write holds a lock on its node, a load a lock on the node above its
run and a reference on the host slots of the run.  A split meanwhile changes none of that: both
halves have the locks, and who asks for the tokens of a transfer finds the nodes that have them now.

Source: SGLang's HiRadixCache, without storage behind the host.  There a step waits for loads layer
by layer; here a request joins a step after the load.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from hybridbench.engine.cache.base import (
    CacheInitParams,
    CacheSanityError,
    DecLockRefParams,
    EvictParams,
    TreeSlots,
)
from hybridbench.engine.cache.eviction_queue import RecencyQueue
from hybridbench.engine.cache.tree import PrefixTree
from hybridbench.engine.cache.tree_node import NO_TOKENS, TreeNode
from hybridbench.engine.memory.hicache_controller import (
    CacheOperation,
    HiCacheAck,
    HiCacheController,
)
from hybridbench.engine.memory.indices import IntArray
from hybridbench.engine.memory.owners import REQ, TREE
from hybridbench.engine_config import HiCacheWritePolicy

# Inserts that must have used a node before it is written to the host.
_WRITE_THROUGH_THRESHOLDS = {"write_through": 1, "write_through_selective": 2}


class Ongoing(NamedTuple):
    """A transfer of the last ``tokens`` tokens down to the end of ``node``.

    ``locked`` is the node whose lock it holds, ``receipt`` what gives the lock back.
    """

    node: TreeNode
    tokens: int
    locked: TreeNode
    receipt: DecLockRefParams


class HostTier(PrefixTree):
    """The part of a tree that backs up nodes, evicts from the host, and loads back.

    Attributes:
        cache_controller: runs the transfers.
        write_policy: "write_through" writes a node when an insert uses it, the selective kind at
            the second, "write_back" when its device slots are to be evicted, waiting for the copy.
        ongoing_write_through, ongoing_load_back: transfers by the id of their deepest node.
    """

    def __init__(
        self,
        params: CacheInitParams,
        cache_controller: HiCacheController,
        write_policy: HiCacheWritePolicy = "write_through",
    ) -> None:
        super().__init__(params)
        self.cache_controller = cache_controller
        self.write_policy = write_policy
        self.ongoing_write_through: dict[int, Ongoing] = {}
        self.ongoing_load_back: dict[int, Ongoing] = {}
        self._start_host_tier()

    def host_evictable_size(self) -> int:
        """Host tokens of nodes that no load reads."""
        return self._host_size - self._host_protected_size

    def host_protected_size(self) -> int:
        """Host tokens of nodes that a load reads."""
        return self._host_protected_size

    def transfer_locks(self) -> list[TreeNode]:
        """The nodes whose lock a transfer holds, one for each."""
        ongoing = (*self.ongoing_write_through.values(), *self.ongoing_load_back.values())
        return [transfer.locked for transfer in ongoing if transfer.locked is not self.root_node]

    def tree_slots(self) -> TreeSlots:
        backed_up = [node.host_value for node in self.iter_nodes() if node.host_value is not None]
        host_indices = np.concatenate(backed_up) if backed_up else NO_TOKENS
        return super().tree_slots()._replace(host_indices=host_indices)

    def check_hicache_events(self) -> None:
        """Take the answers to transfers that have ended; once a step, and never waits."""
        if len(self.cache_controller):
            self.cache_controller.poll()
            self.writing_check()
            self.loading_check()

    def writing_check(self) -> None:
        """Give nodes what was written for them on the host, and their locks back."""
        acks = self.cache_controller.ack_write_queue
        while acks:
            ack = acks.popleft()
            self.cache_controller.settle(ack)
            ongoing = self.ongoing_write_through.pop(ack.operation.node_id)
            if ack.succeeded:
                self._attach_written(ongoing, ack)
            self.dec_lock_ref(ongoing.locked, ongoing.receipt)

    def loading_check(self) -> None:
        """Give nodes the device slots that were loaded for them, and their protection back."""
        acks = self.cache_controller.ack_load_queue
        while acks:
            ack = acks.popleft()
            self.cache_controller.settle(ack)
            ongoing = self.ongoing_load_back.pop(ack.operation.node_id)
            self._release_host(self._last_nodes(ongoing.node, ongoing.tokens))
            if ack.succeeded:
                self.events.host_load_backs += 1
                self.events.host_load_back_tokens += ongoing.tokens
            self._after_load(ongoing, ack)
            self.dec_lock_ref(ongoing.locked, ongoing.receipt)

    def write_backup(self, node: TreeNode) -> bool:
        """Start to copy what the host lacks of a node; False if evictions make no room."""
        # First: what the host evicts may take nodes above it along that are of no use any more.
        receipt = self.inc_lock_ref(node).to_dec_params()
        operation = self._start_write(node)
        if operation is None:
            self._make_host_room(node)
            operation = self._start_write(node)
        if operation is None:
            self.dec_lock_ref(node, receipt)
            return False
        tokens = len(operation.device_indices)
        self.ongoing_write_through[node.id] = Ongoing(node, tokens, node, receipt)
        return True

    def is_loading(self, last_host_node: TreeNode) -> bool:
        """Whether a load reads one of the evicted nodes down to ``last_host_node``."""
        return any(node.host_ref_counter for node in self._evicted_path(last_host_node))

    def load_back(self, last_host_node: TreeNode) -> bool:
        """Start to copy to the device what it lacks down to ``last_host_node``.

        Nothing of that may be loading.  False if even evictions make no room there.
        """
        evicted = self._evicted_path(last_host_node)
        ancestor = evicted[0].parent if evicted else last_host_node
        assert ancestor is not None
        host_indices = np.concatenate([NO_TOKENS, *(_host_value(node) for node in evicted)])
        # First: the room for the load may come from evictions, which may want room on the host.
        self._protect_host(evicted)
        receipt = self.inc_lock_ref(ancestor).to_dec_params()
        operation = self._start_load(last_host_node, host_indices)
        if operation is None:
            missing = len(host_indices) - self.token_to_kv_pool_allocator.available_size()
            self._make_device_room(max(0, missing))
            operation = self._start_load(last_host_node, host_indices)
        if operation is None:
            self._release_host(evicted)
            self.dec_lock_ref(ancestor, receipt)
            return False
        self.ongoing_load_back[last_host_node.id] = Ongoing(
            last_host_node, len(host_indices), ancestor, receipt
        )
        return True

    def evict_host(self, num_tokens: int) -> int:
        """Free host slots of evicted leaves, oldest first, with the leaves; how many tokens."""
        evicted = 0
        refused: list[TreeNode] = []
        while evicted < num_tokens:
            leaf = self._evictable_host_leaves.first()
            if leaf is None:
                break
            if self._is_host_protected(leaf):
                self.events.host_evictions_refused += 1
                self._evictable_host_leaves.discard(leaf)
                refused.append(leaf)
                continue
            evicted += len(leaf.key)
            self._evict_host_leaf(leaf)
        for leaf in refused:
            self._evictable_host_leaves.add(leaf)
        return evicted

    @abstractmethod
    def _start_write(self, node: TreeNode) -> CacheOperation | None:
        """A write of what the host lacks of ``node``; None without room there."""

    @abstractmethod
    def _make_host_room(self, node: TreeNode) -> None:
        """Evict from the host what a write of ``node`` lacks."""

    @abstractmethod
    def _start_load(self, node: TreeNode, host_indices: IntArray) -> CacheOperation | None:
        """A load of the KV down to ``node``, and of what else it needs; None without room."""

    @abstractmethod
    def _set_device_value(self, node: TreeNode, value: IntArray) -> None:
        """An evicted node, below one that is not, has device slots again."""

    @abstractmethod
    def _note_host_leaf(self, node: TreeNode) -> None:
        """``node`` has lost a child that only the host had."""

    def _make_device_room(self, missing: int) -> None:
        self.evict(EvictParams(num_tokens=missing))

    def _start_host_tier(self) -> None:
        self._host_size = 0
        self._host_protected_size = 0
        self._evictable_host_leaves = RecencyQueue()

    def _write_through(self, path: list[TreeNode]) -> None:
        """Write those nodes of a path that inserts have used often enough."""
        if self.write_policy == "write_back":
            return
        threshold = _WRITE_THROUGH_THRESHOLDS[self.write_policy]
        for node in path:
            is_written = self._is_backed_up(node) or node.id in self.ongoing_write_through
            if not is_written and node.hit_count >= threshold and not self.write_backup(node):
                # Below a node that the host does not have, its copies would go with the node.
                break

    def _write_back(self, node: TreeNode) -> None:
        """Write what is about to be evicted, and wait; it may be without a copy all the same."""
        is_written = self._is_backed_up(node) or node.id in self.ongoing_write_through
        if self.write_policy == "write_back" and not is_written and self.write_backup(node):
            self.cache_controller.wait()
            self.writing_check()
            self.loading_check()

    def _is_backed_up(self, node: TreeNode) -> bool:
        """Whether the host has all there is of ``node``."""
        return node.host_value is not None

    def _attach_written(self, ongoing: Ongoing, ack: HiCacheAck) -> None:
        self.events.host_backups += 1
        nodes = self._last_nodes(ongoing.node, ongoing.tokens)
        for node, part in zip(nodes, _parts(nodes, ack.operation.host_indices), strict=True):
            if node.host_value is None:
                node.host_value = part.copy()
                self._host_size += len(part)
            else:
                # The node was split meanwhile, and that half written a second time.
                self.cache_controller.evict_host(part)

    def _after_load(self, ongoing: Ongoing, ack: HiCacheAck) -> None:
        """Take what a load brought, except what requests have computed again."""
        if not ack.succeeded:
            return
        nodes = self._last_nodes(ongoing.node, ongoing.tokens)
        duplicates = [NO_TOKENS]
        for node, part in zip(nodes, _parts(nodes, ack.operation.device_indices), strict=True):
            if node.evicted:
                self._set_device_value(node, part.copy())
            else:
                duplicates.append(part)
        self.cache_controller.evict_device(np.concatenate(duplicates))

    def _take_or_free(self, path: list[TreeNode], value: IntArray, start: int) -> None:
        """Evicted nodes get the KV that was computed again; what the device has is freed."""
        offset = 0
        for node in path:
            end = offset + len(node.key)
            if node.evicted:
                kept = value[offset:end].copy()
                self.token_to_kv_pool_allocator.transfer(kept, REQ, TREE)
                self._set_device_value(node, kept)
            else:
                self._free_duplicates(value, max(start, offset), end)
            offset = end

    def _is_leaf(self, node: TreeNode) -> bool:
        """Whether no node below has device slots."""
        return not node.evicted and all(child.evicted for child in node.children.values())

    def _remove_below(self, leaf: TreeNode) -> None:
        """Take what the host has below a node that goes: nobody could reach it any more."""
        below = list(leaf.children.values())
        for node in below:
            below += node.children.values()
        for node in reversed(below):
            self._remove_host_leaf(node)

    def _evict_host_leaf(self, leaf: TreeNode) -> None:
        self._note_host_leaf(self._remove_host_leaf(leaf))

    def _remove_host_leaf(self, leaf: TreeNode) -> TreeNode:
        """Take an evicted leaf and its host slots out of the tree; its parent."""
        self.events.host_evictions += 1
        self._evictable_host_leaves.discard(leaf)
        self._free_host(leaf)
        return self._unlink_from_parent(leaf)

    def _free_host(self, node: TreeNode) -> None:
        host_value = _host_value(node)
        node.host_value = None
        self._host_size -= len(host_value)
        self.cache_controller.evict_host(host_value)

    def _is_host_protected(self, node: TreeNode) -> bool:
        """Whether a load reads the host slots of ``node``."""
        return node.host_ref_counter > 0 or node.mamba_host_ref_counter > 0

    def _protect_host(self, nodes: Iterable[TreeNode]) -> None:
        for node in nodes:
            if node.host_ref_counter == 0:
                self._host_protected_size += len(node.key)
            node.host_ref_counter += 1

    def _release_host(self, nodes: Iterable[TreeNode]) -> None:
        for node in nodes:
            assert node.host_ref_counter > 0, f"{node} is not protected on the host"
            node.host_ref_counter -= 1
            if node.host_ref_counter == 0:
                self._host_protected_size -= len(node.key)

    def _evicted_path(self, node: TreeNode) -> list[TreeNode]:
        """The evicted nodes down to ``node``, from the top."""
        path = []
        while node.evicted:
            path.append(node)
            assert node.parent is not None
            node = node.parent
        return path[::-1]

    def _last_nodes(self, node: TreeNode, tokens: int) -> list[TreeNode]:
        """The nodes that have the last ``tokens`` tokens down to the end of ``node``, in order."""
        nodes = []
        while tokens > 0:
            nodes.append(node)
            tokens -= len(node.key)
            assert node.parent is not None
            node = node.parent
        assert tokens == 0, "a transfer covers whole nodes"
        return nodes[::-1]

    def _split_host_part(self, upper: TreeNode, lower: TreeNode) -> None:
        upper.host_ref_counter = lower.host_ref_counter
        if lower.host_value is not None:
            tokens = len(upper.key)
            upper.host_value = lower.host_value[:tokens].copy()
            lower.host_value = lower.host_value[tokens:].copy()

    def _check_value(self, node: TreeNode) -> None:
        if node.host_value is not None and len(node.host_value) != len(node.key):
            raise CacheSanityError("a node's tokens and host slots differ in number", [node.id])
        if not node.evicted:
            super()._check_value(node)
            if node.parent is not None and node.parent.evicted:
                raise CacheSanityError("a node is below an evicted one", [node.id])
        elif node.host_value is None or node.full_lock_ref:
            raise CacheSanityError("an evicted node is locked, or nowhere", [node.id])

    def _check_host(self, nodes: list[TreeNode]) -> None:
        """Raise CacheSanityError where the host's part of ``nodes`` and its account disagree."""
        known = {node.id for node in nodes}
        gone = [node.id for node, *_ in self.ongoing_load_back.values() if node.id not in known]
        if gone:
            raise CacheSanityError("nodes went while they were being loaded", gone)
        leaves = {node.id for node in nodes if node.evicted and not node.children}
        queued = {node.id for node in self._evictable_host_leaves}
        if leaves != queued:
            raise CacheSanityError(
                "evictable host leaves: not what the tree says", sorted(leaves ^ queued)
            )
        backed_up = [node for node in nodes if node.host_value is not None]
        held = sum(len(node.key) for node in backed_up)
        protected = sum(len(node.key) for node in backed_up if node.host_ref_counter)
        if (held, protected) != (self._host_size, self._host_protected_size):
            raise CacheSanityError(
                f"nodes hold {held} host tokens, {protected} of them protected; "
                f"counted are {self._host_size} and {self._host_protected_size}"
            )


def _host_value(node: TreeNode) -> IntArray:
    assert node.host_value is not None, f"{node} has no host slots"
    return node.host_value


def _parts(nodes: list[TreeNode], indices: IntArray) -> list[IntArray]:
    """``indices``, one for each token of ``nodes``, by node."""
    ends = np.cumsum([len(node.key) for node in nodes])
    return [indices[end - len(node.key) : end] for node, end in zip(nodes, ends, strict=True)]
