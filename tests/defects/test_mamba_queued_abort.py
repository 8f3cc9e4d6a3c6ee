"""sglang#20182 in a whole engine: aborting a matched request in the queue leaks its state slot."""

from __future__ import annotations

from hybridbench.defects.inject import injected
from hybridbench.defects.pr20182_mamba_queued_abort import DEFECT
from hybridbench.engine.engine import Engine
from hybridbench.engine.sampling_params import SamplingParams
from tests.builders import assert_idle_and_clean, assert_nothing_lost, make_engine, run_to_idle

SYSTEM = list(range(1, 17))
LONG = SamplingParams(max_new_tokens=12, ignore_eos=True)


def tight_engine() -> Engine:
    engine = make_engine(kv_tokens=80, mamba_slots=24, check_fatal=False)
    engine.generate([SYSTEM], SamplingParams(max_new_tokens=1))
    return engine


def abort_heads(engine: Engine, rounds: int) -> int:
    """Refuse and then abort the head of the queue ``rounds`` times; return the queued aborts."""
    for index in range(rounds + 12):
        engine.submit(f"r{index}", [*SYSTEM, 20 + index, 3, 4], LONG)
    # Each abort makes the scheduler look at the queue again, so the next head is refused in turn.
    for _ in range(rounds):
        engine.step()
        engine.abort(engine.scheduler.waiting_queue[0].rid)
    run_to_idle(engine)
    return engine.counters.abort_queued


def test_a_healthy_engine_gets_the_slot_back_from_a_queued_abort() -> None:
    engine = tight_engine()

    assert abort_heads(engine, 5) == 5
    assert_idle_and_clean(engine)


def test_with_the_defect_each_such_abort_costs_exactly_one_slot() -> None:
    DEFECT.truth.clear()
    with injected(DEFECT):
        engine = tight_engine()
        aborts = abort_heads(engine, 5)
        residual = engine.pool_stats()["mamba"].residual

    assert aborts == 5
    assert residual == DEFECT.truth.counts()["slots_lost"] == 5
    assert engine.pool_stats()["kv"].residual == 0


def test_an_abort_before_any_match_costs_nothing() -> None:
    DEFECT.truth.clear()
    with injected(DEFECT):
        engine = tight_engine()
        engine.submit("r0", [*SYSTEM, 20, 3, 4], LONG)
        engine.abort("r0")
        run_to_idle(engine)

    assert engine.counters.abort_queued == 1
    assert DEFECT.truth.counts() == {"queued_aborts": 1, "slots_lost": 0}
    assert_nothing_lost(engine)


def test_a_request_admitted_later_returns_the_slot() -> None:
    DEFECT.truth.clear()
    with injected(DEFECT):
        engine = tight_engine()
        for index in range(8):
            engine.submit(f"r{index}", [*SYSTEM, 20 + index, 3, 4], LONG)
        run_to_idle(engine)

    assert DEFECT.truth.counts()["refusals_that_kept_a_slot"] > 0
    assert_nothing_lost(engine)


def test_after_the_defect_a_new_engine_is_healthy_again() -> None:
    with injected(DEFECT):
        abort_heads(tight_engine(), 3)

    engine = tight_engine()
    abort_heads(engine, 3)

    assert_idle_and_clean(engine)
