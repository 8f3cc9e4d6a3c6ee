"""vllm#34183 in a whole engine: requests with a bound hasher wait for the collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from hybridbench.defects.inject import injected
from hybridbench.defects.vllm34183_request_partial_cycle import DEFECT, TRUTH
from hybridbench.engine.engine import Engine
from hybridbench.engine.req import Req
from hybridbench.engine.sampling_params import SamplingParams
from tests.builders import make_engine, run_to_idle

PAYLOAD_BYTES = 4096


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    """Disable the collector, so that only reference counting frees requests during a test."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    gc.collect()


def stray_requests(engine: Engine) -> int:
    """Return the number of live requests that the engine no longer refers to."""
    live = sum(1 for thing in gc.get_objects() if type(thing) is Req)
    _, expected = engine.reference_counted_classes()["Req"]
    return live - expected


def show_pictures(engine: Engine, count: int = 9) -> int:
    """Serve ``count`` requests with a payload and as many without; abort one.

    Returns:
        The number of stray requests at the end; a collection must free all of them.
    """
    params = SamplingParams(max_new_tokens=3, ignore_eos=True)
    for index in range(count):
        payload = bytes([index]) * PAYLOAD_BYTES
        engine.submit(f"p{index}", [1, 2, 3, 4, 5, 6], params, payload=payload)
        engine.submit(f"t{index}", [1, 2, 3, index], params)
        engine.submit(f"long{index}", [1] * 200, params, payload=b"never held")
        engine.step()
    engine.abort("t0")
    run_to_idle(engine)
    strays = stray_requests(engine)
    gc.collect()
    assert stray_requests(engine) == 0
    return strays


def test_a_healthy_engine_lets_each_request_go_with_its_payload() -> None:
    assert show_pictures(make_engine()) == 0


def test_while_requests_run_the_engine_knows_all_of_them() -> None:
    engine = make_engine(max_running_requests=2)
    params = SamplingParams(max_new_tokens=3, ignore_eos=True)
    for index in range(3):
        engine.submit(f"p{index}", [1] * 40, params, payload=b"picture")
    seen = set()
    while engine.has_work:
        engine.step()
        seen.add(engine.reference_counted_classes()["Req"][1])
        assert stray_requests(engine) == 0

    assert {3, 0} <= seen


def test_with_the_defect_each_request_with_a_payload_waits_for_the_collector() -> None:
    TRUTH.clear()
    with injected(DEFECT):
        strays = show_pictures(make_engine(), count=9)

    assert strays == 9
    assert TRUTH.counts() == {
        "payload_bytes": 9 * PAYLOAD_BYTES,
        "requests_in_a_cycle": 9,
        "requests_with_payload": 9,
    }


def test_the_defect_changes_no_token() -> None:
    def outputs() -> list[tuple[int, ...]]:
        engine = make_engine()
        params = SamplingParams(max_new_tokens=4)
        for index in range(4):
            engine.submit(f"p{index}", [1, 2, 3, 4, 5, 6], params, payload=bytes([index]))
        return [event.output_ids for event in run_to_idle(engine) if event.output_ids]

    healthy = outputs()
    with injected(DEFECT):
        assert outputs() == healthy


def test_after_the_defect_a_new_engine_is_healthy_again() -> None:
    with injected(DEFECT):
        show_pictures(make_engine())

    assert show_pictures(make_engine()) == 0
