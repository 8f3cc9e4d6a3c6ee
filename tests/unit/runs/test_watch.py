"""The steps of a watched run, on a fake clock."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from hybridbench.foundation.clock import FakeClock
from hybridbench.foundation.metrics import MEMORY
from hybridbench.records.events import (
    Census,
    Checkpoint,
    EngineViolation,
    IdleLook,
    Note,
    StoppedEarly,
    WorkloadFailed,
)
from hybridbench.records.processes import ProcessSample
from hybridbench.runs import idle_sign
from hybridbench.runs.http_load import HttpLoad
from hybridbench.runs.interrupts import Interrupts
from hybridbench.runs.log_watch import LogWatch
from hybridbench.runs.looks import Looks
from hybridbench.runs.loop import RunContext, WorkerLostError
from hybridbench.runs.recorder import Recorder
from hybridbench.runs.status import RunStatus
from hybridbench.runs.watch import WatchPlan, WatchSteps
from hybridbench.runs.watch_loop import WatchLoop
from hybridbench.sampling.cadence import Beat
from hybridbench.sampling.probe_client import (
    Budget,
    CensusState,
    HeapCensus,
    IdleAnswer,
    ProbeError,
    ProbeGoneError,
)
from hybridbench.sampling.sampler import Sampler
from hybridbench.sampling.scraped_page import Scrape
from hybridbench.targets.target import Capability, ExitStatus
from tests.unit.runs.fakes import FakeSink, FakeView

PID = 4242


class AtOnce(Executor):
    """Runs each call before ``submit`` returns."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(fn(*args, **kwargs))
        return done


@dataclass
class Server:
    """A target of one process, together with its metrics page and its probe.

    While the load is on, it answers ten requests a second and keeps one object for each.
    """

    clock: FakeClock
    pid: int = PID
    status: ExitStatus | None = None
    serving_s: float | None = None  # since when the load is on
    served: float = 0.0
    rests_after_s: float = 0.0  # how long after a pause a request still runs
    paused_s: float = -1e9
    page_silent_s: float = 0.0
    failure: str = ""
    error: ProbeError | None = None
    others: Sequence[int] = ()  # processes without a probe
    at_rest: list[bool] = field(default_factory=list)
    account: Budget = field(default_factory=Budget)
    done: list[str] = field(default_factory=list)

    # The target.

    def processes(self) -> Sequence[ProcessSample]:
        server = {MEMORY: 1e6 + 100 * self.requests, "open_fds": 5 + self.requests}
        return [
            ProcessSample("server", PID, 1.0, server),
            *(ProcessSample("helper", pid, 1.0, {"threads": 3.0}) for pid in self.others),
        ]

    def counters(self) -> Mapping[str, float]:
        return {}

    def exit_of(self, pid: int) -> ExitStatus | None:
        return self.status if pid == PID else None

    def exit_status(self) -> ExitStatus | None:
        return self.status

    def could_run_s(self) -> float:
        return self.clock.monotonic_s()

    def stderr_tail(self) -> list[str]:
        return []

    def limit_stderr(self) -> None: ...

    def kill(self) -> bool:
        return True

    def stop(self, patience_s: float) -> ExitStatus | None:
        del patience_s
        return self.status

    # The metrics page.

    @property
    def requests(self) -> float:
        """Requests answered so far."""
        on_s = 0.0 if self.serving_s is None else self.clock.monotonic_s() - self.serving_s
        return self.served + 10.0 * on_s

    def latest(self) -> Scrape:
        busy = self.serving_s is not None or (
            self.clock.monotonic_s() - self.paused_s < self.rests_after_s
        )
        counters = {"scraped.requests_total": float(int(self.requests))}
        asked_s = self.clock.monotonic_s()
        return Scrape(counters, {"gauge.queue": 0.0}, float(busy), 0.0, asked_s=asked_s)

    def silent_for_s(self) -> float:
        return self.page_silent_s

    # The probe.

    def pids(self) -> list[int]:
        return [PID]

    def census(
        self, pid: int, *, whole: bool, known: CensusState | None = None, at_rest: bool = False
    ) -> HeapCensus:
        assert pid == PID
        self.at_rest.append(at_rest)
        if self.error is not None:
            raise self.error
        index = 0 if known is None else known.index + 1
        return HeapCensus(
            index=index,
            types={"app.Request": int(self.requests)},
            entries={"app.kept": int(self.requests)},
            containers={"app.fixed": 2},
            bounds={},
            limits={},
            holds={"app.kept": "app.Request"},
            whole=whole,
            pause_s=0.01,
            longest_pause_s=0.01,
            cpu_s=0.2,
            way="fork",
            tracked=1000,
            frozen=0,
            state=CensusState(index=index),
        )

    def budget(self, pid: int) -> Budget:
        assert pid == PID
        return self.account

    def stacks(self, pid: int) -> list[str]:
        assert pid == PID
        return ["main thread: acquire (server.py:7)"]

    def idle_look(self, pid: int) -> IdleAnswer:
        blocks = 1000 + 3 * int(self.requests)
        return IdleAnswer(pid, blocks, 5000, unreachable=2, collect_s=0.001, pause_s=0.001)


