"""The load client against a server whose delays and faults are known, in one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import re
import select
import threading
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from selectors import EpollSelector

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer, unused_port

from hybridbench.foundation.latency import E2E, ITL, TTFT, LatencyHistogram
from hybridbench.load import __main__ as load_process
from hybridbench.load import client as load_client
from hybridbench.load.__main__ import PromptSelector
from hybridbench.load.client import LoadClient
from hybridbench.load.flight import asked_wait_s
from hybridbench.load.http_request import HttpRequest
from hybridbench.load.interfaces import Interface
from hybridbench.records.load import LATE, OF_SESSIONS, TEXT_WORDS, Api, LoadReport
from hybridbench.records.messages import Submit
from hybridbench.workload.build import build_workload
from hybridbench.workload.catalog import load_profile
from tests.scenarios.watched.openai_server import Server, application, options_of

ENDS = (
    "finishes",
    "requests_rejected",
    "requests_failed",
    "abort_queued",
    "abort_prefill",
    "abort_decode",
)
# A whole test takes a second or less.
QUICK = {"arrival": "{process: closed, concurrency: 8}", "output.tokens": "[2, 6]"}
NO_ABORTS = {"aborts": "{}"}


@dataclass
class Served:
    """The results of some traffic: the client's report, and the server."""

    report: LoadReport
    server: Server

    @property
    def counts(self) -> dict[str, int]:
        return self.report.counts

    def quantile_ms(self, name: str, share: float) -> float:
        histogram = LatencyHistogram()
        histogram.add_counts(self.report.latencies[name])
        quantile_s = histogram.quantile_s(share)
        assert quantile_s is not None
        return 1000 * quantile_s


def serve(
    *options: str,
    api: Api = "completions",
    stream: bool = True,
    for_s: float = 0.25,
    beside: Callable[[], Awaitable[None]] | None = None,
    settings: Mapping[str, str] = NO_ABORTS,
    requests: int = 0,
    repeat_s: float = 0.0,
    model: str = "",
) -> Served:
    """Send chat-churn traffic for ``for_s`` and at least ``requests``, and wait until it has ended.

    ``settings`` override the profile.  For ``repeat_s``, answers are then requested again.
    """
    profile = load_profile("chat-churn").with_overrides({**QUICK, **settings})
    profile = profile.for_servers(sessions=api in OF_SESSIONS)
    server = Server(options_of(*options))

    async def run() -> LoadReport:
        runner = web.AppRunner(application(server), handler_cancellation=True, access_log=None)
        await runner.setup()
        port = unused_port()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        rests = asyncio.Event()
        workload = build_workload(profile, TEXT_WORDS, seed=3)
        interface = Interface(api, model, stream=stream)
        client = LoadClient(workload, interface, f"http://127.0.0.1:{port}", "", rests.set)
        await client.learn_model()
        if repeat_s:
            client.keep_for_repeats(seed=1, exact=False)
        client.resume()
        await asyncio.gather(asyncio.sleep(for_s), *([] if beside is None else [beside()]))
        async with asyncio.timeout(60.0):
            while workload.counts()["submitted"] < requests:
                await asyncio.sleep(0.02)
        client.pause()
        await asyncio.wait_for(rests.wait(), 30.0)
        if repeat_s:
            rests.clear()
            client.repeat(repeat_s)
            await asyncio.wait_for(rests.wait(), 30.0)
        report = client.report()
        await client.close()
        # The server notices cut-off requests a moment later.
        await asyncio.sleep(0.05)
        await runner.cleanup()
        return report

    report = asyncio.run(run())
    assert report.counts["requests_submitted"] == sum(report.counts[end] for end in ENDS)
    assert report.in_flight == 0
    return Served(report, server)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("api", ["completions", "ids", "chat", "responses", "generate"])
