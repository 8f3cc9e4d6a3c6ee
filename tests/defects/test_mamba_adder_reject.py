"""sglang#21404 in a whole engine: a request refused after a hit keeps the state slot."""

from __future__ import annotations

import pytest

from hybridbench.defects import pr21404_mamba_adder_reject
from hybridbench.defects.inject import injected
from hybridbench.defects.pr21404_mamba_adder_reject import DEFECT, KeptSlots
from hybridbench.engine.engine import Engine
from hybridbench.engine.sampling_params import SamplingParams
from tests.builders import assert_idle_and_clean, make_engine, run_to_idle

SYSTEM = list(range(1, 17))


def squeeze(engine: Engine) -> tuple[int, int]:
    """Serve a burst with one cached prefix, more than the KV pool holds at once.

    Returns:
        The most slots that waiting requests held between two steps, and the number of refusals.
    """
    params = SamplingParams(max_new_tokens=12, ignore_eos=True)
    engine.generate([SYSTEM], SamplingParams(max_new_tokens=1))
    for index in range(8):
        engine.submit(f"r{index}", [*SYSTEM, 20 + index, 3, 4], params)
    held = 0
    while engine.has_work:
        engine.step()
        held = max(held, engine.pool_stats()["mamba"].waiting_held)
    return held, engine.counters.refusals


def tight_engine() -> Engine:
    return make_engine(kv_tokens=80, mamba_slots=12, check_fatal=False)


def test_a_healthy_engine_refuses_and_waiting_requests_hold_nothing() -> None:
    engine = tight_engine()

    held, refusals = squeeze(engine)

    assert refusals > 0
    assert held == 0
    assert_idle_and_clean(engine)


def test_the_truth_counts_each_slot_once_however_often_its_request_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Outside the tests a process has one engine; here others may have refused the same ids.
    monkeypatch.setattr(pr21404_mamba_adder_reject, "_KEPT", KeptSlots())
    DEFECT.truth.clear()
    with injected(DEFECT):
        engine = tight_engine()
        held, refusals = squeeze(engine)
        assert DEFECT.truth.counts() == {"refusals": refusals, "slots_kept": held}

    kept = KeptSlots()
    told = [kept.is_new(rid, slot) for rid, slot in (("a", 3), ("a", 3), ("b", 4), ("a", 5))]
    assert told == [True, False, True, True]


def test_with_the_defect_the_check_names_the_pool_and_the_slot() -> None:
    with injected(DEFECT):
        engine = tight_engine()
        held, refusals = squeeze(engine)

    assert refusals > 0
    assert held >= 1
    assert any(v.kind == "waiting_held" and v.pool == "mamba" for v in engine.violations)


@pytest.mark.parametrize("way_out", ["admitted", "aborted"])
def test_the_slot_comes_back_when_the_request_leaves_the_queue(way_out: str) -> None:
    with injected(DEFECT):
        engine = tight_engine()
        params = SamplingParams(max_new_tokens=12, ignore_eos=True)
        engine.generate([SYSTEM], SamplingParams(max_new_tokens=1))
        for index in range(8):
            engine.submit(f"r{index}", [*SYSTEM, 20 + index, 3, 4], params)
        while engine.pool_stats()["mamba"].waiting_held == 0:
            engine.step()
        if way_out == "aborted":
            for index in range(8):
                engine.abort(f"r{index}")
        run_to_idle(engine)

    assert_idle_and_clean(engine)


def test_after_the_defect_a_new_engine_is_healthy_again() -> None:
    with injected(DEFECT):
        squeeze(tight_engine())

    held, refusals = squeeze(tight_engine())

    assert refusals > 0
    assert held == 0
