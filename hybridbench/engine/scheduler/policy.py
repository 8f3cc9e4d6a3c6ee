"""Order of the waiting queue: by priority, then by arrival or the longest cached prefix."""

from __future__ import annotations

from collections.abc import Callable

from hybridbench.engine.req import Req
from hybridbench.foundation.engine_config import SchedulePolicyName

# Matching every waiting prompt costs a tree walk each; in longer queues the order is not worth it.
# Source: SGLang falls back to FCFS at the same length.
LPM_LONGEST_QUEUE = 128


class SchedulePolicy:
    """Sorts the waiting queue in place before each admission."""

    def __init__(
        self,
        name: SchedulePolicyName,
        cached_prefix_len: Callable[[Req], int],
        rank: Callable[[Req], int] = lambda _: 0,
    ) -> None:
        """``cached_prefix_len`` must not take a slot or a lock for the request.

        ``rank`` is the priority, smaller first; the policy decides among equals.
        """
        self._name = name
        self._cached_prefix_len = cached_prefix_len
        self._rank = rank

    def sort(self, waiting_queue: list[Req]) -> None:
        """Put the request to try first at the front; FCFS, and ties, go by arrival.

        A retracted request keeps its arrival number, so under FCFS it precedes all that
        arrived later.
        """
        if len(waiting_queue) < 2:
            return
        if self._name == "fcfs" or len(waiting_queue) > LPM_LONGEST_QUEUE:
            waiting_queue.sort(key=lambda req: (self._rank(req), req.arrival))
            return
        longest_first = [
            (self._rank(req), -self._cached_prefix_len(req), req.arrival) for req in waiting_queue
        ]
        order = sorted(range(len(waiting_queue)), key=longest_first.__getitem__)
        waiting_queue[:] = [waiting_queue[i] for i in order]