@dataclass
class Load:
    """Sends requests to the server while it is on."""

    server: Server

    @property
    def failure(self) -> str:
        return self.server.failure

    @property
    def wanted(self) -> bool:
        return "start" in self.server.done and "stop" not in self.server.done

    def start(self) -> None:
        self._on("start")

    def tend(self) -> None: ...

    def pause(self) -> None:
        self._off("pause")

    def resume(self) -> None:
        self._on("resume")

    def stop(self) -> None:
        self._off("stop")

    def _on(self, word: str) -> None:
        self.server.done.append(word)
        self.server.serving_s = self.server.clock.monotonic_s()

    def _off(self, word: str) -> None:
        server = self.server
        server.done.append(word)
        server.served, server.serving_s = server.requests, None
        server.paused_s = server.clock.monotonic_s()


class Ready:
    """Reports that the target serves after ``after`` polls."""

    def __init__(
        self, after: int, *, reached: bool | None = True, is_elsewhere: bool = False
    ) -> None:
        self.after = after
        self.reached = reached
        self.is_elsewhere = is_elsewhere
        self.failed = "Connection refused" if reached is False else "HTTP status 503"
        self.closed = False

    def start(self) -> None: ...

    def close(self) -> None:
        self.closed = True

    @property
    def done(self) -> bool:
        self.after -= 1
        return self.after < 0


def refuse(lost: WorkerLostError) -> None:
    raise lost


@dataclass
class Watched:
    clock: FakeClock
    server: Server
    sink: FakeSink
    view: FakeView
    loop: WatchLoop
    steps: WatchSteps
    interrupts: Interrupts

    def looks(self) -> list[IdleLook]:
        return self.sink.all_events(IdleLook)


def watched(
    server: Server | None = None,
    *,
    ready: Ready | None = None,
    loaded: bool = True,
    **changes: Any,
) -> Watched:
    """A run of two minutes with an idle point every twenty seconds."""
    server = server or Server(FakeClock(start_s=500.0))
    clock, sink, view, interrupts = server.clock, FakeSink(), FakeView(), Interrupts()
    plan = WatchPlan(
        name="server", store=Path("results"), duration_s=120.0, ui="none", idle_every_s=20.0
    )
    plan = replace(plan, load=("tool",) if loaded else (), **changes)
    recorder = Recorder(sink, clock, clock.monotonic_s())
    loop = WatchLoop(
        context=RunContext(clock, recorder, interrupts, view, LogWatch(Path(os.devnull), recorder)),
        target=server,
        sampler=Sampler([], Beat(1.0, clock.monotonic_s()), clock),
        status=RunStatus("server", plan.duration_s, observed=True),
        scraper=server,  # type: ignore[arg-type] # it has all methods that are used
        load=Load(server) if loaded else None,  # type: ignore[arg-type]
        census_every_s=plan.census_every_s,
        idle_every_s=plan.idle_every_s if loaded else math.inf,
    )
    loop.looks = Looks(server, recorder, clock, loop.seen_process, AtOnce())
    steps = WatchSteps(plan, loop, lambda: ready, refuse, Path("run"))  # type: ignore[arg-type,return-value]
    return Watched(clock, server, sink, view, loop, steps, interrupts)


