"""A fake engine that serves a workload and keeps the rules that a driver relies on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from hybridbench.records.messages import Abort, Disconnect, Submit
from hybridbench.workload.actions import WaitUntil, Workload

STEP_S = 0.005


@dataclass
class _Request:
    submit: Submit
    chunks_left: int
    output_ids: list[int] = field(default_factory=list)


class Server:
    """Admits requests in order of arrival, prefills in chunks, decodes one token per step."""

    def __init__(self, *, running: int, chunk: int, context: int, seed: int = 0) -> None:
        self.waiting: deque[_Request] = deque()
        self.running: list[_Request] = []
        self.now_s = 100.0
        self.peak = 0
        self.ended = {"finish": 0, "queued": 0, "prefill": 0, "decode": 0}
        self.overlong_refused = 0
        self.duplicates_refused = 0
        self.log: list[tuple[str, str, int]] = []
        self._max_running = running
        self._chunk = chunk
        self._context = context
        self._random = Random(seed)
        self._aborts: list[str] = []

    def drive(self, workload: Workload, steps: int, look: Callable[[], None] | None = None) -> None:
        """Repeat ``steps`` times: perform all actions that are due, then one engine step."""
        for _ in range(steps):
            self._take(workload)
            self.peak = max(self.peak, workload.in_flight)
            self._step(workload)
            if look is not None:
                look()
            self.now_s += STEP_S

    def _take(self, workload: Workload) -> None:
        while True:
            action = workload.next_action(self.now_s)
            if isinstance(action, WaitUntil):
                assert action.due_s is None or action.due_s > self.now_s
                return
            if isinstance(action, Submit):
                self._submit(workload, action)
            elif isinstance(action, Abort):
                self.log.append(("abort", action.rid, 0))
                self._aborts.append(action.rid)
            elif isinstance(action, Disconnect):
                self.log.append(("disconnect", action.rid, 0))
                assert self._end(action.rid) == "decode"

    def _submit(self, workload: Workload, submit: Submit) -> None:
        self.log.append(("submit", submit.rid, hash(tuple(submit.input_ids))))
        assert submit.input_ids
        if any(request.submit.rid == submit.rid for request in self._all()):
            self.duplicates_refused += 1
            workload.on_rejected(submit.rid, "duplicate id")
            return
        too_long = len(submit.input_ids) + submit.sampling.max_new_tokens > self._context
        if too_long and not submit.truncate:
            self.overlong_refused += 1
            workload.on_rejected(submit.rid, "too long")
            return
        chunks = -(-len(submit.input_ids) // self._chunk)
        self.waiting.append(_Request(submit, chunks))

    def _step(self, workload: Workload) -> None:
        for rid in self._aborts:
            request = next((r for r in self._all() if r.submit.rid == rid), None)
            if request is not None:
                self.ended[self._end(rid)] += 1
                workload.on_finished(rid, request.output_ids, "aborted", self.now_s)
        self._aborts.clear()
        while self.waiting and len(self.running) < self._max_running:
            request = self.waiting.popleft()
            self.running.append(request)
            workload.on_admitted(request.submit.rid)
        for request in list(self.running):
            self._advance(workload, request)

    def _advance(self, workload: Workload, request: _Request) -> None:
        request.chunks_left -= 1
        if request.chunks_left > 0:
            return
        request.output_ids.append(self._random.randrange(4096))
        if len(request.output_ids) == 1:
            workload.on_first_token(request.submit.rid, self.now_s)
        if len(request.output_ids) == request.submit.sampling.max_new_tokens:
            self._end(request.submit.rid)
            self.ended["finish"] += 1
            workload.on_finished(request.submit.rid, request.output_ids, "length", self.now_s)

    def _end(self, rid: str) -> str:
        for request in self.waiting:
            if request.submit.rid == rid:
                self.waiting.remove(request)
                return "queued"
        request = next(r for r in self.running if r.submit.rid == rid)
        self.running.remove(request)
        return "decode" if request.output_ids else "prefill"

    def _all(self) -> list[_Request]:
        return [*self.waiting, *self.running]
