"""sglang#27024 in a whole engine: a session closed during a turn is never closed."""

from __future__ import annotations

from hybridbench.defects.inject import injected
from hybridbench.defects.pr27024_deferred_close_orphan import DEFECT
from hybridbench.engine.engine import Engine
from tests.builders import assert_idle_and_clean, assert_nothing_lost, run_to_idle
from tests.defects.session_traffic import begin_turn, hybrid_engine, open_with_turn


def close_during_turns(engine: Engine, count: int) -> None:
    for index in range(count):
        name = f"s{index}"
        open_with_turn(engine, name)
        begin_turn(engine, name)
        assert engine.close_session(name)
        run_to_idle(engine)


def test_a_healthy_engine_closes_when_the_turn_has_ended() -> None:
    engine = hybrid_engine()

    close_during_turns(engine, 3)

    assert len(engine.scheduler.sessions) == 0
    assert_idle_and_clean(engine)


def test_with_the_defect_each_such_session_stays_with_all_it_holds() -> None:
    DEFECT.truth.clear()
    with injected(DEFECT):
        engine = hybrid_engine()
        close_during_turns(engine, 3)

    assert DEFECT.truth.counts() == {"closes_put_off": 3, "sessions_left_open": 3}
    assert engine.containers()["sessions"] == 3
    stats = engine.pool_stats()
    assert (stats["mamba"].session_held, stats["req"].session_held) == (3, 3)
    # Every slot has a holder, so no sum shows the leak.
    assert_nothing_lost(engine)


def test_the_defect_does_not_affect_closing_an_idle_session() -> None:
    with injected(DEFECT):
        engine = hybrid_engine()
        open_with_turn(engine, "s")
        engine.close_session("s")

    assert_idle_and_clean(engine)
