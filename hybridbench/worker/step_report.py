"""What steps did to requests, collected into one message and counted into latencies."""

from __future__ import annotations

import time

from hybridbench.engine.events import EngineEvent, EventKind
from hybridbench.records.messages import Ended, Rejected, StepEvents
from hybridbench.worker.metrics import WorkerMetrics


class StepReport:
    """Gathers events until ``take``; a step without events costs nothing on the wire."""

    def __init__(self, metrics: WorkerMetrics) -> None:
        self._metrics = metrics
        self._steps = 0
        self._begin()

    def add_step(self, events: list[EngineEvent]) -> None:
        """One step ran and ``events`` came of it."""
        self._steps += 1
        for event in events:
            self._add(event)

    def reject(self, rid: str, message: str) -> None:
        """A request was refused before it became one."""
        self._rejected.append(Rejected(rid, message))

    def take(self) -> StepEvents | None:
        """Everything since the last call, or None if nobody needs to know."""
        parts = (self._admitted, self._first, self._finished, self._rejected, self._aborted)
        if not any(parts):
            return None
        message = StepEvents(
            t_s=time.monotonic(),
            steps=self._steps,
            admitted=self._admitted,
            first_tokens=self._first,
            finished=self._finished,
            rejected=self._rejected,
            aborted=self._aborted,
        )
        self._begin()
        return message

    def _begin(self) -> None:
        self._steps = 0
        self._admitted: list[str] = []
        self._first: list[str] = []
        self._finished: list[Ended] = []
        self._rejected: list[Rejected] = []
        self._aborted: list[Ended] = []

    def _add(self, event: EngineEvent) -> None:
        kind = event.kind
        if kind is EventKind.FIRST_TOKEN:
            self._first.append(event.rid)
            if event.ttft_s is not None:
                self._metrics.ttft.add(event.ttft_s)
        elif kind is EventKind.ADMITTED:
            self._admitted.append(event.rid)
        elif kind is EventKind.REJECTED:
            self._rejected.append(Rejected(event.rid, event.reason))
        else:
            for gap_s in event.itl_s:
                self._metrics.itl.add(gap_s)
            ended = self._finished if kind is EventKind.FINISHED else self._aborted
            ended.append(_ended(event))


def _ended(event: EngineEvent) -> Ended:
    gaps = event.itl_s
    return Ended(
        rid=event.rid,
        output_ids=list(event.output_ids),
        reason=event.reason,
        prompt_tokens=event.prompt_tokens,
        cached_tokens=event.cached_tokens,
        ttft_s=event.ttft_s,
        itl_s=sum(gaps) / len(gaps) if gaps else None,
    )
