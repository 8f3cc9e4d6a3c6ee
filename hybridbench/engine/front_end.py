"""The engine's record of its clients: one entry per live request, removed however it ends."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from hybridbench.engine.events import EngineEvent, EventKind
from hybridbench.engine.req import Req
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.foundation.errors import UsageError


class DuplicateRequestError(UsageError):
    """A request id is in use by a request that has not ended."""


@dataclass(slots=True)
class ReqState:
    """A client's entry and its token times, in seconds of the engine's clock.

    ``req`` is None until the request has passed validation.
    """

    submitted_s: float
    req: Req | None = None
    was_admitted: bool = False
    first_token_s: float | None = None
    last_token_s: float = 0.0
    itl_s: list[float] = field(default_factory=list)


class FrontEnd:
    """A table from request id to ReqState; it also builds the events for clients."""

    def __init__(self, vocab_size: int, max_request_len: int) -> None:
        """``max_request_len`` is the longest prompt plus output, in tokens, that can be served."""
        self._vocab_size = vocab_size
        self._max_request_len = max_request_len
        self._states: dict[str, ReqState] = {}

    def __len__(self) -> int:
        return len(self._states)

    def knows(self, rid: str) -> bool:
        """Whether ``rid`` has an entry."""
        return rid in self._states

    def rids(self) -> list[str]:
        """The requests that have an entry, in the order of their submission."""
        return list(self._states)

    def refuse_duplicate(self, rid: str) -> None:
        """Raise DuplicateRequestError if ``rid`` belongs to a live request."""
        if rid in self._states:
            raise DuplicateRequestError(
                f"request id {rid!r} belongs to a request that has not ended; "
                "choose another id or abort that request first."
            )

    def fault_of(self, prompt: list[int], params: SamplingParams) -> str:
        """Why a request cannot be served, as one sentence; empty if it can."""
        if not prompt:
            return "the prompt is empty; give at least one token"
        if min(prompt) < 0 or max(prompt) >= self._vocab_size:
            return f"the prompt has a token outside 0 to {self._vocab_size - 1}"
        longest = self._max_request_len
        if len(prompt) + params.max_new_tokens > longest:
            return (
                f"{len(prompt)} prompt tokens and max_new_tokens {params.max_new_tokens} are more "
                f"than the {longest} that this engine can hold; shorten one of them"
            )
        return ""

    def open(self, rid: str, now_s: float) -> None:
        """Add an entry for a client, before its request is validated.

        Source: SGLang's tokenizer manager, which adds its entry at the same point.
        """
        self._states[rid] = ReqState(submitted_s=now_s)

    def accept(self, req: Req) -> None:
        """Attach the request, now valid and about to be queued, to its open entry."""
        self._states[req.rid].req = req

    def forget_unserved(self, rid: str) -> None:
        """Drop the entry of a request that was rejected, or aborted before its admission.

        The model never runs for it, so no step's output would ever drop the entry.
        """
        del self._states[rid]

    def awaits(self, req: Req) -> bool:
        """Whether a client is still waiting for exactly this request."""
        return self._state_of(req) is not None

    def requests(self) -> list[Req]:
        """The requests that clients wait for."""
        return [state.req for state in self._states.values() if state.req is not None]

    def find(self, rid: str) -> Req | None:
        """The live request called ``rid``."""
        state = self._states.get(rid)
        return None if state is None else state.req

    def drop(self, rid: str) -> Req | None:
        """Forget a client that left; return the request it was waiting for."""
        state = self._states.pop(rid, None)
        return None if state is None else state.req

    def admitted(self, req: Req) -> list[EngineEvent]:
        state = self._state_of(req)
        if state is None:
            return []
        state.was_admitted = True
        return [
            EngineEvent(
                EventKind.ADMITTED,
                req.rid,
                prompt_tokens=len(req.origin_input_ids),
                cached_tokens=req.cached_tokens,
            )
        ]

    def produced(self, reqs: Iterable[Req], now_s: float) -> list[EngineEvent]:
        """Record one more token for each of ``reqs``; return an event for each first token."""
        events = []
        for req in reqs:
            req.last_heard_s = now_s
            # ``_state_of`` inlined: this runs for every token.
            state = self._states.get(req.rid)
            if state is None or state.req is not req:
                continue
            if state.first_token_s is None:
                state.first_token_s = now_s
                ttft_s = now_s - state.submitted_s
                events.append(EngineEvent(EventKind.FIRST_TOKEN, req.rid, ttft_s=ttft_s))
            else:
                state.itl_s.append(now_s - state.last_token_s)
            state.last_token_s = now_s
        return events

    def ended(self, req: Req, kind: EventKind) -> list[EngineEvent]:
        """Drop the entry of ``req``, which has ended; return its client's last event, if any."""
        state = self._state_of(req)
        if state is None:
            return []
        if state.was_admitted:
            del self._states[req.rid]
        else:
            self.forget_unserved(req.rid)
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
                logprobs=tuple(req.logprobs or ()),
                req=req if kind is EventKind.FINISHED else None,
            )
        ]

    def _state_of(self, req: Req) -> ReqState | None:
        """The entry of exactly this request: after its client left, the id may be in use again."""
        state = self._states.get(req.rid)
        return state if state is not None and state.req is req else None


def _since(then_s: float | None, start_s: float) -> float | None:
    return None if then_s is None else then_s - start_s
