"""Heap scans and idle looks at a watched target's processes, taken by probes outside the loop.

One thread asks the probes one after another, so that a process that answers slowly delays no
sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, Protocol

from hybridbench.analysis.findings.words import listed
from hybridbench.foundation.clock import Clock
from hybridbench.records.events import Census, Event, IdleLook
from hybridbench.records.processes import ProcessSample
from hybridbench.runs.recorder import Recorder
from hybridbench.sampling.probe_client import (
    Budget,
    CensusState,
    HeapCensus,
    IdleAnswer,
    ProbeError,
    ProbeGoneError,
)

_ROLES_NAMED: Final = 5


class Probes(Protocol):
    """Access to the processes' probes; implemented by ProbeClient."""

    def pids(self) -> list[int]:
        """The live processes with a probe."""
        ...

    def census(
        self, pid: int, *, whole: bool, known: CensusState | None = None, at_rest: bool = False
    ) -> HeapCensus:
        """Scan the heap of a process; the result is the difference from ``known``."""
        ...

    def budget(self, pid: int) -> Budget:
        """The budget of the process, with the cost of looks so far."""
        ...

    def idle_look(self, pid: int) -> IdleAnswer:
        """What the process's allocators have handed out."""
        ...

    def stacks(self, pid: int) -> list[str]:
        """Where the process's threads and coroutines wait."""
        ...


@dataclass(frozen=True)
class IdlePoint:
    """A moment at which the target was seen to be idle.

    ``still_idle`` returns whether nothing has run since; ``handles`` are counted by pid and metric.
    """

    index: int
    counters: Mapping[str, float]
    cache_reset: bool
    still_idle: Callable[[], bool]
    handles: Mapping[int, Mapping[str, float]]


@dataclass
class Round:
    """One round of questions; ``answer`` is the result, once all have been answered."""

    future: Future[list[tuple[float, Event]]]
    answer: Sequence[tuple[float, Event]] | None = None


