"""sglang#22790 in a whole engine: an aborted turn loses what its session held."""

from __future__ import annotations

from hybridbench.defects.inject import injected
from hybridbench.defects.pr22790_session_abort_clobber import DEFECT
from hybridbench.engine.engine import Engine
from tests.builders import assert_idle_and_clean, run_to_idle
from tests.defects.session_traffic import begin_turn, hybrid_engine, open_with_turn


def abort_turns(engine: Engine, count: int) -> None:
    """Open ``count`` sessions; abort the second turn of each, then close it."""
    for index in range(count):
        name = f"s{index}"
        open_with_turn(engine, name)
        engine.abort(begin_turn(engine, name))
        run_to_idle(engine)
        engine.close_session(name)


def test_a_healthy_engine_gets_everything_back_from_aborted_turns() -> None:
    engine = hybrid_engine()

    abort_turns(engine, 3)

    assert engine.counters.session_abort_decode == 3
    assert_idle_and_clean(engine)


def test_with_the_defect_an_abort_loses_what_the_session_held_of_its_own() -> None:
    DEFECT.truth.clear()
    with injected(DEFECT):
        engine = hybrid_engine()
        abort_turns(engine, 3)

    lost = DEFECT.truth.counts()
    assert lost["aborts"] == 3
    # Each: 28 tokens of the first turn, 3 new ones and 2 outputs, minus 20 in the tree.
    assert engine.pool_stats()["kv"].residual == lost["tokens_lost"] == 3 * 13
    assert engine.pool_stats()["mamba"].residual == 0


def test_before_the_close_the_session_holds_less_than_nothing() -> None:
    with injected(DEFECT):
        engine = hybrid_engine()
        open_with_turn(engine, "s")
        engine.abort(begin_turn(engine, "s"))
        run_to_idle(engine)

    assert engine.pool_stats()["kv"].session_held == 1 - 20


def test_a_session_that_goes_on_loses_nothing_more() -> None:
    DEFECT.truth.clear()
    with injected(DEFECT):
        engine = hybrid_engine()
        open_with_turn(engine, "s")
        engine.abort(begin_turn(engine, "s"))
        run_to_idle(engine)
        begin_turn(engine, "s")
        run_to_idle(engine)
        engine.close_session("s")

    assert engine.pool_stats()["kv"].residual == DEFECT.truth.counts()["tokens_lost"] == 13


def test_a_turn_that_is_aborted_while_it_waits_costs_nothing() -> None:
    DEFECT.truth.clear()
    with injected(DEFECT):
        engine = hybrid_engine()
        open_with_turn(engine, "s")
        engine.abort(begin_turn(engine, "s", steps=0))
        run_to_idle(engine)
        engine.close_session("s")

    assert DEFECT.truth.counts() == {}
    assert_idle_and_clean(engine)
