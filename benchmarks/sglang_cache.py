"""Run a released sglang's caches on the same turns, in a separate environment.

``benchmarks.against_sglang`` starts this program with an interpreter that has sglang and exchanges
JSON lines with it.  Packages that sglang requires but that cannot be installed without a GPU are
replaced by empty ones.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import json
import os
import sys
import time
import types
from array import array
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, TextIO

from benchmarks.cache_pattern import Block, CacheKind, CachePattern, Conversations

_STUBS = ("torchvision", "sgl_kernel")
_TREES = {
    "full": ("radix_cache", "RadixCache"),
    "states": ("mamba_radix_cache", "MambaRadixCache"),
    "windows": ("swa_radix_cache", "SWARadixCache"),
    "unified": ("unified_radix_cache", "UnifiedRadixCache"),
}


class AbsentError(Exception):
    """The release has no tree of this name."""


class _StubType(type):
    """A metaclass of classes whose attributes are such classes as well."""

    def __getattr__(cls, name: str) -> Any:
        return _stub(name)


class _StubModule(types.ModuleType):
    """A module that has every attribute; none of them is ever called."""

    def __getattr__(self, name: str) -> Any:
        return _stub(name)


def _stub(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return _StubType(name, (), {})


class _StubFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the packages in ``_STUBS`` after all other finders have failed, so real ones win."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if fullname.partition(".")[0] not in _STUBS:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = _StubModule(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Do nothing."""


class _BenchReq:
    """The part of a request that a match with copy-on-write reads."""

    def __init__(self) -> None:
        self.rid = "bench"
        self.session = None
        self.req_pool_idx = None
        self.mamba_pool_idx: Any = None
        self.mamba_cow_src_index: Any = None
        self.mamba_needs_clear = True
        self.extra_key = None

    @property
    def kv(self) -> _BenchReq:
        """The object in which 0.5.23 keeps what a request holds."""
        return self

    @property
    def holds_mamba(self) -> bool:
        """Whether the request has a state slot."""
        return self.mamba_pool_idx is not None


