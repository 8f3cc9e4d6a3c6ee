"""Copy KV between the device pool and the host pool, and keep track of transfers in flight.

States and windows have their own pools and are copied with the KV or alone.  Until a transfer has
ended, the slots that it fills belong to HOST: host slots in a write, device slots in a load.  After
a successful copy they belong to the tree; after a failed one they are freed, and the source is
unchanged.

Source: SGLang's HiCacheController and HybridCacheController.  The storage backend of the former is
in ``storage_controller.py``.
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
    """One transfer: the KV of one run of tokens, which may be empty, and slots of other pools.

    Attributes:
        number: a sequence number.
        host_indices, device_indices: the positions of its tokens in either pool, in order.
        node_id: the id of the deepest node.
        is_load: whether it copies from host to device instead of device to host.
        started_at: the number of polls that the controller had made when it began.
        extra_pools: the slots of other pools that it copies.
    """

    number: int
    host_indices: IntArray
    device_indices: IntArray
    node_id: int
    is_load: bool
    started_at: int
    extra_pools: tuple[PoolTransfer, ...] = ()

    def of(self, pool: ExtraPool) -> PoolTransfer | None:
        """The transfer's part in ``pool``, if any."""
        return next((part for part in self.extra_pools if part.pool is pool), None)


class HiCacheAck(NamedTuple):
    """The acknowledgement of a finished transfer, to be passed to ``settle``."""

    operation: CacheOperation
    succeeded: bool


class HiCacheController:
    """Starts transfers, and queues an acknowledgement of each.

    Attributes:
        mem_pool_device_allocator: the allocator of the device pool.
        mem_pool_host: the host pool and its allocator.
        ack_write_queue, ack_load_queue: acknowledgements not yet taken.
        late_acks: transfers that had not ended by the first poll after their start.
        failures: transfers that failed.
        failure: the error of the first failed transfer; empty if none failed.
    """

    def __init__(
        self,
        token_to_kv_pool_allocator: TokenToKVPoolAllocator | PagedTokenToKVPoolAllocator,
        mem_pool_host: MHATokenToKVPoolHost,
        transfers: Transfers,
    ) -> None:
        """``transfers`` runs the copies; the allocator must have a pool."""
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
        self.failure = ""
        self._transfers = transfers
        self._ongoing: dict[int, CacheOperation] = {}
        self._last_number = 0
        self._polls = 0

    def write(
        self, device_indices: IntArray, node_id: int, extra_pools: Sequence[Source] = ()
    ) -> CacheOperation | None:
        """Start copying KV, and device slots of other pools, to the host.

        Return None, and start nothing, if a host pool has too little room.  The caller must keep
        the source slots allocated until the acknowledgement.
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
        """Start copying KV, and host slots of other pools, to the device.

        Return None, and start nothing, if a device pool has too little room.  The caller must keep
        the source slots allocated until the acknowledgement.
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
        """Queue acknowledgements of the transfers that have ended, without waiting."""
        self._polls += 1
        self._acknowledge(self._transfers.finished())

    def wait(self) -> None:
        """Wait for all transfers, then queue their acknowledgements."""
        self._acknowledge(self._transfers.wait())

    def settle(self, ack: HiCacheAck) -> None:
        """Pass the slots that a transfer filled to the tree, or free them if it failed."""
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
        """Free device slots that the tree owns."""
        self.mem_pool_device_allocator.free(device_indices, TREE)

    def evict_host(self, host_indices: IntArray) -> None:
        """Free host slots that the tree owns."""
        self.mem_pool_host.free(host_indices, TREE)

    def ongoing(self) -> list[CacheOperation]:
        """The transfers not yet settled, oldest first."""
        return list(self._ongoing.values())

    def loading_size(self) -> int:
        """Device tokens reserved for loads."""
        return sum(len(ongoing.device_indices) for ongoing in self.ongoing() if ongoing.is_load)

    def writing_size(self) -> int:
        """Host tokens reserved for writes."""
        return sum(len(ongoing.host_indices) for ongoing in self.ongoing() if not ongoing.is_load)

    def in_flight(self, pool: ExtraPool, *, is_load: bool) -> list[int]:
        """Slots of an extra pool reserved for loads on the device, or for writes on the host."""
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
            self.failure = self.failure or error
            queue = self.ack_load_queue if operation.is_load else self.ack_write_queue
            queue.append(HiCacheAck(operation, not error))
