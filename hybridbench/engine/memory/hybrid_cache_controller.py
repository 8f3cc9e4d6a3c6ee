"""Moves KV and recurrent states between the device and the host together.

Source: SGLang's HybridCacheController.
"""

from __future__ import annotations

from functools import partial

from hybridbench.engine.memory.hicache_controller import (
    CacheOperation,
    HiCacheAck,
    HiCacheController,
    StateSlots,
)
from hybridbench.engine.memory.host_pool import MambaPoolHost, MHATokenToKVPoolHost
from hybridbench.engine.memory.indices import IntArray
from hybridbench.engine.memory.kv_pool import HybridHostCopy, HybridLinearKVPool
from hybridbench.engine.memory.owners import HOST, TREE
from hybridbench.engine.memory.pages import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
from hybridbench.engine.memory.slots import MambaSlotAllocator
from hybridbench.engine.memory.transfers import Transfers


class HybridCacheController(HiCacheController):
    """A HiCacheController whose transfers take a state along, or nothing but a state.

    Attributes:
        mamba_allocator: the account of the device's state slots.
        mamba_pool_host: the host's states and their account.
    """

    def __init__(
        self,
        token_to_kv_pool_allocator: TokenToKVPoolAllocator | PagedTokenToKVPoolAllocator,
        mem_pool_host: MHATokenToKVPoolHost,
        mamba_allocator: MambaSlotAllocator,
        mamba_pool_host: MambaPoolHost,
        transfers: Transfers,
    ) -> None:
        """The allocator must have been given a pool that has the states, too."""
        super().__init__(token_to_kv_pool_allocator, mem_pool_host, transfers)
        pool = self.mem_pool_device
        if not isinstance(pool, HybridLinearKVPool) or pool.mamba_pool is None:
            raise TypeError(f"a {type(pool).__name__} has no states to copy")
        self.hybrid_pool_device = pool
        self.mamba_allocator = mamba_allocator
        self.mamba_pool_host = mamba_pool_host

    def write(
        self, device_indices: IntArray, node_id: int, state: int | None = None
    ) -> CacheOperation | None:
        """Copy KV, and the state in slot ``state``, to the host.

        None, and nothing begun, if either host pool has too little room.  The caller keeps what is
        read from being freed until the answer has come.
        """
        host_state = None
        if state is not None:
            host_state = self.mamba_pool_host.alloc()
            if host_state is None:
                return None
        host_indices = self.mem_pool_host.alloc(len(device_indices))
        if host_indices is None:
            if host_state is not None:
                self.mamba_pool_host.free(host_state, HOST)
            return None
        slots = _both(host_state, state)
        copy = partial(self._copy_to_host, host_indices, device_indices, slots)
        return self._start(copy, host_indices, device_indices, node_id, is_load=False, slots=slots)

    def load(
        self, host_indices: IntArray, node_id: int, host_state: int | None = None
    ) -> CacheOperation | None:
        """Copy KV, and the state in the host's slot ``host_state``, to the device.

        None, and nothing begun, if either device pool has too little room.  The caller keeps what
        is read from being freed until the answer has come.
        """
        state = None
        if host_state is not None:
            taken = self.mamba_allocator.alloc(1, HOST)
            if taken is None:
                return None
            state = taken[0]
        device_indices = self.mem_pool_device_allocator.alloc(len(host_indices), HOST)
        if device_indices is None:
            if state is not None:
                self.mamba_allocator.free([state], HOST)
            return None
        slots = _both(host_state, state)
        copy = partial(self._copy_to_device, host_indices, device_indices, slots)
        return self._start(copy, host_indices, device_indices, node_id, is_load=True, slots=slots)

    def settle(self, ack: HiCacheAck) -> None:
        super().settle(ack)
        slots = ack.operation.state_slots
        if slots is None:
            return
        if ack.operation.is_load:
            account, filled = self.mamba_allocator, slots.device
        else:
            account, filled = self.mamba_pool_host.allocator, slots.host
        if ack.succeeded:
            account.transfer([filled], HOST, TREE)
        else:
            account.free([filled], HOST)

    def evict_device_state(self, slot: int) -> None:
        """Free a state slot of the tree on the device."""
        self.mamba_allocator.free([slot], TREE)

    def evict_host_state(self, slot: int) -> None:
        """Free a state slot of the tree on the host."""
        self.mamba_pool_host.free(slot, TREE)

    def loading_states(self) -> list[int]:
        """The device's state slots that loads are to fill."""
        return [slots.device for slots in self._state_slots(is_load=True)]

    def writing_states(self) -> list[int]:
        """The host's state slots that writes are to fill."""
        return [slots.host for slots in self._state_slots(is_load=False)]

    def _state_slots(self, *, is_load: bool) -> list[StateSlots]:
        return [
            ongoing.state_slots
            for ongoing in self.ongoing()
            if ongoing.is_load == is_load and ongoing.state_slots is not None
        ]

    def _copy_to_host(
        self, host_indices: IntArray, device_indices: IntArray, slots: StateSlots | None
    ) -> None:
        states = None if slots is None else [slots.device]
        copied = self.hybrid_pool_device.get_cpu_copy(device_indices, states)
        self.mem_pool_host.rows.load_cpu_copy(copied.kv, host_indices)
        if slots is not None and copied.mamba is not None:
            self.mamba_pool_host.states.load_cpu_copy(copied.mamba, [slots.host])

    def _copy_to_device(
        self, host_indices: IntArray, device_indices: IntArray, slots: StateSlots | None
    ) -> None:
        kv = self.mem_pool_host.rows.get_cpu_copy(host_indices)
        if slots is None:
            self.hybrid_pool_device.load_cpu_copy(HybridHostCopy(kv, None), device_indices)
            return
        states = self.mamba_pool_host.states.get_cpu_copy([slots.host])
        copied = HybridHostCopy(kv, states)
        self.hybrid_pool_device.load_cpu_copy(copied, device_indices, [slots.device])


def _both(host: int | None, device: int | None) -> StateSlots | None:
    return None if host is None or device is None else StateSlots(host, device)
