"""mini-sglang's prefix cache on hybridbench's RadixCache: handles, and evicted indices."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from hybridbench.engine.cache.base import EvictParams, InsertParams, MatchPrefixParams
from hybridbench.engine.cache.radix_cache import RadixCache
from hybridbench.engine.cache.radix_key import RadixKey
from hybridbench.engine.cache.tree_node import TreeNode
from hybridbench.engine.memory.indices import SlotInput, as_index_array
from hybridbench.engine.memory.owners import REQ, TREE, Owner


class Handle(NamedTuple):
    cached_len: int
    node: TreeNode


class SizeInfo(NamedTuple):
    evictable_size: int
    protected_size: int

    @property
    def total_size(self) -> int:
        return self.evictable_size + self.protected_size


class EvictedIndices:
    """A fake allocator that collects the indices that the tree frees."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.given_back: list[int] = []

    def available_size(self) -> int:
        return 0

    def free(self, idx: SlotInput, owner: Owner = REQ) -> None:
        if owner == TREE:  # REQ frees duplicates, which the caller frees in mini-sglang
            self.given_back += as_index_array(idx, self.device).tolist()

    def transfer(self, idx: SlotInput, giver: Owner, taker: Owner) -> None:
        """Do nothing: there is no ledger."""


class RadixPrefixCache:
    def __init__(self, page_size: int = 1) -> None:
        self._sink = EvictedIndices()
        self._tree = RadixCache.create_simulated(mock_allocator=self._sink, page_size=page_size)

    def match_prefix(self, input_ids: torch.Tensor) -> tuple[Handle, torch.Tensor]:
        found = self._tree.match_prefix(MatchPrefixParams(RadixKey(input_ids.numpy())))
        return Handle(found.prefix_len, found.last_device_node), torch.from_numpy(
            found.device_indices
        )

    def lock_handle(self, handle: Handle, unlock: bool = False) -> None:
        if unlock:
            self._tree.dec_lock_ref(handle.node)
        else:
            self._tree.inc_lock_ref(handle.node)

    def insert_prefix(self, input_ids: torch.Tensor, indices: torch.Tensor) -> int:
        return self._tree.insert(InsertParams(RadixKey(input_ids.numpy()), indices)).prefix_len

    def evict(self, size: int) -> torch.Tensor:
        if size > self._tree.evictable_size():
            raise RuntimeError(f"{size} tokens cannot be evicted")
        self._sink.given_back = []
        self._tree.evict(EvictParams(num_tokens=size))
        return torch.as_tensor(np.array(self._sink.given_back, dtype=np.int64))

    def reset(self) -> None:
        self._tree.reset()

    @property
    def size_info(self) -> SizeInfo:
        return SizeInfo(self._tree.evictable_size(), self._tree.protected_size())

    def check_integrity(self) -> None:
        self._tree.sanity_check()