class SglangCache:
    """The released cache with its pools, driven like ours in ``benchmarks.cache.TimedCache``."""

    def __init__(
        self, pattern: CachePattern, page_size: int, kind: CacheKind, unified: bool
    ) -> None:
        self._api = api = _Api()
        tree = api.tree(kind, unified)
        self._conversations = Conversations(pattern)
        self._block = Block()
        self._mamba: Any = None
        # With windows, the two allocators behind the one that the tree uses.
        self._parts: tuple[Any, Any] | None = None
        if kind == "windows":
            sizes = pattern.kv_tokens, pattern.swa_tokens
            self._kv = api.swa_allocator(*sizes, page_size)
            self._parts = self._kv.full_attn_allocator, self._kv.swa_attn_allocator
        else:
            self._kv = api.kv_allocator(pattern.kv_tokens, page_size)
        tracks = kind == "states" and page_size > 1
        if kind == "states":
            rows = api.hybrid_rows(pattern.mamba_slots, tracks)
            self._mamba = rows.mamba_allocator
        else:
            rows = api.ReqToTokenPool(
                size=1, max_context_len=1, device="cpu", enable_memory_saver=False
            )
        params = api.CacheInitParams(
            disable=False,
            req_to_token_pool=rows,
            token_to_kv_pool_allocator=self._kv,
            page_size=page_size,
            enable_mamba_extra_buffer=tracks,
            sliding_window_size=pattern.sliding_window if kind == "windows" else None,
        )
        if unified:
            params.tree_components = api.components(kind)
        self.cache = tree(params)
        # Other trees free duplicates in insert; with the plain tree, the caller must.
        self._frees_duplicates = kind == "full" and not unified

    def run(self, turns: int) -> Block:
        """Run the next ``turns`` turns; keys are made before the timing starts."""
        keys = [self._conversations.next_key() for _ in range(turns)]
        block = self._block = Block()
        start = time.perf_counter_ns()
        for key in keys:
            self.turn(key)
        block.wall_ns = time.perf_counter_ns() - start
        return block

    def turn(self, tokens: array[int]) -> None:
        """Match, lock, make room, insert, unlock."""
        block, clock, api, cache = self._block, time.perf_counter_ns, self._api, self.cache
        before = {kind: len(calls) for kind, calls in block.calls_ns.items()}
        if self._mamba is not None and self._mamba.available_size() == 0:
            self._evict(api.EvictParams(num_tokens=0, mamba_num=1))
        req = _BenchReq()
        start = clock()
        key = api.RadixKey(tokens)
        matched = cache.match_prefix(api.MatchPrefixParams(key=key, cow_mamba=True, req=req))
        found = self._indices(matched)
        block.record("match", start)
        start = clock()
        lock = cache.inc_lock_ref(matched.last_device_node)
        block.record("lock", start)
        hit = len(found)
        value, state = self._take(len(tokens), found, req)
        start = clock()
        inserted = cache.insert(
            api.InsertParams(key=key, value=value, mamba_value=state, prev_prefix_len=hit)
        )
        block.record("insert", start)
        start = clock()
        if self._frees_duplicates and inserted.prefix_len > hit:
            self._kv.free(value[hit : inserted.prefix_len])
        cache.dec_lock_ref(matched.last_device_node, lock.to_dec_params())
        block.record("lock", start)
        if state is not None and inserted.mamba_exist:
            self._mamba.free(state)
        block.turn_ns.append(
            sum(sum(calls[before.get(kind, 0) :]) for kind, calls in block.calls_ns.items())
        )
        block.key_tokens += len(tokens)
        block.hit_tokens += hit

    def _indices(self, matched: Any) -> Any:
        """The reused KV slots: part of the match up to 0.5.18, later a separate query."""
        if self._api.matches_have_indices:
            return matched.device_indices
        path = self.cache.path_device_indices(matched.last_device_node)
        return path[: matched.device_prefix_len]

    def _take(self, length: int, matched: Any, req: _BenchReq) -> tuple[Any, Any]:
        api = self._api
        missing = length - len(matched)
        if self._parts is None:
            short, swa_short = missing - self._kv.available_size(), 0
        else:
            short, swa_short = (missing - part.available_size() for part in self._parts)
        if short > 0 or swa_short > 0:
            # Evict from each pool only what that pool lacks, as the scheduler does.
            self._evict(api.EvictParams(max(0, short), swa_num_tokens=max(0, swa_short)))
        fresh = self._fresh(missing)
        value = api.torch.cat((matched, fresh))
        if self._mamba is None:
            return value, None
        if req.mamba_pool_idx is not None:
            return value, req.mamba_pool_idx.unsqueeze(-1).clone()
        slots = self._mamba.alloc(1)
        assert slots is not None, "the pattern does not fit its state pool"
        return value, slots

    def _fresh(self, count: int) -> Any:
        """Return slots for ``count`` tokens; with windows, take them in both pools and map them."""
        if self._parts is None:
            fresh = self._kv.alloc(count)
            assert fresh is not None, "the pattern does not fit its KV pool"
            return fresh
        full, swa = (part.alloc(count) for part in self._parts)
        assert full is not None, "the pattern does not fit its KV pool"
        assert swa is not None, "the pattern does not fit its window pool"
        self._kv.full_to_swa_index_mapping[full] = swa
        return full

    def _evict(self, params: Any) -> None:
        start = time.perf_counter_ns()
        evicted = self.cache.evict(params)
        self._block.record("evict", start)
        self._block.states_evicted += evicted.mamba_num_evicted


