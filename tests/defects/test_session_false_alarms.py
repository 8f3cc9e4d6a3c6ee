"""sglang#23496, second half, and #22753: the check miscounts sessions; the pools are correct."""

from __future__ import annotations

from hybridbench.defects.defect import Defect
from hybridbench.defects.inject import injected
from hybridbench.defects.pr22753_session_active_double_count import DEFECT as DOUBLE_COUNT
from hybridbench.defects.pr23496_session_held_blind_check import DEFECT as BLIND
from hybridbench.engine.engine import Engine
from tests.builders import assert_idle_and_clean, assert_nothing_lost, run_to_idle
from tests.defects.session_traffic import begin_turn, hybrid_engine, open_with_turn


def alarms_while(defect: Defect | None) -> tuple[Engine, int, int]:
    """Return the engine, and the alarms while its session was idle and while its turn ran."""
    engine = hybrid_engine()
    open_with_turn(engine, "s")
    before = engine.counters.invariant_violations
    engine.step()
    idle = engine.counters.invariant_violations - before
    begin_turn(engine, "s", steps=1)
    running = engine.counters.invariant_violations - before - idle
    run_to_idle(engine)
    engine.close_session("s")
    return engine, idle, running


def test_a_healthy_check_says_nothing() -> None:
    engine, idle, running = alarms_while(None)

    assert (idle, running) == (0, 0)
    assert_idle_and_clean(engine)


def test_a_blind_check_alarms_while_a_session_is_idle_and_nothing_is_lost() -> None:
    BLIND.truth.clear()
    with injected(BLIND):
        engine, idle, running = alarms_while(BLIND)

    assert (idle, running) == (1, 0)
    assert BLIND.truth.counts()["checks_misled"] >= 1
    # The statistics of the pools were correct throughout.
    assert_nothing_lost(engine)


def test_a_check_that_counts_twice_alarms_while_a_turn_runs_and_nothing_is_lost() -> None:
    DOUBLE_COUNT.truth.clear()
    with injected(DOUBLE_COUNT):
        engine, idle, running = alarms_while(DOUBLE_COUNT)

    assert (idle, running) == (0, 3)
    assert DOUBLE_COUNT.truth.counts()["checks_misled"] >= 1
    assert_nothing_lost(engine)
