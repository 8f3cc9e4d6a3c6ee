"""Send a workload's requests over HTTP, and report the outcomes to it.

Ended requests are dropped, except for the samples that repeats and crash searches keep.  Each
request ends exactly once: answered, rejected, failed, or cut off by this client.  In an open loop,
durations count from the time at which a request was due, so that a late client does not make the
server look fast.  A closed loop has no schedule: durations count from when the request is sent, so
that requests which wait for each other in this client do not make the server look slow.
"""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from itertools import chain
from typing import Final
from urllib.parse import urlsplit

import aiohttp
import msgspec
from aiohttp.http_exceptions import HttpProcessingError

from hybridbench.foundation.latency import E2E, ITL, TTFT, LatencyHistogram
from hybridbench.load.culprits import Culprits, Suspect
from hybridbench.load.flight import (
    LINE_BYTES,
    SILENT_S,
    TRIES,
    End,
    Flight,
    Kind,
    abort_stage,
    asked_wait_s,
    connection,
    first_half,
    suspects_first,
)
from hybridbench.load.http_request import HttpRequest
from hybridbench.load.interfaces import (
    REFUSED,
    Answer,
    Interface,
    NoAnswerError,
    RefusedError,
    first_model,
)
from hybridbench.load.repeats import Repeats
from hybridbench.load.session_calls import SessionCalls
from hybridbench.records.load import COUNTED, LATE, LoadReport
from hybridbench.records.messages import (
    Abort,
    CloseSession,
    Disconnect,
    OpenSession,
    Sampling,
    Submit,
)
from hybridbench.sampling.process import count_open_fds, own_private_bytes
from hybridbench.workload.actions import Action, TimedWorkload, WaitUntil
from hybridbench.workload.in_turn import InTurn
from hybridbench.workload.tenants import Beginnings

_ACTIONS_PER_PUMP_MAX: Final = 512
# Longest wait from a stream's last text to its end; after that, the connection is not reused.
_TAIL_S: Final = 1.0
# Requests that the server broke are counted by kind, up to this many kinds.
_LOST_KINDS_MOST: Final = 64
# Statuses that blame the request.  After more than this many other refusals in a row, with no other
# answer between them, the client pauses, as after a failure.
_OF_THE_REQUEST: Final = frozenset({"400", "413", "414", "415", "422", "431"})
_REFUSALS_IN_A_ROW: Final = 32
# Pause after a failure; it doubles with each failure that follows at once.
_BACK_OFF_S: Final = 0.1
_BACK_OFF_MOST_S: Final = 5.0
_HOLDS_MOST: Final = 10
# Longest pause that a server can request, and the statuses with which it can.
_ASKED_MOST_S: Final = 60.0
_ASKS_TO_WAIT: Final = frozenset({429, 503})
# Patience when a request that may have ended the server is sent again, and for the plain request
# after it.
_CULPRIT_S: Final = 60.0
_PLAIN: Final = Submit("plain", list(range(1, 9)), Sampling(max_new_tokens=1))
_AGAIN: Final = "again "
_LOOK_EVERY_S: Final = 0.1
# A request is drawn and written this long before it is due.
_AHEAD_S: Final = 0.001
# The event loop may call a function early by this much.
_TICK_S: Final = 0.001
_ANSWER_BYTES: Final = 1 << 24
# A non-streamed answer does not show when its request was admitted and when its first token came;
# these shares of the mean answer time are assumed.
_ADMITTED, _FIRST_TOKEN = 0.25, 0.5
_NEWEST_WEIGHT: Final = 0.1
_OK: Final = 200
_STREAM: Final = "text/event-stream"
# Types of answers that are not streams, whatever was requested: whole answers, and web pages.
_WHOLE: Final = frozenset({"application/json", "text/html"})
# Failures that suggest that the server died, and those that suggest that only its engine did: then
# it still answers later requests, all with the same error.
_BROKEN: Final = frozenset({"disconnected", "cut-off"})
_GIVEN_UP: Final = frozenset({"error-in-answer", "500"})
# Errors on connecting that are this process's own: it has too many open files or ports.
_OUR_LIMITS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL})
# Refusals of an overloaded server.
_BUSY: Final = frozenset({503})
_LATENCIES: Final = (TTFT, ITL, E2E, LATE)