class _Api:
    """The classes of the released engine, by name."""

    def __init__(self) -> None:
        import torch

        torch.set_num_threads(1)
        self.torch = torch
        from sglang.srt import server_args

        # Set ``_mamba_cache_chunk_size``, because its property would load a model's configuration.
        arguments = server_args.ServerArgs(model_path="dummy", page_size=1)
        arguments._mamba_cache_chunk_size = 64
        server_args.set_global_server_args_for_scheduler(arguments)
        from sglang.srt.mem_cache import allocator, base_prefix_cache, memory_pool, radix_cache
        from sglang.srt.mem_cache.cache_init_params import CacheInitParams

        self.CacheInitParams: Any = CacheInitParams
        self.RadixKey: Any = radix_cache.RadixKey
        self._allocator = allocator
        self.ReqToTokenPool: Any = memory_pool.ReqToTokenPool
        self.MatchPrefixParams: Any = base_prefix_cache.MatchPrefixParams
        self.matches_have_indices = "device_indices" in base_prefix_cache.MatchResult._fields
        self.InsertParams: Any = base_prefix_cache.InsertParams
        self.EvictParams: Any = base_prefix_cache.EvictParams
        self._memory_pool = memory_pool

    def tree(self, kind: CacheKind, unified: bool) -> Callable[..., Any]:
        """The tree class of that kind.

        Raises:
            AbsentError: the release lacks it.
        """
        module, name = _TREES["unified" if unified else kind]
        path = f"sglang.srt.mem_cache.{module}"
        try:
            tree: Callable[..., Any] = getattr(importlib.import_module(path), name)
        except ModuleNotFoundError as error:
            if error.name != path:
                raise
            raise AbsentError(name) from error
        except AttributeError as error:
            raise AbsentError(name) from error
        return tree

    def components(self, kind: CacheKind) -> tuple[Any, ...]:
        """The components of a unified tree of that kind."""
        try:
            from sglang.srt.mem_cache.unified_cache_components import ComponentType as Type
        except ImportError:
            # Its location in 0.5.23.
            from sglang.srt.mem_cache.unified_cache.components import ComponentType as Type

        beside = {"full": (), "states": (Type.MAMBA,), "windows": (Type.SWA,)}
        return (Type.FULL, *beside[kind])

    def kv_allocator(self, tokens: int, page_size: int) -> Any:
        """An allocator of slots without memory behind them."""
        rest = (self.torch.float32, "cpu", None, False)
        if page_size == 1:
            return self._allocator.TokenToKVPoolAllocator(tokens, *rest)
        return self._allocator.PagedTokenToKVPoolAllocator(tokens, page_size, *rest)

    def swa_allocator(self, tokens: int, swa_tokens: int, page_size: int) -> Any:
        """An allocator for full and sliding layers, with the mapping between their slots."""
        from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
        from sglang.srt.mem_cache.base_swa_memory_pool import BaseSWAKVPool

        def register(pool: Any, mapping: Any) -> None:
            pool.full_to_swa_index_mapping = mapping

        def translated(pool: Any, indices: Any) -> Any:
            return pool.full_to_swa_index_mapping[indices]

        body = {
            "__init__": lambda pool: None,
            "register_mapping": register,
            "translate_loc_from_full_to_swa": translated,
        }
        pool: Any = type("NoMemory", (BaseSWAKVPool,), body)
        pool.__abstractmethods__ = frozenset()
        return SWATokenToKVPoolAllocator(
            tokens, swa_tokens, page_size, self.torch.float32, "cpu", pool(), False
        )

    def hybrid_rows(self, mamba_slots: int, tracks: bool) -> Any:
        """A pool with the smallest possible states, as only the bookkeeping is timed."""
        from sglang.srt.configs.mamba_utils import Mamba2CacheParams, Mamba2StateShape

        shape = Mamba2StateShape.create(
            tp_world_size=1, intermediate_size=2, n_groups=1, num_heads=1, head_dim=2,
            state_size=2, conv_kernel=2,
        )  # fmt: skip
        return self._memory_pool.HybridReqToTokenPool(
            size=1, mamba_size=mamba_slots, mamba_spec_state_size=1, max_context_len=1,
            device="cpu", enable_memory_saver=False,
            cache_params=Mamba2CacheParams(shape=shape, layers=[0]), mamba_layer_ids=[0],
            enable_mamba_extra_buffer=tracks, speculative_num_draft_tokens=None,
        )  # fmt: skip


def _answers(out: TextIO) -> None:
    """Build a cache, then run turns on it, as requested by the lines on stdin."""
    cache: SglangCache | None = None
    for line in sys.stdin:
        asked = json.loads(line)
        if "pattern" in asked:
            answer: dict[str, object] = {"version": importlib.metadata.version("sglang")}
            try:
                cache = SglangCache(CachePattern(**asked["pattern"]), **asked["case"])
                answer["cache"] = type(cache.cache).__name__
            except AbsentError as error:
                answer["absent"] = str(error)
        else:
            assert cache is not None, "a cache comes first"
            answer = asdict(cache.run(asked["turns"]))
        out.write(json.dumps(answer) + "\n")
        out.flush()


def main() -> None:
    """Serve until stdin ends; sglang's own output goes to stderr."""
    sys.meta_path.append(_StubFinder())
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    _answers(out)


if __name__ == "__main__":
    main()
