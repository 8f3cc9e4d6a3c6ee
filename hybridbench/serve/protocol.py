"""HTTP/1.1 on one connection: uvicorn's protocol with limits on the client's time.

uvicorn itself waits forever for the rest of a request, and for a client that does not read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import ClassVar, Final

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from hybridbench.serve.errors import ApiError
from hybridbench.serve.limits import Limits

_REASONS: Final = {
    400: b"Bad Request",
    408: b"Request Timeout",
    503: b"Service Unavailable",
}


_LINGER_S: Final = 1.0


class BoundedProtocol(H11Protocol):
    """One connection; see ``with_limits``."""

    limits: ClassVar[Limits]
    _reading: asyncio.TimerHandle | None = None
    _writing: asyncio.TimerHandle | None = None
    _refused: bool = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            self._refuse(ApiError(503, "too many connections are open; try again later."))
            return
        self._reading = self.loop.call_later(self.limits.read_s, self._too_slow)

    def data_received(self, data: bytes) -> None:
        if self._refused or self.transport.is_closing():
            return
        if self._reading is None and self._awaits_request():
            self._reading = self.loop.call_later(self.limits.read_s, self._too_slow)
        super().data_received(data)
        if not self._awaits_request():
            self._stop_reading_timer()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._writing = self.loop.call_later(self.limits.write_s, self.transport.abort)

    def resume_writing(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_reading_timer()
        # uvicorn keeps this timer, and with it the whole connection, if the client has reset it.
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        del msg
        self._refuse(ApiError(400, "not a valid HTTP/1.1 request."))

    @property
    def _under_way(self) -> RequestResponseCycle | None:
        """The request whose response is incomplete; None without one."""
        cycle: RequestResponseCycle | None = self.cycle
        return None if cycle is None or cycle.response_complete else cycle

    def _count(self, status: int) -> None:
        """Count a response that this file wrote."""

    def _awaits_request(self) -> bool:
        """Whether there is no request yet, or part of its body is missing."""
        cycle = self._under_way
        return cycle is None or cycle.more_body

    def _stop_reading_timer(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _too_slow(self) -> None:
        self._reading = None
        if self._under_way is None and not self.conn.trailing_data[0]:
            # No request: a response might be taken for the answer to a request just being sent.
            self.transport.close()
        else:
            said = f"the request did not arrive completely within {self.limits.read_s:g} s."
            self._refuse(ApiError(408, said))

    def _refuse(self, error: ApiError) -> None:
        """Answer and close, bypassing h11, which may be in any state.

        Keep reading for a moment: a reset while the client sends would lose the answer.
        """
        cycle = self._under_way
        if self.transport.is_closing() or (cycle is not None and cycle.response_started):
            self.transport.close()
            return
        self._refused = True
        self._count(error.status)
        self._stop_reading_timer()
        if cycle is not None:
            cycle.disconnected = True
            cycle.message_event.set()
        self.transport.write(_raw_answer(error))
        # A client that has reset the connection is not connected any more.
        with suppress(OSError):
            self.transport.write_eof()
        self.flow.resume_reading()
        self.loop.call_later(_LINGER_S, self.transport.abort)


def with_limits(limits: Limits, on_refused: Callable[[int], None]) -> type[BoundedProtocol]:
    """The protocol with ``limits``; ``on_refused`` receives the status of each refusal."""

    class LimitedProtocol(BoundedProtocol):
        def _count(self, status: int) -> None:
            on_refused(status)

    LimitedProtocol.limits = limits
    return LimitedProtocol


def _raw_answer(error: ApiError) -> bytes:
    body = error.body_bytes
    lines = (
        b"HTTP/1.1 %d %s" % (error.status, _REASONS[error.status]),
        b"content-type: application/json",
        b"content-length: %d" % len(body),
        b"connection: close",
    )
    return b"\r\n".join(lines) + b"\r\n\r\n" + body
