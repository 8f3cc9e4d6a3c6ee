"""Hash what a workload sends: equal hashes mean equal requests, given equal answers."""

from __future__ import annotations

import hashlib
from collections import deque
from typing import Final

from hybridbench.records.messages import Abort, Disconnect, Submit
from hybridbench.workload.actions import ServerSubmit, TimedWorkload, WaitUntil

_REQUESTS: Final = 200
_LATER_S: Final = 1.0


def schedule_hash(workload: TimedWorkload) -> str:
    """Return a hash of the first requests that ``workload`` sends to an instantaneous server.

    This consumes the workload.
    """
    digest = hashlib.blake2b(digest_size=8)
    live: deque[Submit] = deque()
    sent, now_s = 0, 0.0
    while sent < _REQUESTS and not workload.failure:
        action = workload.next_action(now_s)
        if isinstance(action, Submit):
            sent += 1
            live.append(action)
            digest.update(repr((workload.due_s, action.input_ids, action.sampling)).encode())
            if isinstance(action, ServerSubmit):
                extra = (action.malformed, action.large, action.options, action.draw)
                digest.update(repr(extra).encode())
        elif isinstance(action, WaitUntil) and live:
            request = live.popleft()
            workload.on_admitted(request.rid)
            workload.on_first_token(request.rid, now_s)
            answer = [0] * request.sampling.max_new_tokens
            workload.on_finished(request.rid, answer, "length", now_s)
        elif isinstance(action, WaitUntil):
            now_s = now_s + _LATER_S if action.due_s is None else max(now_s, action.due_s)
        elif isinstance(action, Abort | Disconnect):
            live = deque(request for request in live if request.rid != action.rid)
            workload.on_finished(action.rid, [], "abort", now_s)
    return digest.hexdigest()
