"""The soak loop: one turn submits what is due, listens, samples, watches; a run is many turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hybridbench.clock import Clock
from hybridbench.runs.clock_watch import ClockWatch
from hybridbench.runs.driver import Driver
from hybridbench.runs.interrupts import Interrupts
from hybridbench.runs.log_watch import LogWatch
from hybridbench.runs.recorder import Recorder
from hybridbench.runs.status import RunStatus, View
from hybridbench.runs.watchdog import Watchdog
from hybridbench.sampling.cadence import CensusPace
from hybridbench.sampling.sampler import Sampler
from hybridbench.targets.messages import (
    AllocationsTracked,
    Census,
    CensusReply,
    Checkpoint,
    CheckpointReply,
    Counters,
    CountersReply,
    Diagnosis,
    Drained,
    Fatal,
    Flushed,
    FromWorker,
    Goodbye,
    InjectedTruth,
    LogLine,
    Reclaimed,
    Steady,
    StepEvents,
    Violation,
)
from hybridbench.targets.target import Target
from hybridbench.targets.wire import WireClosedError

_TURN_S_MAX = 0.25
_REPLY_PATIENCE_S = 3.0
# A sample this many intervals late is a gap in the series, not a delay.
_GAP_INTERVALS = 5.0
_GAP_S_MIN = 5.0
_VIOLATIONS_RECORDED_MAX = 100


class WorkerLostError(Exception):
    """The worker is gone, or must be given up.  ``reason`` is "exit" or "hang"."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True)
class LoopParts:
    """Everything a loop connects; it owns none of it."""

    target: Target
    driver: Driver
    sampler: Sampler
    census_pace: CensusPace
    recorder: Recorder
    watchdog: Watchdog
    interrupts: Interrupts
    view: View
    status: RunStatus
    clock: Clock
    on_evidence: Callable[[], None] | None = None  # what SIGUSR1 asks for
    log_watch: LogWatch | None = None  # None for a target whose stderr is not a file of ours