def test_the_load_rests_at_each_idle_point_and_goes_on() -> None:
    run = watched()
    run.steps.run()

    looks = run.looks()
    # Before the load begins, every 20 s, and at the end.
    assert [look.index for look in looks] == [0, 1, 2, 3, 4, 5, 6]
    assert all(look.idle for look in looks)
    assert looks[0].counters == {"scraped.requests_total": 0.0}
    assert run.server.done[0] == "start"
    assert run.server.done[1:] == [*["pause", "resume"] * 5, "pause", "stop"]
    phases = run.sink.phases()
    assert phases[:6] == ["observe", "drain", "idle", "resume", "observe", "drain"]
    assert phases[-3:] == ["drain", "idle", "done"]


def test_a_page_that_cannot_be_read_has_no_number_of_series() -> None:
    """Pages that a busy server did not answer once counted as pages without a series."""

    class Busy(Server):
        def latest(self) -> Scrape:
            page = super().latest()
            return replace(page, by_name={"queue": 2}) if self.requests < 500 else page

    run = watched(Busy(FakeClock(start_s=500.0)))
    run.steps.run()

    counted = [values.get("scraped_series") for _, _, values in run.sink.samples]
    assert set(counted) == {2.0, None}


def test_counters_of_an_idle_point_are_those_of_its_looks() -> None:
    run = watched()
    run.steps.run()

    for look in run.looks():
        assert look.blocks == 1000 + 3 * look.counters["scraped.requests_total"]


def test_what_each_process_holds_open_is_counted_at_idle_points_with_and_without_a_probe() -> None:
    run = watched(Server(FakeClock(start_s=500.0), others=(PID + 1,)))
    run.steps.run()

    probed = [look for look in run.looks() if look.role == "server"]
    helper = [look for look in run.looks() if look.role == "helper"]
    assert [look.index for look in probed] == [look.index for look in helper] == [*range(7)]
    for look in probed:
        assert look.handles == {"open_fds": 5 + look.counters["scraped.requests_total"]}
    for look in helper:
        assert (look.blocks, look.handles, look.idle) == (None, {"threads": 3.0}, True)


def test_processes_that_were_not_looked_into_are_listed_in_one_line() -> None:
    looks = watched().loop.looks
    assert looks is not None
    sleeping = [ProcessSample(f"sleep-{n}", 900 + n, 1.0, {}) for n in range(1, 65)]

    assert list(looks.without_probe(sleeping)) == [
        "the heaps of sleep-1, sleep-2, sleep-3, sleep-4, sleep-5 and 59 more: they have no probes"
    ]
    assert list(looks.without_probe(sleeping[:1])) == ["the heap of sleep-1: it has no probe"]


def test_pools_at_rest_are_recorded_where_the_page_has_them() -> None:
    server = Server(FakeClock(start_s=500.0))
    page = server.latest
    server.latest = lambda: replace(page(), pools={"kv": {"in_use": 3.0}})  # type: ignore[method-assign]
    run = watched(server)
    run.steps.run()

    rests = run.sink.all_events(Checkpoint)
    assert [rest.index for rest in rests] == [0, 1, 2, 3, 4, 5, 6]
    assert all(rest.pools == {"kv": {"in_use": 3.0}} for rest in rests)
    # The same counters as in the looks at the processes.
    assert [rest.counters["requests_total"] for rest in rests] == [
        look.counters["scraped.requests_total"] for look in run.looks()
    ]
    # So the report does not list pools as unknown.
    assert run.loop.shown == {Capability.POOLS}
    assert watched().loop.shown == set()


def test_the_series_of_each_metric_are_counted_at_idle_points() -> None:
    """A label that gets a new value with each request is counted as exactly as entries are."""
    server = Server(FakeClock(start_s=500.0))
    page = server.latest

    def with_labels() -> Scrape:
        names = {"requests_total": 1, "seen": 1 + int(server.requests)}
        return replace(page(), by_name=names)

    server.latest = with_labels  # type: ignore[method-assign]
    run = watched(server)
    run.steps.run()

    censuses = [one for one in run.sink.all_events(Census) if one.role == "/metrics"]
    looks = [one for one in run.sink.all_events(IdleLook) if one.role == "/metrics"]
    assert [look.index for look in looks] == [0, 1, 2, 3, 4, 5, 6]
    assert censuses[0].entries == {"requests_total": 1, "seen": 1}
    for census, look in zip(censuses[1:-1], looks[1:-1], strict=True):
        assert census.entries == {"seen": 1 + look.counters["scraped.requests_total"]}


