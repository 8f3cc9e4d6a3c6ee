"""Answer a generation request, whole or as an event stream, while its client is connected."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from hybridbench.records.json_value import JsonValue
from hybridbench.serve.engine_link import EngineLink, Generation
from hybridbench.serve.errors import ApiError
from hybridbench.serve.schema import Asked
from hybridbench.serve.shapes import Shape

_DONE: Final = b"data: [DONE]\n\n"


class Answer(Response):
    """Runs the generations of one request while its client is connected.

    A disconnect aborts them.  Nothing is sent before the engine has accepted or refused the
    request, so that a refusal gets its own HTTP status.
    """

    def __init__(
        self, link: EngineLink, asked: Asked, shape: Shape, on_end: Callable[[str], None]
    ) -> None:
        """``on_end`` receives each generation's outcome: stop, length, abort, refused or error."""
        self._link = link
        self._asked = asked
        self._shape = shape
        self._on_end = on_end
        self._changed = asyncio.Event()
        self._left = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request; may raise ApiError until the first byte is sent."""
        del scope
        generations = self._link.submit(self._asked, self._changed)
        watch = asyncio.ensure_future(self._watch(receive))
        try:
            if self._asked.stream:
                await self._stream(generations, send)
            else:
                await self._whole(generations, send)
        finally:
            watch.cancel()
            for generation in generations:
                self._link.drop(generation)
                self._on_end(_outcome(generation))

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._left = True
        self._changed.set()

    async def _news(self) -> bool:
        """Wait for a change; return whether the client is still connected."""
        await self._changed.wait()
        self._changed.clear()
        return not self._left

    async def _whole(self, generations: Sequence[Generation], send: Send) -> None:
        while not all(generation.is_over for generation in generations):
            if not await self._news():
                return
            _check(generations)
        _check(generations)
        body = msgspec.json.encode(self._shape.whole(generations))
        await _start(send, "application/json", (b"content-length", b"%d" % len(body)))
        await send({"type": "http.response.body", "body": body})

    async def _stream(self, generations: Sequence[Generation], send: Send) -> None:
        if not await self._news():
            return
        _check(generations)
        await _start(send, "text/event-stream; charset=utf-8")
        finished: set[int] = set()
        is_last = False
        while not is_last:
            events = list(self._events(generations, finished))
            fault = next(filter(None, map(_fault, generations)), None)
            is_last = fault is not None or len(finished) == len(generations)
            if is_last:
                last = self._shape.last(generations) if fault is None else fault.body
                events += [_DONE] if last is None else [_event(last), _DONE]
            if events:
                # This waits while the client does not read; tokens from that time form one part.
                body = b"".join(events)
                await send({"type": "http.response.body", "body": body, "more_body": not is_last})
            if not is_last and not await self._news():
                return

    def _events(self, generations: Sequence[Generation], finished: set[int]) -> Iterator[bytes]:
        """Yield the new tokens of each generation; add finished generations to ``finished``."""
        for index, generation in enumerate(generations):
            if index in finished or _fault(generation) is not None:
                continue
            tokens = generation.take()
            if generation.ended is not None:
                finished.add(index)
            if tokens.ids or index in finished:
                yield _event(self._shape.part(index, generation, tokens))


async def _start(send: Send, kind: str, *more: tuple[bytes, bytes]) -> None:
    headers = [(b"content-type", kind.encode()), (b"cache-control", b"no-store"), *more]
    await send({"type": "http.response.start", "status": 200, "headers": headers})


def _event(body: JsonValue) -> bytes:
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


def _check(generations: Sequence[Generation]) -> None:
    """Raise ApiError if a generation was refused or cannot finish."""
    for generation in generations:
        fault = _fault(generation)
        if fault is not None:
            raise fault


def _fault(generation: Generation) -> ApiError | None:
    if generation.refusal:
        return ApiError(400, f"{generation.refusal.rstrip('.')}.", code="refused_by_engine")
    if generation.failure:
        return ApiError(503, f"{generation.failure.rstrip('.')}.")
    ended = generation.ended
    if ended is not None and ended.reason not in ("stop", "length"):
        # A full queue, too little memory, or an abort of all: use the engine's message.
        return ApiError(503, f"{ended.reason.rstrip('.')}.", code="aborted_by_engine")
    return None


def _outcome(generation: Generation) -> str:
    if generation.refusal:
        return "refused"
    if generation.failure:
        return "error"
    if generation.ended is None:
        return "abort"
    return generation.ended.reason if _fault(generation) is None else "error"
