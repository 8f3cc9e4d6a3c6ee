"""Limits on connections, over real sockets, around an application without an engine."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from hybridbench.serve.admin import check_client
from hybridbench.serve.errors import ApiError
from hybridbench.serve.limits import Limits, check_origin, is_loopback, read_body
from hybridbench.serve.protocol import with_limits

LIMITS = Limits(body_bytes=1000, read_s=0.2, write_s=0.2)
PATIENCE_S = 60.0
ANSWER_BYTES = 16 * 2**20


class Program:
    """Reads a body, or sends more than buffers hold; records how its requests ended."""

    def __init__(self) -> None:
        self.left = asyncio.Event()
        self.refused: list[int] = []
        self.received: list[int] = []

    async def read(self, request: Request) -> Response:
        try:
            self.received.append(len(await read_body(request, LIMITS)))
        except ApiError as error:
            return Response(error.body_bytes, error.status)
        return Response("read")

    async def send_much(self, request: Request) -> Response:
        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for _ in range(ANSWER_BYTES // 2**16):
                part = {"type": "http.response.body", "body": bytes(2**16), "more_body": True}
                await send(part)
            while (await receive())["type"] != "http.disconnect":
                pass
            self.left.set()

        return answer  # type: ignore[return-value]


def around(test: Callable[[Program, int], Awaitable[None]], limits: Limits = LIMITS) -> None:
    """Run ``test`` with a program and the port that serves it."""

    async def run() -> None:
        program = Program()
        app = Starlette(
            routes=[
                Route("/read", program.read, methods=["POST"]),
                Route("/much", program.send_much),
            ]
        )
        with socket.create_server(("127.0.0.1", 0)) as listening:
            server = uvicorn.Server(
                uvicorn.Config(
                    app,
                    http=with_limits(limits, program.refused.append),
                    ws="none",
                    lifespan="off",
                    log_config=None,
                    log_level="critical",
                )
            )
            serving = asyncio.create_task(server._serve([listening]))
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await test(program, listening.getsockname()[1])
            finally:
                server.should_exit = server.force_exit = True
                await serving

    asyncio.run(run())


async def talk(port: int, sent: bytes) -> bytes:
    """Send ``sent``; return what comes back until the connection ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(sent)
        return await reader.read()
    finally:
        writer.close()


def error_in(answer: bytes) -> Any:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"connection: close" in head.lower()
    return json.loads(body)["error"]


def post(length: int, *more: bytes) -> bytes:
    lines = (b"POST /read HTTP/1.1", b"Host: localhost", b"Content-Length: %d" % length, *more)
    return b"\r\n".join(lines) + b"\r\n\r\n"


@pytest.mark.parametrize(
    "sent", [b"P", b"POST /read HTT", post(500), post(500) + b"a", post(1, b"Connection: close")]
)
def test_half_a_request_is_answered_408_in_time(sent: bytes) -> None:
    async def test(program: Program, port: int) -> None:
        answer = await talk(port, sent)

        assert answer.startswith(b"HTTP/1.1 408 ")
        assert error_in(answer)["code"] == "request_timeout"
        assert (program.refused, program.received) == ([408], [])

    around(test)


def test_a_connection_that_asks_nothing_is_closed_without_a_word() -> None:
    async def test(program: Program, port: int) -> None:
        assert await talk(port, b"") == b""
        assert program.refused == []

    around(test)


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        post(-1),
        b"GET / HTTP/1.1\r\n" + b"X: aaaaaaaaaa\r\n" * 100_000,
    ],
)
def test_what_is_no_request_is_answered_400(sent: bytes) -> None:
    async def test(program: Program, port: int) -> None:
        answer = await talk(port, sent + b"\r\n\r\n")

        assert answer.startswith(b"HTTP/1.1 400 ")
        assert error_in(answer)["type"] == "invalid_request_error"
        assert program.refused == [400]

    around(test)


@pytest.mark.parametrize("length", [1000, 1001, 300_000])
def test_a_client_that_sends_all_of_too_much_sees_413(length: int) -> None:
    async def test(program: Program, port: int) -> None:
        answer = await talk(port, post(length, b"Connection: close") + b"a" * length)

        assert answer.startswith(b"HTTP/1.1 200 " if length <= 1000 else b"HTTP/1.1 413 ")
        assert program.received == ([length] if length <= 1000 else [])

    around(test, replace(LIMITS, read_s=PATIENCE_S))


