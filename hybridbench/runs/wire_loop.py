"""The loop of a soak over the wire: traffic, requests and replies, heap scans, a watchdog."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

import msgspec

from hybridbench.foundation.latency import LatencyCounts, add_latencies
from hybridbench.records import events
from hybridbench.records.events import ProbeLeftOut, RequestRefused
from hybridbench.records.messages import (
    AllocationsTracked,
    Checkpoint,
    CheckpointReply,
    Counters,
    CountersReply,
    Diagnose,
    Diagnosis,
    Drain,
    Drained,
    Fatal,
    FinishedAnswer,
    Flush,
    Flushed,
    FromWorker,
    Goodbye,
    HeapScanReply,
    InjectedTruth,
    LogLine,
    Ready,
    Reclaim,
    Reclaimed,
    Resume,
    ScanHeap,
    Shutdown,
    Steady,
    StepEvents,
    ToWorker,
    Violation,
    ViolationRecord,
)
from hybridbench.runs.answer_check import AnswerCheck
from hybridbench.runs.driver import Driver
from hybridbench.runs.loop import RunContext, RunLoop, WorkerLostError
from hybridbench.runs.plan import SoakPlan
from hybridbench.runs.status import RunStatus
from hybridbench.sampling.cadence import Beat, ScanPace
from hybridbench.sampling.sampler import (
    ChildrenSource,
    HarnessSource,
    ProcessSource,
    PssSource,
    Sampler,
    StarvationSource,
    TimedSource,
)
from hybridbench.targets.target import Control, WireTarget
from hybridbench.targets.wire import WireClosedError

_REPLY_PATIENCE_S = 3.0
# A worker that is not sampled must send something this often, or it counts as hung.
_KEEPALIVE_S = 5.0
_PSS_INTERVAL_S = 20.0
_VIOLATIONS_RECORDED_MAX = 100
# How long the engine may be blocked by a request: a heap survey walks a gigabyte of objects, and a
# checkpoint reads every count between two steps.
_MAY_HOLD_ENGINE_S: Final[Mapping[type[object], float]] = {
    HeapScanReply: 30.0,
    CheckpointReply: 30.0,
    Flushed: 30.0,
    Reclaimed: 30.0,
    AllocationsTracked: 60.0,
    Diagnosis: 150.0,
}
# Number of moments kept, a second apart, to convert the time of the last step.
_MOMENTS_KEPT: Final = 4096

Answer = TypeVar("Answer", bound=FromWorker)


@dataclass
class Question(Generic[Answer]):
    """A pending request; ``answer`` is the worker's reply once it has arrived.

    ``probe_id`` is in both the request and its reply, None for requests without one.  ``asked_s``
    is the target's ``could_run_s`` when it was sent.
    """

    kind: type[Answer]
    probe_id: int | None
    asked_s: float
    answer: Answer | None = None

    def take(self, message: FromWorker) -> bool:
        """Keep ``message`` if it is the answer; return whether it is."""
        if not isinstance(message, self.kind) or _probe_id(message) != self.probe_id:
            return False
        self.answer = message
        return True


class OpenQuestion(Protocol):
    """A question of any kind."""

    @property
    def kind(self) -> type[object]: ...
    @property
    def asked_s(self) -> float: ...
    def take(self, message: FromWorker) -> bool: ...


@dataclass(kw_only=True)
class WireLoop(RunLoop):
    """The loop of a target that is driven and controlled over the wire: it offers all ports.

    ``watchdog_s`` without a step or a message is a hang, counting only time in which the worker
    could have run.
    """

    target: WireTarget
    driver: Driver
    scan_pace: ScanPace
    watchdog_s: float
    steady: Steady | None = None
    truth: InjectedTruth | None = None
    heap_scans_wanted: bool = True
    answers: AnswerCheck | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._next_probe_id = 0
        self._questions: list[OpenQuestion] = []
        self._asked: tuple[int, float] | None = None  # probe id and time of the open sample
        self._counters_s = self.now_s
        self._heard_s = self._last_step_s = self.target.could_run_s()
        self._stands_still = False
        self._moments: deque[tuple[float, float]] = deque(maxlen=_MOMENTS_KEPT)
        self._latencies: dict[str, dict[int, int]] = {}
        self._violations = 0
        self._refused = False
        self._unanswered = 0  # requests without an answer when the engine was last drained
        self._unanswered_at: dict[int, int] = {}  # the same, by probe id of an open checkpoint

    @property
    def drive(self) -> Driver:
        return self.driver

    @property
    def control(self) -> Control:
        return self

    @property
    def over(self) -> bool:
        return False  # it serves until it is shut down

    @property
    def declared_steady(self) -> Steady | None:
        return self.steady

    # Requests with a reply.

    def post(self, request: ToWorker, kind: type[Answer]) -> Question[Answer]:
        """Post ``request``; its answer, of type ``kind``, is kept when it arrives."""
        question = Question(kind, _probe_id(request), self.target.could_run_s())
        self._questions.append(question)
        self.target.post(request)
        return question

    def ask(
        self,
        request: ToWorker,
        kind: type[Answer],
        patience_s: float,
        given_up: Callable[[], bool] = lambda: False,
    ) -> Answer | None:
        """Post ``request`` and take turns until its answer arrives; None if ``given_up``, or if the
        worker could have run for ``patience_s`` without answering.

        Raises:
            WorkerLostError: the worker has ended or hangs.
        """
        question = self.post(request, kind)
        self.wait_for(lambda: question.answer is not None or given_up(), patience_s)
        if question.answer is None and question.probe_id is None:
            # A late answer could not be told from the answer to the next request of its kind.
            self._questions.remove(question)
        return question.answer

    def new_probe_id(self) -> int:
        """Return an id that no other probe of this run has."""
        self._next_probe_id += 1
        return self._next_probe_id

    # Pauses: a checkpoint drains the engine, waits, probes it, and resumes traffic.

    def drain(self, patience_s: float) -> bool:
        """Stop submitting; return whether the engine became idle within ``patience_s``, and before
        the user interrupted.
        """
        self.driver.pause(self.now_s)
        drained = self.ask(Drain(), Drained, patience_s, self.interrupt_from_now()) is not None
        # Whatever was answered before the engine became idle has arrived, and nothing is sent now.
        self._unanswered = self.driver.in_flight if drained else 0
        return drained

    def flush(self, patience_s: float) -> bool:
        """Empty the cache; return whether that was done within ``patience_s``."""
        return self.ask(Flush(), Flushed, patience_s) is not None

    def reclaim(self, patience_s: float) -> None:
        """Record how much each way of freeing memory releases; nothing is sampled afterwards, as
        this changes the worker.
        """
        self.samples_wanted = False
        given = self.ask(Reclaim(), Reclaimed, patience_s)
        if given is not None:
            recorded = msgspec.convert(given, events.Reclaim, from_attributes=True)
            self.context.recorder.at(given.t_s, recorded)

    def leave(self, patience_s: float) -> None:
        """Shut the worker down cleanly."""
        self.ask(Shutdown(), Goodbye, patience_s)

    def resume(self) -> None:
        """Resume submitting."""
        self._unanswered = 0
        self.target.post(Resume())
        self.driver.resume(self.now_s)

    def heard(self) -> None:
        """Restart the silence timer: the worker sent something, or could not."""
        self._heard_s = self.target.could_run_s()

    def no_scan_open(self) -> bool:
        """Whether every requested heap scan is answered, including those of checkpoints."""
        return not any(q.kind in {HeapScanReply, CheckpointReply} for q in self._questions)

    @property
    def sample_open(self) -> bool:
        """Whether a sample is requested but not answered."""
        return self._asked is not None

    def post_checkpoint(self, index: int, *, audit: bool) -> Question[CheckpointReply]:
        """Request a checkpoint."""
        probe_id = self.new_probe_id()
        # Its reply may come when traffic has resumed, so this is the time to count.
        self._unanswered_at[probe_id] = min(self._unanswered, self.driver.in_flight)
        return self.post(Checkpoint(probe_id, index, audit), CheckpointReply)

    def post_heap_scan(self) -> None:
        """Request a heap scan now; ``no_scan_open`` tells when it is answered."""
        self.scan_pace.asked(self.now_s)
        self.post(ScanHeap(self.new_probe_id()), HeapScanReply)

    def sample_rest(self) -> None:
        """Store the worker's current private memory, while it is idle."""
        at_rest = self.sampler.read_now("rss_anon_swap_bytes")
        if at_rest is not None:
            self.context.recorder.sample(self.now_s, {"rest_anon_swap_bytes": at_rest})

    # The parts of a turn.

    def _send(self, now_s: float) -> Sequence[float]:
        due_s = self.driver.pump(now_s)
        return () if due_s is None else (due_s,)

    def _next_s(self) -> Sequence[float]:
        return () if self._asked is not None else super()._next_s()

    def _listen(self, timeout_s: float) -> None:
        try:
            messages = self.target.exchange(timeout_s)
        except WireClosedError as error:
            raise WorkerLostError("exit", "the worker closed its connection") from error
        if messages:
            self.heard()
        for message in messages:
            self._handle(message)
            self._keep_answer(message)
            if self.answers is not None:
                self.answers.take(
                    self.driver.as_sent(message) if isinstance(message, FinishedAnswer) else message
                )

    def _probe(self, now_s: float) -> None:
        if self._asked is not None and now_s - self._asked[1] > _REPLY_PATIENCE_S:
            # The kernel's numbers are useful even when the worker does not answer.
            self._asked = None
            self._finish_sample(now_s, {})
        elif self._asked is None and self.samples_wanted and self.sampler.begin():
            self._asked = (self._post_counters(now_s), now_s)
        elif not self.samples_wanted and now_s - self._counters_s >= _KEEPALIVE_S:
            self._post_counters(now_s)
        if self.heap_scans_wanted and self.scan_pace.due(now_s) and self.no_scan_open():
            self.post_heap_scan()
        if self.answers is not None:
            self.answers.pump()

    def _post_counters(self, now_s: float) -> int:
        probe_id = self.new_probe_id()
        self._counters_s = now_s
        self.target.post(Counters(probe_id))
        return probe_id

    def _handle(self, message: FromWorker) -> None:
        match message:
            case StepEvents():
                self._on_step_events(message)
            case CountersReply():
                self._on_counters(message)
            case HeapScanReply():
                self._learn_price(message)
                self.context.recorder.heap_scan(message)
                self.status.saw_heap_scan(message)
            case CheckpointReply():
                self._learn_price(message.heap_scan)
                checkpoint = self._with_unanswered(message)
                self.context.recorder.checkpoint(checkpoint)
                self.status.saw_checkpoint(checkpoint)
            case Violation():
                self._on_violation(message)
            case LogLine(t_s, text):
                self.context.log_watch.line(text, t_s)
            case Steady():
                self.steady = message
            case InjectedTruth():
                self.truth = message
            case Fatal():
                raise WorkerLostError("exit", message.message)

    def _with_unanswered(self, reply: CheckpointReply) -> CheckpointReply:
        """Add the requests that an idle engine never answered.

        Its front end may have dropped them as well, so only the client can count them.
        """
        count = self._unanswered_at.pop(reply.probe_id, 0)
        known = any(record.kind == "unanswered" for record in reply.violations)
        if known or not (reply.idle and count):
            return reply
        requests = "1 request has" if count == 1 else f"{count:,} requests have"
        message = f"{requests} no answer, but the engine is idle"
        record = ViolationRecord("unanswered", "", message, [], count)
        return msgspec.structs.replace(reply, violations=[*reply.violations, record])

    def _keep_answer(self, message: FromWorker) -> None:
        answered = next((q for q in self._questions if q.take(message)), None)
        if answered is not None:
            self._questions.remove(answered)

    def _learn_price(self, heap_scan: HeapScanReply) -> None:
        if heap_scan.error:
            return
        pace, recorder = self.scan_pace, self.context.recorder
        before = pace.given_up
        pace.learn(heap_scan.stop_s, heap_scan.child_s, heap_scan.stop_cpu_s)
        if pace.given_up and not before and pace.stall_max_s is not None:
            recorder.event(
                ProbeLeftOut(("gc_collectible_bytes",), heap_scan.stop_s, pace.stall_max_s)
            )
            said = f"{heap_scan.stop_s * 1000:.0f} ms, above probe.max_stall_ms"
            recorder.note(f"a heap scan stopped the engine for {said}: not repeated")

    def _on_step_events(self, message: StepEvents) -> None:
        # The answers of other projects' schedulers are not compared: they shorten requests by rules
        # of their own.
        faults = [] if self.answers is None else self.driver.faults_of(message)
        for fault in faults:
            self._on_violation(
                Violation(message.t_s, message.steps, ViolationRecord("answer", "", fault, []))
            )
        self.driver.on_step_events(message)
        if self.driver.refusal and not self._refused:
            self._refused = True
            self.context.recorder.event(RequestRefused(self.driver.refusal))

    def _on_counters(self, reply: CountersReply) -> None:
        # Wall time includes waiting for a CPU, so this alone is only a suspicion.
        self._stands_still = reply.step_age_s > self.watchdog_s
        self._last_step_s = self._could_run_at(reply.t_s - reply.step_age_s)
        # Latencies of a late reply go into the next sample, or the slowest requests would be lost.
        add_latencies(self._latencies, reply.latencies)
        if self._asked is None or self._asked[0] != reply.probe_id:
            return  # too late: its sample was closed without it
        self._asked = None
        self._finish_sample(reply.t_s, reply.values)

    def _latencies_so_far(self) -> LatencyCounts:
        latencies, self._latencies = self._latencies, {}
        return latencies

    def _on_violation(self, message: Violation) -> None:
        self._violations += 1
        # A violation is repeated at every step; the first hundred are enough.
        if self._violations <= _VIOLATIONS_RECORDED_MAX:
            self.context.recorder.violation(message)
        self.status.suspicion = message.violation.message

    def _watch(self, now_s: float) -> None:
        """Give up the worker if it is stuck: no step for too long with work, or no message at all.

        A worker that waits for a CPU, was stopped, or executes a request is not stuck.
        """
        could_run_s = self.target.could_run_s()
        if not self._moments or now_s - self._moments[-1][0] >= 1.0:
            self._moments.append((now_s, could_run_s))
        if any(could_run_s - q.asked_s < _holds_engine_s(q) for q in self._questions):
            return
        age_s, silent_s = could_run_s - self._last_step_s, could_run_s - self._heard_s
        if self._stands_still and age_s > self.watchdog_s:
            raise WorkerLostError("hang", f"no engine step for {age_s:.0f} s with work pending")
        if silent_s > self.watchdog_s:
            raise WorkerLostError("hang", f"no message from the worker for {silent_s:.0f} s")

    def _could_run_at(self, now_s: float) -> float:
        """Return ``could_run_s`` at the monotonic time ``now_s``, or at the first recorded one."""
        at = bisect_right(self._moments, now_s, key=lambda moment: moment[0])
        return self._moments[max(at - 1, 0)][1] if self._moments else self.target.could_run_s()

    def _show(self) -> None:
        status, counts = self.status, self.driver.counts
        status.finished, status.aborted = counts.finished, counts.aborted
        status.rejected = counts.rejected
        super()._show()


