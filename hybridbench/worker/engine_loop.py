"""The worker's main thread: take messages, probe on request, step while there is work, or sleep."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from queue import Empty, SimpleQueue

import msgspec
import numpy as np

from hybridbench.engine.cache.base import CacheSanityError
from hybridbench.engine.front_end import DuplicateRequestError
from hybridbench.engine.memory.owners import OwnershipError
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.foundation.errors import UsageError
from hybridbench.records.messages import (
    Abort,
    AbortAll,
    AllocationsTracked,
    Checkpoint,
    CloseSession,
    ContinueGeneration,
    Diagnose,
    Disconnect,
    Drain,
    Drained,
    Flush,
    Flushed,
    FromWorker,
    Goodbye,
    OpenSession,
    PauseGeneration,
    Reclaim,
    Resume,
    ScanHeap,
    Shutdown,
    Steady,
    Submit,
    ToWorker,
    TrackAllocations,
    Violation,
    ViolationRecord,
)
from hybridbench.sampling.allocations import AllocationTracker
from hybridbench.sampling.process import own_private_bytes
from hybridbench.sampling.reclaim import reclaim
from hybridbench.targets.wire import WireClosedError, WorkerWire
from hybridbench.worker.answers import AnswerSample
from hybridbench.worker.injected_counts import InjectedCounts
from hybridbench.worker.metrics import Snapshot, WorkerMetrics
from hybridbench.worker.port import ServedEngine
from hybridbench.worker.probes import WorkerProbes, violation_records
from hybridbench.worker.step_report import StepReport
from hybridbench.worker.wire_reader import Inbox, LoopPulse, WireReader

# While a forked heap scan runs, an idle loop polls it at this interval.
_SCAN_WAIT_S = 0.02
# An idle loop checks for timed-out sessions at most this often.
_REAP_WAIT_S = 0.05


class EngineLoop:
    """Owns the engine and everything between it and the wire, on one thread.

    It never spins: without work the loop sleeps on its inbox until the wire reader wakes it.
    """

    def __init__(  # noqa: PLR0913 - the parts that it owns, built by the caller
        self,
        engine: ServedEngine,
        wire: WorkerWire,
        probes: WorkerProbes,
        metrics: WorkerMetrics,
        ballast: Sequence[object],
        injected: InjectedCounts,
        answers: AnswerSample,
    ) -> None:
        """``ballast`` is only referenced: its objects must live as long as the loop."""
        self._engine = engine
        self._wire = wire
        self._probes = probes
        self._metrics = metrics
        self._ballast = ballast
        self._injected = injected
        self._inbox: Inbox = SimpleQueue()
        self._pulse = LoopPulse()
        self._snapshot = Snapshot()
        self._answers = answers
        self._report = StepReport(metrics, answers, engine.find)
        self._draining = False
        self._leaving = False
        self._steady_reported = False
        self._violations_seen = engine.counters.invariant_violations
        self._failure_seen = ""
        self._tracker = AllocationTracker()
        self._reader = WireReader(wire, self._inbox, self._pulse, self._snapshot, metrics)

    def run(self) -> None:
        """Serve until Shutdown.

        Raises:
            WireClosedError: the parent has exited.
        """
        self._reader.start()
        try:
            while not self._leaving:
                self._turn()
        finally:
            self._tell_injected()
        self._probes.close()
        metrics = self._metrics
        with contextlib.suppress(WireClosedError):
            # The parent may exit first; then this message has no reader.
            self._wire.send(Goodbye(time.monotonic(), metrics.probe_stop_s))

    def _turn(self) -> None:
        self._take_messages()
        self._probe()
        if self._engine.has_work:
            self._step()
        if not self._engine.has_work:
            # Set before sleeping, or the sleep would count towards the step's age.
            self._pulse.busy = False
        self._tell()

    def _tell_injected(self) -> None:
        message = self._injected.message()
        if message is not None:
            with contextlib.suppress(WireClosedError):
                self._wire.send(message)

    def _take_messages(self) -> None:
        """Handle everything that has arrived; wait only when there is nothing else to do."""
        try:
            waits = not self._engine.has_work and not self._snapshot.wanted
            messages = self._inbox.get(waits, self._patience_s() if waits else None)
            while True:
                for message in messages or ():
                    self._handle(message)
                messages = self._inbox.get_nowait()
        except Empty:
            return

    def _patience_s(self) -> float | None:
        """Return how long an idle loop may sleep; None if no scan or session can end by itself."""
        if self._probes.pending:
            return _SCAN_WAIT_S
        expiry_s = self._engine.reap_sessions()
        return None if expiry_s is None else max(_REAP_WAIT_S, expiry_s)

    def _handle(self, message: ToWorker) -> None:  # noqa: C901, PLR0912 - a short case each
        engine = self._engine
        match message:
            case Submit():
                self._submit(message)
            case OpenSession(session_id, timeout_s):
                engine.open_session(session_id, timeout_s=timeout_s or None)
            case CloseSession(session_id):
                engine.close_session(session_id)
            case Abort(rid):
                engine.abort(rid)
            case Disconnect(rid):
                engine.disconnect(rid)
                self._report.end_stream(rid)
            case AbortAll():
                engine.abort_all()
            case PauseGeneration(mode):
                engine.pause_generation(mode)
            case ContinueGeneration():
                engine.continue_generation()
            case Drain() | Resume():
                # A paused engine would never become idle.
                engine.continue_generation()
                self._draining = isinstance(message, Drain)
                if self._draining:
                    # The last moment before the pause at which requests are running.
                    found = self._as_messages(violation_records(engine.audit_rows()))
                    if found:
                        self._wire.send(*found)
            case ScanHeap() | Checkpoint() | Diagnose():
                self._probes.ask(message)
                # Start the probe at once, before requests that follow in the same frame.
                self._advance_probes()
            case Flush():
                self._wire.send(Flushed(time.monotonic(), engine.flush_cache()))
            case Reclaim():
                self._wire.send(reclaim(own_private_bytes, engine.flush_cache))
            case TrackAllocations(path):
                self._wire.send(self._track(path))
            case Shutdown():
                self._leaving = True

    def _track(self, path: str) -> AllocationsTracked:
        try:
            if path:
                self._metrics.calls.stop()
                self._tracker.start(Path(path))
            else:
                self._tracker.stop()
        except (ImportError, OSError, RuntimeError) as error:
            return AllocationsTracked(time.monotonic(), f"{type(error).__name__}: {error}")
        return AllocationsTracked(time.monotonic())

    def _submit(self, message: Submit) -> None:
        try:
            self._engine.submit(
                message.rid,
                message.input_ids,
                SamplingParams(**msgspec.structs.asdict(message.sampling)),
                truncate=message.truncate,
                payload=make_payload(message.payload_bytes, message.payload_seed),
                session_id=message.session_id or None,
                priority=message.priority,
                extra_key=message.extra_key or None,
            )
        except (DuplicateRequestError, UsageError) as error:
            self._report.reject(message.rid, str(error))
        else:
            if message.stream:
                self._report.stream(message.rid)

    def _advance_probes(self) -> None:
        replies = self._probes.advance()
        if replies:
            self._wire.send(*replies)

    def _probe(self) -> None:
        """Answer counters, heap scans and checkpoints between two steps."""
        if self._snapshot.wanted:
            with self._metrics.stops:
                self._metrics.answer(self._snapshot.put)
        if self._probes.pending:
            self._advance_probes()

    def _step(self) -> None:
        pulse = self._pulse
        if not pulse.busy:
            # A step's age counts from the moment when work arrived.
            pulse.last_step_end_s = time.monotonic()
            pulse.busy = True
        started_s = time.perf_counter()
        try:
            with self._metrics.calls.step():
                events = self._engine.step()
        except (OwnershipError, CacheSanityError) as error:
            # The engine found contradictory bookkeeping: report it, then crash.
            kind = "ownership" if isinstance(error, OwnershipError) else "tree"
            record = ViolationRecord(kind, "", str(error), [])
            self._wire.send(Violation(time.monotonic(), pulse.steps, record))
            raise
        self._metrics.step_s += time.perf_counter() - started_s
        pulse.steps += 1
        pulse.last_step_end_s = time.monotonic()
        self._report.add_step(events)
        with self._metrics.stops:
            self._metrics.steps.after_step()

    def _tell(self) -> None:
        """Send what the step did and what followed from it, in one frame."""
        messages: list[FromWorker] = []
        report = self._report.take()
        if report is not None:
            # Answers go first: the parent forgets a request's prompt when its end is reported.
            messages += self._answers.take()
            messages.append(report)
        engine = self._engine
        messages += self._violations()
        if not self._steady_reported and engine.is_steady:
            self._steady_reported = True
            self._injected.mark_steady()
            messages.append(Steady(time.monotonic(), engine.steady_reason))
        if self._draining and not engine.has_work:
            self._draining = False
            totals = self._answers.totals()
            messages += [] if totals is None else [totals]
            messages.append(Drained(time.monotonic()))
        if messages:
            self._wire.send(*messages)

    def _violations(self) -> list[FromWorker]:
        """Return new violations that the engine's checks found, and a newly failed host copy."""
        engine = self._engine
        records: list[ViolationRecord] = []
        if engine.counters.invariant_violations != self._violations_seen:
            self._violations_seen = engine.counters.invariant_violations
            records += violation_records(engine.violations)
        if engine.host_failure != self._failure_seen:
            self._failure_seen = engine.host_failure
            message = f"a copy to or from the host failed: {self._failure_seen}"
            records.append(ViolationRecord("transfer", "", message, []))
        return self._as_messages(records)

    def _as_messages(self, records: Sequence[ViolationRecord]) -> list[FromWorker]:
        now_s, step = time.monotonic(), self._pulse.steps
        return [Violation(now_s, step, record) for record in records]


def make_payload(size_bytes: int, seed: int) -> bytes:
    """Return ``size_bytes`` of noise that depends only on ``seed``; empty for 0.

    It stands for the features of an image or a sound, which thus need not cross the wire.
    """
    return np.random.Generator(np.random.PCG64(seed)).bytes(size_bytes) if size_bytes else b""