@dataclass
class Looks:
    """Start rounds of looks, and record their results.

    Args:
        seen: returns the process with a given pid, as last sampled.
    """

    probes: Probes
    recorder: Recorder
    clock: Clock
    seen: Callable[[int], ProcessSample | None]
    _thread: Executor = field(
        default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="looks")
    )
    _open: list[Round] = field(default_factory=list)
    _known: dict[tuple[int, float], CensusState] = field(default_factory=dict)
    _looked: set[tuple[int, float]] = field(default_factory=set)
    _failed: set[tuple[int, float]] = field(default_factory=set)
    _failures: dict[str, None] = field(default_factory=dict)  # in order of occurrence
    _noted: int = 0  # how many of them were noted

    @property
    def busy(self) -> bool:
        """Whether any round is unanswered."""
        return bool(self._open)

    def ask_census(self, idle_in_s: float) -> Round:
        """Scan every process that can afford this scan and another when idle, in ``idle_in_s``."""

        def round_() -> list[tuple[float, Event]]:
            able = [p for p in self._processes() if self.probes.budget(p.pid).spares(idle_in_s)]
            return self._censuses(able, whole=False)

        return self._ask(round_)

    def ask_idle(self, point: IdlePoint) -> Round:
        """Look at what every idle process holds, then scan the heap of each."""

        def round_() -> list[tuple[float, Event]]:
            # The others get their turn at the next idle point.
            affordable = [
                process
                for process in self._processes()
                if self.probes.budget(process.pid).wait_s(at_rest=True) == 0
            ]
            looked = self._idle_looks(point)
            whole = point.index == 0
            return [*looked, *self._censuses(affordable, whole=whole, at_rest=True)]

        return self._ask(round_)

    def collect(self) -> list[Event]:
        """Record the results since the last call, and report each failure once."""
        found: list[Event] = []
        for look in [one for one in self._open if one.future.done()]:
            self._open.remove(look)
            look.answer = look.future.result()
            for stamp_s, event in look.answer:
                self.recorder.at(stamp_s, event)
                found.append(event)
        for sentence in list(self._failures)[self._noted :]:
            self._noted += 1
            self.recorder.note(sentence)
        return found

    def without_probe(self, processes: Iterable[ProcessSample]) -> Iterator[str]:
        """Describe the processes whose heap was never scanned, in a few words for each reason."""
        failed: list[str] = []
        without: list[str] = []
        for process in processes:
            if process.incarnation not in self._looked:
                (failed if process.incarnation in self._failed else without).append(process.role)
        for roles, one, several in (
            (failed, "its probe failed", "their probes failed"),
            (without, "it has no probe", "they have no probes"),
        ):
            if len(roles) == 1:
                yield f"the heap of {roles[0]}: {one}"
            elif roles:
                yield f"the heaps of {listed(roles, _ROLES_NAMED)}: {several}"

    def stacks(self, patience_s: float) -> list[str]:
        """Return where each process waits; a process that does not tell is named, too."""
        try:
            return self._thread.submit(self._stacks).result(patience_s)
        except TimeoutError:
            return []

    def close(self) -> None:
        """Start no more rounds; one in progress ends by its own deadline."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _ask(self, round_: Callable[[], list[tuple[float, Event]]]) -> Round:
        look = Round(self._thread.submit(round_))
        self._open.append(look)
        return look

    # The methods below run on the thread of the looks.

    def _processes(self) -> list[ProcessSample]:
        pids = self.probes.pids()
        for key in [key for key in self._known if key[0] not in pids]:
            del self._known[key]  # for ended processes: there may be thousands in a nightly run
        found = [self.seen(pid) for pid in pids]
        return [process for process in found if process is not None]

    def _stacks(self) -> list[str]:
        lines = []
        for process in self._processes():
            try:
                lines += [f"{process.role}: {line}" for line in self.probes.stacks(process.pid)]
            except ProbeError as error:
                lines.append(f"{process.role}: {error}")
        return lines

    def _idle_looks(self, point: IdlePoint) -> list[tuple[float, Event]]:
        taken: list[tuple[float, ProcessSample, IdleAnswer]] = []
        for process in self._processes():
            try:
                answer = self.probes.idle_look(process.pid)
            except ProbeError as error:
                self._fail(process, error)
                continue
            taken.append((self.clock.monotonic_s(), process, answer))
        idle = point.still_idle()
        return [
            (
                stamp_s,
                IdleLook(
                    role=process.role,
                    pid=process.pid,
                    host=process.host,
                    rank=process.rank,
                    index=point.index,
                    idle=idle,
                    blocks=answer.blocks,
                    malloc_bytes=answer.malloc_bytes,
                    unreachable=answer.unreachable,
                    handles=dict(point.handles.get(process.pid, {})),
                    counters=dict(point.counters),
                    cache_reset=point.cache_reset,
                    pause_s=answer.pause_s,
                ),
            )
            for stamp_s, process, answer in taken
        ]

    def _censuses(
        self, processes: Iterable[ProcessSample], *, whole: bool, at_rest: bool = False
    ) -> list[tuple[float, Event]]:
        found: list[tuple[float, Event]] = []
        for process in processes:
            key, stamp_s = process.incarnation, self.clock.monotonic_s()
            try:
                known = self._known.get(key)
                census = self.probes.census(process.pid, whole=whole, known=known, at_rest=at_rest)
            except ProbeError as error:
                self._fail(process, error)
                continue
            self._known[key] = census.state
            self._looked.add(key)
            found.append((stamp_s, _event(process, census, at_rest=at_rest)))
        return found

    def _fail(self, process: ProcessSample, error: ProbeError) -> None:
        if not isinstance(error, ProbeGoneError):
            self._failed.add(process.incarnation)
            self._failures.setdefault(f"the probe of {process.role}: {error}")


def _event(process: ProcessSample, census: HeapCensus, *, at_rest: bool) -> Census:
    return Census(
        role=process.role,
        pid=process.pid,
        host=process.host,
        rank=process.rank,
        index=census.index,
        whole=census.whole,
        types=census.types,
        entries=census.entries,
        containers=census.containers,
        bounds=census.bounds,
        limits=census.limits,
        holds=census.holds,
        pause_s=census.pause_s,
        cpu_s=census.cpu_s,
        way=census.way,
        at_rest=at_rest,
    )
