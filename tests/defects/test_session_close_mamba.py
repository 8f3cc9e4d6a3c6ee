"""sglang#23496 in a whole engine: each closed session leaks its state slot."""

from __future__ import annotations

import pytest

from hybridbench.defects.inject import injected
from hybridbench.defects.pr23496_session_close_mamba import DEFECT
from tests.builders import assert_idle_and_clean
from tests.defects.session_traffic import hybrid_engine, open_and_close, paged_engine


def test_a_healthy_engine_gets_everything_back_from_closed_sessions() -> None:
    engine = hybrid_engine()

    open_and_close(engine, 5)

    assert_idle_and_clean(engine)


def test_with_the_defect_each_close_costs_exactly_one_state_slot() -> None:
    DEFECT.truth.clear()
    with injected(DEFECT):
        engine = hybrid_engine()
        open_and_close(engine, 5)

    residuals = {pool: stats.residual for pool, stats in engine.pool_stats().items()}
    assert residuals == {"kv": 0, "mamba": 5, "req": 0}
    assert DEFECT.truth.counts() == {"releases": 5, "slots_lost": 5}


@pytest.mark.parametrize(("overlap", "each"), [(False, 2), (True, 3)])
def test_with_track_buffers_their_slots_are_lost_and_counted_too(overlap: bool, each: int) -> None:
    DEFECT.truth.clear()
    with injected(DEFECT):
        engine = hybrid_engine(
            mamba_scheduler_strategy="extra_buffer",
            mamba_slots=64,
            enable_overlap_schedule=overlap,
        )
        open_and_close(engine, 5)

    assert engine.pool_stats()["mamba"].residual == 5 * each
    assert DEFECT.truth.counts() == {"releases": 5, "slots_lost": 5 * each}


def test_without_states_there_is_nothing_to_lose() -> None:
    DEFECT.truth.clear()
    with injected(DEFECT):
        engine = paged_engine(1)
        open_and_close(engine, 3)

    assert DEFECT.truth.counts() == {"releases": 3, "slots_lost": 0}
    assert_idle_and_clean(engine)


def test_after_the_defect_a_new_engine_is_healthy_again() -> None:
    with injected(DEFECT):
        open_and_close(hybrid_engine(), 2)

    engine = hybrid_engine()
    open_and_close(engine, 2)

    assert_idle_and_clean(engine)