class SoakLoop:
    """One thread, no waiting longer than a quarter of a second, nothing kept per request."""

    def __init__(self, parts: LoopParts) -> None:
        self._parts = parts
        self._next_probe_id = 0
        self._clocks = ClockWatch(parts.clock)
        self._asked: tuple[int, float] | None = None  # probe id and time of the open sample
        self._violations = 0
        self._drained = False
        self._checkpoints_done = -1
        self._traffic_start_s: float | None = None
        self.steady: Steady | None = None
        self.goodbye: Goodbye | None = None
        self.truth: dict[str, dict[str, int]] = {}
        self.reclaimed: Reclaimed | None = None
        self.flushed: Flushed | None = None
        self.tracked: AllocationsTracked | None = None
        self.diagnoses: dict[int, Diagnosis] = {}  # by probe id, until somebody takes them
        self.samples_wanted = True
        self._censuses_open = 0
        self.censuses_wanted = True

    @property
    def now_s(self) -> float:
        """The loop's monotonic clock."""
        return self._parts.clock.monotonic_s()

    @property
    def interrupted(self) -> bool:
        """Whether somebody asked for the end."""
        return self._parts.interrupts.first is not None

    def start_traffic(self) -> None:
        """From now on the plan's duration counts."""
        self._traffic_start_s = self.now_s

    def run_until(self, done: Callable[[], bool], limit_s: float) -> bool:
        """Turn until ``done``; False if the monotonic time ``limit_s`` came first.

        Raises:
            WorkerLostError: the worker is gone or hangs.
        """
        while not done():
            if self.now_s >= limit_s:
                return False
            self.turn(limit_s)
        return True

    def turn(self, limit_s: float) -> None:
        """One round, at most until ``limit_s``."""
        parts = self._parts
        now_s = self.now_s
        due_s = parts.driver.pump(now_s)
        self._ask(now_s)
        wake_s = min(limit_s, now_s + _TURN_S_MAX)
        if self._asked is None and self.samples_wanted:
            wake_s = min(wake_s, parts.sampler.next_s)
        if due_s is not None:
            wake_s = min(wake_s, due_s)
        try:
            messages = parts.target.exchange(max(0.0, wake_s - now_s))
        except WireClosedError as error:
            raise WorkerLostError("exit", "the worker closed the wire") from error
        if messages:
            parts.watchdog.heard(self.now_s)
        for message in messages:
            self._handle(message)
        self._watch(self.now_s)
        self._write_evidence()
        self._show()

    # Pauses: a checkpoint drains the engine, waits, looks, and lets traffic go on.

    def ask_drain(self) -> None:
        """Stop submitting; ``drained`` becomes true when the engine is idle."""
        self._drained = False
        self._parts.driver.pause(self.now_s)

    def drained(self) -> bool:
        """Whether the engine has finished everything since ``ask_drain``."""
        return self._drained

    def resume(self) -> None:
        """Submit again."""
        self._parts.driver.resume(self.now_s)

    def checkpoint_done(self, index: int) -> bool:
        """Whether the answer to checkpoint ``index`` has come, its census included."""
        return self._checkpoints_done >= index

    def no_census_open(self) -> bool:
        """Whether every census that was asked for is answered."""
        return self._censuses_open == 0

    @property
    def sample_open(self) -> bool:
        """Whether a sample is asked for and not answered."""
        return self._asked is not None

    def post_checkpoint(self, index: int, *, audit: bool) -> None:
        """Ask for a checkpoint; ``checkpoint_done`` tells of its answer."""
        self._censuses_open += 1
        self._parts.target.post(Checkpoint(self.new_probe_id(), index, audit))

    def post_census(self) -> None:
        """Ask for a census now; ``no_census_open`` tells of its answer."""
        self._parts.census_pace.asked(self.now_s)
        self._censuses_open += 1
        self._parts.target.post(Census(self.new_probe_id()))

    def sample_rest(self) -> None:
        """Store the worker's private memory of this moment, at which it has nothing to do."""
        at_rest = self._parts.sampler.read_now("rss_anon_swap_bytes")
        if at_rest is not None:
            self._parts.recorder.sample(self.now_s, {"rest_anon_swap_bytes": at_rest})

    def new_probe_id(self) -> int:
        """A number that no other probe of this run has."""
        self._next_probe_id += 1
        return self._next_probe_id

    # One turn's parts.

    def _ask(self, now_s: float) -> None:
        parts = self._parts
        if self._asked is None and self.samples_wanted and parts.sampler.begin():
            probe_id = self.new_probe_id()
            self._asked = (probe_id, now_s)
            parts.target.post(Counters(probe_id))
        elif self._asked is not None and now_s - self._asked[1] > _REPLY_PATIENCE_S:
            # What the kernel says is worth having while the worker says nothing.
            self._asked = None
            self._finish_sample(now_s, {})
        wanted = self.censuses_wanted and not self._censuses_open
        if wanted and parts.census_pace.due(now_s):
            self.post_census()

    def _handle(self, message: FromWorker) -> None:
        parts = self._parts
        match message:
            case StepEvents():
                parts.driver.on_step_events(message)
            case CountersReply():
                self._on_counters(message)
            case CensusReply() | CheckpointReply():
                self._on_probe(message)
            case Violation():
                self._on_violation(message)
            case LogLine():
                self._on_log_line(message)
            case Fatal():
                raise WorkerLostError("exit", message.message)
            case _:
                self._on_state(message)

    def _on_state(self, message: FromWorker) -> None:
        """What the steps of the run wait for."""
        match message:
            case Steady():
                self.steady = message
            case Drained():
                self._drained = True
            case Flushed():
                self.flushed = message
            case Reclaimed():
                self.reclaimed = message
            case AllocationsTracked():
                self.tracked = message
            case Diagnosis():
                self.diagnoses[message.probe_id] = message
            case Goodbye():
                self.goodbye = message
            case InjectedTruth():
                self.truth = message.counts

    def _on_probe(self, message: CensusReply | CheckpointReply) -> None:
        parts = self._parts
        census = message if isinstance(message, CensusReply) else message.census
        self._censuses_open -= 1
        if not census.error:
            self._learn_price(census)
        if isinstance(message, CensusReply):
            parts.recorder.census(message)
            parts.status.saw_census(message)
            return
        parts.recorder.checkpoint(message)
        parts.status.saw_checkpoint(message)
        self._checkpoints_done = message.index

    def _learn_price(self, census: CensusReply) -> None:
        parts, pace = self._parts, self._parts.census_pace
        before = pace.given_up
        pace.learn(census.stop_s, census.child_s, census.stop_cpu_s)
        if pace.given_up and not before and pace.stall_max_s is not None:
            parts.recorder.event(
                "probe_left_out",
                {
                    "metrics": ["gc_collectible_bytes"],
                    "stall_s": census.stop_s,
                    "max_stall_s": pace.stall_max_s,
                },
            )
            said = f"{census.stop_s * 1000:.0f} ms, above probe.max_stall_ms"
            parts.recorder.event(
                "note", {"text": f"counting garbage held the engine for {said}: not repeated"}
            )

    def _on_counters(self, reply: CountersReply) -> None:
        parts = self._parts
        parts.watchdog.saw_step_age(reply.step_age_s)
        if self._asked is None or self._asked[0] != reply.probe_id:
            return  # too late: its sample was closed without it
        self._asked = None
        self._finish_sample(reply.t_s, reply.values)

    def _finish_sample(self, stamp_s: float, told: dict[str, float]) -> None:
        parts = self._parts
        values = parts.sampler.finish(told)
        late_s = values["sampler_late_s"]
        if late_s > max(_GAP_S_MIN, _GAP_INTERVALS * parts.sampler.interval_s):
            parts.recorder.event("gap", {"seconds": late_s})
        jump_s = self._clocks.jump_s()
        if jump_s is not None:
            parts.recorder.event("clock_jump", {"seconds": jump_s})
        complete = parts.recorder.sample(stamp_s, values)
        if parts.log_watch is not None:
            # Before the file is cut: what is cut away is gone.
            parts.log_watch.look()
        parts.target.limit_stderr()
        status = parts.status
        status.saw_sample(complete)
        if "probe_stop_s" in complete and self._traffic_start_s is not None:
            elapsed_s = max(1.0, self.now_s - self._traffic_start_s)
            status.probe_share = complete["probe_stop_s"] / elapsed_s

    def _on_log_line(self, message: LogLine) -> None:
        watch = self._parts.log_watch
        if watch is not None:
            watch.line(message.text, message.t_s)
        else:
            self._parts.recorder.at(message.t_s, "engine_log", {"text": message.text})

    def _on_violation(self, message: Violation) -> None:
        self._violations += 1
        # A broken law is broken again with every step; the first hundred tell all.
        if self._violations <= _VIOLATIONS_RECORDED_MAX:
            self._parts.recorder.violation(message)
        self._parts.status.suspicion = message.violation.message

    def _watch(self, now_s: float) -> None:
        complaint = self._parts.watchdog.complaint(now_s)
        if complaint is not None:
            raise WorkerLostError("hang", complaint)

    def _write_evidence(self) -> None:
        parts = self._parts
        if parts.interrupts.evidence_wanted:
            parts.interrupts.evidence_wanted = False
            if parts.on_evidence is not None:
                parts.on_evidence()

    def _show(self) -> None:
        parts = self._parts
        status, counts = parts.status, parts.driver.counts
        status.phase = parts.recorder.phase
        status.elapsed_s = parts.recorder.now_s
        if self._traffic_start_s is not None:
            status.traffic_s = self.now_s - self._traffic_start_s
        status.finished, status.aborted = counts.finished, counts.aborted
        status.rejected = counts.rejected
        parts.view.update(status)
