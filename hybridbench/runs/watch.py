"""``hybridbench watch``: observe an external program under external load, from its start or from
now on, until there is a verdict.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from msgspec.structs import replace

from hybridbench.foundation.clock import SystemClock
from hybridbench.foundation.safe_output import echo, one_line
from hybridbench.foundation.units import format_duration
from hybridbench.records import events
from hybridbench.records.codec import by_name
from hybridbench.records.json_value import json_text, plain_mapping
from hybridbench.records.manifest import OBSERVED, Manifest, Model, TargetFacts
from hybridbench.records.prepared import PreparedTarget
from hybridbench.rundir.layout import CRASH_SEQUENCE
from hybridbench.runs.begun import BegunRun
from hybridbench.runs.crash import record_crash
from hybridbench.runs.http_load import HttpLoad, Traffic
from hybridbench.runs.load_command import LoadCommand
from hybridbench.runs.looks import Looks
from hybridbench.runs.loop import WorkerLostError
from hybridbench.runs.manifest import begun_manifest
from hybridbench.runs.plan import RunPlan, Segment, SoakOutcome
from hybridbench.runs.soak import soak
from hybridbench.runs.status import RunStatus
from hybridbench.runs.steps import SoakSteps
from hybridbench.runs.watch_loop import WatchLoop
from hybridbench.sampling.cadence import Beat
from hybridbench.sampling.cgroup import CgroupSource
from hybridbench.sampling.probe_client import ProbeClient, carried_folder, probe_environment
from hybridbench.sampling.sampler import (
    HarnessSource,
    OthersSource,
    Sampler,
    Source,
    StealSource,
    TimedSource,
)
from hybridbench.sampling.scrape import Scraper
from hybridbench.sampling.shm_files import ShmFilesSource
from hybridbench.targets.attached import AttachedTree
from hybridbench.targets.command import LaunchedCommand
from hybridbench.targets.readiness import Readiness, answers, completion_or_page
from hybridbench.targets.remote import RemoteServer
from hybridbench.targets.stderr_file import StderrFile
from hybridbench.targets.target import NOT_SHOWN, Capability, Observe
from hybridbench.workload.profile import Cadence
from hybridbench.workload.settings import Checkpoint

# Environment variable with the API key of the target's interface.
API_KEY: Final = "OPENAI_API_KEY"
_CENSUSES: Final = 24
_CENSUS_S_MIN, _CENSUS_S_MAX = 5.0, 300.0
# How often all processes on the machine are read, to see what the others use.
_OTHERS_S: Final = 10.0
# Every second sample: a soak of four minutes, idle for half of it, still has enough.
_SHM_FILES_S: Final = 2.0
# How often to look for an idle moment if nothing pauses the load.
_SEEK_S: Final = 1.0
_LINES_SHOWN: Final = 20
# A scrape of an idle target must be newer than its last work.
_SCRAPE_S: Final = 1.0
_IDLE_PATIENCE_S: Final = 30.0
_CONNECT_S: Final = 60.0


@dataclass(frozen=True, kw_only=True)
class WatchPlan(RunPlan):
    """One watched run.

    Args:
        target: the command to start and watch; empty with ``pid``.
        pid: a running process, watched with all its children.  Without either, only the interface
            of the server that gets ``traffic`` is seen.
        environment: the environment of ``target`` and ``load``.
        metrics_url: a page in Prometheus format.
        ready_url: a page that answers once the target serves; if empty, a completion is requested
            from the server of ``traffic``, or of ``metrics_url``.
        log: the engine's log file; None for the output of ``target``.
        load: the command that sends requests while the target serves; empty for none.
        traffic: our own requests instead of a ``load``; None for none.
        idle_every_s: interval between idle points; 0 for none.
        reset_url: URL to POST to at each idle point, to empty the target's cache; empty for none.
        instrument: patterns of the commands that get a probe; empty for the target's own program.
        prepared: the engine run by ``target``, if this tool installed it.
        probed: whether probes are used; a ``pid`` has one only if it was started with one.
        ready_limit_s: how long the target may take until it serves.  If only its interface is seen,
            it must accept a connection within a minute, and without a ``target`` to start it must
            have the pages that are requested.
        restarts: how often ``target`` is restarted after it has ended under ``traffic``.
    """

    target: tuple[str, ...] = ()
    pid: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    metrics_url: str = ""
    ready_url: str = ""
    log: Path | None = None
    load: tuple[str, ...] = ()
    traffic: Traffic | None = None
    idle_every_s: float = 60.0
    reset_url: str = ""
    instrument: tuple[str, ...] = ()
    prepared: PreparedTarget | None = None
    probed: bool = True
    ready_limit_s: float = 900.0
    restarts: int = 0
    drain_limit_s: float = _IDLE_PATIENCE_S

    @property
    def named_by(self) -> tuple[str, str, tuple[str, ...]]:
        return self.name, "watched" if self.traffic is None else self.traffic.name, ()

    @property
    def sees_processes(self) -> bool:
        """Whether the target's processes are known."""
        return bool(self.target) or self.pid is not None

    @property
    def has_load(self) -> bool:
        """Whether the run starts the sender of the requests, and so can pause it."""
        return bool(self.load) or self.traffic is not None

    @property
    def cadence(self) -> Cadence:
        every_s = self.idle_every_s if self.has_load or not self.idle_every_s else _SEEK_S
        sample_s = super().cadence.sample_every_s
        return Cadence(sample_s, self.census_every_s, every_s or math.inf)

    @property
    def key(self) -> str:
        """The API key of the target's interface, as its clients use it; empty for none."""
        return self.environment.get(API_KEY, "").strip()

    @property
    def census_every_s(self) -> float:
        """Interval between heap scans under load, in seconds."""
        return min(max(self.duration_s / _CENSUSES, _CENSUS_S_MIN), _CENSUS_S_MAX)

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint(flush=bool(self.reset_url))


