"""sglang#26941 in a whole engine: readmitted requests use track slots that they have freed."""

from __future__ import annotations

import pytest

from hybridbench.defects.inject import injected
from hybridbench.defects.pr26941_track_buffer_dangling import DEFECT
from hybridbench.engine.engine import Engine
from hybridbench.engine.memory.owners import DoubleFreeError
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.engine.scheduler.audit import ViolationKind
from tests.builders import assert_idle_and_clean, make_tracking_engine, run_to_idle

PARAMS = SamplingParams(max_new_tokens=40, ignore_eos=True)


def tracking_engine(*, overlap: bool = False, check_owners: bool = False) -> Engine:
    return make_tracking_engine(
        check_fatal=False,
        mamba_slots=40,
        enable_overlap_schedule=overlap,
        check_owners=check_owners,
    )


def serve(engine: Engine, retracts: int) -> None:
    for number in range(5):
        engine.submit(f"r{number}", list(range(number, number + 20)), PARAMS)
    while engine.counters.retracts < retracts:
        for _ in range(4):
            engine.step()
        engine.scheduler._retract_one()
    run_to_idle(engine)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_healthy_engine_gets_everything_back_after_retracts(overlap: bool) -> None:
    engine = tracking_engine(overlap=overlap)

    serve(engine, 8)

    assert_idle_and_clean(engine)


@pytest.mark.parametrize(("overlap", "each"), [(False, 1), (True, 2)])
def test_with_the_defect_at_most_the_reused_slots_have_two_holders(
    overlap: bool, each: int
) -> None:
    DEFECT.truth.clear()
    with injected(DEFECT):
        engine = tracking_engine(overlap=overlap)
        serve(engine, 8)

    counts = DEFECT.truth.counts()
    residuals = {pool: stats.residual for pool, stats in engine.pool_stats().items()}
    assert counts["readmissions"] == engine.counters.retract_retries >= 8
    assert counts["slots_reused"] == each * counts["readmissions"]
    assert -counts["slots_reused"] <= residuals.pop("mamba") < 0
    assert residuals == {"kv": 0, "req": 0}
    assert ViolationKind.RESIDUAL in {violation.kind for violation in engine.violations}


def test_allocators_that_know_their_holders_refuse_the_second_free() -> None:
    with injected(DEFECT):
        engine = tracking_engine(check_owners=True)
        with pytest.raises(DoubleFreeError):
            serve(engine, 8)


def test_without_a_retract_nobody_is_admitted_again() -> None:
    DEFECT.truth.clear()
    with injected(DEFECT):
        engine = tracking_engine()
        serve(engine, 0)

    assert_idle_and_clean(engine)
    assert DEFECT.truth.counts() == {}
