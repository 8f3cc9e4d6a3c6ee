"""When a soak ends: early, if it certainly leaks or the machine is about to run out of memory or
disk; or late, as long as the verdict is undecided.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, Self

import msgspec

from hybridbench.analysis.headline import full_headline
from hybridbench.analysis.stopping import InterimVerdict, StopReason, decide, settled
from hybridbench.foundation.units import format_bytes, format_duration
from hybridbench.records.events import Extended, ExtensionEnded, StoppedEarly
from hybridbench.records.finding import VerdictKind
from hybridbench.records.verdict import Verdict
from hybridbench.runs.interim import InterimJudge, Judge
from hybridbench.runs.plan import RunPlan
from hybridbench.runs.recorder import Recorder
from hybridbench.runs.status import RunStatus, View
from hybridbench.sampling.headroom import Floor, Headroom, disk_headroom, memory_headroom

# A short run gains nothing by ending early, and its rates need every minute.
_FIRST_LOOK_S = 600.0
_LOOK_EVERY_S = 60.0
_LOOKS_PER_RUN = 48
_LOOKS_KEPT = 64
_GUARD_EVERY_S = 2.0

# Beyond the planned end an analysis takes a second of another core; two that agree must be a minute
# apart.
_EXTENDED_LOOK_EVERY_S = 30.0
_EXTENDED_LOOKS_KEPT = 256
_FAILURES_MAX = 3

_MEMORY_SHARE = 0.05
_MEMORY_LEAST = 512 * 2**20
_MEMORY_MOST = 2 * 2**30
# The reports of a long run take some megabytes.
_DISK_LEAST = 64 * 2**20

LOW_MEMORY, LOW_DISK = "memory-low", "disk-low"


class StopRule(Protocol):
    """Checked by the steps of a run on every turn; returns at once.  Implemented by Stopper."""

    def check(self, now_s: float) -> StoppedEarly | None:
        """Return why to end the run at the monotonic time ``now_s``, or None."""
        ...

    def steady(self) -> None:
        """Called when the engine has reported that it is warm."""
        ...


class InterimVerdicts:
    """The last ``kept`` verdicts that a judge gave during the run.

    Decisions use only the latest ones, so older ones are dropped.
    """

    def __init__(self, judge: Judge, kept: int) -> None:
        self.judge = judge
        self.seen: list[InterimVerdict] = []
        self.failures = 0  # in a row
        self._kept = kept
        self._asked_s: float | None = None

    def collect(self) -> bool:
        """Collect a verdict; return whether there was a new one."""
        verdict = self.judge.collect()
        if verdict is not None and self._asked_s is not None:
            self.seen = [*self.seen, InterimVerdict(self._asked_s, _without_charts(verdict))][
                -self._kept :
            ]
            self._asked_s, self.failures = None, 0
            return True
        if self._asked_s is not None and not self.judge.busy:
            self._asked_s = None
            self.failures += 1
        return False

    def start(self, run_s: float) -> None:
        """Request a verdict on what is stored at ``run_s`` of run time."""
        self._asked_s = run_s
        self.judge.start()


@dataclass(frozen=True)
class Watched:
    """The run observed by a Stopper: its clock, and the times at which traffic begins and ends."""

    run_now_s: Callable[[], float]
    begin_s: float
    end_s: float


class Stopper:
    """Checks memory and disk every two seconds, and judges the run in the background at intervals.

    Owns the process of the current interim analysis until the end of its ``with`` block.
    """

    def __init__(
        self,
        watched: Watched,
        memory: Floor,
        disk: Floor,
        judge: Judge | None,
        words: frozenset[str],
    ) -> None:
        """Without a ``judge``, nothing is judged; its decisions count only if in ``words``."""
        self._watched = watched
        self._memory = memory
        self._disk = disk
        self._verdicts = None if judge is None else InterimVerdicts(judge, _LOOKS_KEPT)
        self._words = words
        self._steady_s: float | None = None
        self._guard_s = 0.0
        self._look_s = watched.begin_s + _FIRST_LOOK_S

    def check(self, now_s: float) -> StoppedEarly | None:
        """Return why the run should end now, or None."""
        if now_s >= self._guard_s:
            self._guard_s = now_s + _GUARD_EVERY_S
            stop = self._guard()
            if stop is not None:
                return stop
        return None if self._verdicts is None else self._decide(self._verdicts)

    def steady(self) -> None:
        """Count trends from now on."""
        self._steady_s = self._watched.run_now_s()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._verdicts is not None:
            self._verdicts.judge.close()

    def _guard(self) -> StoppedEarly | None:
        room = self._memory.breached()
        if room is not None:
            return StoppedEarly(
                LOW_MEMORY, _low("memory", room) + ": the kernel would soon kill the worker"
            )
        room = self._disk.breached()
        if room is not None:
            return StoppedEarly(
                LOW_DISK, _low("disk space", room) + ": the results must fit on the disk"
            )
        return None

    def _decide(self, verdicts: InterimVerdicts) -> StoppedEarly | None:
        run_s, end_s = self._watched.run_now_s(), self._watched.end_s
        if verdicts.collect():
            reason = decide(verdicts.seen, end_s, self._steady_s)
            if reason is not None and reason.word in self._words:
                return StoppedEarly(reason.word, reason.sentence)
        if not verdicts.judge.busy and self._look_s <= run_s < end_s:
            every_s = max(_LOOK_EVERY_S, (end_s - self._watched.begin_s) / _LOOKS_PER_RUN)
            self._look_s = run_s + every_s
            verdicts.start(run_s)
        return None


def make_stopper(plan: RunPlan, run_dir: Path, run_now_s: Callable[[], float]) -> Stopper:
    """Build the guards and interim analyses for ``plan.options``; traffic begins now."""
    words = {"auto": {"leak", "exhaustion"}, "early": {"leak", "exhaustion", "bounded"}}
    begin_s, stop = run_now_s(), plan.options.stop
    return Stopper(
        Watched(run_now_s, begin_s, begin_s + plan.traffic_s),
        Floor(memory_headroom, _MEMORY_SHARE, _MEMORY_LEAST, _MEMORY_MOST),
        Floor(lambda: disk_headroom(run_dir), 0.0, _DISK_LEAST, _DISK_LEAST),
        InterimJudge(run_dir) if stop in words else None,
        frozenset(words.get(stop, set())),
    )


@dataclass
class Extension:
    """Judges the run repeatedly beyond its planned end, until ``analysis.stopping`` is done.

    Args:
        limit_s: how long the run may continue, in seconds.
        judge: judges what is stored, as at the end of the run.
        recorder: gives the run time, and records an event when the extension begins and ends.
    """

    limit_s: float
    judge: Judge
    recorder: Recorder
    view: View
    status: RunStatus

    def __post_init__(self) -> None:
        self._verdicts = InterimVerdicts(self.judge, _EXTENDED_LOOKS_KEPT)
        self._next_s = 0.0
        self._extended = False
        self._reason: StopReason | None = None
        self._failed = False

    @property
    def settled(self) -> bool:
        """Whether the run may end, by the last verdict."""
        return self._failed or self._reason is not None

    @property
    def has_answer(self) -> bool:
        """Whether the verdict that ``ask`` requested has arrived, or will not."""
        self._collect()
        return self.settled or not self.judge.busy

    def ask(self) -> None:
        """Request a verdict on what is stored now, instead of one that is in progress."""
        self.judge.close()
        self._reason = None
        if not self._failed:
            self._start()

    def over(self) -> bool:
        """Return whether the run may end now; request a verdict if one is due."""
        self._collect()
        if not self.settled and not self.judge.busy and self.recorder.now_s >= self._next_s:
            self._start()
        return self.settled

    def end(self) -> None:
        """Finish after the traffic has ended, settled or not; leave no process behind."""
        self.judge.close()
        if not self._extended:
            return
        if self._reason is not None:
            self.view.note(f"decided, ending: {self._reason.sentence}")
        self.recorder.event(ExtensionEnded(self.settled))

    def _start(self) -> None:
        now_s = self.recorder.now_s
        self._next_s = now_s + _EXTENDED_LOOK_EVERY_S
        self._verdicts.start(now_s)

    def _collect(self) -> None:
        if self._verdicts.collect():
            self._learn()
        elif self._verdicts.failures >= _FAILURES_MAX:
            # A machine that cannot start a process must not prolong the run for nothing.
            self._failed = True

    def _learn(self) -> None:
        self._reason = settled(self._verdicts.seen)
        if self._reason is not None or self._extended:
            return
        self._extended = True
        verdict = self._verdicts.seen[-1].verdict
        why = full_headline(verdict)
        self.recorder.event(Extended(self.limit_s, why))
        self.status.duration_s += self.limit_s
        word = "undecided" if verdict.kind is VerdictKind.INCONCLUSIVE else "to be confirmed"
        self.view.note(f"{word}, extending by up to {format_duration(self.limit_s)}: {why}")


def _without_charts(verdict: Verdict) -> Verdict:
    """Drop the charts, so that a night of verdicts does not fill the parent's memory."""
    metrics = tuple(
        msgspec.structs.replace(m, fit_t_s=(), fit_value=(), band_lower=(), band_upper=())
        for m in verdict.metrics
    )
    return replace(verdict, metrics=metrics)


def _low(what: str, room: Headroom) -> str:
    return f"only {format_bytes(room.left_bytes)} of {what} left ({room.source})"
