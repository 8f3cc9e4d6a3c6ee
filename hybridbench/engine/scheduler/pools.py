"""The pools and the prefix cache as the scheduler sees them: how much room, and making it."""

from __future__ import annotations

from dataclasses import dataclass

from hybridbench.engine.cache.base import BasePrefixCache, EvictParams
from hybridbench.engine.memory.owners import TREE
from hybridbench.engine.memory.pages import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
from hybridbench.engine.memory.req_to_token import HybridReqToTokenPool
from hybridbench.engine.memory.slots import MambaSlotAllocator


@dataclass(frozen=True)
class Pools:
    """Request rows with their state slots, KV positions, and the tree that shares both."""

    req_to_token_pool: HybridReqToTokenPool
    token_to_kv_pool_allocator: TokenToKVPoolAllocator | PagedTokenToKVPoolAllocator
    tree_cache: BasePrefixCache

    @property
    def mamba_allocator(self) -> MambaSlotAllocator:
        return self.req_to_token_pool.mamba_allocator

    def free_rows(self) -> int:
        """Request rows that nobody holds."""
        return self.req_to_token_pool.available_size()

    def kv_room(self) -> int:
        """KV tokens that are free or can be made free."""
        return (
            self.token_to_kv_pool_allocator.available_size() + self.tree_cache.full_evictable_size()
        )

    def mamba_room(self) -> int:
        """State slots that are free, reserved by an open group, or can be made free."""
        allocator = self.mamba_allocator
        return (
            allocator.available_size()
            + allocator.group_size()
            + self.tree_cache.mamba_evictable_size()
        )

    def empty_tree(self) -> None:
        """Give back every slot of the tree and forget the tree; nobody may hold a lock.

        Through the allocators, slot by slot, rather than by clearing them: a slot that was lost
        must not come back unnoticed.
        """
        kv_indices, mamba_slots = self.tree_cache.tree_slots()
        self.token_to_kv_pool_allocator.free(kv_indices, TREE)
        self.mamba_allocator.free(mamba_slots, TREE)
        self.tree_cache.reset()

    def make_kv_room(self, need_size: int) -> bool:
        """Evict until ``need_size`` KV tokens are free; False if they cannot be."""
        allocator = self.token_to_kv_pool_allocator
        missing = need_size - allocator.available_size()
        if missing > 0:
            self.tree_cache.evict(EvictParams(num_tokens=missing))
        return allocator.available_size() >= need_size

    def make_mamba_room(self, need_size: int) -> bool:
        """Evict until ``need_size`` state slots are free; False if they cannot be."""
        allocator = self.mamba_allocator
        missing = need_size - allocator.available_size()
        if missing > 0:
            self.tree_cache.evict(EvictParams(mamba_num=missing))
        return allocator.available_size() >= need_size
