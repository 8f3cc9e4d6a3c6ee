"""The common part of the prefix trees with a host tier: transfers, host slots, host eviction.

A node is *backed up* once the host pool also has its KV.  When its device slots are needed, the
node is *evicted*: it stays in the tree without them, and a request that hits it waits until its KV
has been loaded back.  On every path from the root, the nodes with device slots come first, and all
nodes below them are evicted.

Transfers run in parallel to the steps.  Until ``check_hicache_events`` has processed a transfer's
acknowledgement, its source is protected: a write holds a lock on its node; a load holds a lock on
the node above its run, and a reference on the run's host slots.  Splitting a node does not change
this: both halves have the locks, and a transfer's tokens are assigned to the nodes that have them
when it ends.

A node's slots in other pools are copied with its KV or alone (``host_part.py``).

Source: SGLang's HiRadixCache.  There, a step waits for loads layer by layer; here, a request joins
a step only after its load.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Iterable, Sequence
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
from hybridbench.engine.cache.host_part import HostPart, Run, last_nodes
from hybridbench.engine.cache.tree import PrefixTree
from hybridbench.engine.cache.tree_node import NO_TOKENS, TreeNode
from hybridbench.engine.lineage import loaded_back
from hybridbench.engine.memory.hicache_controller import CacheOperation, HiCacheController
from hybridbench.engine.memory.indices import IntArray
from hybridbench.engine.memory.owners import REQ, TREE
from hybridbench.foundation.engine_config import HiCacheWritePolicy

# Number of inserts that must have used a node before it is written to the host.
_WRITE_THROUGH_THRESHOLDS = {"write_through": 1, "write_through_selective": 2}


class Ongoing(NamedTuple):
    """A transfer of the KV of a run of tokens, with slots of other pools.

    Attributes:
        run: the tokens whose KV it copies.
        locked: the node whose lock it holds.
        receipt: releases that lock.
        loads: for a load, the runs to copy for each part in ``host_parts``.
    """

    run: Run
    locked: TreeNode
    receipt: DecLockRefParams
    loads: tuple[list[Run], ...] = ()


class HostTier(PrefixTree):
    """The part of a tree that backs up nodes, evicts from the host, and loads back.

    Attributes:
        cache_controller: runs the transfers.
        write_policy: "write_through" writes a node when an insert uses it,
            "write_through_selective" on the second use, and "write_back" before its device slots
            are evicted, waiting for the copy.
        ongoing_write_through, ongoing_load_back: transfers by the id of their deepest node.
        host_parts: what the host holds of nodes besides their KV.
    """

    def __init__(
        self,
        params: CacheInitParams,
        cache_controller: HiCacheController,
        write_policy: HiCacheWritePolicy = "write_through",
        host_parts: Sequence[HostPart] = (),
    ) -> None:
        super().__init__(params)
        self.cache_controller = cache_controller
        self.host_parts = tuple(host_parts)
        self.write_policy = write_policy
        self.ongoing_write_through: dict[int, Ongoing] = {}
        self.ongoing_load_back: dict[int, Ongoing] = {}
        self._start_host_tier()

    @property
    def has_transfers(self) -> bool:
        """Whether any transfer is in flight."""
        return len(self.cache_controller) > 0

    def host_evictable_size(self) -> int:
        """Host tokens of nodes whose host slots no transfer reads."""
        return self._host_size - self._host_protected_size

    def host_protected_size(self) -> int:
        """Host tokens of nodes whose host slots a transfer reads."""
        return self._host_protected_size

    def transfer_locks(self) -> list[tuple[TreeNode, DecLockRefParams]]:
        """The locks that transfers hold: the node and the receipt of each."""
        ongoing = (*self.ongoing_write_through.values(), *self.ongoing_load_back.values())
        return [(transfer.locked, transfer.receipt) for transfer in ongoing]

    def tree_slots(self) -> TreeSlots:
        nodes = list(self.iter_nodes())
        backed_up = [node.host_value for node in nodes if node.host_value is not None]
        return (
            super()
            .tree_slots()
            ._replace(
                host_indices=np.concatenate([NO_TOKENS, *backed_up]),
                host_slots={
                    part.name: [slot for node in nodes for slot in part.host_slots(node).tolist()]
                    for part in self.host_parts
                },
            )
        )

    def check_hicache_events(self) -> None:
        """Collect acknowledgements of finished transfers, without waiting; called once a step."""
        if len(self.cache_controller):
            self.cache_controller.poll()
            self.writing_check()
            self.loading_check()

    def writing_check(self) -> None:
        """Attach finished writes to their nodes on the host, and release the locks."""
        acks = self.cache_controller.ack_write_queue
        while acks:
            ack = acks.popleft()
            self.cache_controller.settle(ack)
            ongoing = self.ongoing_write_through.pop(ack.operation.node_id)
            if ack.succeeded:
                self._attach_written(ongoing, ack.operation)
            else:
                self._writes_missed += 1
            self.dec_lock_ref(ongoing.locked, ongoing.receipt)

    def loading_check(self) -> None:
        """Attach finished loads to their nodes on the device, and release the protection."""
        acks = self.cache_controller.ack_load_queue
        while acks:
            ack = acks.popleft()
            self.cache_controller.settle(ack)
            ongoing = self.ongoing_load_back.pop(ack.operation.node_id)
            self._check_loaded(ongoing, ack.operation)
            self._release_host(last_nodes(ongoing.run), ongoing.loads)
            if ack.succeeded:
                self.events.host_load_backs += 1
                self.events.host_load_back_tokens += ongoing.run.tokens
                self._take_loaded(ongoing, ack.operation)
            self.dec_lock_ref(ongoing.locked, ongoing.receipt)

    def write_backup(self, node: TreeNode) -> bool:
        """Start copying what the host lacks of a node; False if even evictions make no room."""
        # Lock first: evictions from the host may remove nodes above it that have become useless.
        receipt = self._lock_for_transfer(node)
        operation = self._start_write(node)
        if operation is None:
            self._make_host_room(node)
            operation = self._start_write(node)
        if operation is None:
            self.events.host_writes_refused += 1
            self._writes_missed += 1
            self._check_refused_write(node)
            self.dec_lock_ref(node, receipt)
            return False
        run = Run(node, len(operation.device_indices))
        self.ongoing_write_through[node.id] = Ongoing(run, node, receipt)
        return True

    def is_loading(self, last_host_node: TreeNode) -> bool:
        """Whether a load in flight covers some of what the device lacks of ``last_host_node``."""
        if last_host_node.id in self.ongoing_load_back:
            return True
        loading = {
            node.id
            for ongoing in self.ongoing_load_back.values()
            for node in last_nodes(ongoing.run)
        }
        return any(node.id in loading for node in self._evicted_path(last_host_node)) or any(
            part.is_protected(node)
            for part in self.host_parts
            for run in part.to_load(last_host_node)
            for node in part.nodes_of(run)
        )

    def load_back(self, last_host_node: TreeNode) -> bool:
        """Start copying to the device what it lacks of the path to ``last_host_node``.

        None of it may be loading already.  Return False if even evictions make no room on the
        device, or if the tree has lost the node since the match.  The latter may happen with
        ``write_back``: making room on the device writes nodes to the host, which may evict others
        there.
        """
        if not self._is_in_tree(last_host_node):
            return False
        evicted = self._evicted_path(last_host_node)
        ancestor = evicted[0].parent if evicted else last_host_node
        assert ancestor is not None
        run = Run(last_host_node, sum(len(node.key) for node in evicted))
        loads = tuple(part.to_load(last_host_node) for part in self.host_parts)
        # Protect first: evictions that make room for the load may need room on the host.
        self._protect_host(evicted, loads)
        receipt = self._lock_for_transfer(ancestor)
        operation = self._start_load(run, loads)
        refused_before = self.events.host_evictions_refused
        if operation is None:
            self._make_device_room(run, loads)
            operation = self._start_load(run, loads)
        if operation is None:
            self.events.host_loads_refused += 1
            if self.events.host_evictions_refused == refused_before:
                self._check_refused_load(run, loads)
            self._release_host(evicted, loads)
            self.dec_lock_ref(ancestor, receipt)
            return False
        self.ongoing_load_back[last_host_node.id] = Ongoing(run, ancestor, receipt, loads)
        return True

    def evict_host(self, num_tokens: int) -> int:
        """Free host slots of evicted leaves, oldest first; return the number of tokens."""
        evicted = 0
        victims = self._host_victims(self._evictable_host_leaves)
        while evicted < num_tokens and (leaf := next(victims, None)) is not None:
            evicted += len(leaf.key)
            self._evict_host_leaf(leaf)
        victims.close()
        return evicted

    def evict_host_part(self, part: HostPart, slots: int) -> int:
        """Free a part's slots, oldest first, evicting leaves whole; return the number of slots."""
        freed = 0
        victims = self._host_victims(part.queue)
        while freed < slots and (node := next(victims, None)) is not None:
            freed += part.slots_wanted(node)
            if node.evicted and not node.children:
                self._evict_host_leaf(node)
            else:
                part.free(node)
                self._lost_host_part(node)
        victims.close()
        return freed

    @abstractmethod
    def _set_device_value(self, node: TreeNode, value: IntArray) -> None:
        """Give device slots to an evicted node whose parent is not evicted."""

    @abstractmethod
    def _note_host_leaf(self, node: TreeNode) -> None:
        """Update after ``node`` lost a child that only the host had."""

    def _set_device_part(self, part: HostPart, node: TreeNode, device_slots: IntArray) -> None:
        """Give the missing ``part`` to a node on the device."""
        raise NotImplementedError(f"{type(self).__name__} has no {part.name}")

    def _lost_host_part(self, node: TreeNode) -> None:
        """Hook, called after a node that stays in the tree has lost a part on the host."""

    def _lock_for_transfer(self, node: TreeNode) -> DecLockRefParams:
        """Forbid the eviction of a node, with all its parts, and of the path to it."""
        return self.inc_lock_ref(node).to_dec_params()

    def _start_write(self, node: TreeNode) -> CacheOperation | None:
        """Start writing what the host lacks of ``node``; None without room there."""
        kv = node.value if node.host_value is None else NO_TOKENS
        wanted = [(part.pool, part.to_write(node)) for part in self.host_parts]
        extra_pools = [(pool, slots) for pool, slots in wanted if len(slots)]
        return self.cache_controller.write(kv, node.id, extra_pools)

    def _make_host_room(self, node: TreeNode) -> None:
        """Evict from the host to make room for a write of ``node``."""
        for part in self.host_parts:
            wanted = len(part.to_write(node))
            self.evict_host_part(part, wanted - part.pool.host_account.available_size())
        tokens = len(node.value) if node.host_value is None else 0
        self.evict_host(tokens - self.cache_controller.mem_pool_host.available_size())

    def _start_load(self, run: Run, loads: Sequence[list[Run]]) -> CacheOperation | None:
        """Start loading the KV of a run and the wanted parts; None without room."""
        extra_pools = [
            (
                part.pool,
                np.concatenate([part.host_slots(n) for r in runs for n in part.nodes_of(r)]),
            )
            for part, runs in zip(self.host_parts, loads, strict=True)
            if runs
        ]
        host_indices = [_host_value(node) for node in last_nodes(run)]
        return self.cache_controller.load(
            np.concatenate([NO_TOKENS, *host_indices]), run.node.id, extra_pools
        )

    def _make_device_room(self, run: Run, loads: Sequence[list[Run]]) -> None:
        """Evict from the device to make room for a load."""
        del loads
        missing = run.tokens - self.token_to_kv_pool_allocator.available_size()
        self.evict(EvictParams(num_tokens=max(0, missing)))

    def _check_refused_write(self, node: TreeNode) -> None:
        """Note a refused write of ``node`` if evictions from the host could have made room."""
        for part in self.host_parts:
            free = part.pool.host_account.available_size()
            self._check_refusal(part.name, len(part.to_write(node)), free, part.queue)
        self._check_refused_tokens(len(node.value) if node.host_value is None else 0)

    def _check_refused_tokens(self, tokens: int) -> None:
        """The same for ``tokens`` of KV on the host."""
        free = self.cache_controller.mem_pool_host.available_size()
        self._check_refusal("host_kv", tokens, free, self._evictable_host_leaves)

    def _check_refusal(self, pool: str, wanted: int, free: int, queue: RecencyQueue) -> None:
        if free < wanted and any(not self._is_host_protected(node) for node in queue):
            self._note_needless_refusal(pool, wanted, free)

    def _check_refused_load(self, run: Run, loads: Sequence[list[Run]]) -> None:
        """Note a refused load if evictions from the device could have made room."""
        evictable = {"swa": self.swa_evictable_size(), "mamba": self.mamba_evictable_size()}
        room = [
            (
                "kv",
                run.tokens,
                self.cache_controller.mem_pool_device_allocator.full_available_size(),
                self.evictable_size(),
            )
        ]
        for part, runs in zip(self.host_parts, loads, strict=True):
            wanted = sum(part.slots_wanted(node) for one in runs for node in part.nodes_of(one))
            free = part.pool.device_account.available_size()
            room.append((part.pool.name, wanted, free, evictable[part.pool.name]))
        if all(wanted <= free + more for _, wanted, free, more in room):
            for pool, wanted, free, _ in room:
                if free < wanted:
                    self._note_needless_refusal(pool, wanted, free)

    def _note_needless_refusal(self, pool: str, wanted: int, free: int) -> None:
        self._needless_refusals += 1
        if self._needless_refusals == 1:
            self._needless_refusal = f"{pool} pool: {wanted} slot(s) wanted, {free} free"

    def _host_victims(self, queue: RecencyQueue) -> Generator[TreeNode]:
        """Yield nodes that no transfer reads, oldest first; evict each before taking the next."""
        refused: list[TreeNode] = []
        try:
            while (node := queue.first()) is not None:
                if self._is_host_protected(node):
                    self.events.host_evictions_refused += 1
                    queue.discard(node)
                    refused.append(node)
                else:
                    yield node
        finally:
            for node in refused:
                queue.add(node)

    def _dismantle_nodes(self) -> None:
        assert not self.has_transfers, "a reset would pull nodes from under transfers"
        super()._dismantle_nodes()
        self._start_host_tier()

    def _start_host_tier(self) -> None:
        self._host_size = 0
        self._host_protected_size = 0
        self._evictable_host_leaves = RecencyQueue()
        # Counts for the checks: writes that were refused or failed; nodes that lost something of
        # which the host had no copy; nodes that lost KV that should have been written long before;
        # and transfers refused although evictions could have made room, with the first of these.
        self._writes_missed = 0
        self._lost_unwritten = 0
        self._never_written = 0
        self._needless_refusals = 0
        self._needless_refusal = ""
        for part in self.host_parts:
            part.start()

    def _write_through(self, path: list[TreeNode]) -> None:
        """Write the nodes of a path that enough inserts have used."""
        if self.write_policy == "write_back":
            return
        threshold = _WRITE_THROUGH_THRESHOLDS[self.write_policy]
        for node in path:
            is_written = self._is_backed_up(node) or node.id in self.ongoing_write_through
            if not is_written and node.hit_count >= threshold and not self.write_backup(node):
                # Without this node on the host, copies of the nodes below would be removed with it.
                break

    def _write_back(self, node: TreeNode) -> None:
        """Write a node that is about to be evicted, and wait; the write may be refused or fail."""
        is_written = self._is_backed_up(node) or node.id in self.ongoing_write_through
        if self.write_policy == "write_back" and not is_written and self.write_backup(node):
            self.cache_controller.wait()
            self.writing_check()
            self.loading_check()

    def _note_loss(self, node: TreeNode) -> None:
        """Count a node that loses its KV on the device if the host lacks a copy it should have."""
        self._note_lost_part(node)
        if self.write_policy == "write_back":
            return
        if node.hit_count >= _WRITE_THROUGH_THRESHOLDS[self.write_policy]:
            # The host may have evicted a copy of a state, but never evicts KV before the device.
            self._never_written += node.host_value is None

    def _note_lost_part(self, node: TreeNode) -> None:
        """Count a node that loses a part on the device without having been written back."""
        if self.write_policy == "write_back":
            self._lost_unwritten += not self._is_backed_up(node)

    def _is_backed_up(self, node: TreeNode) -> bool:
        """Whether the host has everything that exists of ``node``."""
        return node.host_value is not None and all(p.is_backed_up(node) for p in self.host_parts)

    def _attach_written(self, ongoing: Ongoing, operation: CacheOperation) -> None:
        self.events.host_backups += 1
        nodes = last_nodes(ongoing.run)
        for node, indices in zip(nodes, _by_node(nodes, operation.host_indices), strict=True):
            if node.host_value is None:
                node.host_value = self._clone_host_indices(indices)
                self._host_size += len(indices)
            else:
                # The node was split, and this half has been written a second time.
                self.cache_controller.evict_host(indices)
        for part in self.host_parts:
            written = operation.of(part.pool)
            if written is not None:
                part.attach_written(ongoing.run.node, written.host_slots)

    def _take_loaded(self, ongoing: Ongoing, operation: CacheOperation) -> None:
        """Attach what a load copied; free the slots of what requests have recomputed since."""
        nodes = last_nodes(ongoing.run)
        duplicates = [NO_TOKENS]
        for node, indices in zip(nodes, _by_node(nodes, operation.device_indices), strict=True):
            if node.evicted:
                node.writers = loaded_back(node.writers)
                self._set_device_value(node, indices.copy())
            else:
                duplicates.append(indices)
        self.cache_controller.evict_device(np.concatenate(duplicates))
        for part, runs in zip(self.host_parts, ongoing.loads, strict=True):
            loaded = operation.of(part.pool)
            if loaded is None:
                continue
            for node, slots in part.divide(runs, loaded.device_slots):
                if part.on_device(node):
                    part.pool.device_account.free(slots, TREE)
                else:
                    node.writers = loaded_back(node.writers)
                    self._set_device_part(part, node, slots)

    def _take_or_free(self, path: list[TreeNode], value: IntArray, start: int) -> None:
        """Give recomputed KV to evicted nodes, and free duplicates of what the device has."""
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
        """Whether the node is on the device and no node below it is."""
        return not node.evicted and all(child.evicted for child in node.children.values())

    def _remove_below(self, leaf: TreeNode) -> None:
        """Remove all nodes below ``leaf``, which will be removed: they would be unreachable."""
        self._note_loss(leaf)
        below = list(leaf.children.values())
        for node in below:
            below += node.children.values()
        for node in reversed(below):
            self._remove_host_leaf(node)

    def _evict_host_leaf(self, leaf: TreeNode) -> None:
        self._note_host_leaf(self._remove_host_leaf(leaf))

    def _remove_host_leaf(self, leaf: TreeNode) -> TreeNode:
        """Remove an evicted leaf and its host slots from the tree; return its parent."""
        self.events.host_evictions += 1
        self._evictable_host_leaves.discard(leaf)
        self._free_host(leaf)
        return self._unlink_from_parent(leaf)

    def _free_host(self, node: TreeNode) -> None:
        """Free all host slots of a node that will be removed; it must have KV on the host."""
        for part in self.host_parts:
            if part.has_value(node):
                part.free(node)
        host_value = _host_value(node)
        node.host_value = None
        self._host_size -= len(host_value)
        self.cache_controller.evict_host(host_value)

    def _is_host_protected(self, node: TreeNode) -> bool:
        """Whether a transfer reads the host slots of ``node``."""
        return node.host_ref_counter > 0 or any(p.is_protected(node) for p in self.host_parts)

    def _protect_host(self, nodes: Iterable[TreeNode], loads: Sequence[list[Run]] = ()) -> None:
        for node in nodes:
            if node.host_ref_counter == 0:
                self._host_protected_size += len(node.key)
            node.host_ref_counter += 1
        for part, runs in zip(self.host_parts, loads, strict=True):
            part.protect(runs)

    def _release_host(self, nodes: Iterable[TreeNode], loads: Sequence[list[Run]] = ()) -> None:
        for node in nodes:
            assert node.host_ref_counter > 0, f"{node} is not protected on the host"
            node.host_ref_counter -= 1
            if node.host_ref_counter == 0:
                self._host_protected_size -= len(node.key)
        for part, runs in zip(self.host_parts, loads, strict=True):
            part.release(runs)

    def _evicted_path(self, node: TreeNode) -> list[TreeNode]:
        """The evicted nodes on the path to ``node``, from the top."""
        path = []
        while node.evicted:
            path.append(node)
            assert node.parent is not None
            node = node.parent
        return path[::-1]

    def _split_host_part(self, upper: TreeNode, lower: TreeNode) -> None:
        upper.host_ref_counter = lower.host_ref_counter
        if lower.host_value is not None:
            tokens = len(upper.key)
            upper.host_value = self._clone_host_indices(lower.host_value[:tokens])
            lower.host_value = self._clone_host_indices(lower.host_value[tokens:])
        for part in self.host_parts:
            part.split(upper, lower)

    def _clone_host_indices(self, host_indices: IntArray) -> IntArray:
        """Copy ``host_indices`` for a node to keep.

        They are a view of the host's free list as it was when they were allocated; a node that kept
        the view would keep that whole list alive.
        """
        return host_indices.copy()

    def _check_value(self, node: TreeNode) -> None:
        if node.host_value is not None and len(node.host_value) != len(node.key):
            raise CacheSanityError("a node's tokens and host slots differ in number", [node.id])
        if not node.evicted:
            super()._check_value(node)
            if node.parent is not None and node.parent.evicted:
                raise CacheSanityError("a node is below an evicted one", [node.id])
        elif node.host_value is None or node.full_lock_ref:
            raise CacheSanityError("an evicted node is locked, or has no host slots", [node.id])

    def _check_loaded(self, ongoing: Ongoing, operation: CacheOperation) -> None:
        """Check the nodes before loaded slots are attached to them.

        Raises:
            CacheSanityError: the nodes, or the host slots that were read, were removed despite the
                load's references.
        """
        nodes = last_nodes(ongoing.run)
        gone = [node.id for node in nodes if not self._is_in_tree(node)]
        if gone:
            raise CacheSanityError("nodes were removed while being loaded", gone)
        for part, runs in zip(self.host_parts, ongoing.loads, strict=True):
            loaded = operation.of(part.pool)
            if loaded is None:
                continue
            for node, slots in part.divide(runs, loaded.host_slots):
                if not np.array_equal(part.host_slots(node), slots):
                    raise CacheSanityError(
                        f"{part.name}: host slots changed while being loaded", [node.id]
                    )

    def _is_in_tree(self, node: TreeNode) -> bool:
        parent = node.parent
        return parent is not None and (
            parent.children.get(self._child_key(parent, node.key)) is node
        )

    def _check_host(self, nodes: list[TreeNode]) -> None:
        """Raise CacheSanityError where the host's part of ``nodes`` and its account disagree."""
        known = {node.id for node in nodes}
        read = [ongoing.run.node.id for ongoing in self.ongoing_load_back.values()]
        gone = [node_id for node_id in read if node_id not in known]
        if gone:
            raise CacheSanityError("nodes were removed while being loaded", gone)
        leaves = {node.id for node in nodes if node.evicted and not node.children}
        queued = {node.id for node in self._evictable_host_leaves}
        if leaves != queued:
            raise CacheSanityError(
                "evictable host leaves: inconsistent with the tree", sorted(leaves ^ queued)
            )
        if misplaced := self._evictable_host_leaves.misplaced():
            raise CacheSanityError("evictable host leaves: out of order", misplaced)
        backed_up = [node for node in nodes if node.host_value is not None]
        held = sum(len(node.key) for node in backed_up)
        protected = sum(len(node.key) for node in backed_up if node.host_ref_counter)
        if (held, protected) != (self._host_size, self._host_protected_size):
            raise CacheSanityError(
                f"nodes hold {held} host tokens, {protected} of them protected; "
                f"the counters say {self._host_size} and {self._host_protected_size}"
            )
        for part in self.host_parts:
            part.sanity_check(nodes)
        self._check_work_done()

    def _check_work_done(self) -> None:
        """Raise CacheSanityError if the host tier has not done what its policy demands."""
        if self._needless_refusals:
            raise CacheSanityError(
                f"{self._needless_refusals} transfer(s) of the host tier were refused although "
                f"evictions could have made room (the first: {self._needless_refusal})"
            )
        if self._lost_unwritten > self._writes_missed:
            raise CacheSanityError(
                f"{self._lost_unwritten} node(s) lost KV or a state without a copy on the host, "
                f"but {self._writes_missed} write(s) were refused or failed"
            )
        if self._never_written and not self._writes_missed:
            raise CacheSanityError(
                f"{self._never_written} node(s) lost KV that was never written to the host, "
                "although no write was refused or failed"
            )


def _host_value(node: TreeNode) -> IntArray:
    assert node.host_value is not None, f"{node} has no host slots"
    return node.host_value


def _by_node(nodes: list[TreeNode], indices: IntArray) -> list[IntArray]:
    """Divide ``indices``, one for each token of ``nodes``, by node."""
    ends = np.cumsum([len(node.key) for node in nodes])
    return [indices[end - len(node.key) : end] for node, end in zip(nodes, ends, strict=True)]
