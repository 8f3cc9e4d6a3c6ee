from __future__ import annotations

import signal

import msgspec
import pytest

from hybridbench.clock import FakeClock
from hybridbench.errors import ConfigError
from hybridbench.runs.boot import boot_worker
from hybridbench.runs.interrupts import Interrupts
from hybridbench.runs.loop import WorkerLostError
from hybridbench.targets import messages as m
from tests.unit.runs.fakes import FakeTarget
from tests.unit.runs.soaks import make_plan
from tests.unit.runs.test_manifest import READY


def boot(*answers: m.FromWorker, gone: bool = False) -> m.Ready | None:
    clock = FakeClock()
    target = FakeTarget(clock)
    target.extra = list(answers)
    target.gone = gone
    ready = boot_worker(target, make_plan(), clock, Interrupts())
    assert isinstance(target.posted[0], m.Start)
    return ready


def test_what_the_user_can_correct_is_the_workers_own_sentence() -> None:
    with pytest.raises(ConfigError, match="no preset"):
        boot(m.Fatal("there is no preset 'x'.", "", usage=True))


def test_any_other_failure_is_a_crash() -> None:
    with pytest.raises(WorkerLostError, match="could not be built"):
        boot(m.Fatal("the engine could not be built: MemoryError()", "trace"))
    with pytest.raises(WorkerLostError, match="ended while it built"):
        boot(gone=True)


def test_a_worker_that_does_not_take_the_traffic_is_refused() -> None:
    able = [capability for capability in READY.capabilities if capability != "drain"]
    ready = msgspec.structs.replace(READY, capabilities=able)

    assert boot(READY) is READY
    with pytest.raises(ConfigError, match="checkpoint needs an engine that takes drain"):
        boot(ready)


def test_a_worker_that_is_never_ready_is_given_up() -> None:
    with pytest.raises(WorkerLostError, match="not ready in 900 s"):
        boot()


def test_a_signal_during_boot_ends_the_wait() -> None:
    interrupts = Interrupts()
    interrupts.on_signal(signal.SIGTERM, None)
    clock = FakeClock()

    assert boot_worker(FakeTarget(clock), make_plan(), clock, interrupts) is None
