"""sglang#26941 in a whole engine: each close of a session takes its track slots along."""

from __future__ import annotations

import pytest

from hybridbench.defects.inject import injected
from hybridbench.defects.pr26941_session_pingpong_dangling import DEFECT
from hybridbench.engine.engine import Engine
from tests.builders import assert_idle_and_clean
from tests.defects.session_traffic import hybrid_engine, open_and_close, open_with_turn


def tracking_engine(*, overlap: bool) -> Engine:
    return hybrid_engine(
        mamba_scheduler_strategy="extra_buffer",
        mamba_slots=64,
        enable_overlap_schedule=overlap,
    )


@pytest.mark.parametrize("overlap", [False, True])
def test_a_healthy_engine_gets_everything_back_from_closed_sessions(overlap: bool) -> None:
    engine = tracking_engine(overlap=overlap)

    open_and_close(engine, 5)

    assert_idle_and_clean(engine)


@pytest.mark.parametrize(("overlap", "each"), [(False, 1), (True, 2)])
def test_with_the_defect_each_close_costs_exactly_the_track_buffer(
    overlap: bool, each: int
) -> None:
    DEFECT.truth.clear()
    with injected(DEFECT):
        engine = tracking_engine(overlap=overlap)
        open_and_close(engine, 5)

    residuals = {pool: stats.residual for pool, stats in engine.pool_stats().items()}
    assert residuals == {"kv": 0, "mamba": 5 * each, "req": 0}
    assert DEFECT.truth.counts() == {"releases": 5, "slots_dangling": 5 * each}


def test_the_record_names_the_track_slots_still_when_its_session_is_gone() -> None:
    with injected(DEFECT):
        engine = tracking_engine(overlap=True)
        open_with_turn(engine, "s")
        record = engine.pools.sessions.slots["s"].kv
        engine.close_session("s")

    assert record.mamba_pool_idx is None
    assert len(record.track_slots) == 2
    missing = set(range(1, 65)) - set(engine.pools.mamba_allocator.free_slots)
    in_tree = engine.pools.tree_cache.tree_slots().mamba_slots
    assert missing - set(in_tree) == set(record.track_slots)


def test_without_extra_buffers_there_is_nothing_to_lose() -> None:
    with injected(DEFECT):
        engine = hybrid_engine()
        open_and_close(engine, 3)

    assert_idle_and_clean(engine)
