"""Moves KV between the device pool and the host pool, and keeps the account of what is on its way.

A transfer holds the slots it fills, as HOST, until it has ended: those of the host pool in a write,
those of the device pool in a load.  A copy that succeeds passes them on to the tree; one that fails
gives them back, and what was copied from stays as it was.

Source: SGLang's HiCacheController, without storage behind the host.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from hybridbench.engine.memory.host_pool import MHATokenToKVPoolHost
from hybridbench.engine.memory.indices import IntArray
from hybridbench.engine.memory.owners import HOST, TREE
from hybridbench.engine.memory.pages import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
from hybridbench.engine.memory.transfers import Copy, Finished, Transfers


class StateSlots(NamedTuple):
    """Where a state is in either pool."""

    host: int
    device: int


@dataclass(frozen=True, slots=True, eq=False)
class CacheOperation:
    """One transfer of the KV of one run of tokens.

    Attributes:
        number: a count of transfers.
        host_indices, device_indices: where its tokens are in either pool, in order.
        node_id: the deepest node of the run.
        is_load: from the host to the device; the other way round otherwise.
        started_at: how often the controller had been polled when it began.
        state_slots: where the state is that goes with the KV, if one does.
    """

    number: int
    host_indices: IntArray
    device_indices: IntArray
    node_id: int
    is_load: bool
    started_at: int
    state_slots: StateSlots | None = None


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

    def write(self, device_indices: IntArray, node_id: int) -> CacheOperation | None:
        """Copy to the host; None, and nothing begun, if the host pool has too little room.

        The caller keeps what is read from being freed until the answer has come.
        """
        host_indices = self.mem_pool_host.alloc(len(device_indices))
        if host_indices is None:
            return None
        backup = self.mem_pool_host.backup_from_device_all_layer
        copy = partial(backup, self.mem_pool_device, host_indices, device_indices)
        return self._start(copy, host_indices, device_indices, node_id, is_load=False)

    def load(self, host_indices: IntArray, node_id: int) -> CacheOperation | None:
        """Copy to the device; None, and nothing begun, if the device pool has too little room.

        The caller keeps what is read from being freed until the answer has come.
        """
        device_indices = self.mem_pool_device_allocator.alloc(len(host_indices), HOST)
        if device_indices is None:
            return None
        load = self.mem_pool_host.load_to_device_all_layer
        copy = partial(load, self.mem_pool_device, host_indices, device_indices)
        return self._start(copy, host_indices, device_indices, node_id, is_load=True)

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
        if operation.is_load:
            account, filled = self.mem_pool_device_allocator, operation.device_indices
        else:
            account, filled = self.mem_pool_host.allocator, operation.host_indices
        if ack.succeeded:
            account.transfer(filled, HOST, TREE)
        else:
            account.free(filled, HOST)

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

    def __len__(self) -> int:
        return len(self._ongoing)

    def _start(
        self,
        copy: Copy,
        host_indices: IntArray,
        device_indices: IntArray,
        node_id: int,
        *,
        is_load: bool,
        slots: StateSlots | None = None,
    ) -> CacheOperation:
        self._last_number += 1
        operation = CacheOperation(
            self._last_number, host_indices, device_indices, node_id, is_load, self._polls, slots
        )
        self._ongoing[operation.number] = operation
        self._transfers.start(operation.number, copy)
        return operation

    def _acknowledge(self, finished: list[Finished]) -> None:
        for number, error in finished:
            operation = self._ongoing[number]
            self.late_acks += self._polls > operation.started_at + 1
            self.failures += bool(error)
            queue = self.ack_load_queue if operation.is_load else self.ack_write_queue
            queue.append(HiCacheAck(operation, not error))
