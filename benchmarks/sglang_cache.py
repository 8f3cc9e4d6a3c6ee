"""A released sglang's caches under the same turns, in an environment of their own.

Started by ``benchmarks.against_sglang`` with an interpreter that has it; answers JSON lines.  The
packages that sglang wants and a machine without a GPU cannot have are replaced by empty ones.
"""

from __future__ import annotations

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

from hybridbench.bench.cache_pattern import Block, CachePattern, Conversations

_STUBS = ("torchvision", "sgl_kernel")


class _StubType(type):
    """A class whose attributes are more such classes."""

    def __getattr__(cls, name: str) -> Any:
        return _stub(name)


class _StubModule(types.ModuleType):
    """Has whatever is asked for; none of it is ever called."""

    def __getattr__(self, name: str) -> Any:
        return _stub(name)


def _stub(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return _StubType(name, (), {})


class _StubFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the packages in ``_STUBS`` after everybody else has failed, so real ones win."""

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
        """Nothing to run."""


class _BenchReq:
    """As much of a request as a match with copy-on-write looks at."""

    def __init__(self) -> None:
        self.rid = "bench"
        self.req_pool_idx = None
        self.mamba_pool_idx: Any = None
        self.mamba_cow_src_index: Any = None
        self.mamba_needs_clear = True
        self.extra_key = None


class SglangCache:
    """The released cache with its pools, turned as ``bench.cache.TimedCache`` turns ours."""

    def __init__(self, pattern: CachePattern, page_size: int) -> None:
        self._api = _Api()
        self._conversations = Conversations(pattern)
        self._block = Block()
        api, torch = self._api, self._api.torch
        self._mamba: Any = None
        kv = (torch.float32, "cpu", None, False)
        if page_size == 1:
            self._kv = api.TokenToKVPoolAllocator(pattern.kv_tokens, *kv)
            rows = api.hybrid_rows(pattern.mamba_slots)
            self._mamba = rows.mamba_allocator
            cache: Callable[..., Any] = api.MambaRadixCache
        else:
            self._kv = api.PagedTokenToKVPoolAllocator(pattern.kv_tokens, page_size, *kv)
            rows = api.ReqToTokenPool(
                size=1, max_context_len=1, device="cpu", enable_memory_saver=False
            )
            cache = api.RadixCache
        self.cache = cache(
            api.CacheInitParams(
                disable=False,
                req_to_token_pool=rows,
                token_to_kv_pool_allocator=self._kv,
                page_size=page_size,
            )
        )

    def run(self, turns: int) -> Block:
        """The next ``turns`` turns of the pattern; keys are made before the clock starts."""
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
        block.record("match", start)
        start = clock()
        cache.inc_lock_ref(matched.last_device_node)
        block.record("lock", start)
        hit = len(matched.device_indices)
        value, state = self._take(len(tokens), matched.device_indices, req)
        start = clock()
        inserted = cache.insert(
            api.InsertParams(key=key, value=value, mamba_value=state, prev_prefix_len=hit)
        )
        block.record("insert", start)
        start = clock()
        if self._mamba is None and inserted.prefix_len > hit:
            # What the mamba cache does inside of insert, the plain one leaves to its caller.
            self._kv.free(value[hit : inserted.prefix_len])
        cache.dec_lock_ref(matched.last_device_node)
        block.record("lock", start)
        if state is not None and inserted.mamba_exist:
            self._mamba.free(state)
        block.turn_ns.append(
            sum(sum(calls[before.get(kind, 0) :]) for kind, calls in block.calls_ns.items())
        )
        block.key_tokens += len(tokens)
        block.hit_tokens += hit

    def _take(self, length: int, matched: Any, req: _BenchReq) -> tuple[Any, Any]:
        api = self._api
        missing = length - len(matched)
        short = missing - self._kv.available_size()
        if short > 0:
            self._evict(api.EvictParams(num_tokens=short))
        fresh = self._kv.alloc(missing)
        assert fresh is not None, "the pattern does not fit its KV pool"
        value = api.torch.cat((matched, fresh))
        if self._mamba is None:
            return value, None
        if req.mamba_pool_idx is not None:
            return value, req.mamba_pool_idx.unsqueeze(-1).clone()
        slots = self._mamba.alloc(1)
        assert slots is not None, "the pattern does not fit its state pool"
        return value, slots

    def _evict(self, params: Any) -> None:
        start = time.perf_counter_ns()
        evicted = self.cache.evict(params)
        self._block.record("evict", start)
        self._block.states_evicted += evicted.mamba_num_evicted


class _Api:
    """The classes of the released engine that are timed."""

    def __init__(self) -> None:
        import torch

        torch.set_num_threads(1)
        self.torch = torch
        from sglang.srt import server_args

        # The property would load a model's configuration.
        arguments = server_args.ServerArgs(model_path="dummy", page_size=1)
        arguments._mamba_cache_chunk_size = 64
        server_args.set_global_server_args_for_scheduler(arguments)
        from sglang.srt.mem_cache import allocator, base_prefix_cache, memory_pool, radix_cache
        from sglang.srt.mem_cache.cache_init_params import CacheInitParams
        from sglang.srt.mem_cache.mamba_radix_cache import MambaRadixCache

        self.CacheInitParams: Any = CacheInitParams
        self.MambaRadixCache: Any = MambaRadixCache
        self.RadixCache: Any = radix_cache.RadixCache
        self.RadixKey: Any = radix_cache.RadixKey
        self.TokenToKVPoolAllocator: Any = allocator.TokenToKVPoolAllocator
        self.PagedTokenToKVPoolAllocator: Any = allocator.PagedTokenToKVPoolAllocator
        self.ReqToTokenPool: Any = memory_pool.ReqToTokenPool
        self.MatchPrefixParams: Any = base_prefix_cache.MatchPrefixParams
        self.InsertParams: Any = base_prefix_cache.InsertParams
        self.EvictParams: Any = base_prefix_cache.EvictParams
        self._memory_pool = memory_pool

    def hybrid_rows(self, mamba_slots: int) -> Any:
        """State pool of the smallest possible states: only the bookkeeping is to be timed."""
        from sglang.srt.configs.mamba_utils import Mamba2CacheParams, Mamba2StateShape

        shape = Mamba2StateShape.create(
            tp_world_size=1, intermediate_size=2, n_groups=1, num_heads=1, head_dim=2,
            state_size=2, conv_kernel=2,
        )  # fmt: skip
        return self._memory_pool.HybridReqToTokenPool(
            size=1, mamba_size=mamba_slots, mamba_spec_state_size=1, max_context_len=1,
            device="cpu", enable_memory_saver=False,
            cache_params=Mamba2CacheParams(shape=shape, layers=[0]), mamba_layer_ids=[0],
            enable_mamba_extra_buffer=False, speculative_num_draft_tokens=None,
        )  # fmt: skip


def _answers(out: TextIO) -> None:
    """Build a cache, then run turns on it, as the lines on stdin ask."""
    cache: SglangCache | None = None
    for line in sys.stdin:
        asked = json.loads(line)
        if "pattern" in asked:
            cache = SglangCache(CachePattern(**asked["pattern"]), asked["page_size"])
            answer: dict[str, object] = {
                "cache": type(cache.cache).__name__,
                "version": importlib.metadata.version("sglang"),
            }
        else:
            assert cache is not None, "a cache comes first"
            answer = asdict(cache.run(asked["turns"]))
        out.write(json.dumps(answer) + "\n")
        out.flush()


def main() -> None:
    """Serve until stdin ends; what sglang prints goes to stderr."""
    sys.meta_path.append(_StubFinder())
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    _answers(out)


if __name__ == "__main__":
    main()
