"""The cache benchmark runs its pattern and counts what it did."""

from __future__ import annotations

import pytest

from benchmarks.cache import TimedCache, bench_cache, bench_eviction
from benchmarks.cache_pattern import CacheKind, CachePattern
from hybridbench.engine.cache.swa_radix_cache import SWARadixCache
from hybridbench.engine.cache.unified_radix_cache import UnifiedRadixCache

SMALL = CachePattern(
    system_prompts=2,
    system_tokens=32,
    turn_tokens=16,
    turns_min=3,
    turns_max=5,
    conversations=6,
    kv_tokens=1_024,
    mamba_slots=16,
    swa_tokens=512,
    sliding_window=16,
)


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize(
    ("kind", "cache"), [("states", "MambaRadixCache"), ("full", "RadixCache")], ids=str
)
def test_the_pattern_reuses_prefixes_and_evicts(
    page_size: int, kind: CacheKind, cache: str
) -> None:
    row = bench_cache(page_size, kind, turns=120, warm_up_turns=40, pattern=SMALL)

    assert (row.cache, row.page_size) == (cache, page_size)
    assert 0.2 < row.hit_rate < 1
    assert min(row.match_us, row.insert_us, row.evict_us, row.turns_per_s) > 0
    assert 0 < row.cache_time_share < 1


@pytest.mark.parametrize("kind", ["states", "full"])
def test_the_same_seed_gives_the_same_counts(kind: CacheKind) -> None:
    first, second = (TimedCache(SMALL, 1, kind).run(120) for _ in range(2))

    assert (first.hit_tokens, first.nodes_evicted) == (second.hit_tokens, second.nodes_evicted)
    assert first.nodes_evicted > 0
    assert (first.states_evicted > 0) == (kind == "states")
    assert 48 < first.key_tokens / 120 < 112


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("kind", ["states", "full"])
def test_the_unified_tree_reuses_as_much_as_the_dedicated_one_and_more_of_states(
    page_size: int, kind: CacheKind
) -> None:
    caches = [TimedCache(SMALL, page_size, kind, unified) for unified in (False, True)]

    dedicated, unified = (cache.run(160) for cache in caches)

    assert isinstance(caches[1].cache, UnifiedRadixCache)
    assert unified.hit_tokens >= dedicated.hit_tokens
    # The unified tree keeps the states that were read last, not all states along their paths.
    assert (unified.hit_tokens > dedicated.hit_tokens) == (kind == "states")
    assert unified.states_evicted == dedicated.states_evicted


@pytest.mark.parametrize("page_size", [1, 16])
def test_trees_with_windows_reuse_the_same_and_make_tombstones(page_size: int) -> None:
    caches = [TimedCache(SMALL, page_size, "windows", unified) for unified in (False, True)]

    dedicated, unified = (cache.run(160) for cache in caches)

    assert [type(one.cache) for one in caches] == [SWARadixCache, UnifiedRadixCache]
    assert min(one.cache.events.swa_tombstones for one in caches) > 50
    assert 0.2 < dedicated.hit_tokens / dedicated.key_tokens < 1
    assert unified.hit_tokens == pytest.approx(dedicated.hit_tokens, rel=0.02)


def test_eviction_cost_is_measured_in_trees_of_the_sizes_asked_for() -> None:
    rows = bench_eviction((64, 128), evictions=4)

    assert [(row.cache, row.nodes) for row in rows] == [
        ("MambaRadixCache", 64),
        ("UnifiedRadixCache", 64),
        ("RadixCache", 64),
        ("MambaRadixCache", 128),
        ("UnifiedRadixCache", 128),
        ("RadixCache", 128),
    ]
    assert min(row.evict_us for row in rows) > 0
