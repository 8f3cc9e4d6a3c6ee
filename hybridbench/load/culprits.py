"""Find which requests end a server: resend those that were in flight when it ended.

First all are sent at once, unchanged, because each leaves its prompt in the server's cache; then
each alone, unusual ones first.  If only several together end the server, the search halves the set
as long as one half still ends it.  Whenever the server ends, the search waits for its restart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Final

from hybridbench.load.http_request import HttpRequest
from hybridbench.records.json_value import JsonValue
from hybridbench.records.load import CrashSearch, SentAgain
from hybridbench.records.messages import Submit

# Most requests kept, and most bytes of their bodies.
_KEPT_MOST: Final = 64
_KEPT_BYTES: Final = 1 << 25
# The search ends after this many seconds of sending, with what it has found by then.
_SECONDS_MOST: Final = 180.0

_Steps = Generator[Sequence["Suspect"], bool, Sequence["Suspect"]]


@dataclass(frozen=True)
class Suspect:
    """A request that the server broke.

    Args:
        kind: description of the request, in words.
        is_usual: whether the request has nothing unusual.
    """

    request: Submit
    http: HttpRequest
    kind: str
    is_usual: bool


# Sends requests at once and waits for their ends; returns whether the server ended.
Try = Callable[[Sequence[Suspect]], Awaitable[bool]]


class Culprits:
    """Owns the requests that may have ended the server, and the search among them."""

    def __init__(self) -> None:
        self._kept: list[Suspect] = []
        self._bytes = 0
        self._steps: _Steps | None = None
        self._next: Sequence[Suspect] = ()
        self._smallest: Sequence[Suspect] = ()
        self._suspects = self._sent = self._ended = 0
        self._waits = False  # for a restart of the server
        self._spent_s = 0.0

    def keep(self, suspect: Suspect) -> None:
        """Keep a request that the server broke, until ``forget``."""
        size = len(suspect.http.body)
        if len(self._kept) < _KEPT_MOST and self._bytes + size <= _KEPT_BYTES:
            self._kept.append(suspect)
            self._bytes += size

    def forget(self) -> None:
        """Drop all kept requests: an answer has shown that the server is alive."""
        self._kept.clear()
        self._bytes = 0

    async def search(self, try_: Try) -> None:
        """Search among the kept requests, or continue a waiting search."""
        if not self._waits:
            suspects = sorted(self._kept, key=lambda one: one.is_usual)
            self._suspects, self._sent, self._ended, self._spent_s = len(suspects), 0, 0, 0.0
            self._smallest = ()
            self._steps = _smallest(suspects)
            self._advance(None)
        self._waits = False
        self.forget()
        while self._steps is not None:
            trial, begun_s = self._next, _now_s()
            ended = await try_(trial)
            self._sent += 1
            self._spent_s += _now_s() - begun_s
            if ended:
                self._ended += 1
                self._smallest = trial
            self._advance(ended)
            if self._spent_s > _SECONDS_MOST:
                self._steps = None
            if ended:
                self._waits = True
                return

    def so_far(self) -> CrashSearch:
        """Return the findings so far."""
        return CrashSearch(
            suspects=self._suspects,
            sent=self._sent,
            ended=self._ended,
            smallest=tuple(_shown(one) for one in self._smallest),
            waits=self._waits,
            over=self._steps is None,
        )

    def _advance(self, ended: bool | None) -> None:
        assert self._steps is not None, "a search is under way"
        try:
            self._next = next(self._steps) if ended is None else self._steps.send(ended)
        except StopIteration:
            self._steps = None


def _smallest(suspects: Sequence[Suspect]) -> _Steps:
    """Yield what to send next; receive whether the server ended after it."""
    together = len(suspects) > 1 and (yield suspects)
    for one in suspects:
        if (yield [one]):
            return [one]
    left = suspects if together else []
    while len(left) > 2:
        middle = len(left) // 2
        if (yield left[:middle]):
            left = left[:middle]
        elif (yield left[middle:]):
            left = left[middle:]
        else:
            break
    return left


def _shown(suspect: Suspect) -> SentAgain:
    http = suspect.http
    body: JsonValue = _without_texts(http.fields)
    if http.raw is not None:
        body = f"<{len(http.raw):,} bytes>"
    return SentAgain(
        kind=suspect.kind,
        method=http.method,
        path=http.path,
        content_type=http.content_type,
        body=body,
        is_cut_off=http.is_cut_off,
    )


def _without_texts(value: JsonValue) -> JsonValue:
    """Replace each text, and each list that is not of objects, with its length."""
    if isinstance(value, str):
        return f"<{len(value):,} characters>"
    if isinstance(value, list):
        if value and all(isinstance(one, dict) for one in value):
            return [_without_texts(one) for one in value]
        return f"<{len(value):,} values>"
    if isinstance(value, dict):
        return {name: _without_texts(one) for name, one in value.items()}
    return value


def _now_s() -> float:
    return asyncio.get_running_loop().time()
