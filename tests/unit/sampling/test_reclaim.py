"""What a process releases, step by step, and in which order."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest

from hybridbench.records.heap import StageReading
from hybridbench.sampling.reclaim import ReclaimHooks, at_rest, destructive_steps, trim
from tests.unit.sampling.test_heap_survey import surveyed


@pytest.fixture(autouse=True)
def small_heap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Freeze all older objects, so that a step collects only those of its test."""
    gc.collect()
    gc.freeze()
    monkeypatch.setattr(gc, "unfreeze", lambda: None)


class Knot:
    """Garbage that only the collector frees."""

    def __init__(self) -> None:
        self.itself = self


def test_slack_goes_first_then_the_cache_then_garbage_also_what_was_frozen() -> None:
    surveyed("slack_goes_first_then_the_cache_then_garbage_also_what_was_frozen")


def test_frozen_garbage_goes_as_well() -> None:
    surveyed("frozen_garbage_goes_as_well")


def work(seen: list[str], device: Callable[[], object] | None = None) -> ReclaimHooks:
    def read() -> StageReading:
        seen.append("read")
        return StageReading(private_bytes=1000 - len(seen))

    return ReclaimHooks(read, lambda: seen.append("flush"), device)


def test_the_steps_go_from_what_changes_nothing_to_what_destroys_most() -> None:
    seen: list[str] = []
    hooks = work(seen, lambda: seen.append("device"))

    steps = [at_rest(hooks), trim(hooks), *destructive_steps(hooks)]

    assert [step.name for step in steps] == ["rest", "trim", "collect", "flush", "device"]
    assert seen == ["read", "read", "read", "flush", "read", "device", "read"]
    assert [step.private_bytes for step in steps] == [999, 998, 997, 995, 993]


def test_without_a_device_there_is_no_step_for_it() -> None:
    assert [rung.name for rung in destructive_steps(work([]))] == ["collect", "flush"]


def test_garbage_goes_at_the_collector_s_step_before_the_cache_is_flushed() -> None:
    gc.collect()
    gc.disable()
    try:
        watched = weakref.ref(Knot())
        alive: list[bool] = []

        def flush() -> None:
            alive.append(watched() is not None)

        read = lambda: StageReading(private_bytes=int(watched() is not None))  # noqa: E731
        hooks = ReclaimHooks(read, flush)
        steps = [at_rest(hooks), trim(hooks), *destructive_steps(hooks)]
    finally:
        gc.enable()

    assert [step.private_bytes for step in steps] == [1, 1, 0, 0]
    assert alive == [False]
