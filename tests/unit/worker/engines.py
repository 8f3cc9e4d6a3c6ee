"""A minimal real engine, and a worker loop around it in this process."""

from __future__ import annotations

import gc
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import pytest

from hybridbench.defects.defect import Defect
from hybridbench.engine.engine import Engine
from hybridbench.foundation.engine_config import EngineConfig, HiCache
from hybridbench.records import messages as m
from hybridbench.sampling.gc_monitor import GcMonitor
from hybridbench.sampling.heap_scan import ForkScan
from hybridbench.sampling.heap_survey import SurveyScope
from hybridbench.sampling.malloc import malloc_reader
from hybridbench.targets.wire import ParentWire, WireClosedError, WorkerWire
from hybridbench.worker.answers import AnswerSample
from hybridbench.worker.diagnosis import WorkerDiagnosis
from hybridbench.worker.engine_loop import EngineLoop
from hybridbench.worker.injected_counts import InjectedCounts
from hybridbench.worker.metrics import WorkerMetrics
from hybridbench.worker.probes import WorkerProbes

PATIENCE_S = 120.0


def make_engine(**changes: int | str | HiCache) -> Engine:
    """Return an engine of the tiny preset with room for four requests."""
    settings: dict[str, int | str | HiCache] = {
        "model": "qwen3-next-tiny",
        "kv_tokens": 512,
        "mamba_slots": 16,
        "max_running_requests": 4,
        "max_context_len": 128,
        "chunked_prefill_size": 64,
        "max_prefill_tokens": 128,
    }
    return Engine(EngineConfig(**{**settings, **changes}))  # type: ignore[arg-type]


@dataclass
class InProcessWorker:
    """The parent's end of a worker loop that runs on a thread of this process."""

    engine: Engine
    wire: ParentWire
    thread: threading.Thread
    metrics: WorkerMetrics
    leaving: bool = False

    def ask(self, *messages: m.ToWorker, until: type[m.FromWorker]) -> list[m.FromWorker]:
        """Post ``messages`` and collect replies up to and including one of type ``until``."""
        for message in messages:
            self.leaving = self.leaving or isinstance(message, m.Shutdown)
            self.wire.post(message)
        told: list[m.FromWorker] = []
        while not any(isinstance(message, until) for message in told):
            told += self.wire.exchange(1.0)
        return told


def no_answers(engine: Engine) -> AnswerSample:
    """Return a sample that draws no answers."""
    return AnswerSample(0, engine.config)


@contextmanager
def stopped_loop(
    engine: Engine, answers: AnswerSample | None = None
) -> Iterator[tuple[EngineLoop, ParentWire]]:
    """Return a loop around ``engine`` that is not running, and the parent's end of its wire."""
    answers = answers or no_answers(engine)
    near, far = socket.socketpair()
    monitor = GcMonitor()
    metrics = WorkerMetrics(engine, monitor, malloc_reader(), engine.counters.as_dict())
    heap_scan = ForkScan(engine.reference_counted_classes, timeout_s=PATIENCE_S)
    injected = InjectedCounts(engine, ())
    diagnosis = WorkerDiagnosis(engine, metrics, SurveyScope(roots=list))
    probes = WorkerProbes(engine, heap_scan, metrics, injected, diagnosis)
    parent = ParentWire(near)
    try:
        yield (
            EngineLoop(engine, WorkerWire(far), probes, metrics, [], injected, answers),
            parent,
        )
    finally:
        parent.close()
        far.close()
        monitor.close()


@contextmanager
def in_process_worker(engine: Engine, defects: Sequence[Defect] = ()) -> Iterator[InProcessWorker]:
    """Run a loop around ``engine``; shut it down at the end if it still runs.

    Its heap scans leave out what was frozen before: a million objects of the test process.
    """
    near, far = socket.socketpair()
    monitor = GcMonitor()
    metrics = WorkerMetrics(engine, monitor, malloc_reader(), engine.counters.as_dict())
    heap_scan = ForkScan(engine.reference_counted_classes, timeout_s=PATIENCE_S)
    injected = InjectedCounts(engine, defects)
    diagnosis = WorkerDiagnosis(engine, metrics, SurveyScope(roots=list))
    probes = WorkerProbes(engine, heap_scan, metrics, injected, diagnosis)
    wire = WorkerWire(far)
    loop = EngineLoop(engine, wire, probes, metrics, [], injected, no_answers(engine))
    thread = threading.Thread(target=loop.run)
    parent = ParentWire(near)
    thread.start()
    worker = InProcessWorker(engine, parent, thread, metrics)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gc, "unfreeze", lambda: None)
            yield worker
    finally:
        # A loop that has sent Goodbye may still be ending, and sends it only once.
        if thread.is_alive() and not worker.leaving:
            with suppress(WireClosedError):
                worker.ask(m.Shutdown(), until=m.Goodbye)
        thread.join(PATIENCE_S)
        parent.close()
        far.close()
        monitor.close()
