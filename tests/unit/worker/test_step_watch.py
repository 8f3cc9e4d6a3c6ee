"""Slots that waiting requests hold or that have no holder, with the events of the same steps."""

from __future__ import annotations

from hybridbench.defects.inject import injected
from hybridbench.defects.pr4977_retract_page_pad import DEFECT as RETRACT_PAGE_PAD
from hybridbench.defects.pr21404_mamba_adder_reject import DEFECT as MAMBA_ADDER_REJECT
from hybridbench.engine.engine import Engine
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.foundation.engine_config import NewTokenRatio
from hybridbench.foundation.metrics import declared
from hybridbench.worker.step_watch import StepWatch
from tests.builders import make_attention_engine, make_engine

PAGE = 4
SYSTEM = list(range(1, 17))


def squeeze(engine: Engine) -> StepWatch:
    """Watch a burst with one cached prefix, more than the KV pool holds at once."""
    engine.generate([SYSTEM], SamplingParams(max_new_tokens=1))
    watch = StepWatch(engine)
    for index in range(8):
        prompt = [*SYSTEM, 20 + index, 3, 4]
        engine.submit(f"r{index}", prompt, SamplingParams(max_new_tokens=12, ignore_eos=True))
    while engine.has_work:
        engine.step()
        watch.after_step()
    return watch


def test_a_healthy_engine_whose_requests_wait_gives_no_metrics_at_all() -> None:
    engine = make_engine(kv_tokens=80, mamba_slots=12)

    watch = squeeze(engine)

    assert engine.counters.refusals > 0
    assert watch.metrics() == {}
    assert watch.take_waiting_highest("mamba") == 0


def test_slots_of_refused_requests_are_counted_beside_the_refusals_of_the_same_steps() -> None:
    with injected(MAMBA_ADDER_REJECT):
        engine = make_engine(kv_tokens=80, mamba_slots=12, check_fatal=False)
        watch = squeeze(engine)
    metrics = watch.metrics()

    taken = metrics["waiting_taken.mamba.steps"]
    assert taken >= 1
    assert metrics["waiting_taken.mamba.refusals"] == taken
    assert metrics["steps_with.refusals"] <= engine.counters.refusals
    assert metrics["steps_with.steps"] > metrics["steps_with.refusals"]
    assert all(declared(name) for name in metrics)
    assert watch.take_waiting_highest("mamba") >= 1
    assert watch.take_waiting_highest("mamba") == 0, "told once"


def pages() -> Engine:
    return make_attention_engine(
        PAGE,
        kv_tokens=26 * PAGE,
        chunked_prefill_size=32,
        check_level="idle",
        max_running_requests=4,
        check_fatal=False,
        # Reserve little for outputs, so that more requests are admitted than fit.
        new_token_ratio=NewTokenRatio(init=0.5, min=0.0, decay_steps=1),
    )


def one_step(engine: Engine, watch: StepWatch, *, look: bool) -> None:
    engine.step()
    watch.after_step()
    if look:
        watch.saw_pools(engine.pool_stats())


def drain(engine: Engine, watch: StepWatch, *, look: bool) -> None:
    while engine.has_work:
        one_step(engine, watch, look=look)


def press(engine: Engine, watch: StepWatch, *, look: bool) -> int:
    """Serve answers that do not fit at once; return the number of retracts."""
    for index in range(4 * 4):
        if index % 4 == 0:
            drain(engine, watch, look=look)
        prompt = [index * 6 + i % 6 for i in range(9)]
        engine.submit(f"r{index}", prompt, SamplingParams(max_new_tokens=30, ignore_eos=True))
        one_step(engine, watch, look=look)
    drain(engine, watch, look=look)
    return engine.counters.retracts


def test_a_healthy_engine_is_never_looked_at_closer() -> None:
    engine = pages()
    watch = StepWatch(engine)

    assert press(engine, watch, look=True) > 2
    assert watch.metrics() == {}


def test_lost_slots_are_counted_beside_the_retracts_of_the_same_steps() -> None:
    with injected(RETRACT_PAGE_PAD):
        engine = pages()
        watch = StepWatch(engine)
        press(engine, watch, look=True)
    metrics = watch.metrics()

    lost = metrics["lost_taken.kv.steps"]
    assert PAGE <= lost < engine.pool_stats()["kv"].residual, "the first came before the look"
    assert metrics["lost_taken.kv.retracts"] == lost
    assert metrics["steps_with.steps"] > 2 * metrics["steps_with.retracts"]
    assert all(declared(name) for name in metrics)


def test_nothing_is_added_up_before_a_sample_missed_a_slot() -> None:
    with injected(RETRACT_PAGE_PAD):
        engine = pages()
        watch = StepWatch(engine)
        press(engine, watch, look=False)

    assert engine.pool_stats()["kv"].residual > 0
    assert watch.metrics() == {}
