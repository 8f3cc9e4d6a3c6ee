"""A request in progress over HTTP: its state, its kind, and its connection."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from enum import StrEnum
from types import SimpleNamespace
from typing import Final

import aiohttp

from hybridbench.load.http_request import HttpRequest
from hybridbench.load.interfaces import Answer
from hybridbench.records.messages import Submit
from hybridbench.workload.actions import ServerSubmit

_CONNECT_S: Final = 10.0
# An answer that stays silent for this long has failed.
SILENT_S: Final = 120.0
# Wait after half of a body was sent, before the connection is closed.
_HALF_SENT_S: Final = 0.2
# A server that has closed a connection does not see later requests on it, so they are retried.
TRIES: Final = 3
# An error line may contain a large value from its request, more than once.
LINE_BYTES: Final = 1 << 23


class End(StrEnum):
    """How a request ended."""

    FINISHED = "finished"
    REJECTED = "rejected"
    FAILED = "failed"
    CUT = "cut"


@dataclass(frozen=True)
class Kind:
    """A kind of request, in words; ``is_usual`` if it has nothing unusual."""

    words: str
    is_usual: bool = True


@dataclass
class Flight:
    """A request in progress.

    Args:
        again: whether it is a request of our own, which is not part of the workload.
        session_call: the call that it waits for.
        reused: whether its connection has served another request.
        sent: whether it was sent completely.
        begun: whether the server has begun to answer.
        wait_s: how long the server asks its clients to wait; None if it does not.
        cut: whether it is cut off, or will be once the server has it.
        beside: unusual properties of the requests that were in flight at the same time.
    """

    request: Submit
    http: HttpRequest
    due_s: float
    task: asyncio.Task[None] | None = None
    again: bool = False
    end: End | None = None
    session_call: asyncio.Task[None] | None = None
    reused: bool = False
    sent: bool = False
    begun: bool = False
    wait_s: float | None = None
    cut: bool = False
    beside: set[str] = field(default_factory=set)
    answer: Answer = field(default_factory=Answer)

    @property
    def is_malformed(self) -> bool:
        """Whether the request is malformed."""
        return isinstance(self.request, ServerSubmit) and self.request.malformed is not None

    @property
    def kind(self) -> Kind:
        """Describe the request, without any of its text."""
        length = max(1, len(self.request.input_ids))
        low = 1 << (length.bit_length() - 1)
        how = "sampled" if self.request.sampling.temperature else "greedy"
        marks = ", ".join(self.http.marks)
        if isinstance(self.request, ServerSubmit) and self.request.malformed is not None:
            how = f"malformed ({marks}{', large' if self.request.large else ''})"
        elif marks:
            how = f"{how}, with {marks}"
        return Kind(f"prompt of {low} to {2 * low - 1} tokens, {how}", is_usual=not marks)


def suspects_first(lost: Mapping[Kind, int]) -> dict[str, int]:
    """Count by kind, unusual kinds first, since a server survives the usual ones."""
    kinds = sorted(lost.items(), key=lambda kind: (kind[0].is_usual, -kind[1], kind[0].words))
    return {kind.words: count for kind, count in kinds}


def abort_stage(flight: Flight) -> str:
    """Return the stage of a request when it was cut off, as far as its client knows."""
    if flight.answer.chunks:
        return "abort_decode"
    return "abort_prefill" if flight.begun else "abort_queued"


def asked_wait_s(header: str | None) -> float | None:
    """Read a ``Retry-After`` header, in seconds or as a date; None if it has neither."""
    try:
        seconds = float(header or "")
    except ValueError:
        pass
    else:
        return max(0.0, seconds) if math.isfinite(seconds) else None
    try:
        return max(0.0, parsedate_to_datetime(header or "").timestamp() - time.time())
    except (ValueError, OverflowError):
        return None


async def first_half(flight: Flight, body: bytes) -> AsyncIterator[bytes]:
    """Yield half of ``body``; close the connection while the server waits for the rest."""
    yield body[: len(body) // 2]
    await asyncio.sleep(_HALF_SENT_S)
    flight.cut = True
    if flight.task is not None:
        flight.task.cancel()
    await asyncio.sleep(SILENT_S)


def connection(key: str) -> aiohttp.ClientSession:
    """Create a session that sends ``key`` as a bearer token and records each request's progress."""
    traces = aiohttp.TraceConfig()
    traces.on_connection_reuseconn.append(_reused)
    traces.on_request_chunk_sent.append(_sent)
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(sock_connect=_CONNECT_S, sock_read=SILENT_S, total=None),
        headers={"Authorization": f"Bearer {key}"} if key else None,
        read_bufsize=LINE_BYTES // 2,
        trace_configs=[traces],
        # The server is near, and a proxy from the environment may not reach it.
        trust_env=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=True,
    )


async def _reused(_: object, context: SimpleNamespace, __: object) -> None:
    flight: Flight | None = context.trace_request_ctx
    if flight is not None:
        flight.reused = True


async def _sent(_: object, context: SimpleNamespace, __: object) -> None:
    flight: Flight | None = context.trace_request_ctx
    if flight is None:
        return
    flight.sent = True
    if flight.cut and flight.task is not None:
        flight.task.cancel()
