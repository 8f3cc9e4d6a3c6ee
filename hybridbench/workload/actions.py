"""What a workload asks of the driver, and what it must be told in return."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeAlias

from hybridbench.records.json_value import JsonValue
from hybridbench.records.messages import Request, Submit


@dataclass(frozen=True, slots=True)
class WaitUntil:
    """Nothing to do before ``due_s`` on the driver's clock; None: not before some feedback."""

    due_s: float | None


class Malformed(StrEnum):
    """What is wrong with a request to a server, in the order in which servers notice it."""

    UNKNOWN_METHOD = "unknown_method"
    UNKNOWN_PATH = "unknown_path"
    CONTENT_TYPE = "content_type"
    CUT_BODY = "cut_body"
    BAD_JSON = "bad_json"
    DEEP_JSON = "deep_json"
    BAD_UNICODE = "bad_unicode"
    WRONG_TYPE = "wrong_type"
    UNKNOWN_MODEL = "unknown_model"
    EMPTY_PROMPT = "empty_prompt"
    BAD_PROMPT = "bad_prompt"
    LONG_PROMPT = "long_prompt"
    LONG_OUTPUT = "long_output"
    BAD_SAMPLING = "bad_sampling"
    BAD_STOP = "bad_stop"
    BAD_N = "bad_n"
    BAD_LOGPROBS = "bad_logprobs"
    BAD_FORMAT = "bad_format"


class ServerSubmit(Submit, frozen=True, kw_only=True):
    """A request with what only the interface of a server has a word for; it is on no wire.

    The workload says what kind of request it is.  Its client knows the interface, and draws the
    values from ``draw``: equal numbers give equal requests.

    Args:
        malformed: what is wrong with it; None for nothing.
        large: whether the wrong value is large.
        options: how many options it has, of those that the interface knows.
    """

    malformed: Malformed | None = None
    large: bool = False
    options: int = 0
    draw: int = 0


Action: TypeAlias = Request | WaitUntil


class Workload(Protocol):
    """Traffic as a sequence of actions; times are the driver's monotonic clock, passed in.

    The driver calls ``next_action`` until it gets a WaitUntil, carries out what it got in that
    order, and reports what the engine says in the order it says it.  Reports on requests that the
    workload no longer knows are counted and otherwise ignored.
    """

    @property
    def in_flight(self) -> int:
        """Requests submitted and not yet ended."""
        ...

    @property
    def failure(self) -> str:
        """Why no further request can come, in one sentence; empty while requests can come."""
        ...

    def next_action(self, now_s: float) -> Action:
        """What to do now."""
        ...

    def pause(self, now_s: float) -> None:
        """Submit nothing more until ``resume``; the arrival clock stands still."""
        ...

    def resume(self, now_s: float) -> None:
        """Go on where ``pause`` stopped; nothing is due for the time between."""
        ...

    def on_admitted(self, rid: str) -> None:
        """The engine has begun to compute the prompt."""
        ...

    def on_first_token(self, rid: str, now_s: float) -> None:
        """The first output token arrived."""
        ...

    def on_finished(self, rid: str, output_ids: Sequence[int], reason: str, now_s: float) -> None:
        """The request ended: finished or aborted, with what it has put out."""
        ...

    def on_rejected(self, rid: str, reason: str) -> None:
        """The engine refused the request."""
        ...

    def counts(self) -> dict[str, int]:
        """What the workload did so far: submissions, aborts by stage, and what it had to skip."""
        ...

    def describe(self) -> dict[str, JsonValue]:
        """Plain JSON for the manifest: kind of traffic and the numbers it was made with."""
        ...


class TimedWorkload(Workload, Protocol):
    """Traffic whose requests are due at times, not at steps of an engine."""

    @property
    def due_s(self) -> float:
        """When the request that ``next_action`` gave last was due, on the driver's clock."""
        ...