def _holds_engine_s(question: OpenQuestion) -> float:
    return _MAY_HOLD_ENGINE_S.get(question.kind, 0.0)


def _probe_id(message: ToWorker | FromWorker) -> int | None:
    match message:
        case ScanHeap() | Checkpoint() | Diagnose():
            return message.probe_id
        case HeapScanReply() | CheckpointReply() | Diagnosis():
            return message.probe_id
        case _:
            return None


def make_wire_loop(
    plan: SoakPlan,
    context: RunContext,
    target: WireTarget,
    driver: Driver,
    ready: Ready,
    starvation: StarvationSource | None = None,
) -> WireLoop:
    """Build the loop for a worker that sent ``ready``; callers that park it pass ``starvation``."""
    now_s, cadence = context.clock.monotonic_s(), plan.cadence
    sources = [
        TimedSource(ProcessSource(ready.pid)),
        TimedSource(ChildrenSource(ready.pid)),
        TimedSource(HarnessSource()),
        TimedSource(starvation or StarvationSource(ready.pid)),
        TimedSource(PssSource(ready.pid), Beat(_PSS_INTERVAL_S, now_s)),
    ]
    status = RunStatus(plan.title, plan.traffic_s)
    return WireLoop(
        context=context,
        target=target,
        driver=driver,
        sampler=Sampler(sources, Beat(cadence.sample_every_s, now_s), context.clock),
        scan_pace=ScanPace(cadence.collectible_every_s, now_s, plan.stall_max_s),
        status=status,
        watchdog_s=plan.options.watchdog_s,
    )