class LoadClient:
    """Owns the requests in flight.

    Args:
        workload: what to send; it is paused and resumed here.
        interface: writes requests and reads answers.
        url: of the server, without the path of the interface.
        key: sent as a bearer token, unless ``url`` has a user name; empty for none.
        on_rest: called when sending is paused and nothing is in flight.
    """

    def __init__(
        self,
        workload: TimedWorkload,
        interface: Interface,
        url: str,
        key: str,
        on_rest: Callable[[], None],
    ) -> None:
        self._workload = workload
        self._interface = interface
        self._base = url
        self._on_rest = on_rest
        # A request can have either; a user name in the address was given for this server.
        self._session = connection("" if urlsplit(url).username is not None else key)
        self._flights: dict[str, list[Flight]] = {}
        self._in_flight = 0
        self._files_without = _open_files()  # before the first connection
        self._counts: Counter[str] = Counter(dict.fromkeys(COUNTED, 0))
        self._marks: Counter[str] = Counter()  # of the requests in flight
        self._session_calls = SessionCalls(self._session, url, self._counts, self._rest_if_idle)
        self._latencies = {name: LatencyHistogram() for name in _LATENCIES}
        self._wake: asyncio.TimerHandle | None = None
        self._paused = True
        self._closed = False
        self._held = False  # whether sending is held after failures
        self._holds = 0  # consecutive
        self._held_until_s = 0.0  # as the server asked
        self._turned_away = 0  # requests refused since the last other answer
        self._lost: Counter[Kind] = Counter()
        self._lost_first_s = 0.0  # time of the first of them
        self._closes = False  # whether the server closes connections between requests
        self._takes_s = 0.0  # running mean of answer times
        self._beginnings = Beginnings()
        self._answer_faults: list[str] = []  # since the last report
        self._repeats: Repeats | None = None
        self._culprits: Culprits | None = None
        # Our own requests while the workload rests: repeats, or a search for culprits.
        self._beside: asyncio.Task[None] | None = None
        self.orders = 0  # followed so far
        self.failure = ""

    async def learn_model(self) -> None:
        """Ask the server for its model's name, unless it is known, and for the server's maker.

        Raises:
            NoAnswerError: the server lists no models.
        """
        try:
            async with self._session.get(f"{self._base}/v1/models") as response:
                model, self._interface.owner = first_model(await response.read())
        except (aiohttp.ClientError, TimeoutError, NoAnswerError, RecursionError) as error:
            if self._interface.names_model and not self._interface.model:
                raise NoAnswerError("no-model") from error
        else:
            self._interface.model = self._interface.model or model

    def keep_for_repeats(self, seed: int, *, exact: bool) -> None:
        """Keep a sample of requests with their answers, for ``repeat``.

        ``exact`` means that the server was started so that batching changes no answer.
        """
        interface = self._interface
        self._repeats = Repeats(
            seed, interface.not_repeated, exact=exact, both_ways=interface.both_ways
        )

    def pause(self) -> None:
        """Send nothing more; requests in flight continue."""
        self._paused = True
        self._workload.pause(_now_s())
        self._pump()
        self._rest_if_idle()

    def repeat(self, seconds: float) -> None:
        """Request a sample of answers again, for at most twice ``seconds``, at rest."""
        if self._repeats is not None:
            self._do_beside(self._repeats.compare(self._again, seconds))

    def keep_culprits(self) -> None:
        """Keep the requests that the server broke, for ``search``."""
        self._culprits = Culprits()

    def search(self) -> None:
        """Find which of the requests that were in flight end the server again, at rest."""
        if self._culprits is not None:
            self._do_beside(self._culprits.search(self._try))

    def resume(self) -> None:
        """Start to send, or continue."""
        if self._beside is not None:
            self._beside.cancel()
        self._paused = self._held = False
        self._workload.resume(_now_s())
        self._pump()

    async def close(self) -> None:
        """Cut off the requests in flight."""
        self._closed = True
        flights = [flight for flights in self._flights.values() for flight in flights]
        for flight in flights:
            flight.cut = True
            if flight.task is not None:
                flight.task.cancel()
        tasks = [flight.task for flight in flights if flight.task is not None]
        tasks += self._session_calls.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._session.close()

    async def watch_itself(self) -> None:
        """Measure how late this process wakes up; never returns."""
        while True:
            due_s = _now_s() + _LOOK_EVERY_S
            await asyncio.sleep(_LOOK_EVERY_S)
            self._latencies[LATE].add(_now_s() - due_s)

    def report(self) -> LoadReport:
        """Return all counts, and the latencies since the last report."""
        latencies = {}
        for name, histogram in self._latencies.items():
            if len(histogram):
                latencies[name] = histogram.counts()
                histogram.clear()
        answer_faults, self._answer_faults = self._answer_faults, []
        return LoadReport(
            counts=dict(self._counts),
            in_flight=self._in_flight,
            connections=max(0, _open_files() - self._files_without),
            lost=suspects_first(self._lost),
            latencies=latencies,
            cpu_s=time.process_time(),
            private_bytes=own_private_bytes(),
            paused=self._paused and self._beside is None and not self._session_calls,
            orders=self.orders,
            # These do not change while requests are sent.
            repeated=self._repeats.so_far() if self._repeats and self._paused else None,
            search=self._culprits.so_far() if self._culprits and self._paused else None,
            failure=self.failure or self._workload.failure,
            answer_faults=tuple(answer_faults),
        )

    # Sending.

    def _pump(self, due_s: float = 0.0) -> None:
        """Do what is due now or by ``due_s``, up to the next request; schedule the next call.

        A paused workload sends no requests, but its cut-offs and session closes are still carried
        out.
        """
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        if self._closed:
            return
        now_s = max(_now_s(), due_s)
        for _ in range(_ACTIONS_PER_PUMP_MAX):
            action = self._workload.next_action(now_s)
            if isinstance(action, WaitUntil):
                if action.due_s is not None:
                    self._wake_at(action.due_s)
                return
            self._carry_out(action, now_s)
            if isinstance(action, Submit):
                # Let it leave first: drawing the next one takes time.
                break
        self._wake_at(now_s)

    def _wake_at(self, due_s: float) -> None:
        self._wake = asyncio.get_running_loop().call_at(due_s - _AHEAD_S, self._pump, due_s)

    def _carry_out(self, action: Action, now_s: float) -> None:
        if isinstance(action, Submit):
            self._send(action, now_s)
        elif isinstance(action, Abort | Disconnect):
            for flight in self._flights.get(action.rid, ())[:1]:
                self._cut(flight)
        elif isinstance(action, OpenSession):
            opening = self._interface.open_session(action)
            self._session_calls.call(action.session_id, opening, "sessions_opened")
        elif isinstance(action, CloseSession):
            closing = self._interface.close_session(action.session_id)
            self._session_calls.call(action.session_id, closing, "sessions_closed")
        # There are no other actions: ``Profile.for_servers`` has no controls.

    def _send(self, request: Submit, now_s: float) -> None:
        due_s = min(self._workload.due_s, now_s)
        flight = Flight(request, self._interface.request(request), due_s)
        if request.extra_key and not request.session_id and self._interface.keeps_tenants_apart:
            self._beginnings.sent(request.rid, request.extra_key, request.input_ids)
        flight.session_call = self._session_calls.under_way(request.session_id)
        flight.task = self._take_off(flight)
        loop = asyncio.get_running_loop()
        if not flight.http.streams:
            loop.call_later(_ADMITTED * self._takes_s, self._admitted, flight)
            loop.call_later(_FIRST_TOKEN * self._takes_s, self._first_token, flight)

    def _cut(self, flight: Flight) -> None:
        """Close a request's connection, once the server has the request."""
        flight.cut = True
        if flight.sent and flight.task is not None:
            flight.task.cancel()

    def _do_beside(self, asking: Coroutine[None, None, None]) -> None:
        self._beside = asyncio.get_running_loop().create_task(asking)
        self._beside.add_done_callback(self._done_beside)

    def _done_beside(self, task: asyncio.Task[None]) -> None:
        self._beside = None
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.failure = f"the load client failed at an idle point: {type(error).__name__}"
        self._rest_if_idle()

    async def _again(self, request: Submit, key: str, whole: bool) -> Answer | None:
        """Repeat ``request``, using cached content only from requests with the same ``key``.

        ``whole`` turns streaming off.  Returns None if there was no answer.
        """
        http = self._interface.cold_request(request, key)
        if whole:
            http.fields.pop("stream_options", None)
            http.fields["stream"] = False
        flight = self._send_beside(request, http)
        await asyncio.wait([flight[1]])
        return flight[0].answer if flight[0].end is End.FINISHED else None

    async def _try(self, suspects: Sequence[Suspect]) -> bool:
        """Send all suspects at once, then a plain request; return whether that got no answer."""
        sent = [self._send_beside(one.request, one.http) for one in suspects]
        _, late = await asyncio.wait([task for _, task in sent], timeout=_CULPRIT_S)
        for task in late:
            task.cancel()
        plain, task = self._send_beside(_PLAIN, self._interface.request(_PLAIN))
        await asyncio.wait([task], timeout=_CULPRIT_S)
        task.cancel()
        return plain.end not in (End.FINISHED, End.REJECTED)

    def _send_beside(self, request: Submit, http: HttpRequest) -> tuple[Flight, asyncio.Task[None]]:
        """Send a request of our own, which is not part of the workload."""
        unknown = msgspec.structs.replace(request, rid=f"{_AGAIN}{request.rid}")
        flight = Flight(unknown, http, _now_s(), again=True)
        flight.task = self._take_off(flight)
        return flight, flight.task

    # One request.

    def _take_off(self, flight: Flight) -> asyncio.Task[None]:
        flight.beside.update(+self._marks)
        if flight.http.marks:
            self._marks.update(flight.http.marks)
            for other in chain.from_iterable(self._flights.values()):
                other.beside.update(flight.http.marks)
        self._flights.setdefault(flight.request.rid, []).append(flight)
        self._in_flight += 1
        self._counts["requests_submitted"] += 1
        return asyncio.get_running_loop().create_task(self._fly(flight))

    async def _fly(self, flight: Flight) -> None:
        end, detail = End.FAILED, "client"
        try:
            if not flight.again:
                flight.due_s = await self._until_due(flight.due_s)
            if flight.session_call is not None:
                await asyncio.wait([flight.session_call])
            end, detail = await self._exchange(flight)
        except asyncio.CancelledError:
            end, detail = End.CUT, ""
        finally:
            self._land(flight, end, detail)

    async def _until_due(self, due_s: float) -> float:
        """Wait until ``due_s``, and record how late it is then; return when durations begin."""
        early_s = due_s - _now_s()
        if early_s > 0:
            await asyncio.sleep(early_s)
        now_s = _now_s()
        if now_s > due_s:
            self._latencies[LATE].add(now_s - due_s)
        return due_s if self._workload.is_open_loop else now_s

    async def _exchange(self, flight: Flight) -> tuple[End, str]:
        """Send a request and read its whole answer; return how it ended, and one word on why."""
        for tried in range(TRIES):
            flight.reused = flight.sent = False
            try:
                return await self._ask(flight)
            except RefusedError as error:
                return End.REJECTED, error.kind
            except NoAnswerError as error:
                return End.FAILED, error.kind
            except (TimeoutError, aiohttp.ServerTimeoutError):
                return End.FAILED, "timeout"
            except aiohttp.ClientConnectorError as error:
                return End.FAILED, self._not_connected(error.os_error, tried)
            except aiohttp.ClientPayloadError:
                break
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
                if flight.begun or not flight.reused:
                    break
                self._closes = True
            except (aiohttp.ClientError, HttpProcessingError, ValueError, RecursionError):
                return End.FAILED, "protocol"
        return End.FAILED, "disconnected"

    def _not_connected(self, error: OSError, tried: int) -> str:
        if error.errno in _OUR_LIMITS:
            self.failure = f"the load client cannot connect: {error.strerror}"
            return "client"
        # If the connection had worked before, the request may have ended the server.
        return "disconnected" if tried else "connect"

    async def _ask(self, flight: Flight) -> tuple[End, str]:
        http, body = flight.http, flight.http.body
        headers = {"Content-Type": http.content_type}
        if self._closes:
            headers["Connection"] = "close"
        if http.is_cut_off:
            headers["Content-Length"] = str(len(body))
        asked = self._session.request(
            http.method,
            f"{self._base}{http.path}",
            data=first_half(flight, body) if http.is_cut_off else body,
            headers=headers,
            trace_request_ctx=flight,
        )
        async with asked as response:
            flight.begun = True
            if response.status != _OK:
                status = str(response.status)
                if response.status in _ASKS_TO_WAIT and not flight.is_malformed:
                    flight.wait_s = asked_wait_s(response.headers.get("Retry-After"))
                if response.status in REFUSED or response.status in _BUSY:
                    return End.REJECTED, status
                return End.FAILED, status
            kind = response.content_type
            # The answer to a malformed request may not be of the requested type.
            if kind == _STREAM if http.marks else http.streams and kind not in _WHOLE:
                self._admitted(flight)
                await self._read_stream(flight, response.content)
            else:
                body = await response.content.read(_ANSWER_BYTES)
                while body and not response.content.at_eof() and len(body) < _ANSWER_BYTES:
                    body += await response.content.read(_ANSWER_BYTES)
                self._interface.read_whole(body, flight.answer)
                self._took(E2E, _now_s() - flight.due_s, flight)
            return End.FINISHED, ""

    async def _read_stream(self, flight: Flight, content: aiohttp.StreamReader) -> None:
        """Read a streamed answer as it arrives.

        Raises:
            NoAnswerError: it is not an answer, or is cut short.
        """
        answer = flight.answer
        last_s: float | None = None
        heard_s = _now_s()
        async for line in content:
            now_s = _now_s()  # before it is parsed
            if self._interface.read_line(line, answer):
                # Not by the number of parts: with ``n``, the first event may have several.
                if last_s is not None:
                    self._took(ITL, now_s - last_s, flight)
                else:
                    self._took(TTFT, now_s - flight.due_s, flight)
                    self._first_token(flight)
                last_s = now_s
            if b"{" in line:
                heard_s = now_s
            elif now_s - heard_s > SILENT_S:
                # Comments that keep the connection open are not an answer.
                raise TimeoutError
            if answer.over:
                break
        if not answer.reason and not (answer.over and answer.chunks):
            raise NoAnswerError("empty" if answer.over else "cut-off")
        self._took(E2E, (last_s or _now_s()) - flight.due_s, flight)
        try:
            # Read to the end, which often comes after the last line's newline, in a packet of its
            # own: only then can the connection be reused.
            async with asyncio.timeout(_TAIL_S):
                while await content.read(LINE_BYTES):
                    pass
        except (TimeoutError, aiohttp.ClientError):
            return

    def _took(self, what: str, seconds: float, flight: Flight) -> None:
        # Repeats are sent at rest and without the cache, so their times do not count.
        if not flight.again:
            self._latencies[what].add(seconds)

    def _admitted(self, flight: Flight) -> None:
        if self._is_known(flight):
            self._workload.on_admitted(flight.request.rid)
            self._pump()

    def _first_token(self, flight: Flight) -> None:
        if self._is_known(flight):
            self._workload.on_first_token(flight.request.rid, _now_s())
            self._pump()

    def _is_known(self, flight: Flight) -> bool:
        return not flight.again and flight in self._flights.get(flight.request.rid, ())

    # Ends of requests.

    def _land(self, flight: Flight, end: End, detail: str) -> None:
        """Count an ended request; unless it was a repeat, tell the workload; send what is due."""
        flights = self._flights[flight.request.rid]
        flights.remove(flight)
        if not flights:
            del self._flights[flight.request.rid]
        self._in_flight -= 1
        self._marks.subtract(flight.http.marks)
        flight.end = end
        self._count(flight, end, detail)
        if not flight.again:
            self._tell(flight, end, detail)
        self._rest_if_idle()

    def _count(self, flight: Flight, end: End, detail: str) -> None:
        answer, counts = flight.answer, self._counts
        for mark in flight.http.marks:
            counts[f"requests_with.{mark}"] += 1
            if end is End.FAILED:
                counts[f"requests_failed_with.{mark}"] += 1
        if isinstance(self._workload, InTurn):
            profile = self._workload.name_of(flight.request.rid.removeprefix(_AGAIN))
            counts.update([f"requests_of.{profile}"] if profile else [])
        if end in (End.FINISHED, End.CUT):
            # What a server keeps of any request, however it ends, grows with their sum alone.
            counts["requests_accepted"] += 1
        if end is End.FINISHED:
            counts["finishes"] += 1
            self._lost.clear()
            if self._culprits is not None and not flight.again:
                self._culprits.forget()
            counts["output_tokens"] += answer.tokens
            read = answer.input_tokens
            counts["prompt_tokens"] += len(flight.request.input_ids) if read is None else read
        elif end is End.REJECTED:
            counts["requests_rejected"] += 1
            counts[f"requests_rejected.{detail}"] += 1
            if flight.wait_s is not None:
                counts["requests_asked_to_wait"] += 1
        elif end is End.CUT:
            # What a server keeps at any stage grows with their sum alone.
            counts["requests_aborted"] += 1
            counts[abort_stage(flight)] += 1
        else:
            counts["requests_failed"] += 1
            counts[f"requests_failed.{detail}"] += 1
            self._may_be_lost(flight, detail)

    def _may_be_lost(self, flight: Flight, detail: str) -> None:
        """Count a failed request by kind if the whole server may have failed."""
        now_s, lost = _now_s(), self._lost
        is_new = flight.due_s > self._lost_first_s
        if detail in _GIVEN_UP and (flight.is_malformed or (lost and is_new)):
            return
        if detail in _BROKEN | _GIVEN_UP:
            self._lost_first_s = self._lost_first_s if lost else now_s
            kind = flight.kind
            is_named = kind in lost or len(lost) < _LOST_KINDS_MOST
            lost[kind if is_named else Kind("request of another kind")] += 1
            if self._culprits is not None and not flight.again:
                suspect = Suspect(flight.request, flight.http, kind.words, kind.is_usual)
                self._culprits.keep(suspect)

    def _tell(self, flight: Flight, end: End, detail: str) -> None:
        rid, now_s = flight.request.rid, _now_s()
        if end is End.FINISHED:
            self._finished(flight, now_s)
        elif end is End.REJECTED:
            self._workload.on_rejected(rid, detail)
        elif end is End.CUT:
            ids = self._interface.continuation(flight.answer)
            self._workload.on_finished(rid, ids, "abort", now_s)
        else:
            self._workload.on_finished(rid, [], "failed", now_s)
        is_of_server = detail not in _OF_THE_REQUEST and not flight.is_malformed
        if end is End.REJECTED and is_of_server:
            self._turned_away += 1
        elif end in (End.FINISHED, End.REJECTED):
            self._turned_away = 0
        is_down = end is End.FAILED or self._turned_away > _REFUSALS_IN_A_ROW
        if is_down or flight.wait_s is not None:
            self._back_off(now_s, flight.wait_s or 0.0)
        elif end in (End.FINISHED, End.REJECTED):
            self._holds = 0
            self._come_back()
        self._pump()

    def _finished(self, flight: Flight, now_s: float) -> None:
        answer = flight.answer
        if self._repeats is not None:
            self._repeats.saw(flight.request, answer, frozenset(flight.beside))
        rid = flight.request.rid
        faults = [self._beginnings.fault_of(rid, answer.cached_tokens or 0)]
        # With options such as ``n``, the server counts the tokens of several answers.
        faults += [] if flight.http.marks else [self._interface.lost_tokens(answer)]
        self._answer_faults += [f"request {rid}: its client {fault}" for fault in faults if fault]
        took_s = now_s - flight.due_s
        self._takes_s += _NEWEST_WEIGHT * (took_s - self._takes_s)
        reason = "length" if answer.tokens >= flight.request.sampling.max_new_tokens else "stop"
        # An answer that repeats its prompt cannot continue the conversation.
        ids = [] if "echo" in flight.http.marks else self._interface.continuation(answer)
        self._workload.on_finished(rid, ids, reason, now_s)

    def _back_off(self, now_s: float, asked_s: float) -> None:
        """Pause sending after a failure, or for ``asked_s`` seconds at the server's request.

        Requests in flight continue.
        """
        if self._paused:
            return
        until_s = now_s + min(asked_s, _ASKED_MOST_S)
        if not self._held:
            self._held = True
            # Pause the workload, so that no backlog becomes due at once.
            self._workload.pause(now_s)
            until_s = max(until_s, now_s + min(_BACK_OFF_S * 2.0**self._holds, _BACK_OFF_MOST_S))
            self._holds = min(self._holds + 1, _HOLDS_MOST)
        elif not asked_s:
            return
        if asked_s:
            self._held_until_s = max(self._held_until_s, until_s)
        asyncio.get_running_loop().call_at(until_s, self._come_back)

    def _come_back(self) -> None:
        if self._held and not self._paused and _now_s() + _TICK_S >= self._held_until_s:
            self._held = False
            self._workload.resume(_now_s())
            self._pump()

    def _rest_if_idle(self) -> None:
        if self._paused and not (self._in_flight or self._beside or self._session_calls):
            self._on_rest()


def _open_files() -> int:
    return count_open_fds(os.getpid()) or 0


def _now_s() -> float:
    # The clock of asyncio's loop, shared by all processes of this machine.
    return time.monotonic()