def test_each_census_goes_on_from_the_one_before() -> None:
    run = watched()
    run.steps.run()

    censuses = run.sink.all_events(Census)
    assert [census.index for census in censuses] == list(range(len(censuses)))
    assert [census.whole for census in censuses] == [True, *[False] * (len(censuses) - 1)]
    # At every idle point, and between them.
    assert len(censuses) > len(run.looks())


def test_what_a_process_held_is_forgotten_once_it_has_ended() -> None:
    """A worker that restarts a thousand times must not fill the watcher's memory."""
    server = Server(FakeClock(start_s=500.0))
    run = watched(server)
    living = iter([[PID], [PID], []])
    server.pids = lambda: next(living, [PID])  # type: ignore[method-assign]
    run.steps.run()

    indexes = [census.index for census in run.sink.all_events(Census)]
    assert indexes[:2] == [0, 0]
    assert indexes[1:] == list(range(len(indexes) - 1))


def test_a_process_that_has_been_stopped_for_long_serves_undisturbed() -> None:
    server = Server(FakeClock(start_s=500.0))
    server.account.charge(pause_s=10.0)
    run = watched(server)
    run.steps.run()

    # It is scanned only when idle, where a pause delays no request.
    assert server.at_rest == [True] * 7
    assert all(census.at_rest for census in run.sink.all_events(Census))
    assert len(run.looks()) == 7


def test_a_process_that_has_cost_a_processor_for_long_is_left_alone_even_at_rest() -> None:
    server = Server(FakeClock(start_s=500.0))
    server.account.charge(pause_s=0.0, cpu_s=1e6)
    run = watched(server)
    run.steps.run()

    assert server.at_rest == []
    assert len(run.looks()) == 7


@pytest.mark.parametrize(("cpu_s", "under_load"), [(2.0, False), (0.3, True)])
def test_a_dear_census_is_kept_for_the_next_idle_point(cpu_s: float, under_load: bool) -> None:
    server = Server(FakeClock(start_s=500.0))
    server.account = Budget(server.clock.monotonic_s)
    census = server.census

    def charged(pid: int, **how: Any) -> HeapCensus:
        server.account.charge(pause_s=0.01, cpu_s=cpu_s)
        return census(pid, **how)

    server.census = charged  # type: ignore[method-assign]
    run = watched(server)
    run.steps.run()

    assert server.at_rest.count(True) >= 3
    assert (False in server.at_rest) is under_load


def test_what_looks_cost_is_sampled() -> None:
    run = watched()
    run.steps.run()

    last = [values for _, _, values in run.sink.samples if "probe_child_s" in values][-1]
    censuses = run.sink.all_events(Census)
    under_load = [census for census in censuses if not census.at_rest]
    assert last["probe_child_s"] == pytest.approx(0.2 * len(censuses), abs=0.5)
    assert last["probe_stop_s"] == pytest.approx(0.01 * len(under_load), abs=0.011)
    assert len(under_load) < len(censuses)


def test_a_target_that_never_rests_is_said_to_and_the_load_goes_on() -> None:
    run = watched(Server(FakeClock(start_s=500.0), rests_after_s=1e9))
    run.steps.run()

    assert [look.index for look in run.looks()] == [0]  # before the load began
    assert run.server.done.count("resume") >= 2
    notes = [note.text for note in run.sink.all_events(Note)]
    assert any("was not idle after 30 s" in text for text in notes)


def test_without_a_load_of_ours_rests_are_those_of_the_target() -> None:
    run = watched(loaded=False)
    run.steps.run()

    looks = run.looks()
    assert len(looks) >= 5
    # The last look is the one at the end.
    assert all(b.t_s - a.t_s >= 20.0 for a, b in pairwise(looks[:-1]))
    assert run.server.done == []


