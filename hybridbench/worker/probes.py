"""Probes between two steps: heap scans and checkpoints, one at a time, with their cost."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable

import msgspec

from hybridbench.engine.scheduler.audit import InvariantViolation, ViolationKind
from hybridbench.records.messages import (
    Checkpoint,
    CheckpointReply,
    Diagnose,
    FromWorker,
    HeapScanReply,
    ScanHeap,
    ViolationRecord,
)
from hybridbench.sampling.heap_scan import ForkScan, HeapScan
from hybridbench.worker.diagnosis import WorkerDiagnosis
from hybridbench.worker.injected_counts import InjectedCounts
from hybridbench.worker.metrics import WorkerMetrics
from hybridbench.worker.port import ServedEngine

_SLOTS_SENT_MAX = 64
_POLL_INTERVAL_S = 0.02


class WorkerProbes:
    """Handles requests in order; the engine's thread calls ``advance`` between steps.

    A checkpoint is taken at once and answered when its heap scan is done; traffic may continue in
    between, because the forked child keeps the memory as it was.
    """

    def __init__(
        self,
        engine: ServedEngine,
        heap_scan: ForkScan,
        metrics: WorkerMetrics,
        injected: InjectedCounts,
        diagnosis: WorkerDiagnosis,
    ) -> None:
        self._engine = engine
        self._heap_scan = heap_scan
        self._metrics = metrics
        self._injected = injected
        self._diagnosis = diagnosis
        self._requests: deque[ScanHeap | Checkpoint] = deque()
        self._current: ScanHeap | CheckpointReply | None = None
        self._started_s = 0.0
        self._stop_s = self._stop_cpu_s = 0.0
        self._polled_s = 0.0

    @property
    def pending(self) -> bool:
        """Whether anything is requested or in progress."""
        return self._current is not None or bool(self._requests) or self._diagnosis.pending

    def ask(self, request: ScanHeap | Checkpoint | Diagnose) -> None:
        """Queue a probe.  Diagnoses and heap scans do not wait for each other."""
        if isinstance(request, Diagnose):
            self._diagnosis.ask(request)
        else:
            self._requests.append(request)

    def advance(self) -> list[FromWorker]:
        """Start what can be started; return what is done."""
        replies: list[FromWorker] = []
        if self._current is not None:
            replies += self._poll()
        if self._current is None and self._requests:
            replies += self._start(self._requests.popleft())
        replies += self._diagnosis.advance()
        return replies

    def close(self) -> None:
        """Cancel what is in progress."""
        self._heap_scan.close()

    def _start(self, request: ScanHeap | Checkpoint) -> list[FromWorker]:
        with self._metrics.stops:
            return self._begin(request)

    def _begin(self, request: ScanHeap | Checkpoint) -> list[FromWorker]:
        # Read the checkpoint's state first, so that the heap scan sees exactly the same state.
        current = request if isinstance(request, ScanHeap) else self._state(request)
        self._started_s = current.t_s if isinstance(current, CheckpointReply) else time.monotonic()
        self._current = current
        began_cpu_s = time.thread_time()
        try:
            self._stop_s = self._heap_scan.start()
            self._stop_cpu_s = time.thread_time() - began_cpu_s
        except OSError as error:
            return self._answer(HeapScan(method=self._heap_scan.method, error=f"no fork: {error}"))
        self._polled_s = self._started_s
        return []

    def _poll(self) -> list[FromWorker]:
        now_s = time.monotonic()
        if now_s - self._polled_s < _POLL_INTERVAL_S:
            return []
        self._polled_s = now_s
        with self._metrics.stops:
            report = self._heap_scan.poll()
            return [] if report is None else self._answer(report)

    def _answer(self, report: HeapScan) -> list[FromWorker]:
        current, self._current = self._current, None
        assert current is not None
        self._metrics.probe_child_s += report.child_s
        reply = self._scan_reply(current.probe_id, report)
        if isinstance(current, ScanHeap):
            return [reply]
        return [msgspec.structs.replace(current, heap_scan=reply)]

    def _state(self, request: Checkpoint) -> CheckpointReply:
        engine = self._engine
        stats = engine.pool_stats()
        idle = engine.is_idle
        if idle:
            self._injected.mark_idle()
        engine.find_containers()
        found = engine.check_invariants(idle=idle)
        if request.audit:
            # The ledger is the bench's own oracle, which real engines lack: it must not decide a
            # verdict, so its findings are dropped.
            found += [entry for entry in engine.audit() if entry.kind is not ViolationKind.LEDGER]
        return CheckpointReply(
            probe_id=request.probe_id,
            index=request.index,
            t_s=time.monotonic(),
            idle=idle,
            pools={name: pool.as_dict() for name, pool in stats.items()},
            # Rows are not in the tree.
            locks={
                "full" if pool == "kv" else pool: count.protected
                for pool, count in stats.items()
                if pool != "req"
            },
            containers=engine.containers(),
            running=engine.running_requests,
            waiting=engine.waiting_requests,
            counters=self._metrics.counters(),
            violations=violation_records(found, engine.last_owner),
            heap_scan=_NO_SCAN,
        )

    def _scan_reply(self, probe_id: int, report: HeapScan) -> HeapScanReply:
        return HeapScanReply(
            probe_id=probe_id,
            t_s=self._started_s,
            stop_s=self._stop_s,
            stop_cpu_s=self._stop_cpu_s,
            **vars(report),
        )


def violation_records(
    found: Iterable[InvariantViolation], last_owner: Callable[[str, int], str] | None = None
) -> list[ViolationRecord]:
    """Convert to wire records, one per contradiction, however many checks found it.

    ``last_owner`` returns a slot's last owner in the ledger; the report names it, but no verdict
    depends on it.
    """
    records = {}
    for entry in found:
        slots = list(entry.slots[:_SLOTS_SENT_MAX])
        owners: list[str] = []
        if last_owner is not None and entry.kind is ViolationKind.RESIDUAL:
            named = [last_owner(entry.pool, slot) for slot in slots]
            # An engine without a ledger returns no names.
            owners = named if any(named) else []
        records[entry.kind, entry.pool, entry.message] = ViolationRecord(
            str(entry.kind), entry.pool, entry.message, slots, entry.count, owners
        )
    return list(records.values())


_NO_SCAN = HeapScanReply(
    probe_id=0, t_s=0.0, method="none", error="not taken", stop_s=0.0, child_s=0.0
)