def test_every_interface_is_served_and_every_request_ends_once(api: Api, stream: bool) -> None:
    aborts = {"aborts": "{decode: 0.2, queued: 0.1, prefill: 0.1}"}
    served = serve(api=api, stream=stream, settings=aborts, requests=40)

    counts = served.counts
    assert counts["finishes"] > 10
    assert counts["requests_failed"] == 0
    cut_off = counts["abort_queued"] + counts["abort_prefill"] + counts["abort_decode"]
    assert counts["requests_aborted"] == cut_off > 0
    assert counts["requests_accepted"] == counts["finishes"] + cut_off
    assert counts["finishes"] <= served.server.answered <= counts["finishes"] + cut_off
    assert 2 * counts["finishes"] <= counts["output_tokens"] <= 6 * counts["finishes"]


def test_a_conversation_goes_on_with_what_the_server_said() -> None:
    settings = {**NO_ABORTS, "conversations": "{turns: [3, 3], open: 4}"}
    served = serve(for_s=0.3, settings=settings, requests=40)

    prompts = served.server.prompts
    assert len(prompts) < 100, "the server keeps that many"
    later = [prompt for prompt in prompts if " indeed" in prompt]
    assert later
    for prompt in later:
        said = prompt.rindex(" indeed")
        answered = len(prompt[: said + len(" indeed")].removesuffix(" indeed").rstrip())
        assert any(len(p) <= answered + 1 and prompt.startswith(p) for p in prompts if p != prompt)


@pytest.mark.parametrize(("api", "stream"), [("completions", True), ("ids", False), ("chat", True)])
def test_answers_are_asked_for_again_without_the_cache(api: Api, stream: bool) -> None:
    served = serve("--owner", "vllm", api=api, stream=stream, requests=60, repeat_s=10.0)

    found = served.report.repeated
    assert found is not None
    assert found.compared > 20
    assert (found.served_differ, found.control_differ) == (0, 0)
    assert set(found.left_out) == {"sampled"}
    # Repeats count as requests, but their latencies are not measured.
    measured = served.counts["finishes"] - found.compared - _first_asked(served)
    # Unless time runs out, all such short answers are measured: twice, and once not streamed.
    assert 0 < measured <= 3 * found.compared
    assert (found.noise, found.noise_tokens > 0) == (0.0, True)
    assert sum(served.report.latencies[E2E].values()) == _first_asked(served)


def _first_asked(served: Served) -> int:
    assert served.report.repeated is not None
    return served.report.repeated.compared + served.report.repeated.left_out["sampled"]


@pytest.mark.parametrize("owner", ["vllm", "sglang"])
def test_a_fault_in_every_streamed_answer_is_seen(owner: str) -> None:
    """One server returns token ids, the other one text alone."""
    settings = {**NO_ABORTS, "sampling": "{temperature: 0}", "output.tokens": "[6, 12]"}
    served = serve(
        *("--owner", owner, "--fault", "stream-drops"),
        settings=settings,
        requests=30,
        repeat_s=5.0,
    )

    found = served.report.repeated
    assert found is not None
    assert found.compared > 20
    assert found.served_differ > 1
    assert {(one.margin, one.streamed) for one in found.served} == {(5.0, True)}
    assert found.noise_tokens > 0


@pytest.mark.parametrize("api", ["completions", "chat"])
def test_swapped_answers_differ_by_far(api: Api) -> None:
    settings = {**NO_ABORTS, "sampling": "{temperature: 0}", "output.tokens": "[6, 12]"}
    served = serve(
        *("--owner", "vllm", "--fault", "swaps"),
        api=api,
        settings=settings,
        requests=60,
        repeat_s=5.0,
    )

    found = served.report.repeated
    assert found is not None
    undecided = found.left_out.get("unsteady", 0) + found.left_out.get("time", 0)
    assert found.served_differ + undecided > 0.05 * found.compared
    assert found.served_differ > 0
    assert {one.margin for one in found.served} == {5.0}
    assert found.usual_gap == pytest.approx(2.0)


