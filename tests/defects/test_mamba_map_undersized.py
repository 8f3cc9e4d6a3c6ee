"""sglang#24244 in a whole engine: rows past the number of states share a state."""

from __future__ import annotations

import random

from hybridbench.defects.inject import injected
from hybridbench.defects.pr24244_mamba_map_undersized import DEFECT
from hybridbench.engine.engine import Engine
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.engine.scheduler.audit import ViolationKind
from tests.builders import assert_idle_and_clean, make_engine, run_to_idle

STATES = 6


def many_rows() -> Engine:
    return make_engine(max_running_requests=20, mamba_slots=STATES, check_fatal=False)


def small_requests(engine: Engine, count: int = 40, seed: int = 5) -> dict[str, list[int]]:
    """Serve tiny prompts with answers of very different lengths; return the outputs by id."""
    rng = random.Random(seed)
    for index in range(count):
        prompt = [rng.randrange(48) for _ in range(3)]
        params = SamplingParams(max_new_tokens=rng.choice((2, 3, 30)), ignore_eos=True)
        engine.submit(f"r{index}", prompt, params)
    return {event.rid: list(event.output_ids) for event in run_to_idle(engine) if event.output_ids}


def test_a_healthy_engine_goes_round_all_rows_and_every_state_is_its_own() -> None:
    engine = many_rows()

    outputs = small_requests(engine)

    assert len(outputs) == 40
    assert engine.counters.invariant_violations == 0
    assert_idle_and_clean(engine)


def test_with_the_defect_the_check_of_a_step_sees_shared_states_and_no_slot_is_missing() -> None:
    DEFECT.truth.clear()
    with injected(DEFECT):
        engine = many_rows()
        small_requests(engine)
        [violation] = engine.violations

        assert (violation.kind, violation.pool) == (ViolationKind.ALIAS, "mamba")
        assert_idle_and_clean(engine)

    truth = DEFECT.truth.counts()
    assert 0 < truth["shared_states"] <= truth["rows_past_the_end"]


def test_the_defect_changes_tokens_as_it_says() -> None:
    healthy = small_requests(many_rows())
    with injected(DEFECT):
        defective = small_requests(many_rows())

    assert DEFECT.corrupts
    assert defective != healthy


def test_with_as_many_states_as_rows_the_defect_does_nothing() -> None:
    DEFECT.truth.clear()
    with injected(DEFECT):
        engine = make_engine(max_running_requests=6, mamba_slots=16)
        small_requests(engine)

    assert DEFECT.truth.counts() == {}
    assert engine.counters.invariant_violations == 0


def test_after_the_defect_a_new_engine_is_healthy_again() -> None:
    with injected(DEFECT):
        small_requests(many_rows())

    engine = many_rows()
    small_requests(engine)

    assert engine.counters.invariant_violations == 0
