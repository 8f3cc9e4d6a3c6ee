"""What the engine knows of its clients: one entry per live request, gone on every way out."""

from __future__ import annotations

from dataclasses import dataclass, field

from hybridbench.engine.events import EngineEvent, EventKind
from hybridbench.engine.req import Req
from hybridbench.errors import UsageError


class DuplicateRequestError(UsageError):
    """A request id is in use by a request that has not ended."""


@dataclass(slots=True)
class ReqState:
    """A live request and its token times, in seconds of the engine's clock."""

    req: Req
    submitted_s: float
    first_token_s: float | None = None
    last_token_s: float = 0.0
    itl_s: list[float] = field(default_factory=list)


class FrontEnd:
    """The table rid -> ReqState, and the events that tell a client what became of its request."""

    def __init__(self) -> None:
        self._states: dict[str, ReqState] = {}

    def __len__(self) -> int:
        return len(self._states)

    def refuse_duplicate(self, rid: str) -> None:
        """Raises DuplicateRequestError if ``rid`` belongs to a live request."""
        if rid in self._states:
            raise DuplicateRequestError(
                f"request id {rid!r} belongs to a request that has not ended; "
                "choose another id or abort that request first."
            )

    def open(self, req: Req, now_s: float) -> None:
        """A client waits for ``req``."""
        self._states[req.rid] = ReqState(req, submitted_s=now_s)

    def find(self, rid: str) -> Req | None:
        """The live request called ``rid``."""
        state = self._states.get(rid)
        return None if state is None else state.req

    def drop(self, rid: str) -> Req | None:
        """The client has left: forget it, and say which request it had waited for."""
        state = self._states.pop(rid, None)
        return None if state is None else state.req

    def admitted(self, req: Req) -> list[EngineEvent]:
        if self._state_of(req) is None:
            return []
        return [
            EngineEvent(
                EventKind.ADMITTED,
                req.rid,
                prompt_tokens=len(req.origin_input_ids),
                cached_tokens=req.cached_tokens,
            )
        ]

    def produced(self, req: Req, now_s: float) -> list[EngineEvent]:
        """``req`` has one more token: an event for the first, a gap for the others."""
        state = self._state_of(req)
        if state is None:
            return []
        if state.first_token_s is not None:
            state.itl_s.append(now_s - state.last_token_s)
            state.last_token_s = now_s
            return []
        state.first_token_s = state.last_token_s = now_s
        return [EngineEvent(EventKind.FIRST_TOKEN, req.rid, ttft_s=now_s - state.submitted_s)]

    def ended(self, req: Req, kind: EventKind) -> list[EngineEvent]:
        """``req`` is over: its entry goes, and its client, if still there, hears why."""
        state = self._state_of(req)
        if state is None:
            return []
        del self._states[req.rid]
        reason = req.finished_reason
        assert reason is not None
        return [
            EngineEvent(
                kind,
                req.rid,
                reason=reason.message if kind is EventKind.ABORTED else reason.kind.value,
                output_ids=tuple(req.output_ids),
                ttft_s=_since(state.first_token_s, state.submitted_s),
                itl_s=tuple(state.itl_s),
                prompt_tokens=len(req.origin_input_ids),
                cached_tokens=req.cached_tokens,
            )
        ]

    def _state_of(self, req: Req) -> ReqState | None:
        """The entry of this very request: a client may leave and its id be used anew."""
        state = self._states.get(req.rid)
        return state if state is not None and state.req is req else None


def _since(then_s: float | None, start_s: float) -> float | None:
    return None if then_s is None else then_s - start_s
