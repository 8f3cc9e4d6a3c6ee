"""Decode steps of several kinds, timed on a fake device with known times."""

from __future__ import annotations

from functools import partial

import pytest

from benchmarks.batches import Traffic
from benchmarks.decode_steps import bench_decode, decode_lines
from hybridbench.engine.engine import Engine
from hybridbench.engine.scheduler.scheduler import Scheduler
from hybridbench.foundation.clock import FakeClock
from hybridbench.foundation.engine_config import EngineConfig
from tests.builders import NANO_MODEL
from tests.digest_model import DigestModel
from tests.graph_recorder import EagerRecorder
from tests.late_model import LateModel

SMALL = Traffic(4, 16, 20, 3, 80, "float64", ())
FORWARD_S = 5.0


class OneTime(FakeClock):
    """A fake clock whose CPU time equals its wall time."""

    def thread_cpu_s(self) -> float:
        return self.monotonic_s()


class Device:
    """Computes for five seconds after each launch; with ``waits``, the launch blocks until then."""

    def __init__(self, clock: FakeClock, *, waits: bool = False) -> None:
        self._clock = clock
        self._waits = waits
        self._ready_s = 0.0

    def launched(self) -> None:
        self._ready_s = self._clock.monotonic_s() + FORWARD_S
        if self._waits:
            self.waited()

    def waited(self) -> None:
        self._clock.advance(max(0.0, self._ready_s - self._clock.monotonic_s()))


@pytest.mark.parametrize(
    ("scheduling_s", "waits", "overlapped_s", "hidden"),
    [
        (1.0, False, 5.0, 1.0),
        (10.0, False, 10.0, 0.5),
        # As on a CPU, where launching blocks.
        (1.0, True, 6.0, 0.0),
    ],
)
def test_the_share_of_scheduling_that_the_device_hides_is_measured(
    scheduling_s: float,
    waits: bool,
    overlapped_s: float,
    hidden: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = OneTime()
    device = Device(clock, waits=waits)
    healthy = Scheduler.schedule

    def schedule(self: Scheduler, *arguments: object) -> object:
        clock.advance(scheduling_s)
        return healthy(self, *arguments)  # type: ignore[arg-type]

    def build(config: EngineConfig) -> Engine:
        model = LateModel(DigestModel(NANO_MODEL), device.launched, device.waited)
        return Engine(config, model=model, clock=clock)

    monkeypatch.setattr(Scheduler, "schedule", schedule)

    result = bench_decode("stand-in", "cpu", 2, SMALL, build)

    assert {(s.step_s, s.beside_s) for s in result.plain} == {
        (scheduling_s + FORWARD_S, scheduling_s)
    }
    assert {s.step_s for s in result.overlapped} == {overlapped_s}
    assert result.hidden == [hidden, hidden]
    assert f"overlap hides {100 * hidden:.3g}%" in list(decode_lines(result))[1]


def test_decode_steps_are_timed_with_and_without_graphs() -> None:
    recorder = EagerRecorder()

    result = bench_decode(
        "qwen3-next-nano", "cpu", 1, SMALL, partial(Engine, recorder=recorder), graphs=True
    )

    assert result.tokens == 4
    assert [steps.count for steps in (*result.plain, *result.graphs)] == [2, 2]
    assert recorder.replayed >= 8
    assert "ratio" in next(decode_lines(result))
