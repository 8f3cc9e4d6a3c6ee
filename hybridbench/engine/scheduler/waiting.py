"""Rules of the waiting queue: its order, length limit and time-out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from hybridbench.engine.req import FinishKind, FinishReason, Req
from hybridbench.foundation.engine_config import EngineConfig

QUEUE_FULL = "the request queue is full"
DISPLACED = "the request queue is full, and a request of higher priority arrived"
WAITED_TOO_LONG = "the request waited too long for its admission"


class WaitingRules:
    """Applies the rules to waiting requests; holds none of them and ends none."""

    def __init__(self, config: EngineConfig, now_s: Callable[[], float]) -> None:
        """Use ``now_s`` as the engine's clock, in seconds."""
        self._max_queued = config.max_queued_requests
        self._timeout_s = config.req_waiting_timeout_s
        self._by_priority = config.enable_priority_scheduling
        self._sign = 1 if config.schedule_low_priority_values_first else -1
        self._now_s = now_s
        # No request is overdue before this, so most steps need not search the queue.
        self._next_due_s = math.inf

    def rank(self, req: Req) -> int:
        """Return a request's rank, smaller first; always 0 without priority scheduling."""
        return self._sign * req.priority if self._by_priority else 0

    def entered(self, req: Req) -> None:
        """Record that ``req`` begins to wait, on submission or after a retract."""
        req.queued_s = self._now_s()
        if self._timeout_s is not None:
            self._next_due_s = min(self._next_due_s, req.queued_s + self._timeout_s)

    def too_many(self, newest: Req, waiting_queue: Sequence[Req]) -> Req | None:
        """Return the request that a full queue refuses, its reason set; None if there is room.

        ``newest`` is already in the queue.  It is refused, unless priority scheduling is on and a
        request of lower priority waits; then the lowest is refused, the newest among equals.
        Requests being aborted do not count.

        Retracted requests may exceed the limit and are never refused, because they have been served
        in part.  Refusing them would let new requests take the places beyond the limit, and the
        next retracts would exceed it again.  Source: SGLang's ``_abort_on_queued_limit``.
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
        """Return the requests that have waited too long, their reasons set.

        The queue is searched only once a request can be overdue.  Waiting time counts from
        submission or the last retract, and includes pauses of the engine.
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
