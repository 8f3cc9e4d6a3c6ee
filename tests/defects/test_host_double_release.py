"""sglang#13501 in a whole engine: the unfilled tail of an early prefetch is released twice."""

from __future__ import annotations

import pytest

from hybridbench.defects.inject import injected
from hybridbench.defects.pr13501_host_double_release import DEFECT
from hybridbench.engine.engine import Engine
from hybridbench.engine.memory.owners import DoubleFreeError
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.foundation.engine_config import HiCache, HiCacheStorage, PrefetchPolicy
from tests.builders import assert_idle_and_clean, make_attention_engine, run_to_idle
from tests.host_transfers import ChosenStorageIO, ChosenTransfers


@pytest.fixture(autouse=True)
def counts_of_this_test() -> None:
    DEFECT.truth.clear()


def chats(policy: PrefetchPolicy, *, check_owners: bool = True) -> Engine:
    """Serve four texts in turn with a host pool for two; storage moves one page between steps."""
    engine = make_attention_engine(
        4,
        kv_tokens=64,
        check_fatal=False,
        check_owners=check_owners,
        hicache=HiCache(ratio=1.5),
        hicache_storage=HiCacheStorage(ratio=8.0, prefetch_policy=policy, prefetch_threshold=8),
        transfers=ChosenTransfers(),
        storage_io=ChosenStorageIO(iter(lambda: 1, 0)),
    )
    params = SamplingParams(max_new_tokens=4, ignore_eos=True)
    for turn in range(12):
        engine.submit(f"r{turn}", [40 + turn % 4, *range(1, 30)], params)
        run_to_idle(engine)
    return engine


def test_a_healthy_engine_stops_prefetches_early_and_balances() -> None:
    engine = chats("best_effort")

    assert engine.counters.storage_early_stops > 0
    assert_idle_and_clean(engine)


def test_with_the_defect_the_host_pool_has_more_than_there_is() -> None:
    with injected(DEFECT):
        engine = chats("best_effort", check_owners=False)
        stats = engine.pool_stats()

    assert 0 < DEFECT.truth.counts()["tokens_freed_twice"] == -stats["host_kv"].residual
    assert stats["kv"].residual == 0


def test_allocators_that_keep_account_refuse_the_second_release() -> None:
    with injected(DEFECT), pytest.raises(DoubleFreeError):
        chats("best_effort")


def test_nothing_is_freed_twice_where_every_prefetch_is_complete() -> None:
    with injected(DEFECT):
        engine = chats("wait_complete")

    assert engine.counters.storage_prefetched_tokens > 0
    assert_idle_and_clean(engine)
