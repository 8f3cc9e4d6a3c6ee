"""Timings of the parts of a step, on a clock that ticks each time it is read."""

from __future__ import annotations

from itertools import count

from hybridbench.engine.engine import Engine
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.engine.scheduler.timings import EngineTimings
from hybridbench.foundation.clock import FakeClock
from tests.builders import make_engine


class TickingClock(FakeClock):
    """Advances by one second per read, so that the seconds of a timing count its calls."""

    def __init__(self) -> None:
        super().__init__()
        self._ticks = count()
        self._cpu_ticks = count()

    def monotonic_s(self) -> float:
        return float(next(self._ticks))

    def thread_cpu_s(self) -> float:
        return float(next(self._cpu_ticks))


def served(requests: int, kv_tokens: int = 256) -> Engine:
    engine = make_engine(clock=TickingClock(), check_level="off", kv_tokens=kv_tokens)
    prompts = [[i % 40, (7 * i) % 40, i % 3, 1, 2, 3, 4, 5] for i in range(requests)]
    for prompt in prompts:
        engine.generate([prompt], SamplingParams(max_new_tokens=2, ignore_eos=True))
    return engine


def test_each_cache_call_is_timed_once_and_counted() -> None:
    engine = served(40, kv_tokens=100)

    timings, counters = engine.pools.timings, engine.counters
    assert timings.match_s == timings.match_calls == counters.match_calls >= 40
    assert timings.evict_s == timings.evict_calls == counters.evict_calls > 0
    # Each request inserts once after its prefill and once at its end.
    assert timings.insert_s == timings.insert_calls == 80


def test_the_model_is_timed_once_a_step_and_apart_from_scheduling() -> None:
    engine = served(10)

    told = engine.timings()
    busy_steps = engine.counters.steps - engine.counters.idle_steps
    assert told["forward_s"] == told["forward_cpu_s"] == busy_steps
    assert told["schedule_s"] > told["match_s"] + told["insert_s"] + told["evict_s"]
    assert told["check_s"] == 0
    parts = {"match_s", "insert_s", "evict_s", "schedule_s", "forward_s", "forward_cpu_s"}
    assert set(told) == parts | {"check_s"}


def test_the_engines_own_checks_are_timed_where_they_are_made() -> None:
    params = SamplingParams(max_new_tokens=2, ignore_eos=True)
    checks = {}
    for level in ("off", "idle", "busy"):
        engine = make_engine(clock=TickingClock(), check_level=level)
        engine.generate([[1, 2, 3], [4, 5]], params)
        checks[level] = engine.timings()["check_s"]

    # With "idle" each step is checked as well, but not the pools of a busy engine.
    steps = engine.counters.steps
    assert checks == {"off": 0, "idle": steps, "busy": steps}


def test_a_model_that_waits_takes_time_and_no_processor() -> None:
    wall, cpu = FakeClock(), FakeClock()
    timings = EngineTimings(wall.monotonic_s, cpu.thread_cpu_s)

    began = timings.now_s(), timings.cpu_s()
    wall.advance(2.0)
    cpu.advance(0.5)
    timings.count_forward(*began)

    assert (timings.forward_s, timings.forward_cpu_s) == (2.0, 0.5)


def test_a_new_engine_has_spent_nothing() -> None:
    assert set(make_engine().timings().values()) == {0.0}