def test_without_a_load_of_ours_a_busy_target_is_left_alone() -> None:
    server = Server(FakeClock(start_s=500.0), serving_s=500.0)
    run = watched(server, loaded=False)
    run.steps.run()

    assert run.looks() == []
    assert run.sink.all_events(Census)
    assert run.sink.events[-1].t_s == pytest.approx(120.0, abs=2.0)


def test_the_load_waits_until_the_target_serves_and_that_time_is_not_counted() -> None:
    ready = Ready(after=400)
    run = watched(ready=ready)
    run.steps.run()

    assert ready.closed
    before = run.looks()[0].t_s
    assert before > 50.0
    assert run.sink.events[-1].t_s - before == pytest.approx(120.0, abs=5.0)


def test_a_target_that_does_not_serve_in_time_is_given_up() -> None:
    run = watched(ready=Ready(after=10**9), ready_limit_s=60.0)

    with pytest.raises(WorkerLostError, match="answered no request within 1m: HTTP status 503"):
        run.steps.run()


@pytest.mark.parametrize(
    ("seen", "reason", "after"),
    [
        # Nothing listens there, and nothing else is known of the server.
        ({}, "unreachable", "1m"),
        # It may still be loading its model.
        ({"pid": 1}, "unreachable", "15m"),
        ({"target": ("serve",)}, "hang", "15m"),
    ],
)
def test_a_port_where_nothing_listens_is_given_up_after_a_minute(
    seen: dict[str, Any], reason: str, after: str
) -> None:
    run = watched(ready=Ready(after=10**9, reached=False), **seen)

    with pytest.raises(WorkerLostError, match=f"within {after}: Connection refused") as lost:
        run.steps.run()

    assert lost.value.reason == reason


@pytest.mark.parametrize(
    ("seen", "after"),
    # A command that was started may not have its pages yet.
    [({}, "1m"), ({"pid": 1}, "1m"), ({"target": ("serve",)}, "15m")],
)
def test_a_running_server_without_the_pages_is_given_up_after_a_minute(
    seen: dict[str, Any], after: str
) -> None:
    run = watched(ready=Ready(after=10**9, is_elsewhere=True), **seen)

    with pytest.raises(WorkerLostError, match=rf"within {after}: .*; is the address right\?"):
        run.steps.run()


def test_a_port_whose_first_answer_takes_a_minute_is_waited_for() -> None:
    run = watched(ready=Ready(after=10**9, reached=None))

    with pytest.raises(WorkerLostError, match="within 15m"):
        run.steps.run()


