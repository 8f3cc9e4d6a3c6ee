"""Order of the waiting queue: by priority, then by arrival or the longest cached prefix."""

from __future__ import annotations

from collections.abc import Callable

from hybridbench.engine.req import Req
from hybridbench.foundation.engine_config import SchedulePolicyName

# Matching costs a tree walk per waiting prompt, which is not worth it in longer queues.
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
        """Sort by ``rank``, smaller first, and then by the policy ``name``.

        ``cached_prefix_len`` must not take a slot or a lock for the request.
        """
        self._name = name
        self._cached_prefix_len = cached_prefix_len
        self._rank = rank

    def sort(self, waiting_queue: list[Req]) -> None:
        """Sort the queue so that the request to try first is at the front; ties go by arrival.

        A retracted request keeps its arrival number, so under FCFS it precedes all later arrivals.
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
