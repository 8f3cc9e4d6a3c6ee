"""Open and close a server's sessions, in the order that the workload requests."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final

import aiohttp

from hybridbench.load.flight import TRIES
from hybridbench.load.http_request import HttpRequest

_OK: Final = 200


class SessionCalls:
    """Owns the unanswered calls: the last one of each session.

    Args:
        base: address of the server.
        counts: receives the numbers of opened and closed sessions and of failed calls.
        on_end: called when the last call of a session has ended.
    """

    def __init__(
        self,
        connection: aiohttp.ClientSession,
        base: str,
        counts: Counter[str],
        on_end: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._base = base
        self._counts = counts
        self._on_end = on_end
        self._last: dict[str, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        return len(self._last)

    def under_way(self, session_id: str) -> asyncio.Task[None] | None:
        """Return the call that a turn of this session must wait for."""
        return self._last.get(session_id)

    def call(self, session_id: str, put: HttpRequest, counted: str) -> None:
        """Open or close a session, after any unanswered call for it.

        ``counted`` is the count to increase if the server accepts the call.
        """
        before = self._last.get(session_id)
        task = asyncio.get_running_loop().create_task(self._call(before, put, counted))
        self._last[session_id] = task

        def done(_: asyncio.Task[None]) -> None:
            if self._last.get(session_id) is task:
                del self._last[session_id]
                self._on_end()

        task.add_done_callback(done)

    def cancel(self) -> list[asyncio.Task[None]]:
        """Cancel all calls; return those that have not ended yet."""
        calls = list(self._last.values())
        for call in calls:
            call.cancel()
        return calls

    async def _call(
        self, before: asyncio.Task[None] | None, put: HttpRequest, counted: str
    ) -> None:
        if before is not None:
            await asyncio.wait([before])
        url, headers = f"{self._base}{put.path}", {"Content-Type": put.content_type}
        status = 0
        for _ in range(TRIES):
            try:
                async with self._connection.post(url, data=put.body, headers=headers) as response:
                    await response.read()
                    status = response.status
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
                continue
            except (aiohttp.ClientError, TimeoutError):
                pass
            break
        self._counts[counted if status == _OK else "session_calls_failed"] += 1