@pytest.mark.parametrize(
    ("alone", "computes", "silent_s", "reason"),
    [
        (True, False, 130.0, "hang"),
        (False, False, 130.0, "silent"),
        (True, True, 130.0, ""),  # a long prompt
        (True, True, 610.0, "hang"),
    ],
)
def test_a_server_whose_page_has_not_answered_for_two_minutes_hangs_unless_it_computes(
    alone: bool, computes: bool, silent_s: float, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = watched()
    monkeypatch.setattr(
        idle_sign, "read_cpu_s", lambda _: run.clock.monotonic_s() if computes else 7.0
    )
    run.loop.alone = alone
    run.loop.resume()
    run.loop.turn(run.clock.monotonic_s() + 10.0)
    run.clock.sleep(600.0)
    run.server.page_silent_s = silent_s
    if not reason:
        assert not run.loop.wait_for(lambda: False, 20.0)
        return
    with pytest.raises(WorkerLostError, match="has not answered since ") as lost:
        run.loop.wait_for(lambda: False, 20.0)

    assert lost.value.reason == reason
    assert lost.value.stacks == ["server: main thread: acquire (server.py:7)"]


def test_a_run_that_is_interrupted_before_the_target_serves_says_so() -> None:
    run = watched(ready=Ready(after=10**9))
    run.loop.context.interrupts.first = signal.SIGINT
    run.steps.run()

    assert "the server had answered no request yet: HTTP status 503" in [
        note.text for note in run.sink.all_events(Note)
    ]


def test_a_target_that_ends_before_it_serves_has_crashed() -> None:
    run = watched(ready=Ready(after=10**9))
    run.server.status = ExitStatus(0, None)

    with pytest.raises(WorkerLostError, match="had answered no request yet: HTTP status 503"):
        run.steps.run()


def test_a_load_that_fails_ends_the_run() -> None:
    server = Server(FakeClock(start_s=500.0))
    run = watched(server)
    server.failure = "the load command failed 3 times in a row (exit code 2)"
    run.steps.run()

    (failed,) = run.sink.all_events(WorkloadFailed)
    assert failed.text == server.failure


@pytest.mark.parametrize(("status", "how"), [(0, "exit code 0"), (None, "exit code unknown")])
def test_a_target_that_ends_in_order_ends_the_run(status: int | None, how: str) -> None:
    run = watched()
    run.server.status = ExitStatus(status, None)
    run.steps.run()

    (stopped,) = run.sink.all_events(StoppedEarly)
    assert stopped.reason == "target-ended"
    assert how in stopped.text


def test_a_probe_that_fails_is_said_once_and_one_that_is_gone_never() -> None:
    server = Server(FakeClock(start_s=500.0), error=ProbeError("it does not answer"))
    run = watched(server)
    run.steps.run()
    assert [n.text for n in run.sink.all_events(Note)] == [
        "the probe of server: it does not answer"
    ]

    server = Server(FakeClock(start_s=500.0), error=ProbeGoneError("it has ended"))
    run = watched(server)
    run.steps.run()
    assert not run.sink.all_events(Note)


def test_a_signal_ends_it_with_a_last_look() -> None:
    run = watched()
    run.loop.context.interrupts.first = signal.SIGINT
    run.steps.run()

    assert run.sink.phases()[-1] == "done"
    assert len(run.looks()) == 1


def test_a_page_from_before_the_pause_does_not_make_a_target_idle() -> None:
    """On a busy machine the scraper may be late, and its last page may be from an idle moment."""
    run = watched()
    old = replace(run.server.latest(), running=0.0, asked_s=run.clock.monotonic_s() - 1.0)
    run.server.latest = lambda: old  # type: ignore[method-assign]
    run.steps.run()

    assert not any(look.idle for look in run.looks())


def test_a_load_that_was_stopped_in_the_middle_of_a_request_may_finish_it() -> None:
    server = Server(FakeClock(start_s=500.0))
    run = watched(server)
    real = server.latest

    def half_sent() -> Scrape:
        # Every second pause, beginning with the first, leaves a request that was only half sent,
        # until the load may send the rest.
        is_paused = server.done[-1:] == ["pause"]
        is_open = is_paused and server.done.count("resume") % 2 == 0
        return replace(real(), running=1.0) if is_open else real()

    server.latest = half_sent  # type: ignore[method-assign]
    run.steps.run()

    looks = run.looks()
    assert [look.index for look in looks] == list(range(len(looks)))
    assert len(looks) >= 4
    assert all(look.idle for look in looks)


@pytest.mark.parametrize("alone", [True, False])
def test_requests_that_run_by_the_gauges_after_all_have_ended_are_a_violation(alone: bool) -> None:
    """Unless others may have sent them."""
    run = watched(loaded=False)
    state = {"wanted": True, "rests": True, "failure": "", "unreachable_for_s": 0.0}
    client = Mock(spec=HttpLoad, silence=Mock(is_hang=False), **state)
    client.counters.return_value = client.levels.return_value = {}
    client.take_answer_faults.return_value = ()
    run.loop.load = client
    run.loop.alone = alone
    real = run.server.latest
    run.server.latest = lambda: replace(real(), running=2.0)  # type: ignore[method-assign]

    assert run.loop.drain(60.0)

    found = [(one.kind, one.count) for one in run.sink.all_events(EngineViolation)]
    assert found == ([("in-flight-at-idle", 2)] if alone else [])


def test_a_request_that_comes_during_a_look_is_told() -> None:
    run = watched()
    real = run.server.idle_look

    def disturbed(pid: int) -> IdleAnswer:
        run.loop.sign.forget(run.clock.monotonic_s())  # as a gauge above zero does
        return real(pid)

    run.server.idle_look = disturbed  # type: ignore[method-assign]
    run.steps.run()
    assert not any(look.idle for look in run.looks())
