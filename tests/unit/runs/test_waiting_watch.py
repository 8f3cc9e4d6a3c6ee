"""What waiting requests hold, seen after every step, with the events of that step beside it."""

from __future__ import annotations

from hybridbench.defects.inject import injected
from hybridbench.defects.pr21404_mamba_adder_reject import DEFECT
from hybridbench.engine.engine import Engine
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.metrics import declared
from hybridbench.runs.step_watch import StepWatch
from tests.builders import make_engine

SYSTEM = list(range(1, 17))


def squeeze(engine: Engine) -> StepWatch:
    """A burst over one cached prefix, more than the KV pool holds at once, watched to its end."""
    engine.generate([SYSTEM], SamplingParams(max_new_tokens=1))
    watch = StepWatch(engine)
    for index in range(8):
        prompt = [*SYSTEM, 20 + index, 3, 4]
        engine.submit(f"r{index}", prompt, SamplingParams(max_new_tokens=12, ignore_eos=True))
    while engine.has_work:
        engine.step()
        watch.after_step()
    return watch


def test_a_healthy_engine_gives_no_metrics_at_all() -> None:
    engine = make_engine(kv_tokens=80, mamba_slots=12)

    watch = squeeze(engine)

    assert engine.counters.refusals > 0
    assert watch.metrics() == {}
    assert watch.waiting.take_highest("mamba") == 0


def test_slots_of_refused_requests_are_counted_beside_the_refusals_of_the_same_steps() -> None:
    with injected(DEFECT):
        engine = make_engine(kv_tokens=80, mamba_slots=12, check_fatal=False)
        watch = squeeze(engine)
    metrics = watch.metrics()

    taken = metrics["waiting_taken.mamba.steps"]
    assert taken >= 1
    assert metrics["waiting_taken.mamba.refusals"] == taken
    assert metrics["steps_with.refusals"] <= engine.counters.refusals
    assert metrics["steps_with.steps"] > metrics["steps_with.refusals"]
    assert all(declared(name) for name in metrics)
    assert watch.waiting.take_highest("mamba") >= 1
    assert watch.waiting.take_highest("mamba") == 0, "told once"
