from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pytest

from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.engine.steady import SteadyDetector, StepLoad
from hybridbench.foundation.engine_config import HiCache
from tests.builders import make_attention_engine, run_to_idle
from tests.host_transfers import ChosenTransfers


def _detector() -> SteadyDetector:
    return SteadyDetector((1000, 100), quiet_requests=10, quiet_evictions=5, unfilled_factor=4)


def _load(
    finished: int,
    *,
    mode: Literal["extend", "decode", "idle"] = "decode",
    tokens: int = 8,
    used: tuple[int, int] = (500, 50),
    evictions: int = 0,
    requests: int = 8,
) -> StepLoad:
    return StepLoad(mode, tokens, requests, used, evictions, finished)


def _first_steady(
    detector: SteadyDetector, load_at: Callable[[int], StepLoad], steps: int
) -> int | None:
    for finished in range(steps):
        if detector.observe(load_at(finished)):
            return finished
    return None


def test_full_pools_that_evict_are_steady_after_a_quiet_stretch() -> None:
    detector = _detector()

    steady_at = _first_steady(detector, lambda n: _load(n, used=(1000, 100), evictions=n), 100)

    assert steady_at == 10
    assert detector.reason == "evicting"


def test_a_quiet_stretch_without_evictions_is_not_enough() -> None:
    assert _first_steady(_detector(), _load, 40) is None


def test_pools_that_never_fill_are_steady_after_a_longer_stretch() -> None:
    detector = _detector()

    assert _first_steady(detector, _load, 100) == 40
    assert detector.reason == "unfilled"


def test_a_pool_that_still_grows_is_not_steady() -> None:
    growing = lambda n: _load(n, used=(500 + 2 * n, 50), evictions=n)  # noqa: E731

    assert _first_steady(_detector(), growing, 100) is None


def test_creeping_growth_adds_up_to_a_new_maximum() -> None:
    """Each step stays within the tolerance of 10 slots, but their sum does not."""
    detector = _detector()
    creeping = lambda n: _load(n, used=(500 + 2 * n, 50), evictions=0)  # noqa: E731

    assert _first_steady(detector, creeping, 200) is None


def test_a_new_step_shape_restarts_only_the_wait_of_unfilled_pools() -> None:
    shapes = lambda n: _load(n, mode="extend", tokens=1 << (n // 30))  # noqa: E731

    assert _first_steady(_detector(), shapes, 200) is None

    evicting = lambda n: _load(n, mode="extend", tokens=1 << (n // 30), evictions=n)  # noqa: E731
    assert _first_steady(_detector(), evicting, 200) == 10


def test_more_requests_at_once_are_a_new_maximum() -> None:
    more = lambda n: _load(n, requests=8 + n // 8, evictions=n)  # noqa: E731

    assert _first_steady(_detector(), more, 300) is None


def test_it_is_said_once_and_stays() -> None:
    detector = _detector()
    said = [detector.observe(_load(n, evictions=n)) for n in range(50)]

    detector.observe(_load(51, used=(900, 90)))

    assert said.count(True) == 1
    assert detector.is_steady


def test_work_counts_and_time_does_not() -> None:
    """Thousands of steps without a finished request prove nothing."""
    detector = _detector()

    assert not any(detector.observe(_load(0, evictions=n)) for n in range(5000))


@pytest.mark.parametrize("tokens", [9, 15])
def test_shapes_are_rounded_to_powers_of_two(tokens: int) -> None:
    detector = _detector()
    detector.observe(_load(0, tokens=8))

    detector.observe(_load(1, tokens=tokens))

    assert detector.shapes_seen == 1


def test_what_the_device_evicts_and_the_host_keeps_counts_as_evicted() -> None:
    engine = make_attention_engine(
        kv_tokens=64, hicache=HiCache(ratio=2000.0), transfers=ChosenTransfers()
    )
    params = SamplingParams(max_new_tokens=1, ignore_eos=True)
    for number in range(300):
        engine.submit(f"r{number}", [number // 40, number % 40, 1, 2], params)
        run_to_idle(engine)

    assert engine.counters.host_stays > 100
    assert engine.counters.nodes_evicted == 0
    assert engine.steady_reason == "evicting"
