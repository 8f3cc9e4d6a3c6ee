"""SGLang's names and calls on hybridbench's classes, as far as tests written for SGLang need them.

The shim returns index arrays and lists of slots as tensors, builds requests from SGLang's
arguments, drops one of two equal lengths (device and host) in calls, and ignores switches of
unsupported features if they are off.  Everything else is imported unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from hybridbench.engine.cache import (
    base,
    hi_mamba_radix_cache,
    hi_unified_radix_cache,
    hiradix_cache,
    mamba_radix_cache,
    radix_cache,
    swa_radix_cache,
    unified_radix_cache,
)
from hybridbench.engine.cache.base import (
    BasePrefixCache,
    DecLockRefParams,
    EvictParams,
    EvictResult,
    InsertParams,
    MatchPrefixParams,
)
from hybridbench.engine.cache.host_tier import HostTier
from hybridbench.engine.cache.lru import FullLRUList, MambaLRUList
from hybridbench.engine.cache.radix_key import RadixKey
from hybridbench.engine.cache.tree_node import TreeNode
from hybridbench.engine.lineage import Writers
from hybridbench.engine.memory import kv_pool, pages, req_to_token, slots, swa_pages
from hybridbench.engine.memory.indices import IntArray, SlotInput
from hybridbench.engine.memory.kv_pool import MHATokenToKVPool
from hybridbench.engine.memory.mamba_pool import (
    Mamba2CacheParams,
    Mamba2StateDType,
    Mamba2StateShape,
)
from hybridbench.engine.memory.owners import REQ, Owner
from hybridbench.engine.memory.swa_pool import SWAKVPool

__all__ = [
    "CacheInitParams",
    "EvictParams",
    "EvictResult",
    "HybridLinearKVPool",
    "InsertParams",
    "MHATokenToKVPool",
    "Mamba2CacheParams",
    "Mamba2StateDType",
    "Mamba2StateShape",
    "MatchPrefixParams",
    "RadixKey",
    "ReqToTokenPool",
    "SWAKVPool",
    "TreeNode",
]


SWITCHES = (
    "enable_memory_saver", "enable_kvcache_transpose", "enable_metrics", "is_eagle", "start_layer",
)  # fmt: skip


def tensor_or_none(slots: IntArray | list[int] | None) -> torch.Tensor | None:
    return None if slots is None else torch.as_tensor(slots, dtype=torch.int64)


def as_asked_for(slots: Any, owner: Owner) -> Any:
    """Return slots as a tensor for tests; what transfers allocate is returned unchanged."""
    return tensor_or_none(slots) if owner == REQ else slots


def without_switches(arguments: dict[str, Any]) -> dict[str, Any]:
    """Drop SGLang's switches that are off; raise ValueError for one that is on."""
    for name in SWITCHES:
        if arguments.pop(name, None):
            raise ValueError(f"{name}: not supported here; leave it out")
    return arguments


@dataclass(frozen=True)
class CacheInitParams(base.CacheInitParams):
    is_eagle: bool = False
    enable_metrics: bool = False

    def __post_init__(self) -> None:
        without_switches({"is_eagle": self.is_eagle, "enable_metrics": self.enable_metrics})


@dataclass(eq=False)
class Req:
    """A request with SGLang's arguments; its indices are tensors, as the pool shims return."""

    rid: str
    origin_input_text: str
    origin_input_ids: Sequence[int]
    sampling_params: object = None
    output_ids: list[int] = field(default_factory=list)
    req_pool_idx: int | None = None
    mamba_pool_idx: Any = None
    mamba_ping_pong_track_buffer: list[int] | None = None
    mamba_next_track_idx: int = 0
    mamba_last_track_seqlen: int | None = None
    last_node: TreeNode | None = None
    lock_receipt: DecLockRefParams | None = None
    swa_evicted_seqlen: int = 0
    extra_key: str | None = None
    cache_protected_len: int = 0
    kv_committed_len: int = 0
    kv_allocated_len: int = 0
    writers: Writers = ()
    prefix_indices: Any = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))

    @property
    def fill_ids(self) -> list[int]:
        return [*self.origin_input_ids, *self.output_ids]

    @property
    def kv(self) -> Any:
        """Return the request: SGLang's has the record's fields itself."""
        return self

    def goes_on_from(self, writers: Writers) -> None:
        """Do nothing: SGLang's requests do not track writers."""


class MatchResult(NamedTuple):
    device_indices: torch.Tensor
    last_device_node: TreeNode
    mamba_branching_seqlen: int | None


def match_as_tensor(cache: BasePrefixCache, params: MatchPrefixParams) -> MatchResult:
    found = cache.match_prefix(params)
    indices = torch.from_numpy(found.device_indices)
    return MatchResult(indices, found.last_device_node, found.mamba_branching_seqlen)


class MambaSlotAllocator(slots.MambaSlotAllocator):
    def alloc(self, need_size: int, owner: Owner = REQ) -> torch.Tensor | None:  # type: ignore[override]
        taken: torch.Tensor | None = as_asked_for(super().alloc(need_size, owner), owner)
        return taken


class ReqToTokenPool(req_to_token.ReqToTokenPool):
    def __init__(
        self, size: int, max_context_len: int, device: str, enable_memory_saver: bool
    ) -> None:
        without_switches({"enable_memory_saver": enable_memory_saver})
        super().__init__(size, max_context_len, device)


class HybridLinearKVPool(kv_pool.HybridLinearKVPool):
    def __init__(self, *given: Any, **arguments: Any) -> None:
        super().__init__(*given, **without_switches(arguments))


