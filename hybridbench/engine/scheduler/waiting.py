"""Rules of the waiting queue: the order, its length limit, and the time-out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from hybridbench.engine.req import FinishKind, FinishReason, Req
from hybridbench.foundation.engine_config import EngineConfig

QUEUE_FULL = "the request queue is full"
DISPLACED = "the request queue is full, and a request of higher priority came"
WAITED_TOO_LONG = "the request waited too long for its admission"


class WaitingRules:
    """Answers questions about waiting requests; holds none of them and ends none."""

    def __init__(self, config: EngineConfig, now_s: Callable[[], float]) -> None:
        """``now_s`` is the engine's clock, in seconds."""
        self._max_queued = config.max_queued_requests
        self._timeout_s = config.req_waiting_timeout_s
        self._by_priority = config.enable_priority_scheduling
        self._sign = 1 if config.schedule_low_priority_values_first else -1
        self._now_s = now_s
        # No request is overdue before this, so that most steps need not search the queue.
        self._next_due_s = math.inf

    def rank(self, req: Req) -> int:
        """The rank of a request, smaller first; 0 for all without priority scheduling."""
        return self._sign * req.priority if self._by_priority else 0

    def entered(self, req: Req) -> None:
        """Note that ``req`` begins to wait: on submission, and again when it is retracted."""
        req.queued_s = self._now_s()
        if self._timeout_s is not None:
            self._next_due_s = min(self._next_due_s, req.queued_s + self._timeout_s)

    def too_many(self, newest: Req, waiting_queue: Sequence[Req]) -> Req | None:
        """The request that a full queue refuses, with its reason noted; None if there is room.

        ``newest`` is in the queue already.  It is refused itself, unless with priority scheduling a
        request of lower priority waits: then the lowest is refused, the newest among equals.
        Requests being aborted do not count.  Source: SGLang's ``_abort_on_queued_limit``; retracted
        requests may overfill our queue, since they have been served in part.  For the same reason
        none of them is refused: new requests would take the places beyond the limit, and the next
        retracts would overfill it again.
        """
        if self._max_queued is None or len(waiting_queue) <= self._max_queued:
            return None
        staying = [req for req in waiting_queue if req.to_abort is None]
        if len(staying) <= self._max_queued:
            return None
        unserved = [req for req in staying if not req.is_retracted]
        last = max(unserved, key=lambda req: (self.rank(req), req.arrival))
        refused = last if self.rank(last) > self.rank(newest) else newest
        message = QUEUE_FULL if refused is newest else DISPLACED
        refused.to_abort = FinishReason(FinishKind.ABORT, message)
        return refused

    def overdue(self, waiting_queue: Sequence[Req]) -> list[Req]:
        """Requests that have waited too long, with their reason noted.

        Costs nothing before the first can be overdue.  Time counts from submission or the
        last retract, also while the engine is paused.
        """
        if self._timeout_s is None:
            return []
        now_s = self._now_s()
        if now_s <= self._next_due_s:
            return []
        since_s = now_s - self._timeout_s
        staying = [req for req in waiting_queue if req.to_abort is None]
        late = [req for req in staying if req.queued_s < since_s]
        for req in late:
            req.to_abort = FinishReason(FinishKind.ABORT, WAITED_TOO_LONG)
        left_s = [req.queued_s for req in staying if req.to_abort is None]
        self._next_due_s = min(left_s, default=math.inf) + self._timeout_s
        return late
