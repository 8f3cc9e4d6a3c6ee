"""Tiny trees with a host tier: real pools on both sides, and transfers whose end a test chooses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from typing import Literal, TypeAlias

import torch

from hybridbench.engine.cache.base import CacheInitParams
from hybridbench.engine.cache.hi_mamba_radix_cache import HiMambaRadixCache
from hybridbench.engine.cache.hi_unified_radix_cache import HiUnifiedRadixCache
from hybridbench.engine.cache.hiradix_cache import HiRadixCache
from hybridbench.engine.cache.host_part import HostStates
from hybridbench.engine.cache.host_window import HostWindows
from hybridbench.engine.memory.base_pages import KVCache
from hybridbench.engine.memory.extra_pools import StatePool, WindowPool
from hybridbench.engine.memory.hicache_controller import HiCacheController
from hybridbench.engine.memory.host_pool import MambaPoolHost, MHATokenToKVPoolHost
from hybridbench.engine.memory.kv_pool import HybridLinearKVPool
from hybridbench.engine.memory.swa_pool import SWAKVPool
from hybridbench.foundation.engine_config import HiCacheWritePolicy
from tests.host_transfers import ChosenTransfers
from tests.unit.engine.cache.trees import (
    AnyHybridTree,
    AnyPagedTree,
    AnyWindowTree,
    Buffers,
)

POLICIES: tuple[HiCacheWritePolicy, ...] = (
    "write_through",
    "write_back",
    "write_through_selective",
)
UnifiedClass: TypeAlias = type[HiUnifiedRadixCache]


@dataclass(frozen=True)
class HostTierSetup:
    """Settings of a host tier.

    Attributes:
        pages: host pages of KV, and of windows.
        states: state slots on the host.
        delays: how many polls each transfer outlasts, in a cycle.
        failing: whether the transfer with a given number fails.
        unified: the class of the unified tree; None selects the dedicated tree.
    """

    pages: int = 40
    states: int = 14
    write_policy: HiCacheWritePolicy = "write_through"
    delays: tuple[int, ...] = (1,)
    failing: Callable[[int], bool] = lambda _: False
    unified: UnifiedClass | None = HiUnifiedRadixCache

    def transfers(self) -> ChosenTransfers:
        return ChosenTransfers(cycle(self.delays), self.failing)


class HostPagedTree(AnyPagedTree):
    """A tree of KV in pages."""

    cache: HiRadixCache | HiUnifiedRadixCache

    def __init__(self, setup: HostTierSetup, kv_tokens: int = 64, page_size: int = 4) -> None:
        self._setup = setup
        super().__init__(kv_tokens, page_size)

    def kv_pool(self, kv_tokens: int, page_size: int) -> KVCache:
        return HybridLinearKVPool(kv_tokens, torch.float64, page_size, 1, 1, [0], "cpu", None)

    def build(self, params: CacheInitParams) -> None:
        setup = self._setup
        controller = make_controller(self, setup)
        self.host = controller.mem_pool_host
        if setup.unified is None:
            self.cache = HiRadixCache(params, controller, setup.write_policy)
        else:
            self.cache = setup.unified(params, controller, (), setup.write_policy)


class HostHybridTree(AnyHybridTree):
    """A tree of KV and states."""

    cache: HiMambaRadixCache | HiUnifiedRadixCache

    def __init__(
        self,
        setup: HostTierSetup,
        kv_tokens: int = 64,
        mamba_slots: int = 16,
        page_size: int = 1,
        buffers: Buffers | None = None,
        state_refresh: Literal["path", "used"] = "path",
    ) -> None:
        self._setup = setup
        super().__init__(kv_tokens, mamba_slots, 5, page_size, buffers, state_refresh)

    def kv_pool(self, kv_tokens: int, page_size: int) -> KVCache:
        return HybridLinearKVPool(
            kv_tokens, torch.float64, page_size, 1, 1, [1], "cpu", self.states
        )

    def build(self, params: CacheInitParams) -> None:
        setup = self._setup
        controller = make_controller(self, setup)
        self.host = controller.mem_pool_host
        self.host_states = MambaPoolHost(self.states, setup.states)
        parts = HostStates(StatePool(self.mamba, self.states, self.host_states))
        if setup.unified is None:
            self.cache = HiMambaRadixCache(params, controller, parts, setup.write_policy)
        else:
            self.cache = setup.unified(params, controller, (parts,), setup.write_policy)


class HostWindowTree(AnyWindowTree):
    """A tree of KV in two pools; always a unified tree."""

    cache: HiUnifiedRadixCache

    def __init__(
        self,
        setup: HostTierSetup,
        kv_tokens: int = 64,
        swa_tokens: int = 32,
        page_size: int = 1,
        window: int = 4,
    ) -> None:
        self._setup = setup
        super().__init__(kv_tokens, swa_tokens, page_size, window)

    def kv_pool(self, kv_tokens: int, swa_tokens: int, page_size: int) -> SWAKVPool:
        self.pool = SWAKVPool(
            kv_tokens, swa_tokens, page_size, torch.float64, 1, 1, [0], [1], "cpu"
        )
        return self.pool

    def build(self, params: CacheInitParams) -> None:
        setup = self._setup
        controller = make_controller(self, setup)
        self.host = controller.mem_pool_host
        pages = setup.pages * self.kv.page_size
        self.host_windows = MHATokenToKVPoolHost(self.pool.swa_kv_pool, pages)
        parts = HostWindows(WindowPool(self.kv, self.host_windows), self.window)
        unified = setup.unified or HiUnifiedRadixCache
        self.cache = unified(params, controller, (parts,), setup.write_policy)


HostTree: TypeAlias = HostPagedTree | HostHybridTree | HostWindowTree


def make_controller(tree: HostTree, setup: HostTierSetup) -> HiCacheController:
    pool = tree.kv.get_kvcache()
    assert pool is not None
    host = MHATokenToKVPoolHost(pool, setup.pages * tree.kv.page_size)
    return HiCacheController(tree.kv, host, setup.transfers())
