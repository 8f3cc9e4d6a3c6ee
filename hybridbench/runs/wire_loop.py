"""The loop of a soak over the wire: traffic, questions with an answer, heap scans, a watchdog."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

import msgspec

from hybridbench.foundation.latency import LatencyCounts, add_latencies
from hybridbench.records import events
from hybridbench.records.events import ProbeLeftOut
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
)
from hybridbench.runs.answer_check import AnswerCheck
from hybridbench.runs.driver import Driver
from hybridbench.runs.loop import RunContext, RunLoop, WorkerLostError
from hybridbench.runs.plan import SoakPlan
from hybridbench.runs.status import RunStatus
from hybridbench.sampling.cadence import Beat, ScanPace
from hybridbench.sampling.sampler import (
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
# A worker of which nothing is sampled must say a word now and then, or it counts as hung.
_KEEPALIVE_S = 5.0
_PSS_INTERVAL_S = 20.0
_VIOLATIONS_RECORDED_MAX = 100
# How long the engine may stand still because it was asked to: a heap survey walks a gigabyte of
# objects, and a checkpoint takes every count between two steps.
_MAY_HOLD_ENGINE_S: Final[Mapping[type[object], float]] = {
    HeapScanReply: 30.0,
    CheckpointReply: 30.0,
    Flushed: 30.0,
    Reclaimed: 30.0,
    AllocationsTracked: 60.0,
    Diagnosis: 150.0,
}
# When the last step was is looked up among so many moments, a second apart.
_MOMENTS_KEPT: Final = 4096

Answer = TypeVar("Answer", bound=FromWorker)


@dataclass
class Question(Generic[Answer]):
    """A request under way; ``answer`` is the worker's, once it has come.

    ``probe_id`` is that of the request and of its answer, None for requests without one.
    ``asked_s`` is what the target's ``could_run_s`` said then.
    """

    kind: type[Answer]
    probe_id: int | None
    asked_s: float
    answer: Answer | None = None

    def take(self, message: FromWorker) -> bool:
        """Whether ``message`` is the answer, which is kept then."""
        if not isinstance(message, self.kind) or _probe_id(message) != self.probe_id:
            return False
        self.answer = message
        return True


class OpenQuestion(Protocol):
    """A question of whatever kind."""

    @property
    def kind(self) -> type[object]: ...
    @property
    def asked_s(self) -> float: ...
    def take(self, message: FromWorker) -> bool: ...


@dataclass(kw_only=True)
class WireLoop(RunLoop):
    """The loop of a target that is driven and controlled over the wire: it offers all ports.

    ``watchdog_s`` without a step or a word is a hang, counting what the worker could have run.
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

    @property
    def drive(self) -> Driver:
        return self.driver

    @property
    def control(self) -> Control:
        return self

    @property
    def over(self) -> bool:
        return False  # it serves until it is told to leave

    @property
    def declared_steady(self) -> Steady | None:
        return self.steady

    # Requests with an answer.

    def post(self, request: ToWorker, kind: type[Answer]) -> Question[Answer]:
        """Post ``request``; its answer, of type ``kind``, is kept when it comes."""
        question = Question(kind, _probe_id(request), self.target.could_run_s())
        self._questions.append(question)
        self.target.post(request)
        return question

    def ask(self, request: ToWorker, kind: type[Answer], patience_s: float) -> Answer | None:
        """Post ``request`` and turn until its answer comes; None if it has not although the worker
        could have run for ``patience_s``.

        Raises:
            WorkerLostError: the worker is gone or hangs.
        """
        question = self.post(request, kind)
        self.wait_for(lambda: question.answer is not None, patience_s)
        if question.answer is None and question.probe_id is None:
            # Nothing tells its answer from that to the next request of its kind.
            self._questions.remove(question)
        return question.answer

    def new_probe_id(self) -> int:
        """A number that no other probe of this run has."""
        self._next_probe_id += 1
        return self._next_probe_id

    # Pauses: a checkpoint drains the engine, waits, probes it, and lets traffic go on.

    def drain(self, patience_s: float) -> bool:
        """Stop submitting; whether the engine became idle in ``patience_s`` of ``wait_for``."""
        self.driver.pause(self.now_s)
        return self.ask(Drain(), Drained, patience_s) is not None

    def flush(self, patience_s: float) -> bool:
        """Empty the cache; whether that was done in ``patience_s`` of ``wait_for``."""
        return self.ask(Flush(), Flushed, patience_s) is not None

    def reclaim(self, patience_s: float) -> None:
        """Record what each part of giving memory back comes to; nothing is sampled afterwards, as
        the worker is changed.
        """
        self.samples_wanted = False
        given = self.ask(Reclaim(), Reclaimed, patience_s)
        if given is not None:
            recorded = msgspec.convert(given, events.Reclaim, from_attributes=True)
            self.context.recorder.at(given.t_s, recorded)

    def leave(self, patience_s: float) -> None:
        """Let the worker end in order."""
        self.ask(Shutdown(), Goodbye, patience_s)

    def resume(self) -> None:
        """Submit again."""
        self.target.post(Resume())
        self.driver.resume(self.now_s)

    def heard(self) -> None:
        """The worker sent something, or could not: its silence counts from now."""
        self._heard_s = self.target.could_run_s()

    def no_scan_open(self) -> bool:
        """Whether every heap scan that was asked for is answered, those of checkpoints included."""
        return not any(q.kind in {HeapScanReply, CheckpointReply} for q in self._questions)

    @property
    def sample_open(self) -> bool:
        """Whether a sample is asked for and not answered."""
        return self._asked is not None

    def post_checkpoint(self, index: int, *, audit: bool) -> Question[CheckpointReply]:
        """Ask for a checkpoint."""
        return self.post(Checkpoint(self.new_probe_id(), index, audit), CheckpointReply)

    def post_heap_scan(self) -> None:
        """Ask for a heap scan now; ``no_scan_open`` tells of its answer."""
        self.scan_pace.asked(self.now_s)
        self.post(ScanHeap(self.new_probe_id()), HeapScanReply)

    def sample_rest(self) -> None:
        """Store the worker's private memory of this moment, at which it has nothing to do."""
        at_rest = self.sampler.read_now("rss_anon_swap_bytes")
        if at_rest is not None:
            self.context.recorder.sample(self.now_s, {"rest_anon_swap_bytes": at_rest})

    # One turn's parts.

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
                self.answers.take(message)

    def _probe(self, now_s: float) -> None:
        if self._asked is not None and now_s - self._asked[1] > _REPLY_PATIENCE_S:
            # What the kernel says is worth having while the worker says nothing.
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
                self.driver.on_step_events(message)
            case CountersReply():
                self._on_counters(message)
            case HeapScanReply():
                self._learn_price(message)
                self.context.recorder.heap_scan(message)
                self.status.saw_heap_scan(message)
            case CheckpointReply():
                self._learn_price(message.heap_scan)
                self.context.recorder.checkpoint(message)
                self.status.saw_checkpoint(message)
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

    def _on_counters(self, reply: CountersReply) -> None:
        # The clock counts what the worker waited for a processor, so it only raises the suspicion.
        self._stands_still = reply.step_age_s > self.watchdog_s
        self._last_step_s = self._could_run_at(reply.t_s - reply.step_age_s)
        # Those of a late reply belong to the next sample: the slowest requests would be lost.
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
        # A broken law is broken again with every step; the first hundred tell all.
        if self._violations <= _VIOLATIONS_RECORDED_MAX:
            self.context.recorder.violation(message)
        self.status.suspicion = message.violation.message

    def _watch(self, now_s: float) -> None:
        """Give the worker up if it is stuck: no step for too long with work, or no word at all.

        A worker that waits for a processor, was stopped, or does what it was asked for is not.
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
        """What ``could_run_s`` said at that moment, or at the first that is known."""
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
    """The loop for a worker that said ``ready``; ``starvation`` is given by who parks it."""
    now_s, cadence = context.clock.monotonic_s(), plan.cadence
    sources = [
        TimedSource(ProcessSource(ready.pid)),
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
