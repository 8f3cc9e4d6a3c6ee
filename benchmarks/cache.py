"""Time match, insert and evict of the prefix caches on multi-turn conversations.

Released engines were measured on the same pattern: 8 system prompts of 256 tokens, turns of 192, 48
conversations at a time, 120,000 KV tokens, and 200 state slots or 40,000 tokens of sliding windows.
States and windows run out before KV does.  No model runs; outside the cache, a turn only makes keys
and allocates KV positions.
"""

from __future__ import annotations

import statistics
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Final, TypeAlias

import numpy as np
import torch
import typer

from benchmarks.cache_pattern import Block, CacheKind, CachePattern, Conversations
from hybridbench.engine.cache.base import (
    CacheInitParams,
    EvictParams,
    InsertParams,
    MatchPrefixParams,
    MatchResult,
)
from hybridbench.engine.cache.mamba_radix_cache import MambaRadixCache
from hybridbench.engine.cache.radix_cache import RadixCache
from hybridbench.engine.cache.radix_key import RadixKey
from hybridbench.engine.cache.swa_radix_cache import SWARadixCache
from hybridbench.engine.cache.unified_radix_cache import UnifiedRadixCache
from hybridbench.engine.lineage import Writers
from hybridbench.engine.memory.indices import IntArray
from hybridbench.engine.memory.mamba_pool import Mamba2CacheParams, Mamba2StateShape, MambaPool
from hybridbench.engine.memory.owners import REQ
from hybridbench.engine.memory.pages import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
from hybridbench.engine.memory.req_to_token import HybridReqToTokenPool, ReqToTokenPool
from hybridbench.engine.memory.swa_pages import SWATokenToKVPoolAllocator
from hybridbench.engine.req import ReqKv
from hybridbench.foundation.units import format_percent

Tree: TypeAlias = MambaRadixCache | RadixCache | SWARadixCache | UnifiedRadixCache


@dataclass(frozen=True)
class CacheBenchRow:
    """The figures of one cache; times are medians per call, without warm-up turns.

    Attributes:
        cache_time_share: share of the wall time in match, insert, evict and lock calls.
        cache_us_per_turn: time in those calls per turn; a median, so that interruptions on a busy
            machine do not count.
        hit_rate: share of the key tokens that were reused.
    """

    cache: str
    page_size: int
    turns_per_s: float
    match_us: float
    insert_us: float
    evict_us: float
    cache_us_per_turn: float
    cache_time_share: float
    hit_rate: float


@dataclass(frozen=True)
class EvictionCostRow:
    """Cost of evicting one leaf from a tree of ``nodes`` nodes, most of them not evictable."""

    cache: str
    nodes: int
    evict_us: float


class _BenchReq:
    """The part of a request that a match with copy-on-write reads."""

    def __init__(self, rid: str) -> None:
        self.rid = rid
        self.kv = ReqKv()
        self.origin_input_ids: Sequence[int] = ()
        self.output_ids: Sequence[int] = ()
        self.fill_ids: Sequence[int] = ()
        self.extra_key: str | None = None
        self.writers: Writers = ()

    def goes_on_from(self, writers: Writers) -> None:
        """Do nothing: the benchmark does not use writers."""


_TREES: Final[Mapping[CacheKind, type[Tree]]] = {
    "full": RadixCache,
    "states": MambaRadixCache,
    "windows": SWARadixCache,
}


