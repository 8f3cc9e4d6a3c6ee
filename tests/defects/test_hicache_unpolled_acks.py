"""sglang#20049 in a whole engine: written nodes stay locked until the next prefill."""

from __future__ import annotations

import pytest

from hybridbench.defects.inject import injected
from hybridbench.defects.pr20049_hicache_unpolled_acks import DEFECT
from hybridbench.engine.engine import Engine
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.foundation.engine_config import HiCache
from tests.builders import assert_idle_and_clean, make_attention_engine, run_to_idle
from tests.host_transfers import ChosenTransfers

PARAMS = SamplingParams(max_new_tokens=4, ignore_eos=True)


@pytest.fixture(autouse=True)
def counts_of_this_test() -> None:
    DEFECT.truth.clear()


def engine_of_host_tier(*, check_fatal: bool = False) -> Engine:
    return make_attention_engine(
        4,
        kv_tokens=64,
        check_fatal=check_fatal,
        hicache=HiCache(ratio=2.0),
        transfers=ChosenTransfers(),
    )


def run(engine: Engine, rid: str, first: int) -> None:
    engine.submit(rid, [first, *range(1, 15)], PARAMS)
    run_to_idle(engine)


def protected(engine: Engine) -> int:
    return engine.pool_stats()["kv"].protected


def test_a_healthy_engine_is_idle_only_when_every_write_is_answered() -> None:
    engine = engine_of_host_tier(check_fatal=True)
    run(engine, "a", 40)

    assert engine.counters.host_backups > 0
    assert_idle_and_clean(engine)


def test_with_the_defect_what_was_written_last_stays_locked() -> None:
    with injected(DEFECT):
        engine = engine_of_host_tier()
        run(engine, "a", 40)

        assert engine.is_idle
        assert protected(engine) == DEFECT.truth.counts()["tokens_locked"] > 0
        assert engine.pool_stats()["kv"].residual == 0


def test_the_next_prefill_gives_the_locks_back_and_leaves_its_own() -> None:
    with injected(DEFECT):
        engine = engine_of_host_tier()
        run(engine, "a", 40)
        after_first = protected(engine)
        for turn in range(3):
            run(engine, f"b{turn}", 50 + turn)

        assert protected(engine) == DEFECT.truth.counts()["tokens_locked"] == after_first


def test_a_flush_ends_the_transfers_with_the_tree() -> None:
    with injected(DEFECT):
        engine = engine_of_host_tier()
        run(engine, "a", 40)

        assert engine.flush_cache()
        assert engine.is_idle
        assert DEFECT.truth.counts()["tokens_locked"] == 0
    assert_idle_and_clean(engine)
