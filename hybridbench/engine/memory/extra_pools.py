"""Pools other than the KV pool, on device and host, whose contents are copied with the KV.

Source: the extra pools of SGLang's HybridCacheController.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple, Protocol, TypeAlias

import numpy as np

from hybridbench.engine.memory.host_pool import MambaPoolHost, MHATokenToKVPoolHost
from hybridbench.engine.memory.indices import IntArray, SlotInput
from hybridbench.engine.memory.mamba_pool import MambaPool
from hybridbench.engine.memory.owners import HOST, Owner
from hybridbench.engine.memory.slots import MambaSlotAllocator
from hybridbench.engine.memory.swa_pages import SWATokenToKVPoolAllocator
from hybridbench.engine.memory.swa_pool import SWAKVPool


class Account(Protocol):
    """The allocator of one pool's slots, which records their owners."""

    @property
    def size(self) -> int: ...

    @property
    def objections(self) -> int: ...

    def held(self, owner: Owner) -> int: ...

    def available_size(self) -> int: ...

    def alloc(self, need_size: int, owner: Owner = ...) -> Sequence[int] | IntArray | None: ...

    def free(self, idx: SlotInput, owner: Owner = ..., /) -> None: ...

    def transfer(self, idx: SlotInput, giver: Owner, taker: Owner, /) -> None: ...


class ExtraPool(ABC):
    """A pool that exists on both device and host.

    Attributes:
        name: the device pool's name in statistics; the host pool's name has the prefix "host_".
        device_account, host_account: the allocators of the slots on either side.
    """

    name: ClassVar[str]
    device_account: Account
    host_account: Account

    @abstractmethod
    def copy_to_host(self, host_slots: IntArray, device_slots: IntArray) -> None:
        """Copy device slots to host slots, in order."""

    @abstractmethod
    def copy_to_device(self, host_slots: IntArray, device_slots: IntArray) -> None:
        """Copy host slots to device slots, in order."""


class StatePool(ExtraPool):
    """Recurrent states, one slot each."""

    name = "mamba"

    def __init__(
        self, mamba_allocator: MambaSlotAllocator, mamba_pool: MambaPool, host: MambaPoolHost
    ) -> None:
        self.device_account = mamba_allocator
        self.host_account = host.allocator
        self._mamba_pool = mamba_pool
        self._host = host

    def copy_to_host(self, host_slots: IntArray, device_slots: IntArray) -> None:
        self._host.states.load_cpu_copy(self._mamba_pool.get_cpu_copy(device_slots), host_slots)

    def copy_to_device(self, host_slots: IntArray, device_slots: IntArray) -> None:
        self._mamba_pool.load_cpu_copy(self._host.states.get_cpu_copy(host_slots), device_slots)


class WindowPool(ExtraPool):
    """KV of sliding-window layers; its slots are locations in the window pool, in whole pages."""

    name = "swa"

    def __init__(self, allocator: SWATokenToKVPoolAllocator, host: MHATokenToKVPoolHost) -> None:
        """Raise TypeError if the allocator has no window pool."""
        pool = allocator.get_kvcache()
        if not isinstance(pool, SWAKVPool):
            raise TypeError(f"a {type(pool).__name__} has no pool of sliding windows")
        self.allocator = allocator
        self.device_account = allocator.swa_attn_allocator
        self.host_account = host.allocator
        self._device_pool = pool.swa_kv_pool
        self._host = host

    def copy_to_host(self, host_slots: IntArray, device_slots: IntArray) -> None:
        self._host.backup_from_device_all_layer(self._device_pool, host_slots, device_slots)

    def copy_to_device(self, host_slots: IntArray, device_slots: IntArray) -> None:
        self._host.load_to_device_all_layer(self._device_pool, host_slots, device_slots)


class PoolTransfer(NamedTuple):
    """One pool's part of a transfer: slots on one side, and as many on the other."""

    pool: ExtraPool
    host_slots: IntArray
    device_slots: IntArray


# A pool, and its slots on the side to copy from.
Source: TypeAlias = tuple[ExtraPool, IntArray]


def alloc_for(sources: Sequence[Source], *, is_load: bool) -> tuple[PoolTransfer, ...] | None:
    """Allocate target slots for ``sources``, held by HOST; None, with none taken, if too few."""
    taken: list[PoolTransfer] = []
    for pool, slots in sources:
        account = pool.device_account if is_load else pool.host_account
        fresh = account.alloc(len(slots), HOST)
        if fresh is None:
            give_back(taken, is_load=is_load)
            return None
        filled = np.array(fresh, dtype=np.int64)
        taken.append(PoolTransfer(pool, *((slots, filled) if is_load else (filled, slots))))
    return tuple(taken)


def give_back(transfers: Sequence[PoolTransfer], *, is_load: bool) -> None:
    """Free what ``alloc_for`` allocated."""
    for transfer in transfers:
        account, filled = target_of(transfer, is_load=is_load)
        account.free(filled, HOST)


def target_of(transfer: PoolTransfer, *, is_load: bool) -> tuple[Account, IntArray]:
    """The account of the side that a transfer writes to, and the slots there."""
    if is_load:
        return transfer.pool.device_account, transfer.device_slots
    return transfer.pool.host_account, transfer.host_slots
