"""A worker that follows a script, on a clock that moves only when told: soaks without a process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from hybridbench.foundation.clock import FakeClock
from hybridbench.foundation.latency import LatencyCounts
from hybridbench.records import messages as m
from hybridbench.records.events import Event, Phase, kind_of
from hybridbench.records.finding import VerdictKind
from hybridbench.records.heap import StageReading, SurveyRecord
from hybridbench.records.json_value import JsonValue
from hybridbench.records.processes import ProcessSample
from hybridbench.records.verdict import Verdict
from hybridbench.runs.status import RunStatus, View
from hybridbench.targets.target import ExitStatus
from hybridbench.targets.wire import WireClosedError
from hybridbench.workload.actions import Action, WaitUntil

SAMPLING = m.Sampling(max_new_tokens=2)


def scan_reply(probe_id: int, t_s: float, **changes: object) -> m.HeapScanReply:
    """A heap scan with nothing found, unless changed."""
    values: dict[str, object] = {
        "probe_id": probe_id,
        "t_s": t_s,
        "method": "fork",
        "error": "",
        "stop_s": 0.01,
        "child_s": 0.2,
        "tracked_objects": 1000,
    }
    return m.HeapScanReply(**{**values, **changes})  # type: ignore[arg-type]


class FakeTarget:
    """Answers like a worker that is never busy.  ``silent`` stops all answers, ``gone`` ends it.

    A request is finished ``service_s`` after it was posted.
    """

    pid = 4242

    def __init__(self, clock: FakeClock, service_s: float = 0.1) -> None:
        self.clock = clock
        self.service_s = service_s
        self.posted: list[m.ToWorker] = []
        self.silent = False
        self.gone = False
        self.step_age_s = 0.0
        self.steady_at_s: float | None = None
        self.stack_dumps = 0
        self.killed = False
        self.status: ExitStatus | None = None
        self.extra: list[m.FromWorker] = []
        self._running: dict[str, float] = {}
        self._draining = False
        self._replies: list[m.FromWorker] = []
        self._finished = 0

    def processes(self) -> Sequence[ProcessSample]:
        return ()

    def counters(self) -> Mapping[str, float]:
        return {}

    def exit_of(self, pid: int) -> ExitStatus | None:
        return self.status if pid == self.pid else None

    def post(self, message: m.ToWorker) -> None:
        self.posted.append(message)
        match message:
            case m.Submit() | m.Abort() | m.Disconnect():
                self._change(message)
            case m.Drain():
                self._draining = True
            case m.Counters():
                self._replies.append(self._counters(message))
            case m.ScanHeap():
                self._replies.append(scan_reply(message.probe_id, self.clock.monotonic_s()))
            case m.Checkpoint():
                self._replies.append(self._checkpoint(message))
            case m.Flush():
                self._replies.append(m.Flushed(self.clock.monotonic_s(), True))
            case m.Reclaim():
                self._replies.append(m.Reclaimed(self.clock.monotonic_s(), 400, 300, 200, 100))
            case m.Shutdown():
                self._replies.append(m.Goodbye(self.clock.monotonic_s(), 0.0))

    def _change(self, message: m.Submit | m.Abort | m.Disconnect) -> None:
        """Begin or end a request; a second one of its id is refused."""
        rid, now_s = message.rid, self.clock.monotonic_s()
        if isinstance(message, m.Submit) and rid in self._running:
            refused = m.Rejected(rid, "the id is taken")
            self._replies.append(m.StepEvents(now_s, 1, [], [], [], [refused], []))
        elif isinstance(message, m.Submit):
            self._running[rid] = now_s + self.service_s
        elif self._running.pop(rid, None) is not None and isinstance(message, m.Abort):
            ended = m.Ended(rid, [], "abort", 4, 0, None, None)
            self._replies.append(m.StepEvents(now_s, 1, [], [], [], [], [ended]))

    def exchange(self, timeout_s: float) -> list[m.FromWorker]:
        if self.gone and not self._replies:
            raise WireClosedError
        if self.silent:
            self.clock.advance(timeout_s)
            return []
        messages = [*self._replies, *self.extra, *self._step()]
        self._replies, self.extra = [], []
        if not messages:
            self.clock.advance(min(timeout_s, self.service_s))
        return messages

    def could_run_s(self) -> float:
        return self.clock.monotonic_s()

    def exit_status(self) -> ExitStatus | None:
        return self.status

    def dump_stack(self) -> None:
        self.stack_dumps += 1

    def stderr_tail(self) -> list[str]:
        return ["the last line"]

    def limit_stderr(self) -> None:
        pass

    def stop(self, patience_s: float) -> ExitStatus | None:
        del patience_s
        return ExitStatus(0, None)

    def kill(self) -> bool:
        self.killed = True
        return True

    def count(self, kind: type) -> int:
        """Messages of one kind that were posted."""
        return sum(isinstance(message, kind) for message in self.posted)

    def _step(self) -> list[m.FromWorker]:
        now_s = self.clock.monotonic_s()
        done = [rid for rid, end_s in self._running.items() if end_s <= now_s]
        messages: list[m.FromWorker] = []
        if done:
            self._finished += len(done)
            ended = [m.Ended(rid, [1, 2], "length", 4, 0, 0.05, 0.01) for rid in done]
            for rid in done:
                del self._running[rid]
            messages.append(m.StepEvents(now_s, 1, done, done, ended, [], []))
        if self.steady_at_s is not None and now_s >= self.steady_at_s:
            self.steady_at_s = None
            messages.append(m.Steady(now_s, "evicting"))
        if self._draining and not self._running:
            self._draining = False
            messages.append(m.Drained(now_s))
        return messages

    def _counters(self, message: m.Counters) -> m.CountersReply:
        values = {
            "events.output_tokens": 2.0 * self._finished,
            "events.prompt_tokens": 4.0 * self._finished,
            "events.finishes": float(self._finished),
            "running_requests": float(len(self._running)),
            "probe_stop_s": 0.0,
        }
        return m.CountersReply(
            message.probe_id,
            self.clock.monotonic_s(),
            True,
            bool(self._running),
            self.step_age_s,
            self._finished,
            values,
        )

    def _checkpoint(self, message: m.Checkpoint) -> m.CheckpointReply:
        now_s = self.clock.monotonic_s()
        return m.CheckpointReply(
            probe_id=message.probe_id,
            index=message.index,
            t_s=now_s,
            idle=not self._running,
            pools={"kv": {"total": 10, "available": 10, "residual": 0}},
            locks={"full": 0, "mamba": 0},
            containers={"front_end": 0},
            running=len(self._running),
            waiting=0,
            counters={"finishes": self._finished},
            violations=[],
            heap_scan=scan_reply(message.probe_id, now_s),
        )


class FakeWorkload:
    """A closed loop of ``concurrency`` requests; remembers what it was told."""

    def __init__(self, concurrency: int = 2) -> None:
        self.concurrency = concurrency
        self.told: list[tuple[str, str]] = []
        self.actions: list[Action] = []
        self.live: set[str] = set()
        self.paused = False
        self.failure = ""
        self.refusal = ""
        self._next = 0

    @property
    def in_flight(self) -> int:
        return len(self.live)

    def next_action(self, now_s: float) -> Action:
        del now_s
        if self.actions:
            return self.actions.pop(0)
        if self.paused or self.failure or len(self.live) >= self.concurrency:
            return WaitUntil(None)
        self._next += 1
        rid = f"r{self._next}"
        self.live.add(rid)
        return m.Submit(rid, [1, 2, 3, 4], SAMPLING)

    def pause(self, now_s: float) -> None:
        del now_s
        self.paused = True

    def resume(self, now_s: float) -> None:
        del now_s
        self.paused = False

    def on_admitted(self, rid: str) -> None:
        self.told.append(("admitted", rid))

    def on_first_token(self, rid: str, now_s: float) -> None:
        del now_s
        self.told.append(("first_token", rid))

    def on_finished(self, rid: str, output_ids: Sequence[int], reason: str, now_s: float) -> None:
        del output_ids, now_s
        self.live.discard(rid)
        self.told.append((reason, rid))

    def on_rejected(self, rid: str, reason: str) -> None:
        del reason
        self.live.discard(rid)
        self.told.append(("rejected", rid))

    def prompt_of(self, rid: str) -> list[int] | None:
        return [1, 2, 3, 4] if rid in self.live else None

    def counts(self) -> dict[str, int]:
        return {"submitted": self._next}

    def describe(self) -> dict[str, JsonValue]:
        return {"kind": "fake"}


_Event = TypeVar("_Event", bound=Event)


class FakeSink:
    """A run directory in memory."""

    def __init__(self) -> None:
        self.samples: list[tuple[float, str, dict[str, float]]] = []
        self.latencies: list[tuple[float, LatencyCounts]] = []
        self.processes: list[tuple[ProcessSample, ...]] = []
        self.events: list[Event] = []

    def sample(
        self,
        t_s: float,
        phase: str,
        metrics: Mapping[str, float],
        latencies: LatencyCounts | None = None,
        processes: Sequence[ProcessSample] = (),
    ) -> None:
        self.samples.append((t_s, phase, dict(metrics)))
        self.processes.append(tuple(processes))
        if latencies:
            self.latencies.append((t_s, latencies))

    def event(self, event: Event) -> None:
        self.events.append(event)

    def kinds(self) -> list[str]:
        return [kind_of(event) for event in self.events]

    def phases(self) -> list[str]:
        return [phase.name for phase in self.all_events(Phase)]

    def all_events(self, kind: type[_Event]) -> list[_Event]:
        return [event for event in self.events if isinstance(event, kind)]


class FakeView(View):
    """Remembers the notes, and calls ``on_update`` with each update."""

    def __init__(self, on_update: Callable[[RunStatus], None] | None = None) -> None:
        self.notes: list[str] = []
        self.updates = 0
        self._on_update = on_update

    def update(self, status: RunStatus) -> None:
        self.updates += 1
        if self._on_update is not None:
            self._on_update(status)

    def note(self, text: str) -> None:
        self.notes.append(text)


@dataclass
class FakeJudge:
    """Has its verdict at once."""

    kind: VerdictKind
    asked: int = 0
    busy: bool = True
    could_run_s: float = 0.0

    def start(self) -> None:
        self.asked += 1

    def collect(self) -> Verdict:
        return Verdict(self.kind, "", (), (), None, "")

    def close(self) -> None:
        pass


class Resting(FakeTarget):
    """Answers diagnoses: 100 bytes go with each stage."""

    def post(self, message: m.ToWorker) -> None:
        super().post(message)
        if isinstance(message, m.Diagnose):
            left = 1000 if "rest" in message.stages else 800
            names = [
                stage for stage in message.stages if stage not in {"survey", "rehearse", "device"}
            ]
            readings = [
                StageReading(name, left - 100 * place, 0, 0, 0, 0, 0.1)
                for place, name in enumerate(names)
            ]
            survey = SurveyRecord("", paths={"Engine": (1, 50)}, classes={"Engine": 1})
            now_s = self.clock.monotonic_s()
            wanted = survey if "survey" in message.stages else None
            self.extra.append(m.Diagnosis(message.probe_id, now_s, readings, wanted))

    def diagnoses(self) -> list[m.Diagnose]:
        return [message for message in self.posted if isinstance(message, m.Diagnose)]
