"""sglang#35936 in a whole engine: after a disconnect, a request runs on without a reader."""

from __future__ import annotations

from hybridbench.defects.inject import injected
from hybridbench.defects.pr35936_ghost_request import DEFECT, TRUTH
from hybridbench.engine.engine import Engine
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.foundation.clock import FakeClock
from tests.builders import assert_idle_and_clean, make_engine, run_to_idle

LONG = SamplingParams(max_new_tokens=30, ignore_eos=True)


def leave(engine: Engine, leavers: int = 2) -> int:
    """Start four requests, then disconnect the clients of the first ``leavers``.

    Returns:
        The number of requests without a client after the next step.
    """
    for index in range(4):
        engine.submit(f"r{index}", [1, 2, index], LONG)
    for _ in range(6):
        engine.step()
    assert engine.liveness().requests_without_client == 0
    for index in range(leavers):
        assert engine.disconnect(f"r{index}")
    # A healthy engine aborts their requests in this step.
    engine.step()
    return engine.liveness().requests_without_client


def test_a_healthy_engine_aborts_requests_of_disconnected_clients() -> None:
    engine = make_engine()

    assert leave(engine) == 0
    assert engine.counters.abort_decode == engine.counters.disconnects == 2
    run_to_idle(engine)
    assert engine.counters.finishes == 2
    assert_idle_and_clean(engine)


def test_with_the_defect_each_disconnect_leaves_a_request_that_runs_to_its_limit() -> None:
    TRUTH.clear()
    with injected(DEFECT):
        engine = make_engine()
        ghosts = leave(engine)
        tokens = engine.counters.output_tokens
        events = run_to_idle(engine)

    assert ghosts == engine.counters.disconnects == 2
    assert engine.counters.abort_decode == 0
    assert engine.counters.finishes == 4, "two of them for nobody"
    assert {event.rid for event in events} == {"r2", "r3"}
    assert engine.counters.output_tokens == 4 * 30
    assert TRUTH.counts() == {
        "disconnects": 2,
        "ghosts": 2,
        # ``tokens`` already includes one per ghost, from the step after the disconnect.
        "tokens_for_nobody_at_most": (4 * 30 - tokens) // 2 + 2,
    }
    # Nothing is lost in the end, so neither entries nor slots show the defect.
    assert engine.containers()["front_end"] == 0
    assert_idle_and_clean(engine)


def test_with_the_defect_the_oldest_request_goes_on_ageing() -> None:
    clock = FakeClock()
    with injected(DEFECT):
        engine = make_engine(clock=clock)
        leave(engine, leavers=4)
        clock.advance(5.0)

        assert engine.liveness().oldest_request_s == 5.0


def test_after_the_defect_a_new_engine_is_healthy_again() -> None:
    with injected(DEFECT):
        leave(make_engine())

    assert leave(make_engine()) == 0
