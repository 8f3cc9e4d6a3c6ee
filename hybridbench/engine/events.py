"""Events about requests that a step returns; rare enough for one small record each."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from hybridbench.engine.next_token import TokenLogprobs
from hybridbench.engine.req import Req


class EventKind(StrEnum):
    """What happened to a request."""

    ADMITTED = "admitted"
    FIRST_TOKEN = "first_token"  # noqa: S105 - a text token, not a password
    FINISHED = "finished"
    ABORTED = "aborted"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class EngineEvent:
    """An event of request ``rid``.

    ``reason`` is "length" or "stop" for a finish, one sentence for an abort or a rejection.
    ``logprobs`` are those of ``output_ids``, if the request asked for them.  ``itl_s`` holds the
    gaps between consecutive tokens, one fewer than ``output_ids``.  A retracted request is admitted
    again without a second event, and its pause shows as one long gap.  For a finish, ``req`` is
    the request, which no longer holds anything.
    """

    kind: EventKind
    rid: str
    reason: str = ""
    output_ids: tuple[int, ...] = ()
    ttft_s: float | None = None
    itl_s: tuple[float, ...] = ()
    prompt_tokens: int = 0
    cached_tokens: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()
    req: Req | None = field(default=None, repr=False, compare=False)

    @property
    def ends_request(self) -> bool:
        """Whether this is the last event of its request."""
        return self.kind in _LAST_KINDS


_LAST_KINDS = frozenset({EventKind.FINISHED, EventKind.ABORTED, EventKind.REJECTED})
