"""Moves KV between the device pool and the host pool, and keeps the account of what is on its way.

States and windows, which have pools of their own, go with the KV or without any.  A transfer holds
the slots it fills, as HOST, until it has ended: those of the host in a write, those of the device
in a load.  A copy that succeeds passes them on to the tree; one that fails gives them back, and
what was copied from stays as it was.

Source: SGLang's HiCacheController and HybridCacheController; what the former does with a storage
backend is in storage_controller.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from hybridbench.engine.memory.extra_pools import (
    Account,
    ExtraPool,
    PoolTransfer,
    Source,
    alloc_for,
    give_back,
    target_of,
)
from hybridbench.engine.memory.host_pool import MHATokenToKVPoolHost
from hybridbench.engine.memory.indices import IntArray
from hybridbench.engine.memory.owners import HOST, TREE
from hybridbench.engine.memory.pages import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
from hybridbench.engine.memory.transfers import Finished, Transfers


@dataclass(frozen=True, slots=True, eq=False)
class CacheOperation:
    """One transfer of the KV of one run of tokens, which may be empty, and of what goes with it.

    Attributes:
        number: a count of transfers.
        host_indices, device_indices: where its tokens are in either pool, in order.
        node_id: the deepest node.
        is_load: from the host to the device; the other way round otherwise.
        started_at: how often the controller had been polled when it began.
        extra_pools: what it copies of other pools.
    """

    number: int
    host_indices: IntArray
    device_indices: IntArray
    node_id: int
    is_load: bool
    started_at: int
    extra_pools: tuple[PoolTransfer, ...] = ()

    def of(self, pool: ExtraPool) -> PoolTransfer | None:
        """What it copies of ``pool``, if anything."""
        return next((part for part in self.extra_pools if part.pool is pool), None)


class HiCacheAck(NamedTuple):
    """The answer to a transfer, which is to be given to ``settle``."""

    operation: CacheOperation
    succeeded: bool


class HiCacheController:
    """Starts transfers, and queues an answer to each.

    Attributes:
        mem_pool_device_allocator: the account of the device pool.
        mem_pool_host: the host pool and its account.
        ack_write_queue, ack_load_queue: answers that nobody has taken yet.
        late_acks: transfers that were not over at the first poll after their start.
        failures: transfers that failed.
    """

    def __init__(
        self,
        token_to_kv_pool_allocator: TokenToKVPoolAllocator | PagedTokenToKVPoolAllocator,
        mem_pool_host: MHATokenToKVPoolHost,
        transfers: Transfers,
    ) -> None:
        """``transfers`` runs the copies; the allocator must have been given its pool."""
        device_pool = token_to_kv_pool_allocator.get_kvcache()
        if device_pool is None:
            raise ValueError("a host tier needs the device pool that it copies from")
        self.mem_pool_device_allocator = token_to_kv_pool_allocator
        self.mem_pool_device = device_pool
        self.mem_pool_host = mem_pool_host
        self.ack_write_queue: deque[HiCacheAck] = deque()
        self.ack_load_queue: deque[HiCacheAck] = deque()
        self.late_acks = 0
        self.failures = 0
        self._transfers = transfers
        self._ongoing: dict[int, CacheOperation] = {}
        self._last_number = 0
        self._polls = 0

    def write(
        self, device_indices: IntArray, node_id: int, extra_pools: Sequence[Source] = ()
    ) -> CacheOperation | None:
        """Copy KV, and slots of the device in other pools, to the host.

        None, and nothing begun, if a pool there has too little room.  The caller keeps what is
        read from being freed until the answer has come.
        """
        extra = alloc_for(extra_pools, is_load=False)
        if extra is None:
            return None
        host_indices = self.mem_pool_host.alloc(len(device_indices))
        if host_indices is None:
            give_back(extra, is_load=False)
            return None
        return self._start(host_indices, device_indices, node_id, extra, is_load=False)

    def load(
        self, host_indices: IntArray, node_id: int, extra_pools: Sequence[Source] = ()
    ) -> CacheOperation | None:
        """Copy KV, and slots of the host in other pools, to the device.

        None, and nothing begun, if a pool there has too little room.  The caller keeps what is
        read from being freed until the answer has come.
        """
        extra = alloc_for(extra_pools, is_load=True)
        if extra is None:
            return None
        device_indices = self.mem_pool_device_allocator.alloc_full(len(host_indices), HOST)
        if device_indices is None:
            give_back(extra, is_load=True)
            return None
        return self._start(host_indices, device_indices, node_id, extra, is_load=True)

    def poll(self) -> None:
        """Queue the answers to the transfers that have ended; waits for none."""
        self._polls += 1
        self._acknowledge(self._transfers.finished())

    def wait(self) -> None:
        """The same after waiting for all of them."""
        self._acknowledge(self._transfers.wait())

    def settle(self, ack: HiCacheAck) -> None:
        """Pass the slots that a transfer filled on to the tree, or give them back if it failed."""
        operation = ack.operation
        del self._ongoing[operation.number]
        filled: list[tuple[Account, IntArray]] = [
            target_of(part, is_load=operation.is_load) for part in operation.extra_pools
        ]
        if operation.is_load:
            filled.append((self.mem_pool_device_allocator, operation.device_indices))
        else:
            filled.append((self.mem_pool_host.allocator, operation.host_indices))
        for account, slots in filled:
            if ack.succeeded:
                account.transfer(slots, HOST, TREE)
            else:
                account.free(slots, HOST)

    def evict_device(self, device_indices: IntArray) -> None:
        """Free what the tree has in the device pool."""
        self.mem_pool_device_allocator.free(device_indices, TREE)

    def evict_host(self, host_indices: IntArray) -> None:
        """Free what the tree has in the host pool."""
        self.mem_pool_host.free(host_indices, TREE)

    def ongoing(self) -> list[CacheOperation]:
        """The transfers that are not settled, oldest first."""
        return list(self._ongoing.values())

    def loading_size(self) -> int:
        """Device tokens that loads are to fill."""
        return sum(len(ongoing.device_indices) for ongoing in self.ongoing() if ongoing.is_load)

    def writing_size(self) -> int:
        """Host tokens that writes are to fill."""
        return sum(len(ongoing.host_indices) for ongoing in self.ongoing() if not ongoing.is_load)

    def in_flight(self, pool: ExtraPool, *, is_load: bool) -> list[int]:
        """Slots of an extra pool that loads are to fill on the device, or writes on the host."""
        parts = [ongoing.of(pool) for ongoing in self.ongoing() if ongoing.is_load == is_load]
        return [
            slot
            for part in parts
            if part is not None
            for slot in target_of(part, is_load=is_load)[1].tolist()
        ]

    def __len__(self) -> int:
        return len(self._ongoing)

    def _start(
        self,
        host_indices: IntArray,
        device_indices: IntArray,
        node_id: int,
        extra_pools: tuple[PoolTransfer, ...],
        *,
        is_load: bool,
    ) -> CacheOperation:
        self._last_number += 1
        operation = CacheOperation(
            self._last_number,
            host_indices,
            device_indices,
            node_id,
            is_load,
            self._polls,
            extra_pools,
        )
        self._ongoing[operation.number] = operation
        copy = self._copy_to_device if is_load else self._copy_to_host
        self._transfers.start(operation.number, partial(copy, operation))
        return operation

    def _copy_to_host(self, operation: CacheOperation) -> None:
        self.mem_pool_host.backup_from_device_all_layer(
            self.mem_pool_device, operation.host_indices, operation.device_indices
        )
        for pool, host_slots, device_slots in operation.extra_pools:
            pool.copy_to_host(host_slots, device_slots)

    def _copy_to_device(self, operation: CacheOperation) -> None:
        self.mem_pool_host.load_to_device_all_layer(
            self.mem_pool_device, operation.host_indices, operation.device_indices
        )
        for pool, host_slots, device_slots in operation.extra_pools:
            pool.copy_to_device(host_slots, device_slots)

    def _acknowledge(self, finished: list[Finished]) -> None:
        for number, error in finished:
            operation = self._ongoing[number]
            self.late_acks += self._polls > operation.started_at + 1
            self.failures += bool(error)
            queue = self.ack_load_queue if operation.is_load else self.ack_write_queue
            queue.append(HiCacheAck(operation, not error))
