"""What a workload asks of the driver, and what it must be told in return."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, TypedDict

PauseMode: TypeAlias = Literal["abort", "retract", "in_place"]


class SamplingValues(TypedDict):
    """How one request chooses its tokens; ``top_k`` -1 and ``top_p`` 1.0 consider all tokens.

    The keys are those of the engine's SamplingParams.  ``ignore_eos`` holds exactly where there are
    no ``stop_token_ids``.
    """

    max_new_tokens: int
    temperature: float
    top_k: int
    top_p: float
    seed: int
    ignore_eos: bool
    stop_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Submit:
    """Send a request.  ``input_ids`` belongs to the workload: read it, do not change it.

    ``priority`` None leaves that to the engine.
    With ``payload_bytes`` it brings a payload of that size, made from ``payload_seed`` alone.  With
    a ``session_id`` it is that session's next turn, and ``input_ids`` are only what is new.
    """

    rid: str
    input_ids: list[int]
    sampling: SamplingValues
    truncate: bool = False
    payload_bytes: int = 0
    payload_seed: int = 0
    session_id: str = ""
    priority: int | None = None


@dataclass(frozen=True, slots=True)
class OpenSession:
    """Open a session; it ends itself after ``timeout_s`` without a turn, None never."""

    session_id: str
    timeout_s: float | None


@dataclass(frozen=True, slots=True)
class CloseSession:
    """Close a session, after the turn under way if there is one."""

    session_id: str


@dataclass(frozen=True, slots=True)
class Abort:
    """Ask the engine to end a request; its end is still to be reported."""

    rid: str


@dataclass(frozen=True, slots=True)
class Disconnect:
    """The client is gone without a word; the workload has forgotten the request already."""

    rid: str


@dataclass(frozen=True, slots=True)
class AbortAll:
    """Ask the engine to end every request; the end of each is still to be reported."""


@dataclass(frozen=True, slots=True)
class PauseGeneration:
    """Let the engine run nothing; ``mode`` is what becomes of the requests that it has."""

    mode: PauseMode


@dataclass(frozen=True, slots=True)
class ContinueGeneration:
    """Let the engine go on; harmless if it is not paused."""


@dataclass(frozen=True, slots=True)
class WaitUntil:
    """Nothing to do before ``due_s`` on the driver's clock; None: not before some feedback."""

    due_s: float | None


Request: TypeAlias = (
    Submit
    | OpenSession
    | CloseSession
    | Abort
    | Disconnect
    | AbortAll
    | PauseGeneration
    | ContinueGeneration
)
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

    def describe(self) -> dict[str, object]:
        """Plain JSON for the manifest: kind of traffic and the numbers it was made with."""
        ...