class TimedCache:
    """Our cache with its pools, timed turn by turn.

    ``unified`` selects the unified tree for all kinds; otherwise each kind has its own class.
    """

    def __init__(
        self,
        pattern: CachePattern,
        page_size: int,
        kind: CacheKind,
        unified: bool = False,
    ) -> None:
        # A hybrid tree with larger pages requires track buffers, which no turn here uses.
        tracks = kind == "states" and page_size > 1
        self.rows = _hybrid_rows(pattern.mamba_slots, tracks) if kind == "states" else None
        self.allocator = _allocator(pattern, page_size, windows=kind == "windows")
        made: type[Tree] = _TREES[kind]
        self.cache: Tree = (UnifiedRadixCache if unified else made)(
            CacheInitParams(
                self.rows or ReqToTokenPool(size=1, max_context_len=1),
                self.allocator,
                page_size,
                sliding_window_size=pattern.sliding_window if kind == "windows" else 0,
                enable_mamba_extra_buffer=tracks,
            )
        )
        self.block = Block()
        self._conversations = Conversations(pattern)

    def run(self, turns: int) -> Block:
        """Run the next ``turns`` turns; keys are made before the timing starts."""
        keys = [self._conversations.next_key() for _ in range(turns)]
        block = self.block = Block()
        start = time.perf_counter_ns()
        for key in keys:
            self.turn(key)
        block.wall_ns = time.perf_counter_ns() - start
        return block

    def turn(self, tokens: array[int]) -> None:
        """Match, lock, make room, insert, unlock."""
        block, clock = self.block, time.perf_counter_ns
        record, cache = block.record, self.cache
        before = {kind: len(calls) for kind, calls in block.calls_ns.items()}
        self._make_state_room()
        req = _BenchReq("bench")
        start = clock()
        key = RadixKey(tokens)
        matched = cache.match_prefix(MatchPrefixParams(key, cow_mamba=True, req=req))
        record("match", start)
        start = clock()
        lock = cache.inc_lock_ref(matched.last_device_node)
        record("lock", start)
        value, state = self._take(len(tokens), matched, req)
        start = clock()
        inserted = cache.insert(
            InsertParams(key, value, state, prev_prefix_len=matched.cache_protected_len)
        )
        record("insert", start)
        receipt = lock.to_dec_params()
        start = clock()
        cache.dec_lock_ref(matched.last_device_node, receipt)
        record("lock", start)
        if self.rows is not None and state is not None and inserted.mamba_exist:
            self.rows.mamba_allocator.free([state], REQ)
        block.turn_ns.append(
            sum(sum(calls[before.get(kind, 0) :]) for kind, calls in block.calls_ns.items())
        )
        block.key_tokens += len(tokens)
        block.hit_tokens += matched.cache_protected_len

    def _take(
        self, length: int, matched: MatchResult, req: _BenchReq
    ) -> tuple[IntArray, int | None]:
        """Return KV positions for the whole key, reused ones first, and a state slot."""
        missing = length - matched.cache_protected_len
        kv = self.allocator
        if isinstance(kv, SWATokenToKVPoolAllocator):
            full, swa = kv.full_available_size(), kv.swa_available_size()
            # Evict from each pool only what that pool lacks, as the scheduler does.
            short, swa_short = max(0, missing - full), max(0, missing - swa)
        else:
            short, swa_short = max(0, missing - kv.available_size()), 0
        if short or swa_short:
            self._evict(EvictParams(short, swa_num_tokens=swa_short))
        fresh = self.allocator.alloc(missing)
        assert fresh is not None, "the pattern does not fit its KV pool"
        value = np.concatenate((matched.device_indices, fresh))
        if self.rows is None:
            return value, None
        if req.kv.mamba_pool_idx is None:
            slots = self.rows.mamba_allocator.alloc(1)
            assert slots is not None, "the pattern does not fit its state pool"
            return value, slots[0]
        return value, req.kv.mamba_pool_idx

    def _make_state_room(self) -> None:
        if self.rows is not None and self.rows.mamba_allocator.available_size() == 0:
            self._evict(EvictParams(mamba_num=1))

    def _evict(self, params: EvictParams) -> None:
        removed = self.cache.events.nodes_removed
        start = time.perf_counter_ns()
        evicted = self.cache.evict(params)
        self.block.record("evict", start)
        self.block.nodes_evicted += self.cache.events.nodes_removed - removed
        self.block.states_evicted += evicted.mamba_num_evicted


def bench_cache(
    page_size: int,
    kind: CacheKind,
    turns: int = 8_000,
    warm_up_turns: int = 2_000,
    pattern: CachePattern | None = None,
    unified: bool = False,
) -> CacheBenchRow:
    """Run the pattern on the tree for ``kind``, or on the unified tree."""
    cache = TimedCache(CachePattern() if pattern is None else pattern, page_size, kind, unified)
    cache.run(warm_up_turns)
    block = cache.run(turns)
    return CacheBenchRow(
        cache=type(cache.cache).__name__,
        page_size=page_size,
        turns_per_s=turns / (block.wall_ns / 1e9),
        match_us=_median_us(block, "match"),
        insert_us=_median_us(block, "insert"),
        evict_us=_median_us(block, "evict"),
        cache_us_per_turn=statistics.median(block.turn_ns) / 1000,
        cache_time_share=block.in_cache_ns / block.wall_ns,
        hit_rate=block.hit_tokens / block.key_tokens,
    )


def _median_us(block: Block, kind: str) -> float:
    calls = block.calls_ns.get(kind)
    return statistics.median(calls) / 1000 if calls else 0.0