def run_watched(plan: WatchPlan, on_started: Callable[[Path], None] | None = None) -> SoakOutcome:
    """Watch an external program as in ``plan``; see ``soak``.  If it crashed, print its output."""
    with WatchedUnderSoak(plan) as under:
        outcome = soak(under, on_started=on_started)
        if outcome.crashed:
            under.print_last_words()
    return outcome


class WatchedUnderSoak:
    """Owns what a watched run needs besides its target: probes, a scraper, the load."""

    def __init__(self, plan: WatchPlan) -> None:
        self._plan = plan
        self._target: LaunchedCommand | AttachedTree | RemoteServer | None = None
        self._loop: WatchLoop | None = None
        # A program's output and the sockets of its probes are not part of the run.
        self._folder = Path(tempfile.mkdtemp(prefix="hybridbench-watch-"))
        self._probes: ProbeClient | None = None
        self._scraper: Scraper | None = None
        self._cgroup: CgroupSource | None = None
        self._load: LoadCommand | HttpLoad | None = None

    @property
    def plan(self) -> WatchPlan:
        return self._plan

    @property
    def dump_stack(self) -> Callable[[], None] | None:
        return None

    @property
    def segment(self) -> Segment | None:
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def log_path(self, run_dir: Path) -> Path:
        return self._plan.log or self._output

    @property
    def _output(self) -> Path:
        """The file with the target's output: it may quote prompts, so it is not part of the run."""
        return self._folder / "output.txt"

    def print_last_words(self) -> None:
        """Print the target's last output, for the terminal only."""
        for line in StderrFile(self._output).tail(_LINES_SHOWN):
            echo(f"  {one_line(line)}", err=True)

    def planned(self, run_id: str, started_wall_s: float) -> Manifest:
        # The source tree here is the bench's, so its state says nothing about the target.
        manifest = replace(begun_manifest(self._plan, run_id, started_wall_s), git=None)
        traffic = self._plan.traffic
        if traffic is None:
            return manifest
        return replace(
            manifest,
            profile=traffic.resolved(),
            seed=traffic.seed,
            workload=plain_mapping(traffic.describe()),
        )

    def launch(self, log_path: Path) -> Observe:
        plan = self._plan
        if not plan.sees_processes:
            self._target = RemoteServer(SystemClock())
            return self._target
        if plan.pid is not None:
            self._target = AttachedTree(plan.pid)
            carried = carried_folder(plan.pid) if plan.probed else None
            self._probes = None if carried is None else ProbeClient(carried)
            return self._target
        environment = dict(plan.environment)
        if plan.probed:
            folder = self._folder / "probes"
            environment = probe_environment(folder, plan.instrument, environment)
            self._probes = ProbeClient(folder)
        self._target = LaunchedCommand(plan.target, environment, self._output)
        return self._target

    def begin(self, run: BegunRun) -> SoakSteps:
        target, plan, context = self._target, self._plan, run.context
        assert target is not None, "nothing was launched"
        shows = self._shows()
        can = tuple(sorted(shows))
        facts = TargetFacts(kind=OBSERVED, pid=target.pid or None, capabilities=can)
        missing = tuple(text for name, text in NOT_SHOWN.items() if name not in can)
        note = "" if plan.prepared is None else plan.prepared.note
        model = Model(name=plan.name, device="", dtype="", note=note)
        run.describe(
            replace(
                run.manifest,
                target=facts,
                prepared=plan.prepared,
                capabilities=can,
                not_seen=missing,
                model=model,
            )
        )
        if plan.metrics_url:
            self._scraper = Scraper(plan.metrics_url, _SCRAPE_S)
        if plan.load:
            output = self._folder / "load.txt"
            self._load = LoadCommand(plan.load, plan.environment, output, context.clock)
        elif plan.traffic is not None:
            self._load = HttpLoad(
                plan.traffic.start(plan.key, culprits=plan.restarts > 0), context.clock
            )
            if plan.traffic.note:
                context.recorder.note(plan.traffic.note)
        loop = self._make_loop(run, target)
        self._loop = loop
        return WatchSteps(plan, loop, self._readiness, self._start_again, run.run_dir)

    def _start_again(self, lost: WorkerLostError) -> None:
        """Record how the target ended, and restart it.

        Raises:
            ConfigError: it cannot be started any more.
        """
        target, loop = self._target, self._loop
        assert isinstance(target, LaunchedCommand), "only what was launched can be launched again"
        assert loop is not None, "it has served"
        context = loop.context
        record_crash(target, context.recorder, context.clock, lost, None)
        target.restart()

    def end(self, run: BegunRun) -> None:
        """Stop everything but the target, which the run stops, and report what was not seen."""
        if self._load is not None:
            self._load.stop()
        if self._loop is not None and self._loop.looks is not None:
            self._loop.looks.collect()
            self._loop.looks.close()
        if self._scraper is not None:
            self._scraper.close()
        shown = () if self._loop is None else self._loop.shown
        missing = dict.fromkeys((*run.manifest.not_seen, *self._missed()))
        for capability in shown:
            missing.pop(NOT_SHOWN[capability], None)
        run.describe(replace(run.manifest, not_seen=tuple(missing)))

    def _missed(self) -> Iterable[str]:
        """Yield what could not be seen although it was requested."""
        loop, target = self._loop, self._target
        if target is not None:
            yield from target.not_seen
        if self._cgroup is not None and self._cgroup.not_seen:
            yield self._cgroup.not_seen
        if loop is None:
            return
        if loop.looks is not None:
            yield from loop.looks.without_probe(loop.seen.values())
        scrape = None if self._scraper is None else self._scraper.latest()
        if self._scraper is not None and (scrape is None or not scrape.counters):
            failed = "" if scrape is None else scrape.failed
            yield f"the target's own counters: {failed or 'the page of --metrics has none'}"

    def _make_loop(self, run: BegunRun, target: Observe) -> WatchLoop:
        plan, context = self._plan, run.context
        now_s = context.clock.monotonic_s()
        sources: list[Source] = [HarnessSource(), StealSource()]
        timed: list[TimedSource] = []
        if plan.sees_processes:
            self._cgroup = CgroupSource(target.pid)
            sources.append(self._cgroup)
            timed = [
                TimedSource(OthersSource(target.pid), Beat(_OTHERS_S, now_s)),
                TimedSource(ShmFilesSource(target.pid), Beat(_SHM_FILES_S, now_s)),
            ]
        loop = WatchLoop(
            context=context,
            target=target,
            sampler=Sampler(
                [*map(TimedSource, sources), *timed],
                Beat(plan.cadence.sample_every_s, now_s),
                context.clock,
            ),
            status=RunStatus(plan.title, plan.traffic_s, observed=True),
            scraper=self._scraper,
            load=self._load,
            census_every_s=plan.census_every_s,
            idle_every_s=(plan.has_load and plan.idle_every_s) or math.inf,
            reset_url=plan.reset_url,
            answers_s=0.0 if plan.traffic is None else plan.traffic.answers_s,
            alone=bool(plan.target),
        )
        if self._probes is not None:
            seen = loop.seen_process
            loop.looks = Looks(self._probes, context.recorder, context.clock, seen)
        return loop

    def _shows(self) -> Collection[Capability]:
        plan = self._plan
        shows = {Capability.PROCESS_MEMORY} if plan.sees_processes else set()
        if plan.metrics_url or plan.traffic is not None:
            shows.add(Capability.EVENT_COUNTERS)
        if plan.traffic is not None:
            shows |= {Capability.TRAFFIC, Capability.DISCONNECT}
            if plan.traffic.answers_s and plan.idle_every_s:
                shows.add(Capability.ANSWERS)
        if plan.idle_every_s:
            shows.add(Capability.DRAIN)
        if self._probes is not None:
            shows |= {Capability.MALLOC, Capability.CONTAINERS, Capability.INSTANCES}
        return shows

    def _readiness(self) -> Readiness | None:
        plan = self._plan
        if plan.ready_url:
            return Readiness(lambda: answers(plan.ready_url))
        if plan.metrics_url:
            traffic = plan.traffic
            base, model = ("", "") if traffic is None else (traffic.url, traffic.model)
            return Readiness(
                lambda: completion_or_page(plan.metrics_url, plan.key, base=base, model=model)
            )
        return None


