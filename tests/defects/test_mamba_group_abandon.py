"""sglang#27256 in a whole engine: slots set aside for an admission that ends early are lost."""

from __future__ import annotations

from hybridbench.defects.inject import injected
from hybridbench.defects.pr27256_mamba_group_abandon import DEFECT
from hybridbench.engine.engine import Engine
from hybridbench.engine.memory.owners import RESERVED
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.engine.scheduler.audit import ViolationKind
from tests.builders import assert_idle_and_clean, make_engine, run_to_idle

SYSTEM = list(range(1, 17))
PARAMS = SamplingParams(max_new_tokens=12, ignore_eos=True)


def tight_engine(mamba_slots: int = 64) -> Engine:
    return make_engine(
        kv_tokens=80, mamba_slots=mamba_slots, max_running_requests=20, check_fatal=False
    )


def squeeze(engine: Engine) -> None:
    """Serve a burst with one cached prefix, more than the KV pool holds at once."""
    engine.generate([SYSTEM], SamplingParams(max_new_tokens=1))
    for index in range(16):
        engine.submit(f"r{index}", [*SYSTEM, 20 + index, 3, 4], PARAMS)
    run_to_idle(engine)


def test_a_healthy_engine_is_refused_and_loses_nothing() -> None:
    engine = tight_engine()

    squeeze(engine)

    assert engine.counters.refusals > 0
    assert_idle_and_clean(engine)


def test_with_the_defect_the_residual_is_what_was_dropped_slot_by_slot() -> None:
    DEFECT.truth.clear()
    with injected(DEFECT):
        engine = tight_engine()
        squeeze(engine)
        stats = engine.pool_stats()["mamba"]
        open_group = engine.pools.mamba_allocator.group_size()

    truth = DEFECT.truth.counts()
    assert truth["early_returns"] > 0
    assert truth["slots_dropped"] > 0
    # The last group's slots are missing already, but counted as dropped only by the next group.
    assert stats.residual == truth["slots_dropped"] + open_group
    assert engine.pools.mamba_allocator.held(RESERVED) == stats.residual
    assert any(v.kind is ViolationKind.RESIDUAL and v.pool == "mamba" for v in engine.violations)


def test_slots_are_missing_from_the_step_on_in_which_admission_was_refused() -> None:
    with injected(DEFECT):
        engine = tight_engine()
        engine.generate([SYSTEM], SamplingParams(max_new_tokens=1))
        for index in range(16):
            engine.submit(f"r{index}", [*SYSTEM, 20 + index, 3, 4], PARAMS)
        most, losing = 0, []
        while engine.has_work:
            before = engine.counters.refusals
            engine.step()
            missing = engine.pool_stats()["mamba"].residual
            if missing > most:
                most = missing
                losing.append(engine.counters.refusals - before)

    assert losing
    assert all(losing)


def test_requests_end_well_while_slots_last_and_tokens_are_the_same() -> None:
    def outputs() -> list[list[int]]:
        prompts = [[*SYSTEM, 20 + i, 3, 4] for i in range(4)]
        return tight_engine().generate(prompts, SamplingParams(max_new_tokens=12, ignore_eos=True))

    healthy = outputs()
    with injected(DEFECT):
        assert outputs() == healthy


def test_after_the_defect_a_new_engine_is_healthy_again() -> None:
    with injected(DEFECT):
        squeeze(tight_engine())

    engine = tight_engine()
    squeeze(engine)

    assert_idle_and_clean(engine)