def test_answers_are_kept_with_the_options_of_requests_beside_them() -> None:
    settings = {
        **NO_ABORTS,
        "sampling": "{temperature: 0}",
        "arrival": "{process: closed, concurrency: 3}",
        "options": "{share: 0.5, most: 1}",
    }
    fault = ("--owner", "vllm", "--fault", "spills-seed")
    served = serve(*fault, api="ids", settings=settings, requests=200, repeat_s=5.0)

    found = served.report.repeated
    assert found is not None
    assert found.served_differ > 0
    assert all("seed" in one.beside for one in found.served)
    assert found.beside["seed"] >= found.served_differ
    assert found.beside["seed"] < found.met < found.compared


@pytest.mark.parametrize(
    ("options", "is_seen"),
    [
        (("--owner", "vllm"), False),
        (("--owner", "vllm", "--fault", "shares"), True),
        (("--owner", "unknown", "--fault", "shares"), False),  # it may not know the field
    ],
)
def test_a_tenant_that_reuses_what_another_computed_is_seen(
    options: tuple[str, ...], is_seen: bool
) -> None:
    settings = {**NO_ABORTS, "prompts.namespaces": "2"}
    served = serve(*options, api="ids", stream=False, settings=settings, requests=60)

    faults = served.report.answer_faults

    assert bool(faults) is is_seen
    assert all("tenant-" in fault and "16 tokens from the cache" in fault for fault in faults)


@pytest.mark.parametrize(
    ("owner", "api", "reason"),
    [("", "completions", "no-cold-way"), ("vllm", "responses", "interface")],
)
def test_a_server_whose_answers_cannot_be_compared_is_asked_nothing(
    owner: str, api: Api, reason: str
) -> None:
    served = serve("--owner", owner, api=api, for_s=0.2, repeat_s=1.0)

    found = served.report.repeated
    assert found is not None
    assert (found.compared, set(found.left_out)) == (0, {reason})
    assert served.counts["finishes"] == found.left_out[reason]


def test_latencies_are_at_least_those_of_the_server() -> None:
    """By how much they are larger depends on the machine; the benchmark measures that."""
    served = serve("--first-s", "0.05", "--gap-s", "0.02", for_s=1.0)

    assert served.quantile_ms(TTFT, 0.01) > 49
    assert served.quantile_ms(ITL, 0.5) > 19
    assert served.quantile_ms(E2E, 0.01) > 68
    assert sum(served.report.latencies[TTFT].values()) == served.counts["finishes"]


def test_a_request_that_is_drawn_early_does_not_leave_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(load_client, "_AHEAD_S", 0.04)
    arrival = {"arrival": "{process: poisson, rate: 100/s, max_in_flight: 64}"}
    served = serve("--first-s", "0.05", settings={**NO_ABORTS, **arrival})

    assert served.quantile_ms(TTFT, 0.01) > 49


def test_the_client_waits_for_fractions_of_a_millisecond(monkeypatch: pytest.MonkeyPatch) -> None:
    """epoll waits for whole milliseconds, so ``select`` waits, and epoll is only polled."""
    asked: list[tuple[str, float | None]] = []
    monkeypatch.setattr(select, "select", lambda *wait: asked.append(("select", wait[-1])))
    monkeypatch.setattr(EpollSelector, "select", lambda _, wait: asked.append(("epoll", wait)))

    with PromptSelector() as selector:
        selector.select(0.0003)

    assert asked == [("select", 0.0003), ("epoll", 0)]


def test_a_request_that_could_not_leave_in_time_counts_from_when_it_was_due() -> None:
    """Open loop, and something that blocks the client for 0.3 s."""

    async def hold_up() -> None:
        await asyncio.sleep(0.2)
        threading.Event().wait(0.3)

    arrival = {"arrival": "{process: poisson, rate: 100/s, max_in_flight: 64}"}
    served = serve(beside=hold_up, for_s=0.8, settings=arrival)

    assert served.quantile_ms(LATE, 1.0) > 200
    assert served.quantile_ms(TTFT, 0.9) > 150


