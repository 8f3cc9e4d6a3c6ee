"""sglang#21624 in a whole engine: nodes keep alive the free lists that their slots came from."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import numpy as np
import pytest

from hybridbench.defects.defect import BYTES_KEPT, MILLISECONDS
from hybridbench.defects.inject import injected
from hybridbench.defects.pr21624_hicache_view_retention import DEFECT, KEPT, KeptStorages
from hybridbench.defects.truth import Truth
from hybridbench.engine.engine import Engine
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.foundation.clock import FakeClock
from hybridbench.foundation.engine_config import HiCache, HiCacheStorage
from hybridbench.sampling.live_paths import LivePaths
from tests.builders import assert_idle_and_clean, make_attention_engine, make_engine, run_to_idle
from tests.host_transfers import ChosenStorageIO, ChosenTransfers

PARAMS = SamplingParams(max_new_tokens=4, ignore_eos=True)


@pytest.fixture(autouse=True)
def counts_of_this_test() -> None:
    # Other tests' engines are full of cycles, and keep free lists alive until they are collected.
    gc.collect()
    assert KEPT.kept_bytes == 0
    DEFECT.truth.clear()


def fill(host_ratio: float, prompts: int) -> Iterator[Engine]:
    """Yield the engine after each of ``prompts`` new prompts; each queries the storage."""
    engine = make_attention_engine(
        4,
        kv_tokens=64,
        hicache=HiCache(ratio=host_ratio),
        hicache_storage=HiCacheStorage(ratio=1.0, prefetch_threshold=8),
        transfers=ChosenTransfers(),
        storage_io=ChosenStorageIO(),
    )
    for number in range(prompts):
        engine.submit(f"r{number}", [number // 40, number % 40, *range(1, 20)], PARAMS)
        run_to_idle(engine)
        yield engine


def storages(engine: Engine) -> dict[int, int]:
    """Return the sizes in bytes, by id, of arrays that nodes keep alive through host slots."""
    values = [node.host_value for node in engine.pools.tree_cache.iter_nodes()]
    bases = [value.base for value in values if value is not None and value.base is not None]
    return {id(base): base.nbytes for base in bases}


def test_nodes_of_a_healthy_engine_keep_their_slots_and_nothing_else() -> None:
    *_, engine = fill(host_ratio=64.0, prompts=30)

    assert engine.counters.host_backups >= 30
    assert storages(engine) == {}
    assert_idle_and_clean(engine)


def test_with_the_defect_each_new_prefix_keeps_a_free_list_and_the_truth_counts_them() -> None:
    with injected(DEFECT):
        *_, engine = fill(host_ratio=64.0, prompts=30)
        kept = storages(engine)

        assert len(kept) > 20
        assert sum(kept.values()) == KEPT.kept_bytes
        # The free list shrinks as nodes take slots from it.
        assert min(kept.values()) > 0.8 * 8 * engine.pools.host_allocator.size
        assert_idle_and_clean(engine)


def test_where_the_host_loses_as_many_nodes_as_it_gets_it_levels_off() -> None:
    with injected(DEFECT):
        bytes_kept = [KEPT.kept_bytes for _ in fill(host_ratio=4.0, prompts=60)]

    early, late = max(bytes_kept[20:40]), max(bytes_kept[40:])
    assert early > 0
    assert late <= 1.1 * early


def test_the_survey_of_the_heap_names_the_lists_behind_the_slices() -> None:
    with injected(DEFECT):
        *_, engine = fill(host_ratio=64.0, prompts=30)
        kept = storages(engine)
        largest, *_ = LivePaths([engine], [], [], modules={}).views.rows()

        assert largest.holder == "TreeNode.host_value"
        assert largest.storages == len(kept)
        assert largest.storage_bytes == sum(kept.values())
        assert largest.view_bytes < 0.1 * largest.storage_bytes


def test_the_truth_counts_what_comes_and_goes() -> None:
    engine = make_engine()
    truth, clock = Truth(), FakeClock()
    kept = KeptStorages(truth, clock)
    lists = [np.arange(100), np.arange(100)]
    for listed in lists:
        kept.keep(listed[:3])
        kept.keep(listed[3:5])
        clock.advance(0.25)
        kept.after_step(engine)

    del listed, lists[0]
    kept.after_step(engine)

    assert truth.counts() == {BYTES_KEPT: 0, MILLISECONDS: 250}