class WatchSteps(SoakSteps):
    """The steps of a watched run: wait until the target serves, start the load, observe."""

    plan: WatchPlan
    loop: WatchLoop

    def __init__(
        self,
        plan: WatchPlan,
        loop: WatchLoop,
        readiness: Callable[[], Readiness | None],
        start_again: Callable[[WorkerLostError], None],
        run_dir: Path,
    ) -> None:
        super().__init__(plan, loop)
        self._run_dir = run_dir
        self._readiness = readiness
        self._start_again = start_again
        self._last_idle_s = -math.inf
        self._restarts = 0
        self._found_culprits = False

    def run(self) -> None:
        self.await_serving()
        super().run()

    def await_serving(self) -> None:
        """Sample until the target serves; a server that is already running is checked as well.

        Raises:
            WorkerLostError: it has ended, or does not serve in time.
        """
        readiness = self._readiness()
        if readiness is None:
            return
        readiness.start()
        loop, plan, began_s = self.loop, self.plan, self.loop.now_s
        patience_ends_s = began_s + _CONNECT_S

        def is_hopeless() -> bool:
            dead = readiness.reached is False and not plan.sees_processes
            # A server that is still starting may not have its pages yet.
            return dead or (readiness.is_elsewhere and not plan.target)

        def is_decided() -> bool:
            loop.status.waits_for = readiness.failed
            ended = readiness.done or loop.interrupted or loop.over
            return ended or (loop.now_s >= patience_ends_s and is_hopeless())

        try:
            loop.run_until(is_decided, began_s + plan.ready_limit_s)
        finally:
            readiness.close()
        loop.status.waits_for = ""
        if readiness.done:
            return
        if loop.over:
            raise WorkerLostError("exit", f"it had answered no request yet: {readiness.failed}")
        if loop.interrupted:
            self._recorder.note(f"the server had answered no request yet: {readiness.failed}")
            return
        after = format_duration(loop.now_s - began_s)
        said = f"it answered no request within {after}: {readiness.failed}"
        if readiness.is_elsewhere:
            said += "; is the address right?"
        raise WorkerLostError("hang" if plan.target else "unreachable", said)

    def observe(self) -> None:
        self._start_s = self._checkpoint_due_s = self.loop.now_s
        self.loop.heap_scans_wanted = True
        if not self.plan.idle_every_s:
            self.loop.resume()
        while True:
            try:
                super().observe()
            except WorkerLostError as lost:
                if self._restarts >= self.plan.restarts or self.loop.interrupted:
                    raise
                self._go_on_after(lost)
            else:
                return

    def _go_on_after(self, lost: WorkerLostError) -> None:
        """Restart the target, search for what ended it, and begin a new segment.

        Raises:
            WorkerLostError: it does not serve any more, or has ended again with no restarts left.
            ConfigError: it cannot be started any more.
        """
        loop, away_from_s = self.loop, self.loop.now_s
        loop.hold_load()
        self._recorder.enter("boot")
        while True:
            self._restarts += 1
            self._start_again(lost)
            self._recorder.event(events.Segment(self._restarts, loop.now_s - away_from_s))
            self.await_serving()
            again = self._search_culprits()
            if again is None:
                break
            if self._restarts >= self.plan.restarts or loop.interrupted:
                raise again
            lost = again
        loop.resume()
        away_s = loop.now_s - away_from_s
        # The planned time counts only while it serves.
        self._start_s += away_s
        self._checkpoint_due_s += away_s

    def _search_culprits(self) -> WorkerLostError | None:
        """Resend the requests that were in flight; return how they ended the target, if they did.

        Once culprits are found, later crashes are not searched: the same requests may cause many.
        """
        if self._found_culprits:
            return None
        found = self.loop.search_culprits()
        if found is None or not found.suspects:
            return None
        path = self._run_dir / CRASH_SEQUENCE
        path.write_text(json_text(by_name(found)), encoding="utf-8")
        self._recorder.event(events.CulpritsSought(so_far=found, file=CRASH_SEQUENCE))
        self._found_culprits = found.over and bool(found.smallest)
        if not found.waits:
            return None
        many = len(found.smallest)
        requests = f"{many} requests that were" if many > 1 else "a request that was"
        return WorkerLostError("exit", f"the server crashed again on {requests} in flight")

    def checkpoint(self, end_s: float) -> None:
        """Make a checkpoint: under our load at any time, otherwise only if the target is idle."""
        now_s = self.loop.now_s
        if self.loop.load is None:
            due = now_s - self._last_idle_s >= self.plan.idle_every_s
            if not due or not self.loop.is_idle():
                return
        self._last_idle_s = now_s
        super().checkpoint(end_s)

    def drain(self) -> None:
        if self.loop.load is None and not self.loop.is_idle():
            self._say_interrupted()
            return
        super().drain()