def test_a_client_that_asks_first_is_refused_before_it_sends() -> None:
    async def test(program: Program, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(post(10**12, b"Expect: 100-continue"))

        assert (await reader.readline()).startswith(b"HTTP/1.1 413 ")
        writer.close()

    around(test)


def test_a_client_that_does_not_read_is_disconnected() -> None:
    async def test(program: Program, port: int) -> None:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", port))
            client.sendall(b"GET /much HTTP/1.1\r\nHost: localhost\r\n\r\n")

            await program.left.wait()

    around(test)


def test_a_client_that_reads_gets_all_of_a_long_answer() -> None:
    async def test(program: Program, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /much HTTP/1.0\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")

        assert len(await reader.readexactly(ANSWER_BYTES)) == ANSWER_BYTES
        writer.close()
        await program.left.wait()

    around(test)


def test_connections_beyond_the_limit_are_answered_503() -> None:
    async def test(program: Program, port: int) -> None:
        first = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]

        answer = await talk(port, post(1) + b"a")
        for _, writer in first:
            writer.write(post(1, b"Connection: close") + b"a")
        answers = [await reader.read() for reader, _ in first]
        for _, writer in first:
            writer.close()

        assert answer.startswith(b"HTTP/1.1 503 ")
        assert error_in(answer)["type"] == "server_error"
        assert all(one.startswith(b"HTTP/1.1 200 ") for one in answers)
        assert (await talk(port, post(1, b"Connection: close") + b"a")).startswith(b"HTTP/1.1 200 ")

    around(test, replace(LIMITS, connections=2, read_s=PATIENCE_S))


def test_a_client_that_is_gone_when_it_is_refused_causes_no_error() -> None:
    async def test(program: Program, port: int) -> None:
        errors: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, error: errors.append(error))
        for _ in range(3):
            # It leaves before the server accepts it, and answers the refusal with a reset.
            socket.create_connection(("127.0.0.1", port)).close()
        while len(program.refused) < 3:
            await asyncio.sleep(0.01)

        assert program.refused == [503] * 3
        assert errors == []

    around(test, replace(LIMITS, connections=0))


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("[::1]", True),
        ("::ffff:127.0.0.1", True),
        ("::ffff:10.0.0.1", False),
        ("LOCALHOST", True),
        ("0.0.0.0", False),
        ("10.0.0.1", False),
        ("localhost.example.com", False),
        ("127.0.0.1.example.com", False),
        ("", False),
    ],
)
def test_which_hosts_are_this_machine(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({"host": "localhost:8000"}, True),
        ({"host": "[::1]:8000", "origin": "http://[::1]:3000"}, True),
        ({"host": "127.0.0.1", "origin": "http://localhost:3000"}, True),
        ({}, True),
        ({"host": "rebound.example.com"}, False),
        ({"host": ""}, False),
        ({"host": "["}, False),
        ({"host": "[::1"}, True),
        ({"host": "localhost:port"}, True),
        ({"host": "localhost", "origin": "https://example.com"}, False),
        ({"host": "localhost", "origin": "null"}, False),
        ({"host": "localhost", "origin": "http://localhost.example.com"}, False),
    ],
)
def test_pages_of_other_hosts_are_refused(headers: dict[str, str], allowed: bool) -> None:
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    request = Request({"type": "http", "headers": raw, "path": "/", "query_string": b""})

    if allowed:
        check_origin(request)
        return
    with pytest.raises(ApiError) as caught:
        check_origin(request)
    assert caught.value.status == 403


@pytest.mark.parametrize(
    ("client", "allowed"),
    [("127.0.0.1", True), ("::1", True), ("10.0.0.7", False), (None, False)],
)
def test_admin_addresses_answer_this_machine_alone(client: str | None, allowed: bool) -> None:
    headers = [(b"host", b"127.0.0.1")]
    request = Request({"type": "http", "headers": headers, "path": "/", "query_string": b"",
                       "client": None if client is None else (client, 4000)})  # fmt: skip

    if allowed:
        check_client(request)
        return
    with pytest.raises(ApiError) as caught:
        check_client(request)
    assert caught.value.status == 403
