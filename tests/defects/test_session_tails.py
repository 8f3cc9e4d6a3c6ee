"""sglang#22862 in a whole engine: tails that are overwritten, or freed inside a page."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hybridbench.defects.inject import injected
from hybridbench.defects.pr22862_session_logit_reserve import DEFECT as LOGIT_RESERVE
from hybridbench.defects.pr22862_session_retract_tail import DEFECT as RETRACT_TAIL
from hybridbench.defects.pr22862_session_tail_unaligned_free import DEFECT as UNALIGNED
from hybridbench.engine.engine import Engine
from hybridbench.engine.memory.owners import OwnershipError
from tests.builders import NANO_MODEL, assert_idle_and_clean, make_tracking_engine, run_to_idle
from tests.defects.session_traffic import (
    begin_turn,
    hybrid_engine,
    open_with_turn,
    paged_engine,
    retract_turn,
)
from tests.drafters import HalfRightDrafter

OVERLAP: dict[str, Any] = {"enable_overlap_schedule": True}


def guessing() -> dict[str, Any]:
    return {**OVERLAP, "drafter": HalfRightDrafter(NANO_MODEL.vocab_size)}


def four_retracted_turns(engine: Engine) -> None:
    open_with_turn(engine, "s")
    for _ in range(4):
        retract_turn(engine, "s")
    engine.close_session("s")


@pytest.mark.parametrize("ahead", [{}, OVERLAP, guessing()], ids=["neither", "overlap", "both"])
@pytest.mark.parametrize("page_size", [1, 16])
def test_a_healthy_engine_loses_nothing_by_retracted_turns(
    page_size: int, ahead: dict[str, Any]
) -> None:
    engine = paged_engine(page_size, **ahead)

    four_retracted_turns(engine)

    assert_idle_and_clean(engine)


def test_with_the_defect_each_retract_under_a_step_in_flight_costs_exactly_one_token() -> None:
    RETRACT_TAIL.truth.clear()
    with injected(RETRACT_TAIL):
        engine = paged_engine(1, **OVERLAP)
        four_retracted_turns(engine)

    assert engine.pool_stats()["kv"].residual == 4
    assert engine.counters.session_retracts == engine.counters.session_tail_frees == 4
    assert RETRACT_TAIL.truth.counts() == {"tails_overwritten": 4, "tokens_lost": 4}


@pytest.mark.parametrize("ahead", [OVERLAP, guessing()], ids=["overlap", "both"])
def test_with_a_recurrent_model_each_resumed_turn_loses_one_token(ahead: dict[str, Any]) -> None:
    RETRACT_TAIL.truth.clear()
    with injected(RETRACT_TAIL):
        engine = hybrid_engine(**ahead)
        four_retracted_turns(engine)

    counters = engine.counters
    assert engine.pool_stats()["kv"].residual == 8
    # Each of four turns resumes twice: after the previous turn, and after its own retract.
    assert counters.session_restores == counters.session_tail_frees == 8
    assert RETRACT_TAIL.truth.counts() == {"tails_overwritten": 8, "tokens_lost": 8}


@pytest.mark.parametrize("page_size", [1, 16])
def test_with_the_defect_the_tokens_are_still_right(page_size: int) -> None:
    outputs = []
    for defects in ((), (RETRACT_TAIL,)):
        with injected(*defects):
            engine = make_tracking_engine(page_size, check_fatal=False, **guessing())
            open_with_turn(engine, "s")
            begin_turn(engine, "s")
            engine.scheduler._retract_one()
            ends = [event for event in run_to_idle(engine) if event.ends_request]
        outputs.append([event.output_ids for event in ends])

    assert outputs[0] == outputs[1]


def test_an_engine_whose_steps_do_not_overlap_leaves_no_tail_to_lose() -> None:
    RETRACT_TAIL.truth.clear()
    with injected(RETRACT_TAIL):
        engine = paged_engine(1)
        four_retracted_turns(engine)

    assert RETRACT_TAIL.truth.counts() == {}
    assert engine.counters.session_retracts == 4
    assert_idle_and_clean(engine)


@pytest.mark.parametrize("page_size", [1, 16])
def test_a_turn_that_resumes_a_token_too_early_loses_it_without_a_step_in_flight(
    page_size: int,
) -> None:
    LOGIT_RESERVE.truth.clear()
    with injected(LOGIT_RESERVE):
        engine = paged_engine(page_size)
        four_retracted_turns(engine)

    assert engine.counters.session_retracts == 4
    # With pages of 16, only one of the four resumes at a page boundary and loses that page.
    lost = {1: 4, 16: 16}[page_size]
    assert engine.pool_stats()["kv"].residual == lost
    assert LOGIT_RESERVE.truth.counts()["tokens_lost"] == lost


def test_a_turn_that_resumes_one_token_early_still_outputs_the_right_tokens() -> None:
    outputs = []
    for defects in ((), (LOGIT_RESERVE,)):
        with injected(*defects):
            engine = paged_engine(1)
            open_with_turn(engine, "s")
            begin_turn(engine, "s")
            engine.scheduler._retract_one()
            ends = [event for event in run_to_idle(engine) if event.ends_request]
        outputs.append([event.output_ids for event in ends])

    assert outputs[0] == outputs[1]


def test_resuming_one_token_early_loses_nothing_if_the_tail_is_freed() -> None:
    only_the_length = replace(LOGIT_RESERVE, patches=LOGIT_RESERVE.patches[:1])
    with injected(only_the_length):
        engine = paged_engine(1)
        four_retracted_turns(engine)

    assert engine.counters.session_tail_frees == 4
    assert_idle_and_clean(engine)


def test_a_tail_freed_inside_a_page_takes_the_page_from_under_the_turn() -> None:
    UNALIGNED.truth.clear()
    with injected(UNALIGNED):
        engine = paged_engine(16, **OVERLAP)
        open_with_turn(engine, "s")
        begin_turn(engine, "s", steps=4)
        engine.scheduler._retract_one()
        engine.step()
        # The turn ends inside a page that is now free, but the turn still holds it.
        assert engine.pool_stats()["kv"].residual == -16
        with pytest.raises(OwnershipError):
            run_to_idle(engine)

    assert UNALIGNED.truth.counts() == {"tails_freed": 1, "tokens_freed_in_use": 16}


def test_where_nobody_checks_owners_the_page_is_handed_out_twice_and_stays_one_too_many() -> None:
    UNALIGNED.truth.clear()
    with injected(UNALIGNED):
        engine = paged_engine(16, check_owners=False, **OVERLAP)
        open_with_turn(engine, "s")
        begin_turn(engine, "s", steps=4)
        engine.scheduler._retract_one()
        run_to_idle(engine)
        engine.close_session("s")
        free = engine.pools.token_to_kv_pool_allocator.free_pages.tolist()

    assert UNALIGNED.truth.counts()["tokens_freed_in_use"] == 16
    assert engine.pool_stats()["kv"].residual == -16
    assert len(free) == len(set(free)) + 1 or len(engine.pools.tree_cache.tree_slots()[0]) > 0
    assert engine.pools.objections()["kv"] > 0


def test_a_surplus_step_inside_a_page_is_enough_for_it() -> None:
    UNALIGNED.truth.clear()
    with injected(UNALIGNED):
        engine = make_tracking_engine(16, check_fatal=False, **OVERLAP)
        open_with_turn(engine, "s")
        with pytest.raises(OwnershipError):
            retract_turn(engine, "s")

    assert UNALIGNED.truth.counts() == {"tails_freed": 1, "tokens_freed_in_use": 16}


@pytest.mark.parametrize("ahead", [OVERLAP, guessing()], ids=["overlap", "both"])
def test_in_pages_of_one_token_the_same_code_is_right(ahead: dict[str, Any]) -> None:
    with injected(UNALIGNED):
        engine = hybrid_engine(**ahead)
        four_retracted_turns(engine)

    assert_idle_and_clean(engine)
