"""The loop of a run: each turn listens, samples and watches.

This loop uses only what can be observed of a target from outside.  For a target on the wire,
``wire_loop.py`` extends it to send traffic and requests and to receive answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from hybridbench.foundation.clock import Clock
from hybridbench.foundation.latency import LatencyCounts
from hybridbench.records.events import ClockJump, Gap
from hybridbench.records.messages import Steady
from hybridbench.records.processes import ProcessSample
from hybridbench.runs.driver import Driver
from hybridbench.runs.interrupts import Interrupts
from hybridbench.runs.log_watch import LogWatch
from hybridbench.runs.recorder import Recorder
from hybridbench.runs.status import RunStatus, View
from hybridbench.sampling.sampler import Sampler
from hybridbench.targets.target import Control, ExitStatus, Observe

TURN_S_MAX: Final = 0.25
# A sample this many intervals late is a gap in the series, not a delay.
_GAP_INTERVALS = 5.0
_GAP_S_MIN = 5.0
# A time daemon's slewing moves the wall clock far less than this between two samples.
_CLOCK_JUMP_S = 2.0


class WorkerLostError(Exception):
    """The worker has ended, or must be given up.

    ``reason`` is "exit" or "hang", or "unreachable" or "silent" for a server that is not ours to
    end; ``during`` is what it was doing, and ``stacks`` where it waited, if known.
    """

    def __init__(
        self, reason: str, detail: str, during: str = "", stacks: Sequence[str] = ()
    ) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.during = during
        self.stacks = stacks


@dataclass(frozen=True)
class RunContext:
    """The parts of a run that outlive a worker: its recorder, its view and its interrupts."""

    clock: Clock
    recorder: Recorder
    interrupts: Interrupts
    view: View
    log_watch: LogWatch
    on_report_wanted: Callable[[], None] | None = None  # called on SIGUSR1


@dataclass
class RunLoop:
    """Takes a run's turns in one thread; waits at most 0.25 s; keeps no state per request.

    It does not own its collaborators.
    """

    context: RunContext
    target: Observe
    sampler: Sampler
    status: RunStatus
    samples_wanted: bool = True

    def __post_init__(self) -> None:
        self._clock_offset_s = self._wall_ahead_s()
        self._traffic_start_s: float | None = None

    @property
    def drive(self) -> Driver | None:
        """The sender of the run's traffic; None if the traffic comes from elsewhere."""
        return None

    @property
    def control(self) -> Control | None:
        """How to control the target; None if it can only be observed."""
        return None

    @property
    def declared_steady(self) -> Steady | None:
        """The target's own report that it is warm; None if there is none yet."""
        return None

    @property
    def failure(self) -> str:
        """Why traffic has stopped permanently; empty while it continues."""
        return "" if self.drive is None else self.drive.failure

    @property
    def over(self) -> bool:
        """Whether the target has ended successfully, or with an unknown status."""
        return self.target.exit_status() in (ExitStatus(0, None), ExitStatus(None, None))

    @property
    def now_s(self) -> float:
        """The loop's monotonic clock."""
        return self.context.clock.monotonic_s()

    @property
    def interrupted(self) -> bool:
        """Whether the user or a signal requested the end."""
        return self.context.interrupts.first is not None

    def interrupt_from_now(self) -> Callable[[], bool]:
        """Return a function that tells whether the first interrupt came after this call."""
        before = self.interrupted
        return lambda: self.interrupted and not before

    def start_traffic(self) -> None:
        """Start counting the plan's duration."""
        self._traffic_start_s = self.now_s

    def run_until(self, done: Callable[[], bool], limit_s: float) -> bool:
        """Take turns until ``done``; False if the monotonic time ``limit_s`` comes first.

        Raises:
            WorkerLostError: the worker has ended or hangs.
        """
        while not done():
            if self.now_s >= limit_s:
                return False
            self.turn(limit_s)
        return True

    def wait_for(self, done: Callable[[], bool], patience_s: float) -> bool:
        """Take turns until ``done``; False if the worker could have run for ``patience_s`` first.

        Raises:
            WorkerLostError: the worker has ended or hangs.
        """
        give_up_s = self.target.could_run_s() + patience_s
        while not done():
            if self.target.could_run_s() >= give_up_s:
                return False
            self.turn(self.now_s + TURN_S_MAX)
        return True

    def turn(self, limit_s: float) -> None:
        """Run one turn, ending at ``limit_s`` at the latest."""
        now_s = self.now_s
        due_s = self._send(now_s)
        self._probe(now_s)
        self._listen(max(0.0, min([limit_s, now_s + TURN_S_MAX, *due_s, *self._next_s()]) - now_s))
        self._watch(self.now_s)
        self._report_if_wanted()
        self._show()

    # The parts of a turn.

    def _send(self, now_s: float) -> Sequence[float]:
        """Send what is due; return when the next is due, if known."""
        return ()

    def _next_s(self) -> Sequence[float]:
        """Return when the next sample is due, if one is wanted."""
        return (self.sampler.next_s,) if self.samples_wanted else ()

    def _probe(self, now_s: float) -> None:
        if self.samples_wanted and self.sampler.begin():
            self._finish_sample(now_s, dict(self.target.counters()))

    def _listen(self, timeout_s: float) -> None:
        self.context.clock.sleep(timeout_s)

    def _watch(self, now_s: float) -> None:
        """Raise if the target has ended without success."""
        if self.target.exit_status() is not None and not self.over:
            raise WorkerLostError("exit", "")

    def _latencies_so_far(self) -> LatencyCounts:
        """The latencies in the interval that ends now."""
        return {}

    def _finish_sample(self, stamp_s: float, reported: dict[str, float]) -> None:
        recorder = self.context.recorder
        values = self.sampler.finish(reported)
        late_s = values["sampler_late_s"]
        if late_s > max(_GAP_S_MIN, _GAP_INTERVALS * self.sampler.interval_s):
            recorder.event(Gap(late_s))
        self._watch_clock()
        processes = self.target.processes()
        recorder.processes(processes, self.target.exit_of)
        complete = recorder.sample(stamp_s, values, self._latencies_so_far(), processes)
        # Read the log before it is truncated.
        self.context.log_watch.read_new()
        self.target.limit_stderr()
        self.status.saw_sample(complete)
        self._saw_processes(processes)

    def _saw_processes(self, processes: Sequence[ProcessSample]) -> None:
        self.status.saw_processes(processes)

    def _watch_clock(self) -> None:
        """Record a jump of the wall clock: the machine slept, or its clock was set."""
        ahead_s = self._wall_ahead_s()
        jumped_s, self._clock_offset_s = ahead_s - self._clock_offset_s, ahead_s
        if abs(jumped_s) > _CLOCK_JUMP_S:
            self.context.recorder.event(ClockJump(jumped_s))

    def _wall_ahead_s(self) -> float:
        return self.context.clock.wall_s() - self.context.clock.monotonic_s()

    def _report_if_wanted(self) -> None:
        interrupts = self.context.interrupts
        if interrupts.report_wanted:
            interrupts.report_wanted = False
            if self.context.on_report_wanted is not None:
                self.context.on_report_wanted()

    def _show(self) -> None:
        status, recorder = self.status, self.context.recorder
        status.phase = recorder.phase
        status.elapsed_s = recorder.now_s
        if self._traffic_start_s is not None:
            status.traffic_s = self.now_s - self._traffic_start_s
        self.context.view.update(status)
