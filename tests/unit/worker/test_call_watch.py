"""The calls that remove objects, recorded during steps of a real engine."""

from __future__ import annotations

import random
import sys

import pytest

from hybridbench.engine.engine import Engine
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.engine.scheduler.scheduler import Scheduler
from hybridbench.worker.call_watch import CallWatch
from tests.builders import make_engine


def serve(engine: Engine, watch: CallWatch, requests: int) -> None:
    """Serve unrelated prompts, more than the cache can keep."""
    rng = random.Random(5)
    params = SamplingParams(max_new_tokens=2, ignore_eos=True)
    for index in range(requests):
        engine.submit(f"{index}", [rng.randrange(48) for _ in range(9)], params)
        while engine.has_work:
            with watch.step():
                engine.step()


def watched(requests: int) -> tuple[Engine, dict[str, list[str]]]:
    engine = make_engine(mamba_slots=10, kv_tokens=200)
    watch = CallWatch(engine)
    serve(engine, watch, requests)
    assert sys.getprofile() is None
    return engine, {site.removes: site.calls for site in watch.sites()}


def test_the_calls_that_evict_and_finish_are_named_from_the_outer_to_the_inner() -> None:
    engine, calls = watched(300)

    assert engine.counters.nodes_evicted > 100
    assert "evict" in calls["TreeNode"][-1]
    assert calls["Req"][:2] == ["Engine.step", "EventLoopNormal.run"]
    assert calls["Req"][-1].endswith("._finish")


def test_a_call_that_took_the_place_of_another_is_the_one_that_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    healthy = Scheduler.settle

    def settle_as_patched(*args: object) -> None:
        healthy(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(Scheduler, "settle", settle_as_patched)
    _, calls = watched(300)

    assert any("settle_as_patched" in call for call in calls["Req"])


def test_nothing_is_named_that_was_not_seen() -> None:
    _, calls = watched(2)

    assert calls == {"TreeNode": [], "Req": []}


def test_another_profiler_is_left_alone() -> None:
    engine = make_engine(mamba_slots=10, kv_tokens=200)
    watch = CallWatch(engine)

    def other(*_: object) -> None:
        pass

    sys.setprofile(other)
    try:
        serve(engine, watch, 100)
        assert sys.getprofile() is other
    finally:
        sys.setprofile(None)

    assert all(site.calls == [] for site in watch.sites())


def test_a_watch_that_was_stopped_sees_nothing_more() -> None:
    engine = make_engine(mamba_slots=10, kv_tokens=200)
    watch = CallWatch(engine)
    watch.stop()
    serve(engine, watch, 100)

    assert all(site.calls == [] for site in watch.sites())