def test_in_a_closed_loop_the_work_of_the_client_is_no_latency_of_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is lateness, but a closed loop has no schedule that a request could miss."""
    made = Interface.request

    def made_slowly(self: Interface, request: Submit) -> HttpRequest:
        threading.Event().wait(0.1)
        return made(self, request)

    monkeypatch.setattr(Interface, "request", made_slowly)
    alone = {"arrival": "{process: closed, concurrency: 1}"}
    served = serve(settings={**NO_ABORTS, **alone}, requests=3)

    assert served.quantile_ms(LATE, 0.01) > 99
    assert served.quantile_ms(TTFT, 0.01) < 99


@pytest.mark.parametrize(
    ("fault", "counted"),
    [
        ("status-500", "requests_failed.500"),
        ("html", "requests_failed.protocol"),
        ("deep", "requests_failed.protocol"),
        ("half", "requests_failed.disconnected"),
        ("only-done", "requests_failed.empty"),
    ],
)
def test_what_a_server_does_wrong_is_counted_by_its_kind(fault: str, counted: str) -> None:
    # With ``status-500``, every tenth answer has this status.
    served = serve("--fault", fault, requests=20)

    assert served.counts[counted] > 0
    assert served.counts["requests_failed"] == sum(
        count for name, count in served.counts.items() if name.startswith("requests_failed.")
    )


def test_a_server_that_does_not_stream_is_served_all_the_same() -> None:
    served = serve("--fault", "unstreamed", requests=20)

    assert served.counts["finishes"] == served.counts["requests_submitted"]
    assert TTFT not in served.report.latencies


def test_an_answer_of_comments_alone_takes_no_longer_than_silence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hybridbench.load.client.SILENT_S", 0.1)
    served = serve("--fault", "only-comments", for_s=0.2)

    assert served.counts["requests_failed.timeout"] == served.counts["requests_submitted"]


def test_a_server_without_the_method_is_not_flooded() -> None:
    served = serve("--fault", "status-405", for_s=0.5)

    assert served.counts["requests_rejected.405"] < 100


def test_a_server_that_asks_for_a_pause_gets_it() -> None:
    served = serve(
        *("--fault", "status-429", "--refused-with", "Retry-After=0.3"), for_s=0.25, requests=9
    )

    assert served.counts["requests_rejected.429"] == served.counts["requests_asked_to_wait"]
    # Eight at once, eight more after 0.3 s, and no others before the end, which follows at once.
    assert 8 < served.counts["requests_submitted"] <= 16


@pytest.mark.parametrize(
    ("header", "low_s", "high_s"),
    [("7", 7, 7), ("-1", 0, 0), ("Sat, 28 Nov 2099 12:00:00 GMT", 1e9, 1e10)],
)
def test_the_time_to_wait_is_in_seconds_or_a_date(header: str, low_s: float, high_s: float) -> None:
    wait_s = asked_wait_s(header)

    assert wait_s is not None
    assert low_s <= wait_s <= high_s


@pytest.mark.parametrize("header", [None, "", "soon", "nan", "inf", "Mon, 99 Foo"])
def test_another_time_to_wait_is_ignored(header: str | None) -> None:
    assert asked_wait_s(header) is None


def test_a_client_without_open_files_left_does_not_blame_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("aiohttp.connector.aiohappyeyeballs.start_connection", refuse)
    served = serve(for_s=0.2, model="m")

    assert served.report.failure == "the load client cannot connect: Too many open files"
    assert served.counts["requests_failed.client"] > 0
    assert "requests_failed.connect" not in served.counts


def test_reports_go_on_after_one_that_finds_no_open_file(monkeypatch: pytest.MonkeyPatch) -> None:
    reports = []

    def report() -> None:
        reports.append(1)
        if len(reports) == 1:
            raise OSError(errno.EMFILE, "Too many open files")
        if len(reports) == 3:
            raise asyncio.CancelledError

    monkeypatch.setattr(load_process, "_REPORT_EVERY_S", 0.0)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(load_process._report_always(report))

    assert len(reports) == 3


def test_a_server_that_closes_its_connections_is_served_all_the_same() -> None:
    served = serve("--fault", "closes", requests=40)

    assert served.counts["finishes"] > 20
    assert served.counts["requests_failed"] == 0


def test_a_connection_is_reused_although_the_end_of_a_stream_comes_a_moment_later() -> None:
    opened = []
    closed = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
                assert length is not None
                await reader.readexactly(int(length[1]))
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n")
                writer.write(b"Transfer-Encoding: chunked\r\n\r\n")
                for event in (b'{"choices": [{"text": "a", "finish_reason": "stop"}]}', b"[DONE]"):
                    data = b"data: " + event + b"\n\n"
                    writer.write(b"%x\r\n%b\r\n" % (len(data), data))
                await asyncio.sleep(0.005)
                writer.write(b"0\r\n\r\n")
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        closed.set()

    async def run() -> LoadReport:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        profile = load_profile("chat-churn").with_overrides(
            {**QUICK, **NO_ABORTS, "arrival": "{process: closed, concurrency: 1}"}
        )
        workload = build_workload(profile.for_servers(), TEXT_WORDS, seed=3)
        interface = Interface("completions", "m", stream=True)
        client = LoadClient(workload, interface, f"http://127.0.0.1:{port}", "", lambda: None)
        client.resume()
        async with asyncio.timeout(30.0):
            while client.report().counts["finishes"] < 5:
                await asyncio.sleep(0.01)
        report = client.report()
        await client.close()
        server.close()
        await asyncio.wait_for(closed.wait(), 30.0)
        return report

    assert asyncio.run(run()).counts["requests_failed"] == 0
    assert len(opened) == 1


@pytest.mark.parametrize(
    ("user", "sent"), [("", "Bearer sk-x"), ("me:pw@", f"Basic {b64encode(b'me:pw').decode()}")]
)
def test_a_user_in_the_address_is_sent_instead_of_the_key(user: str, sent: str) -> None:
    seen = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.headers["Authorization"])
        return web.json_response({"data": [{"id": "m"}]})

    async def run() -> None:
        app = web.Application()
        app.router.add_get("/v1/models", answer)
        async with TestServer(app) as server:
            interface = Interface("completions", "", stream=True)
            workload = build_workload(load_profile("chat-churn").for_servers(), TEXT_WORDS, seed=3)
            url = f"http://{user}127.0.0.1:{server.port}"
            client = LoadClient(workload, interface, url, "sk-x", lambda: None)
            await client.learn_model()
            await client.close()

    asyncio.run(run())

    assert seen == [sent]


def test_a_refusal_is_no_failure() -> None:
    served = serve("--longest", "2000", requests=60)

    assert served.counts["requests_rejected"] == served.counts["requests_rejected.400"] > 0
    assert served.counts["requests_failed"] == 0


def test_a_server_that_is_not_there_is_not_asked_at_full_speed() -> None:
    async def run() -> LoadReport:
        profile = load_profile("chat-churn").with_overrides(QUICK).for_servers()
        workload = build_workload(profile, TEXT_WORDS, seed=3)
        interface = Interface("completions", "m", stream=True)
        url = f"http://127.0.0.1:{unused_port()}"
        client = LoadClient(workload, interface, url, "", lambda: None)
        client.resume()
        await asyncio.sleep(1.0)
        report = client.report()
        await client.close()
        return report

    report = asyncio.run(run())

    assert 8 <= report.counts["requests_failed.connect"] <= 80
    assert report.counts["finishes"] == 0


def test_a_server_that_refuses_every_request_is_not_asked_at_full_speed() -> None:
    served = serve("--fault", "status-429", for_s=1.5, requests=33)

    counts = served.counts
    assert 32 < counts["requests_rejected.429"] == counts["requests_submitted"] < 100


def test_requests_that_broke_with_the_server_are_named_by_their_kind() -> None:
    served = serve("--fault", "half")

    assert served.report.lost
    assert all(kind.startswith("prompt of ") for kind in served.report.lost)


MALFORMED = {**NO_ABORTS, "bad_input": "{malformed: 0.7, large: 0.1}"}


@pytest.mark.parametrize(
    ("api", "stream"),
    # How an answer arrives makes no difference to refusals, which one interface shows.
    [
        ("completions", True),
        pytest.param("ids", True, marks=pytest.mark.slow),
        pytest.param("ids", False, marks=pytest.mark.slow),
        pytest.param("chat", True, marks=pytest.mark.slow),
        pytest.param("responses", True, marks=pytest.mark.slow),
        ("generate", True),
    ],
)
def test_malformed_requests_are_refused_and_counted_by_what_is_wrong(
    api: Api, stream: bool
) -> None:
    served = serve(api=api, stream=stream, settings=MALFORMED, requests=250)

    counts = served.counts
    kinds = {name: n for name, n in counts.items() if name.startswith("requests_with.")}
    # Chance misses a sixth of all kinds once in a hundred thousand runs.
    assert len(kinds) > 15
    assert counts["requests_rejected"] > 0.3 * sum(kinds.values())
    assert counts["requests_failed"] == 0
    assert counts["abort_queued"] == counts["requests_with.cut_body"] > 0
    assert counts["finishes"] > 20


def test_a_kind_of_malformed_request_that_a_server_fails_at_is_named() -> None:
    served = serve("--fault", "bad-json-500", settings=MALFORMED, requests=250)

    failed = {n for n in served.counts if n.startswith("requests_failed_with.")}
    assert "requests_failed_with.bad_json" in failed
    assert failed <= {
        f"requests_failed_with.{kind}" for kind in ("bad_json", "deep_json", "bad_unicode")
    }
    assert served.counts["requests_failed.500"] == sum(served.counts[name] for name in failed)


@pytest.mark.parametrize(
    "api",
    [
        *(pytest.param(api, marks=pytest.mark.slow) for api in ("ids", "chat", "responses")),
        "completions",
        "generate",
    ],
)
def test_requests_with_options_are_answered_and_counted_by_option(api: Api) -> None:
    served = serve(
        api=api, settings={**NO_ABORTS, "options": "{share: 0.8, most: 3}"}, requests=150
    )

    counts = served.counts
    assert counts["finishes"] == counts["requests_submitted"] > 20
    marks = {n.partition(".")[2] for n in counts if n.startswith("requests_with.")}
    assert len(marks) > 10
    assert any(body["stream"] is False for body in served.server.bodies)
    # With ``n``, the first event may contain a part of each answer.
    assert served.quantile_ms(ITL, 1.0) < 10_000


def test_a_request_that_broke_with_the_server_names_its_options_without_their_values() -> None:
    options = {**NO_ABORTS, "options": "{share: 1.0, most: 2}"}
    served = serve("--fault", "half", settings=options)

    assert served.report.lost
    for kind in served.report.lost:
        assert re.fullmatch(
            r"prompt of \d+ to \d+ tokens, (sampled|greedy), with [a-z_]+(, [a-z_]+)?", kind
        )


def test_a_server_that_breaks_every_request_is_told_of_by_a_bounded_number_of_kinds() -> None:
    options = {**NO_ABORTS, "options": "{share: 1.0, most: 6}"}
    quick = {"arrival": "{process: closed, concurrency: 100}"}
    served = serve("--fault", "half", "--first-s", "0", settings={**options, **quick}, requests=150)

    lost = served.report.lost
    assert sum(lost.values()) > len(lost)
    assert len(lost) <= 65
    assert "request of another kind" in lost


SESSIONS = {
    **NO_ABORTS,
    "conversations": "{turns: [1, 3], open: 12}",
    "sessions": "{share: 0.8, think: 20ms, hold: 20ms, close_busy: 0.2, at_rest: closed}",
}


def calls_by_session(server: Server) -> list[list[str]]:
    """Return the calls for each session, in order."""
    of_each: dict[str, list[str]] = {}
    for call, session_id in server.session_calls:
        of_each.setdefault(session_id, []).append(call)
    return list(of_each.values())


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_sessions_are_opened_continued_and_closed(stream: bool) -> None:
    served = serve(api="generate", stream=stream, settings=SESSIONS, requests=120)

    counts, sessions = served.counts, calls_by_session(served.server)
    assert counts["finishes"] == counts["requests_submitted"]
    assert len(sessions) == counts["sessions_opened"] == counts["sessions_closed"] > 20
    assert "session_calls_failed" not in counts
    for calls in sessions:
        assert calls == ["open", *["turn"] * (len(calls) - 2), "close"]
        assert 1 <= len(calls) - 2 <= 3
    # The client becomes idle only after they are closed.
    assert served.server.sessions == {}


def test_turns_of_sessions_are_cut_off_and_the_session_goes_on_or_ends() -> None:
    aborts = {"aborts": "{decode: 0.2, queued: 0.1, prefill: 0.1, disconnect: 0.1}"}
    served = serve(api="generate", settings={**SESSIONS, **aborts}, requests=200)

    counts, sessions = served.counts, calls_by_session(served.server)
    assert counts["abort_decode"] > 0
    assert counts["requests_failed"] == 0
    # A turn that follows before the server has noticed the abort may be refused.
    assert counts["requests_rejected"] < 20
    assert all(calls[0] == "open" and calls.count("open") == 1 for calls in sessions)
    assert served.server.sessions == {}
    assert counts["sessions_opened"] == counts["sessions_closed"]


def test_a_server_without_sessions_refuses_the_turns_and_the_calls_are_counted() -> None:
    served = serve("--fault", "no-sessions", api="generate", settings=SESSIONS, requests=100)

    counts = served.counts
    assert counts["session_calls_failed"] > 10
    assert "sessions_opened" not in counts
    assert 0 < counts["requests_rejected"] == counts["requests_rejected.400"]


@pytest.mark.parametrize("api", ["ids", "completions"])
def test_an_interface_without_sessions_gets_plain_conversations(api: Api) -> None:
    served = serve(api=api, settings=SESSIONS, requests=60)

    assert served.server.session_calls == []
    assert served.counts["finishes"] == served.counts["requests_submitted"]


@pytest.mark.parametrize(
    ("characters", "counted"),
    [(3 << 20, "requests_rejected.400"), (9 << 20, "requests_failed.protocol")],
)
def test_an_error_that_repeats_a_large_value_is_read_up_to_a_bound(
    characters: int, counted: str
) -> None:
    served = serve("--fault", f"echoes-{characters}", requests=10)

    assert served.counts[counted] == served.counts["requests_submitted"]


def test_requests_that_fail_with_an_engine_are_named_and_not_those_that_come_after() -> None:
    options = {**NO_ABORTS, "options": "{share: 0.5, most: 2}"}
    served = serve("--fault", "engine-dies", settings=options, requests=40)

    lost = served.report.lost
    assert 1 <= sum(lost.values()) <= 8, "as many are in flight when the first one fails"
    assert served.counts["requests_failed.500"] >= 40
    # Unusual requests come first, because they may have caused the engine's death.
    unusual = [", with " in kind for kind in lost]
    assert unusual == sorted(unusual, reverse=True)


def test_a_malformed_request_that_fails_has_not_ended_the_server() -> None:
    bad = {**NO_ABORTS, "bad_input": "{malformed: 1.0}"}
    served = serve("--fault", "bad-json-500", settings=bad, requests=60)

    assert served.counts["requests_failed.500"] > 0
    assert served.report.lost == {}
