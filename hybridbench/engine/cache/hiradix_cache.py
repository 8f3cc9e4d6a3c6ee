"""The prefix tree of attention-only models with a host tier behind the device pool.

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

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from hybridbench.engine.cache.base import (
    CacheInitParams,
    CacheSanityError,
    EvictParams,
    InsertParams,
    MatchResult,
    TreeSlots,
)
from hybridbench.engine.cache.eviction_queue import RecencyQueue
from hybridbench.engine.cache.radix_cache import RadixCache
from hybridbench.engine.cache.radix_key import RadixKey
from hybridbench.engine.cache.tree import join
from hybridbench.engine.cache.tree_node import NO_TOKENS, TreeNode
from hybridbench.engine.memory.hicache_controller import HiCacheController
from hybridbench.engine.memory.indices import IntArray
from hybridbench.engine.memory.owners import REQ, TREE
from hybridbench.engine_config import HiCacheWritePolicy

# Inserts that must have used a node before its KV is written to the host.
_WRITE_THROUGH_THRESHOLDS = {"write_through": 1, "write_through_selective": 2}


class Ongoing(NamedTuple):
    """A transfer of the last ``tokens`` tokens down to the end of ``node``.

    ``locked`` is the node whose lock it holds.
    """

    node: TreeNode
    tokens: int
    locked: TreeNode


class HiRadixCache(RadixCache):
    """A RadixCache that backs up nodes, evicts in two stages, and loads back.

    Attributes:
        cache_controller: runs the transfers.
        write_policy: "write_through" writes a node when an insert uses it, the selective kind at
            the second, "write_back" when its device slots are to be evicted, waiting for the copy.
        ongoing_write_through, ongoing_load_back: transfers by the id of their deepest node.
        load_back_tokens: those that loads have brought back.
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

    def reset(self) -> None:
        assert len(self.cache_controller) == 0, "a reset would pull nodes from under transfers"
        super().reset()
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
        """Give nodes the host slots that were written for them, and their locks back."""
        acks = self.cache_controller.ack_write_queue
        while acks:
            ack = acks.popleft()
            self.cache_controller.settle(ack)
            node, tokens, locked = self.ongoing_write_through.pop(ack.operation.node_id)
            if ack.succeeded:
                self._attach_host(self._last_nodes(node, tokens), ack.operation.host_indices)
            self.dec_lock_ref(locked)

    def loading_check(self) -> None:
        """Give nodes the device slots that were loaded for them, and their protection back."""
        acks = self.cache_controller.ack_load_queue
        while acks:
            ack = acks.popleft()
            self.cache_controller.settle(ack)
            node, tokens, locked = self.ongoing_load_back.pop(ack.operation.node_id)
            nodes = self._last_nodes(node, tokens)
            self._release_host(nodes)
            if ack.succeeded:
                self.events.host_load_backs += 1
                self.events.host_load_back_tokens += tokens
                duplicates = self._attach_device(nodes, ack.operation.device_indices)
                if len(duplicates):
                    self.cache_controller.evict_device(duplicates)
            self.dec_lock_ref(locked)

    def write_backup(self, node: TreeNode) -> bool:
        """Start to copy a node's KV to the host; False if even evictions make no room there."""
        operation = self.cache_controller.write(node.value, node.id)
        if operation is None:
            missing = len(node.value) - self.cache_controller.mem_pool_host.available_size()
            self.evict_host(missing)
            operation = self.cache_controller.write(node.value, node.id)
        if operation is None:
            return False
        self.inc_lock_ref(node)
        self.ongoing_write_through[node.id] = Ongoing(node, len(node.value), node)
        return True

    def is_loading(self, last_host_node: TreeNode) -> bool:
        """Whether a load reads one of the evicted nodes down to ``last_host_node``."""
        return any(node.host_ref_counter for node in self._evicted_path(last_host_node))

    def load_back(self, last_host_node: TreeNode) -> bool:
        """Start to copy the KV of the evicted nodes down to ``last_host_node`` to the device.

        None of them may be loading.  False if even evictions make no room there.
        """
        evicted = self._evicted_path(last_host_node)
        node, ancestor = evicted[-1], evicted[0].parent
        assert ancestor is not None
        host_indices = np.concatenate([_host_value(part) for part in evicted])
        # First: the room for the load may come from evictions, which may want room on the host.
        self._protect_host(evicted)
        self.inc_lock_ref(ancestor)
        operation = self.cache_controller.load(host_indices, node.id)
        if operation is None:
            missing = len(host_indices) - self.token_to_kv_pool_allocator.available_size()
            self.evict(EvictParams(num_tokens=missing))
            operation = self.cache_controller.load(host_indices, node.id)
        if operation is None:
            self._release_host(evicted)
            self.dec_lock_ref(ancestor)
            return False
        self.ongoing_load_back[node.id] = Ongoing(node, len(host_indices), ancestor)
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

    def sanity_check(self) -> None:
        super().sanity_check()
        nodes = list(self.iter_nodes())
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

    def _start_host_tier(self) -> None:
        self._host_size = 0
        self._host_protected_size = 0
        self._evictable_host_leaves = RecencyQueue()

    def _match(self, key: RadixKey) -> MatchResult:
        """As far as the device has it, and how much further the host has."""
        path = self._walk(key.page_aligned(self.page_size)).path
        if not path:
            return self._no_match()
        self._stamp_path(path)
        self._evictable_host_leaves.touch(path[-1])
        on_device = [node for node in path if not node.evicted]
        last = on_device[-1] if on_device else self.root_node
        self._evictable_leaves.touch(last)
        host_hit_length = sum(len(node.key) for node in path[len(on_device) :])
        indices = join(on_device)
        return MatchResult(indices, last, path[-1], None, len(indices), host_hit_length)

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

    def _after_insert(self, path: list[TreeNode], params: InsertParams) -> None:
        if params.chunked or self.write_policy == "write_back":
            return
        threshold = _WRITE_THROUGH_THRESHOLDS[self.write_policy]
        for node in path:
            is_written = node.host_value is not None or node.id in self.ongoing_write_through
            if not is_written and node.hit_count >= threshold and not self.write_backup(node):
                # Below a node that the host does not have, its copies would go with the node.
                break

    def _is_leaf(self, node: TreeNode) -> bool:
        """Whether no node below has device slots."""
        return not node.evicted and all(child.evicted for child in node.children.values())

    def _evict_leaf(self, leaf: TreeNode, freed: list[IntArray]) -> None:
        if leaf.host_value is None and self.write_policy == "write_back":
            self._write_back(leaf)
        if leaf.host_value is None:
            self._evict_regular(leaf, freed)
        else:
            self._evict_backuped(leaf, freed)

    def _write_back(self, leaf: TreeNode) -> None:
        """Write a leaf that is about to go, and wait; it may be without a copy all the same."""
        if self.write_backup(leaf):
            self.cache_controller.wait()
            self.writing_check()
            self.loading_check()

    def _evict_backuped(self, leaf: TreeNode, freed: list[IntArray]) -> None:
        """The device slots go, the node stays for its host slots."""
        self.events.host_stays += 1
        freed.append(leaf.value)
        self.full_evictable_size_ -= len(leaf.value)
        self._evictable_leaves.discard(leaf)
        leaf.value = NO_TOKENS
        if not leaf.children:
            self._evictable_host_leaves.add(leaf)
        assert leaf.parent is not None
        self._note_leaf(leaf.parent)

    def _evict_regular(self, leaf: TreeNode, freed: list[IntArray]) -> None:
        """The node goes, and what the host has below it, which nobody could reach any more."""
        below = list(leaf.children.values())
        for node in below:
            below += node.children.values()
        for node in reversed(below):
            self._evict_host_leaf(node)
        super()._evict_leaf(leaf, freed)

    def _evict_host_leaf(self, leaf: TreeNode) -> None:
        assert leaf.host_ref_counter == 0, f"{leaf} is being loaded"
        self.events.host_evictions += 1
        host_value = _host_value(leaf)
        self._evictable_host_leaves.discard(leaf)
        parent = self._unlink_from_parent(leaf)
        leaf.host_value = None
        self._host_size -= len(host_value)
        self.cache_controller.evict_host(host_value)
        if parent.evicted and not parent.children:
            self._evictable_host_leaves.add(parent)

    def _is_host_protected(self, leaf: TreeNode) -> bool:
        """Whether a load reads the host slots of ``leaf``."""
        return leaf.host_ref_counter > 0

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

    def _attach_host(self, nodes: list[TreeNode], host_indices: IntArray) -> None:
        """Nodes that were split meanwhile may have been written a second time."""
        self.events.host_backups += 1
        for node, part in zip(nodes, _parts(nodes, host_indices), strict=True):
            if node.host_value is None:
                node.host_value = part.copy()
                self._host_size += len(part)
            else:
                self.cache_controller.evict_host(part)

    def _attach_device(self, nodes: list[TreeNode], device_indices: IntArray) -> IntArray:
        """What of ``device_indices`` is not wanted: a request has computed those tokens again."""
        duplicates = [NO_TOKENS]
        for node, part in zip(nodes, _parts(nodes, device_indices), strict=True):
            if node.evicted:
                self._set_device_value(node, part.copy())
            else:
                duplicates.append(part)
        return np.concatenate(duplicates)

    def _set_device_value(self, node: TreeNode, value: IntArray) -> None:
        """An evicted node, below one that is not, has device slots again."""
        assert node.parent is not None
        node.value = value
        self.full_evictable_size_ += len(value)
        self._evictable_host_leaves.discard(node)
        self._evictable_leaves.discard(node.parent)
        self._note_leaf(node)

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

    def _after_split(self, upper: TreeNode, lower: TreeNode) -> None:
        super()._after_split(upper, lower)
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


def _host_value(node: TreeNode) -> IntArray:
    assert node.host_value is not None, f"{node} has no host slots"
    return node.host_value


def _parts(nodes: list[TreeNode], indices: IntArray) -> list[IntArray]:
    """``indices``, one for each token of ``nodes``, by node."""
    return np.split(indices, np.cumsum([len(node.key) for node in nodes])[:-1])
