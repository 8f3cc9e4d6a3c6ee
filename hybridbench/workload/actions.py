"""Actions that a workload requests from the driver, and the feedback that it needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeAlias

from hybridbench.records.json_value import JsonValue
from hybridbench.records.messages import Request, Submit


@dataclass(frozen=True, slots=True)
class WaitUntil:
    """Nothing to do until ``due_s`` on the driver's clock; None: until the next feedback."""

    due_s: float | None


class Malformed(StrEnum):
    """The fault of a malformed request, in the order in which servers check for it."""

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
    """A request with features that only a server's interface has; it never crosses the wire.

    The workload decides the kind of request.  Its client knows the interface, and draws the values
    from ``draw``: equal numbers give equal requests.

    Args:
        malformed: its fault; None if it is valid.
        large: whether the invalid value is large.
        options: how many of the interface's options it has.
    """

    malformed: Malformed | None = None
    large: bool = False
    options: int = 0
    draw: int = 0


Action: TypeAlias = Request | WaitUntil


class Workload(Protocol):
    """Traffic as a sequence of actions; times are the driver's monotonic clock, passed in.

    The driver calls ``next_action`` until it gets a WaitUntil, executes the actions in that order,
    and reports the engine's events in their order.  Reports on requests that the workload no longer
    knows are counted and otherwise ignored.
    """

    @property
    def in_flight(self) -> int:
        """Number of requests submitted and not yet ended."""
        ...

    @property
    def failure(self) -> str:
        """Why no further request can come, in one sentence; empty while requests can come."""
        ...

    def next_action(self, now_s: float) -> Action:
        """Return what to do now."""
        ...

    def pause(self, now_s: float) -> None:
        """Submit nothing until ``resume``; the arrival clock stops."""
        ...

    def resume(self, now_s: float) -> None:
        """Continue where ``pause`` stopped; nothing becomes due for the time in between."""
        ...

    def on_admitted(self, rid: str) -> None:
        """The engine has started to compute the prompt."""
        ...

    def on_first_token(self, rid: str, now_s: float) -> None:
        """The first output token arrived."""
        ...

    def on_finished(self, rid: str, output_ids: Sequence[int], reason: str, now_s: float) -> None:
        """The request finished or was aborted, with its output so far."""
        ...

    def on_rejected(self, rid: str, reason: str) -> None:
        """The engine refused the request."""
        ...

    def prompt_of(self, rid: str) -> Sequence[int] | None:
        """Return the whole prompt of a valid request in flight, with the earlier turns of its
        session; None if it is not known.
        """
        ...

    @property
    def refusal(self) -> str:
        """Why the engine first refused a request that is valid by the profile; empty if never."""
        ...

    def counts(self) -> dict[str, int]:
        """Return what was done so far: submissions, aborts by stage, and skipped requests."""
        ...

    def describe(self) -> dict[str, JsonValue]:
        """Return plain JSON for the manifest: the kind of traffic and its parameters."""
        ...


class TimedWorkload(Workload, Protocol):
    """Traffic whose requests are due at times, not at engine steps."""

    @property
    def is_open_loop(self) -> bool:
        """Whether requests are due by a schedule, however long others take."""
        ...

    @property
    def due_s(self) -> float:
        """When the last request from ``next_action`` was due, on the driver's clock."""
        ...