def bench_eviction(
    node_counts: Sequence[int] = (1_000, 10_000, 100_000), evictions: int = 200
) -> list[EvictionCostRow]:
    """Time one eviction as the tree grows; the oldest entries are internal or locked."""
    rows = []
    for nodes in node_counts:
        for cache in (
            _grown_hybrid(nodes, MambaRadixCache),
            _grown_hybrid(nodes, UnifiedRadixCache),
            _grown_radix(nodes),
        ):
            name = type(cache).__name__
            times = []
            for _ in range(min(evictions, nodes // 8)):
                start = time.perf_counter_ns()
                cache.evict(EvictParams(num_tokens=1))
                times.append(time.perf_counter_ns() - start)
            rows.append(EvictionCostRow(name, nodes, statistics.median(times) / 1000))
    return rows


def _grown_hybrid(nodes: int, made: type[MambaRadixCache] | type[UnifiedRadixCache]) -> Tree:
    allocator = TokenToKVPoolAllocator(nodes, torch.float32, "cpu")
    rows = _hybrid_rows(nodes, tracks=False)
    cache = made(CacheInitParams(rows, allocator, 1))

    def add(key: RadixKey, prefix_len: int) -> None:
        taken = allocator.alloc(1)
        slots = rows.mamba_allocator.alloc(1)
        assert taken is not None
        assert slots is not None
        known = np.zeros(prefix_len, dtype=np.int64)
        value = np.concatenate((known, taken))
        cache.insert(InsertParams(key, value, slots[0], prev_prefix_len=prefix_len))

    _grow(cache, add, nodes)
    return cache


def _grown_radix(nodes: int) -> RadixCache:
    cache = RadixCache.create_simulated()

    def add(key: RadixKey, prefix_len: int) -> None:
        cache.insert(InsertParams(key, prev_prefix_len=prefix_len))

    _grow(cache, add, nodes)
    return cache


def _grow(cache: Tree, add: Callable[[RadixKey, int], None], nodes: int) -> None:
    """Add chains of eight nodes; lock the first quarter of them at their ends."""
    depth = 8
    for chain in range(nodes // depth):
        tokens = array("q")
        for level in range(depth):
            tokens.append(chain * depth + level)
            add(RadixKey(tokens), level)
        if chain < nodes // depth // 4:
            found = cache.match_prefix(MatchPrefixParams(RadixKey(tokens)))
            cache.inc_lock_ref(found.last_device_node)


def _allocator(
    pattern: CachePattern, page_size: int, *, windows: bool
) -> TokenToKVPoolAllocator | PagedTokenToKVPoolAllocator | SWATokenToKVPoolAllocator:
    if windows:
        return SWATokenToKVPoolAllocator(
            pattern.kv_tokens, pattern.swa_tokens, page_size, torch.float32, "cpu"
        )
    if page_size == 1:
        return TokenToKVPoolAllocator(pattern.kv_tokens, torch.float32, "cpu")
    return PagedTokenToKVPoolAllocator(pattern.kv_tokens, page_size, torch.float32, "cpu")


def _hybrid_rows(mamba_slots: int, tracks: bool) -> HybridReqToTokenPool:
    """Return a pool with the smallest possible states, as only the bookkeeping is timed."""
    shape = Mamba2StateShape.gated_delta_net(
        num_k_heads=1, num_v_heads=1, head_k_dim=2, head_v_dim=2, conv_kernel=2
    )
    states = MambaPool(mamba_slots, Mamba2CacheParams(shape, (0,)), (0,), "cpu")
    return HybridReqToTokenPool(1, mamba_slots, 1, "cpu", states, enable_mamba_extra_buffer=tracks)


def main(
    turns: Annotated[int, typer.Option(min=100, help="Measured turns of each row.")] = 8000,
) -> None:
    """The prefix caches alone: match, insert, evict on multi-turn conversations.

    8 system prompts of 256 tokens, turns of 192, 48 conversations, 120,000 KV tokens, 200 states or
    40,000 tokens of sliding windows.
    """
    typer.echo("median microseconds a call, one thread")
    typer.echo(
        f"{'cache':26} {'page':>4} {'match':>7} {'insert':>7} {'evict':>7} {'us/turn':>8} "
        f"{'turns/s':>8} {'in cache':>8} {'hit rate':>8}"
    )
    trees: tuple[tuple[CacheKind, int], ...] = (
        ("states", 1), ("full", 16), ("windows", 1), ("windows", 16),
    )  # fmt: skip
    for (kind, page_size), unified in product(trees, (False, True)):
        row = bench_cache(page_size, kind, turns, unified=unified)
        name = f"{row.cache}{', windows' * (kind == 'windows' and unified)}"
        typer.echo(
            f"{name:26} {row.page_size:4} {row.match_us:7.1f} {row.insert_us:7.1f} "
            f"{row.evict_us:7.1f} {row.cache_us_per_turn:8.1f} {row.turns_per_s:8.0f} "
            f"{format_percent(row.cache_time_share):>8} {format_percent(row.hit_rate):>8}"
        )
    typer.echo("\ncost of one eviction, most old nodes internal or locked")
    for cost in bench_eviction():
        typer.echo(f"{cost.cache:17} {cost.nodes:7} nodes {cost.evict_us:7.1f} us")
