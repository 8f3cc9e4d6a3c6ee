"""Whether a soak ends before its time: it surely leaks, or the machine is about to give out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from hybridbench.analysis.stopping import Look, decide
from hybridbench.records.json_value import JsonValue
from hybridbench.records.verdict import Verdict
from hybridbench.runs.look import Looker
from hybridbench.runs.plan import SoakPlan
from hybridbench.sampling.headroom import Floor, Headroom, disk_headroom, memory_headroom
from hybridbench.units import format_bytes

STOP_MODES = ("auto", "early", "never")

# A short run gains nothing by ending early, and its rates need every minute.
_FIRST_LOOK_S = 600.0
_LOOK_EVERY_S = 60.0
_LOOKS_PER_RUN = 48
_LOOKS_KEPT = 64
_GUARD_EVERY_S = 2.0

_MEMORY_SHARE = 0.05
_MEMORY_LEAST = 512 * 2**20
_MEMORY_MOST = 2 * 2**30
# The reports of a long run take some megabytes.
_DISK_LEAST = 64 * 2**20

LOW_MEMORY, LOW_DISK = "memory-low", "disk-low"


@dataclass(frozen=True)
class Stop:
    """Why a run ends before its time: ``word`` for machines, ``sentence`` for people."""

    word: str  # "leak", "bounded", "exhaustion", "memory-low" or "disk-low"
    sentence: str

    @property
    def in_alarm(self) -> bool:
        """Whether the machine has no memory left for probes."""
        return self.word == LOW_MEMORY

    def data(self) -> dict[str, JsonValue]:
        """For the run's event ``stopped_early``."""
        return {"reason": self.word, "text": self.sentence}


class StopRule(Protocol):
    """What the steps of a run ask with every turn; answers at once."""

    def check(self, now_s: float) -> Stop | None:
        """Whether to end the run at the monotonic time ``now_s``."""
        ...

    def steady(self) -> None:
        """The engine has said that it is warm."""
        ...


class NeverStops:
    """For runs that end when their time is over."""

    def check(self, now_s: float) -> Stop | None:
        """Never."""
        del now_s
        return None

    def steady(self) -> None:
        """Of no interest."""


class Looks(Protocol):
    """Where verdicts come from while the run goes on; a Looker."""

    @property
    def busy(self) -> bool: ...
    def start(self) -> None: ...
    def collect(self) -> Verdict | None: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class Watched:
    """The run that a Stopper watches: its clock, and where its traffic begins and ends on it."""

    run_now_s: Callable[[], float]
    begin_s: float
    end_s: float


class Stopper:
    """Guards the machine every two seconds, and judges the run in the background now and then.

    Owns the process of the look under way, until the end of its ``with`` block.
    """

    def __init__(
        self,
        watched: Watched,
        memory: Floor,
        disk: Floor,
        looks: Looks | None,
        words: frozenset[str],
    ) -> None:
        """``looks`` None judges nothing; only stops with one of ``words`` are taken."""
        self._watched = watched
        self._memory = memory
        self._disk = disk
        self._looks = looks
        self._words = words
        self._seen: list[Look] = []
        self._steady_s: float | None = None
        self._guard_s = 0.0
        self._look_s = watched.begin_s + _FIRST_LOOK_S
        self._looking_at_s = 0.0

    def check(self, now_s: float) -> Stop | None:
        """Why the run should end now, or None."""
        if now_s >= self._guard_s:
            self._guard_s = now_s + _GUARD_EVERY_S
            stop = self._guard()
            if stop is not None:
                return stop
        return None if self._looks is None else self._judge(self._looks)

    def steady(self) -> None:
        """From now on a trend counts."""
        self._steady_s = self._watched.run_now_s()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._looks is not None:
            self._looks.close()

    def _guard(self) -> Stop | None:
        room = self._memory.breached()
        if room is not None:
            return Stop(LOW_MEMORY, _low("memory", room) + ": the kernel would kill soon")
        room = self._disk.breached()
        if room is not None:
            return Stop(LOW_DISK, _low("disk space", room) + ": the evidence must fit")
        return None

    def _judge(self, looks: Looks) -> Stop | None:
        verdict = looks.collect()
        run_s, end_s = self._watched.run_now_s(), self._watched.end_s
        if verdict is not None:
            self._seen = [*self._seen, Look(self._looking_at_s, verdict)][-_LOOKS_KEPT:]
            reason = decide(self._seen, end_s, self._steady_s)
            if reason is not None and reason.word in self._words:
                return Stop(reason.word, reason.sentence)
        if not looks.busy and self._look_s <= run_s < end_s:
            every_s = max(_LOOK_EVERY_S, (end_s - self._watched.begin_s) / _LOOKS_PER_RUN)
            self._look_s = run_s + every_s
            self._looking_at_s = run_s
            looks.start()
        return None


def make_stopper(plan: SoakPlan, run_dir: Path, run_now_s: Callable[[], float]) -> Stopper:
    """The guards and looks that ``plan.stop`` asks for; traffic begins now."""
    words = {"auto": {"leak", "exhaustion"}, "early": {"leak", "exhaustion", "bounded"}}
    begin_s = run_now_s()
    return Stopper(
        Watched(run_now_s, begin_s, begin_s + plan.traffic_s),
        Floor(memory_headroom, _MEMORY_SHARE, _MEMORY_LEAST, _MEMORY_MOST),
        Floor(lambda: disk_headroom(run_dir), 0.0, _DISK_LEAST, _DISK_LEAST),
        Looker(run_dir) if plan.stop in words else None,
        frozenset(words.get(plan.stop, set())),
    )


def _low(what: str, room: Headroom) -> str:
    return f"only {format_bytes(room.left_bytes)} of {what} left ({room.source})"
