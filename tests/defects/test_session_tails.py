"""sglang#22862 in a whole engine: the tail that is overwritten, and the one freed inside a page."""

from __future__ import annotations

import pytest

from hybridbench.defects.inject import injected
from hybridbench.defects.pr22862_session_retract_tail import DEFECT as RETRACT_TAIL
from hybridbench.defects.pr22862_session_tail_unaligned_free import DEFECT as UNALIGNED
from hybridbench.engine.memory.owners import OwnershipError
from tests.builders import assert_idle_and_clean, run_to_idle
from tests.defects.session_traffic import (
    begin_turn,
    open_with_turn,
    paged_engine,
    retract_turn,
)


@pytest.mark.parametrize("page_size", [1, 16])
def test_a_healthy_engine_loses_nothing_by_retracted_turns(page_size: int) -> None:
    engine = paged_engine(page_size)
    open_with_turn(engine, "s")

    for _ in range(4):
        retract_turn(engine, "s")
    engine.close_session("s")

    assert_idle_and_clean(engine)


def test_with_the_defect_each_retract_of_a_turn_costs_exactly_one_token() -> None:
    RETRACT_TAIL.truth.clear()
    with injected(RETRACT_TAIL):
        engine = paged_engine(1)
        open_with_turn(engine, "s")
        for _ in range(4):
            retract_turn(engine, "s")
        engine.close_session("s")

    assert engine.pool_stats()["kv"].residual == 4
    assert engine.counters.session_retracts == 4
    assert RETRACT_TAIL.truth.counts() == {"tails_overwritten": 4, "tokens_lost": 4}


def test_turns_that_are_not_retracted_cost_nothing() -> None:
    RETRACT_TAIL.truth.clear()
    with injected(RETRACT_TAIL):
        engine = paged_engine(1)
        open_with_turn(engine, "s")
        engine.close_session("s")

    assert RETRACT_TAIL.truth.counts().get("tokens_lost", 0) == 0
    assert_idle_and_clean(engine)


def test_a_tail_freed_inside_a_page_takes_the_page_from_under_the_turn() -> None:
    UNALIGNED.truth.clear()
    with injected(UNALIGNED):
        engine = paged_engine(16)
        open_with_turn(engine, "s")
        begin_turn(engine, "s", steps=2)
        engine.scheduler._retract_one()
        engine.step()
        # It ends inside a page, which is now free, and in the turn's hands.
        assert engine.pool_stats()["kv"].residual == -16
        with pytest.raises(OwnershipError):
            run_to_idle(engine)

    assert UNALIGNED.truth.counts() == {"tails_freed": 1, "tokens_freed_in_use": 16}


def test_where_nobody_checks_owners_the_page_is_handed_out_twice_and_stays_one_too_many() -> None:
    UNALIGNED.truth.clear()
    with injected(UNALIGNED):
        engine = paged_engine(16, check_owners=False)
        open_with_turn(engine, "s")
        begin_turn(engine, "s", steps=2)
        engine.scheduler._retract_one()
        run_to_idle(engine)
        engine.close_session("s")
        free = engine.pools.token_to_kv_pool_allocator.free_pages.tolist()

    assert UNALIGNED.truth.counts()["tokens_freed_in_use"] == 16
    assert engine.pool_stats()["kv"].residual == -16
    assert len(free) == len(set(free)) + 1 or len(engine.pools.tree_cache.tree_slots()[0]) > 0
    assert engine.pools.objections()["kv"] > 0


def test_in_pages_of_one_token_the_same_code_is_right() -> None:
    with injected(UNALIGNED):
        engine = paged_engine(1)
        open_with_turn(engine, "s")
        retract_turn(engine, "s")
        engine.close_session("s")

    assert_idle_and_clean(engine)
