"""sglang#28380 in a whole engine: a request that never ran leaves its front-end entry."""

from __future__ import annotations

import pytest

from hybridbench.defects.inject import injected
from hybridbench.defects.pr28380_rid_state_orphan import DEFECT, TRUTH
from hybridbench.engine.engine import Engine
from hybridbench.engine.front_end import DuplicateRequestError
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.engine.scheduler.audit import ViolationKind
from tests.builders import assert_idle_and_clean, make_engine, run_to_idle

PARAMS = SamplingParams(max_new_tokens=2)


def bad_input(engine: Engine, rejected: int = 7, queued: int = 3) -> int:
    """Submit requests that are too long, good ones, and some that are aborted in the queue.

    Returns:
        The number of entries left in the front end at the end.
    """
    for index in range(rejected):
        engine.submit(f"long-{index}", [1] * 200, PARAMS)
        engine.submit(f"good-{index}", [1, 2, index], PARAMS)
    for index in range(queued):
        engine.submit(f"left-{index}", [3, 4, index], PARAMS)
        engine.abort(f"left-{index}")
    run_to_idle(engine)
    assert (engine.counters.requests_rejected, engine.counters.abort_queued) == (rejected, queued)
    assert engine.audit() == []
    return engine.containers()["front_end"]


def test_a_healthy_engine_removes_the_entries_of_rejected_requests() -> None:
    engine = make_engine()

    assert bad_input(engine) == 0
    assert_idle_and_clean(engine)


@pytest.mark.parametrize(("rejected", "queued"), [(7, 0), (0, 3), (5, 2)])
def test_with_the_defect_there_is_one_entry_for_each_request_that_never_ran(
    rejected: int, queued: int
) -> None:
    TRUTH.clear()
    with injected(DEFECT):
        engine = make_engine()
        orphans = bad_input(engine, rejected, queued)

    [violation] = engine.check_invariants(idle=True)
    assert (violation.kind, violation.count) == (ViolationKind.UNANSWERED, orphans)
    assert orphans == rejected + queued
    assert TRUTH.counts() == {"entries_orphaned": orphans, "requests_unserved": orphans}


def test_with_the_defect_the_id_of_a_rejected_request_can_never_be_reused() -> None:
    with injected(DEFECT):
        engine = make_engine()
        engine.submit("a", [1] * 200, PARAMS)
        run_to_idle(engine)

        with pytest.raises(DuplicateRequestError, match="'a'"):
            engine.submit("a", [1, 2], PARAMS)
        assert not engine.abort("a")


def test_after_the_defect_a_new_engine_is_healthy_again() -> None:
    with injected(DEFECT):
        bad_input(make_engine())

    engine = make_engine()
    assert bad_input(engine) == 0
    assert_idle_and_clean(engine)