class HybridReqToTokenPool(req_to_token.HybridReqToTokenPool):
    def __init__(self, **arguments: Any) -> None:
        super().__init__(**without_switches(arguments))
        self.mamba_allocator = MambaSlotAllocator(self.mamba_pool.size, self.device)


class TokenToKVPoolAllocator(pages.TokenToKVPoolAllocator):
    def alloc(self, need_size: int, owner: Owner = REQ) -> torch.Tensor | None:  # type: ignore[override]
        taken: torch.Tensor | None = as_asked_for(super().alloc(need_size, owner), owner)
        return taken


class PagedTokenToKVPoolAllocator(pages.PagedTokenToKVPoolAllocator):
    def alloc(self, need_size: int, owner: Owner = REQ) -> torch.Tensor | None:  # type: ignore[override]
        taken: torch.Tensor | None = as_asked_for(super().alloc(need_size, owner), owner)
        return taken

    def alloc_extend(  # type: ignore[override]
        self,
        prefix_lens: SlotInput,
        prefix_lens_cpu: SlotInput,
        seq_lens: SlotInput,
        seq_lens_cpu: SlotInput,
        last_loc: SlotInput,
        extend_num_tokens: int,
    ) -> torch.Tensor | None:
        del prefix_lens, seq_lens
        return tensor_or_none(
            super().alloc_extend(prefix_lens_cpu, seq_lens_cpu, last_loc, extend_num_tokens)
        )

    def alloc_decode(  # type: ignore[override]
        self, seq_lens: SlotInput, seq_lens_cpu: SlotInput, last_loc: SlotInput
    ) -> torch.Tensor | None:
        del seq_lens
        return tensor_or_none(super().alloc_decode(seq_lens_cpu, last_loc))


class SWATokenToKVPoolAllocator(swa_pages.SWATokenToKVPoolAllocator):
    def alloc(self, need_size: int, owner: Owner = REQ) -> torch.Tensor | None:  # type: ignore[override]
        taken: torch.Tensor | None = as_asked_for(super().alloc(need_size, owner), owner)
        return taken


class Sizes(BasePrefixCache):
    """SGLang's names of a tree's sizes and contents."""

    def full_evictable_size(self) -> int:
        return self.evictable_size()

    def full_protected_size(self) -> int:
        return self.protected_size()

    def total_size(self) -> int:
        return self.evictable_size() + self.protected_size()

    def all_values_flatten(self) -> torch.Tensor:
        return torch.from_numpy(self.tree_slots().kv_indices)

    def all_mamba_values_flatten(self) -> torch.Tensor:
        return torch.tensor(self.tree_slots().mamba_slots, dtype=torch.int64)

    def available_and_evictable_str(self) -> str:
        sizes = {"full": (self.evictable_size(), self.protected_size())}
        if self.supports_swa():
            sizes["swa"] = (self.swa_evictable_size(), self.swa_protected_size())
        if self.supports_mamba():
            sizes["mamba"] = (self.mamba_evictable_size(), self.mamba_protected_size())
        return "; ".join(f"{name}: evictable {e}, protected {p}" for name, (e, p) in sizes.items())

    def pretty_print(self) -> str:
        nodes = [f"{node!r} {node.key!r}" for node in self.iter_nodes()]
        return "\n".join([f"{len(nodes)} nodes, {self.available_and_evictable_str()}", *nodes])


class RadixCache(radix_cache.RadixCache, Sizes):
    def match(self, key: RadixKey) -> MatchResult:
        return match_as_tensor(self, MatchPrefixParams(key=key))


class MambaRadixCache(mamba_radix_cache.MambaRadixCache, Sizes):
    def match(self, key: RadixKey, req: Req | None = None) -> MatchResult:
        params = MatchPrefixParams(key=key, cow_mamba=req is not None, req=req)
        return match_as_tensor(self, params)


class SWARadixCache(swa_radix_cache.SWARadixCache, Sizes):
    def match(self, key: RadixKey) -> MatchResult:
        return match_as_tensor(self, MatchPrefixParams(key=key))


class UnifiedRadixCache(unified_radix_cache.UnifiedRadixCache, Sizes):
    def match(self, key: RadixKey, req: Req | None = None) -> MatchResult:
        params = MatchPrefixParams(key=key, cow_mamba=req is not None, req=req)
        return match_as_tensor(self, params)


class BackupByHand(HostTier):
    """A tree that writes only on request; SGLang's tests set a threshold that is never reached."""

    def write_backup(self, node: TreeNode, write_back: bool = False) -> int:  # type: ignore[override]
        del write_back
        return len(node.key) if super().write_backup(node) else 0

    def writing_check(self, write_back: bool = False) -> None:
        if write_back:
            self.cache_controller.wait()
        super().writing_check()

    def loading_check(self, wait: bool = False) -> None:
        if wait:
            self.cache_controller.wait()
        super().loading_check()

    def _write_through(self, path: list[TreeNode]) -> None:
        """Do nothing: no write starts automatically."""


class HiRadixCache(BackupByHand, hiradix_cache.HiRadixCache):
    pass


class HiMambaRadixCache(BackupByHand, hi_mamba_radix_cache.HiMambaRadixCache):
    pass


class HiUnifiedRadixCache(BackupByHand, hi_unified_radix_cache.HiUnifiedRadixCache):
    pass


def LRUList(mamba: bool = False) -> FullLRUList | MambaLRUList:
    return MambaLRUList() if mamba else FullLRUList()
