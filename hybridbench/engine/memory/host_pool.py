"""Host pools: the layers of the device pools, in main memory, with their own allocators.

Source: SGLang's MHATokenToKVPoolHost and MambaPoolHost.
"""

from __future__ import annotations

from hybridbench.engine.memory.base_pages import KVCache
from hybridbench.engine.memory.free_list import SlicedFreeList
from hybridbench.engine.memory.indices import IntArray, SlotInput
from hybridbench.engine.memory.kv_pool import HybridLinearKVPool, MHATokenToKVPool
from hybridbench.engine.memory.mamba_pool import MambaPool
from hybridbench.engine.memory.owners import HOST, Owner
from hybridbench.engine.memory.pages import TokenToKVPoolAllocator
from hybridbench.engine.memory.slots import MambaSlotAllocator


class HostTokenAllocator(TokenToKVPoolAllocator):
    """Allocates single tokens, whatever the page size; its results are views of the free list.

    Callers allocate and free whole pages.
    """

    def _new_free_list(self) -> SlicedFreeList:
        return SlicedFreeList(self.num_pages)


class MHATokenToKVPoolHost:
    """Rows for the KV of ``device_pool``, and their owners.

    Of a hybrid pool, only the KV of the full-attention layers is kept.  A row belongs to HOST while
    a transfer fills it, and to TREE once a node has it.

    Attributes:
        allocator: allocates the rows.
    """

    def __init__(self, device_pool: KVCache, size: int, *, check_owners: bool = True) -> None:
        kv = _full_kv_pool(device_pool)
        page_size, dtype = kv.page_size, kv.dtype
        self.allocator = HostTokenAllocator(size, dtype, "cpu", check_owners=check_owners)
        self.rows = MHATokenToKVPool(
            size, page_size, dtype, kv.head_num, kv.head_dim, kv.layer_num, "cpu"
        )

    @property
    def size(self) -> int:
        """Usable tokens."""
        return self.allocator.size

    def available_size(self) -> int:
        """Tokens that can be allocated."""
        return self.allocator.available_size()

    def alloc(self, need_size: int) -> IntArray | None:
        """Allocate ``need_size`` tokens for a transfer; None, with none taken, if too few.

        The result is a view of the free list: copy what you keep.
        """
        return self.allocator.alloc(need_size, HOST)

    def free(self, host_indices: SlotInput, owner: Owner) -> None:
        """Free tokens of ``owner``."""
        self.allocator.free(host_indices, owner)

    def backup_from_device_all_layer(
        self, device_pool: KVCache, host_indices: SlotInput, device_indices: SlotInput
    ) -> None:
        """Copy rows of the device pool into rows of this one."""
        copy = _full_kv_pool(device_pool).get_cpu_copy(device_indices)
        self.rows.load_cpu_copy(copy, host_indices)

    def load_to_device_all_layer(
        self, device_pool: KVCache, host_indices: SlotInput, device_indices: SlotInput
    ) -> None:
        """Copy rows of this pool into rows of the device pool."""
        copy = self.rows.get_cpu_copy(host_indices)
        _full_kv_pool(device_pool).load_cpu_copy(copy, device_indices)


class MambaPoolHost:
    """Slots for the states of ``device_pool``, and their owners, as in MHATokenToKVPoolHost.

    Attributes:
        allocator: allocates the slots.
        states: the contents of the slots.
    """

    def __init__(self, device_pool: MambaPool, size: int, *, check_owners: bool = True) -> None:
        self.allocator = MambaSlotAllocator(size, "cpu", check_owners=check_owners)
        layers = list(device_pool.mamba_map)
        params, dtype = device_pool.cache_params, device_pool.dtype
        self.states = MambaPool(size, params, layers, "cpu", dtype)


def host_size(device_size: int, ratio: float, page_size: int) -> int:
    """Size of a host pool ``ratio`` times as large, in tokens: whole pages, at least one."""
    return max(1, int(device_size * ratio) // page_size) * page_size


def _full_kv_pool(pool: KVCache) -> MHATokenToKVPool:
    return pool.full_kv_pool if isinstance(pool, HybridLinearKVPool) else pool
