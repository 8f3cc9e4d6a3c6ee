"""Send our own requests to a watched server: the load client, its commands and its reports."""

from __future__ import annotations

import math
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, cast
from urllib.parse import urlsplit

import msgspec

from hybridbench.foundation.clock import Clock
from hybridbench.foundation.errors import WorkerFailedError
from hybridbench.foundation.latency import E2E, ITL, TTFT, LatencyCounts, add_latencies
from hybridbench.foundation.metrics import CLIENT_CONNECTIONS
from hybridbench.records.json_value import JsonValue, plain_mapping
from hybridbench.records.load import (
    COUNTED,
    OF_IDS,
    TEXT_WORDS,
    Api,
    CrashSearch,
    LoadOrder,
    LoadReport,
    LoadStart,
    Repeated,
)
from hybridbench.records.manifest import ResolvedProfile
from hybridbench.targets.background_process import ONE_THREAD, BackgroundProcess
from hybridbench.targets.target import ExitStatus
from hybridbench.workload.build import build_traffic
from hybridbench.workload.in_turn import InTurn
from hybridbench.workload.profile import Profile, strictest_limits
from hybridbench.workload.schedule import schedule_hash
from hybridbench.workload.trace_replay import TraceOptions

_MODULE: Final = "hybridbench.load"
_READ_BYTES: Final = 1 << 16
_REPORT: Final = msgspec.json.Decoder(LoadReport)
_END_PATIENCE_S: Final = 5.0
# A connection attempt takes 10 s to fail, and the client waits at most 5 s before it retries.
_REFUSED_EVERY_S: Final = 20.0
# A server hangs if it is silent for this long, and this many times longer than ever before.
_SILENT_S: Final = 120.0
_TIMES_LONGEST: Final = 5.0
# Requests that end without a byte from the server.
_UNHEARD: Final = ("requests_failed.timeout", "requests_failed.connect")


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Our requests to a third-party server.

    Args:
        url: the server's URL, without ``/v1``.
        api: the interface to use; those in ``OF_IDS`` get prompts as token ids, others as text.
        stream: whether answers arrive token by token.
        profiles: what is sent, of several one until each idle point; their pools and engine
            settings do not apply.
        source: where the first profile was found.
        seed: for all random draws.
        vocab_size: token ids are below this.
        model: the model's name on the server; empty for the first one listed.
        trace: a recorded trace instead of the traffic of a single profile.
        answers_s: seconds per idle point for repeating requests to compare answers; 0 for none.
        exact: whether the server was started in a mode in which batching does not change answers.
        note: which part of the profiles is not sent, for the report; may be empty.
    """

    url: str
    api: Api
    stream: bool
    profiles: tuple[Profile, ...]
    source: str | None
    seed: int
    vocab_size: int
    model: str = ""
    trace: TraceOptions | None = None
    answers_s: float = 0.0
    exact: bool = False
    note: str = ""

    @property
    def name(self) -> str:
        """The names of the profiles."""
        return "+".join(profile.name for profile in self.profiles)

    @property
    def duration_s(self) -> float:
        """The longest duration of a profile."""
        return max(profile.duration_s for profile in self.profiles)

    @property
    def thresholds(self) -> tuple[str, ...]:
        """The pass/fail thresholds of all profiles."""
        return tuple(text for profile in self.profiles for text in profile.thresholds)

    def start(self, key: str, *, culprits: bool = False) -> LoadStart:
        """Return the load client's configuration; ``key`` is sent as a bearer token.

        With ``culprits``, the client keeps the requests that may have crashed the server, to search
        them.
        """
        trace = self.trace
        return LoadStart(
            url=self.url,
            api=self.api,
            stream=self.stream,
            model=self.model,
            key=key,
            profiles=tuple(map(_resolved, self.profiles)),
            seed=self.seed,
            vocab_size=self.vocab_size,
            trace=None
            if trace is None
            else (str(trace.path), str(trace.length_scale), trace.speedup, trace.time_unit),
            repeats=self.answers_s > 0,
            exact=self.exact,
            culprits=culprits,
        )

    def resolved(self) -> ResolvedProfile:
        """Return the profiles for the manifest, without their floors on events of the engine.

        The keys are those of the first, with the others under ``in_turn``.
        """
        first, *others = map(_resolved, self.profiles)
        keys: dict[str, JsonValue] = {**first, "in_turn": others} if others else first
        return ResolvedProfile(
            name=self.name,
            source=self.source,
            resolved=plain_mapping(keys),
            limits=strictest_limits(self.profiles),
        )

    def describe(self) -> dict[str, JsonValue]:
        """Describe what is sent where, with a hash of the schedule, for the manifest."""
        workload = build_traffic(self.profiles, self.vocab_size, self.trace, self.seed)
        described = workload.describe()
        hashed = workload.parts if isinstance(workload, InTurn) else [workload]
        parts = urlsplit(self.url)
        return {
            **described,
            "url": f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}",
            "api": self.api,
            "stream": self.stream,
            "model": self.model,
            "schedule": "-".join(map(schedule_hash, hashed)),
        }


def _resolved(profile: Profile) -> dict[str, JsonValue]:
    return cast("dict[str, JsonValue]", profile.resolved())


def words_of(api: Api, vocab_size: int) -> int:
    """Return the number of token ids from which prompts for ``api`` are drawn."""
    return vocab_size if api in OF_IDS else TEXT_WORDS


@dataclass
class Reach:
    """Whether requests still reach the server."""

    lost_for_s: float = 0.0
    _ends: tuple[int, int] = (0, 0)  # requests ended by a failed connection, and otherwise
    _refused_s: float = -math.inf
    _reached_s: float | None = None

    def see(self, report: LoadReport, now_s: float) -> None:
        """Process a report from the client."""
        refused = report.counts.get("requests_failed.connect", 0)
        others = report.counts["requests_submitted"] - report.in_flight - refused
        if refused != self._ends[0]:
            self._refused_s = now_s
        none_refused = now_s - self._refused_s > _REFUSED_EVERY_S
        if self._reached_s is None or others != self._ends[1] or none_refused:
            self._reached_s = now_s
        self._ends = refused, others
        self.lost_for_s = now_s - self._reached_s


@dataclass
class Silence:
    """How long a server has sent nothing to the requests that wait for it.

    A paused client is waiting for the end of its requests, and does not count.
    """

    for_s: float = 0.0
    heard_s: float = 0.0  # when it sent something last
    _longest_s: float = 0.0
    _heard: int = -1
    _seen_s: float = 0.0

    @property
    def is_hang(self) -> bool:
        """Whether this is far longer than the server, which has answered, has ever needed."""
        return self._heard > 0 and self.for_s > max(_SILENT_S, _TIMES_LONGEST * self._longest_s)

    def see(self, report: LoadReport, now_s: float) -> None:
        """Process a report from the client."""
        counts = report.counts
        unheard = counts["requests_aborted"] + sum(counts.get(kind, 0) for kind in _UNHEARD)
        heard = counts["requests_submitted"] - report.in_flight - unheard
        tokens = any(report.latencies.get(name) for name in (TTFT, ITL, E2E))
        if tokens or heard != self._heard:
            self._longest_s, self.for_s = max(self._longest_s, self.for_s), 0.0
            self.heard_s = now_s
        elif report.in_flight and not report.paused:
            self.for_s += now_s - self._seen_s
        self._heard, self._seen_s = heard, now_s


class HttpLoad:
    """Own the load client from ``start`` to ``stop``.

    Args:
        start: the client's configuration: server, requests, interface.
    """

    def __init__(self, start: LoadStart, clock: Clock) -> None:
        self._start = start
        self._clock = clock
        self._process: BackgroundProcess | None = None
        self._socket: socket.socket | None = None
        self._unread = b""
        self._report: LoadReport | None = None
        self._latencies: dict[str, dict[int, int]] = {}
        self._answer_faults: list[str] = []
        self._rests = False
        self._orders = 0  # given so far
        self._reach = Reach()
        self.silence = Silence()
        self._cpu = (0.0, 0.0)  # CPU time of the client, and when it was reported
        self._cpu_share = 0.0
        self.failure = ""

    @property
    def wanted(self) -> bool:
        """Whether the client has been started and not stopped."""
        return self._process is not None

    @property
    def pid(self) -> int | None:
        """The client's pid; None if it is not running."""
        return None if self._process is None else self._process.pid

    @property
    def rests(self) -> bool:
        """Whether the client sends nothing and all its requests have been answered."""
        return self._rests

    def start(self) -> None:
        """Start sending.

        Raises:
            WorkerFailedError: the system cannot start it.
        """
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", _MODULE, str(theirs.fileno())]
        try:
            with theirs:
                self._process = BackgroundProcess(
                    command,
                    settings=ONE_THREAD,
                    pass_fds=(theirs.fileno(),),
                    ends_with_parent=True,
                )
        except OSError as error:
            ours.close()
            raise WorkerFailedError(f"cannot start the load client: {error}.") from error
        self._socket = ours
        self._tell(self._start)
        ours.setblocking(False)
        self._order(LoadOrder("resume"))

    def tend(self) -> None:
        """Read the client's reports; ``failure`` is set once it has ended or can no longer send."""
        if self._socket is None:
            return
        with suppress(BlockingIOError, ConnectionError):
            while read := self._socket.recv(_READ_BYTES):
                *lines, self._unread = (self._unread + read).split(b"\n")
                for line in lines:
                    self._take(_REPORT.decode(line))
        if self._process is not None and self._process.exit_code is not None and not self.failure:
            how = ExitStatus.from_returncode(self._process.exit_code).text
            self.failure = f"the load client ended ({how})"

    def pause(self) -> None:
        """Stop sending; requests already sent are still answered."""
        self._reach = Reach()
        self._order(LoadOrder("pause"))

    def resume(self) -> None:
        """Continue sending."""
        self._order(LoadOrder("resume"))

    def repeat(self, seconds: float) -> None:
        """When idle, repeat a sample of requests for at most twice ``seconds``."""
        self._order(LoadOrder("repeat", seconds))

    def search(self) -> None:
        """When idle, resend the requests that were in flight when the server crashed."""
        self._order(LoadOrder("search"))

    @property
    def searched(self) -> CrashSearch | None:
        """The result of a search, once idle; None without one."""
        return None if self._report is None else self._report.search

    @property
    def repeated(self) -> Repeated | None:
        """The result of repeated requests, once idle; None without any."""
        return None if self._report is None else self._report.repeated

    def stop(self) -> None:
        """Stop the client and wait for it to end."""
        process, self._process = self._process, None
        if self._socket is not None:
            self.tend()
            self._socket.close()
            self._socket = None
        if process is not None:
            process.close(_END_PATIENCE_S)

    def counters(self) -> Mapping[str, float]:
        """Requests and tokens so far, as event counters."""
        counts = dict.fromkeys(COUNTED, 0) if self._report is None else self._report.counts
        return {f"events.{name}": float(count) for name, count in counts.items()}

    def levels(self) -> Mapping[str, float]:
        """The client's own memory, CPU share, requests in flight and connections."""
        if self._report is None:
            return {}
        return {
            "client_anon_swap_bytes": float(self._report.private_bytes),
            "client_cpu_share": self._cpu_share,
            "client_in_flight": float(self._report.in_flight),
            CLIENT_CONNECTIONS: float(self._report.connections),
        }

    @property
    def unreachable_for_s(self) -> float:
        """For how many seconds all requests have ended because the server refused connections."""
        return self._reach.lost_for_s

    @property
    def cpu_s(self) -> float:
        """Last reported CPU time of the client, including its start."""
        return 0.0 if self._report is None else self._report.cpu_s

    def take_latencies(self) -> LatencyCounts:
        """Return the latencies measured since the last call."""
        latencies, self._latencies = self._latencies, {}
        return latencies

    def take_answer_faults(self) -> list[str]:
        """Return a sentence on each faulty answer since the last call."""
        faults, self._answer_faults = self._answer_faults, []
        return faults

    @property
    def lost(self) -> Mapping[str, int]:
        """Number of requests that the server has lost since it last answered one, by feature, with
        unusual features first.
        """
        return {} if self._report is None else self._report.lost

    def _take(self, report: LoadReport) -> None:
        before_s, said_s = self._cpu
        now_s = self._clock.monotonic_s()
        if self._report is not None and now_s > said_s:
            self._cpu_share = (report.cpu_s - before_s) / (now_s - said_s)
        self._cpu = report.cpu_s, now_s
        self._reach.see(report, now_s)
        self.silence.see(report, now_s)
        self._report = report
        followed = report.orders == self._orders
        self._rests = followed and report.paused and not report.in_flight
        add_latencies(self._latencies, report.latencies)
        self._answer_faults += report.answer_faults
        self.failure = self.failure or report.failure

    def _order(self, order: LoadOrder) -> None:
        # Reports sent before the client executes the command do not count.
        self._rests = False
        self._orders += 1
        self._tell(order)

    def _tell(self, order: LoadStart | LoadOrder) -> None:
        # ``tend`` notices a client that has exited.
        if self._socket is not None:
            with suppress(ConnectionError):
                self._socket.sendall(msgspec.json.encode(order) + b"\n")
