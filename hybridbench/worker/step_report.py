"""Collect what steps did to requests into one message, and count latencies."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from itertools import starmap

import msgspec

from hybridbench.engine.events import EngineEvent, EventKind
from hybridbench.foundation.latency import E2E, ITL, TTFT
from hybridbench.records.messages import Ended, Rejected, StepEvents, TokenLogprobs
from hybridbench.worker.answers import AnswerSample
from hybridbench.worker.metrics import WorkerMetrics
from hybridbench.worker.port import ServedRequest


class StepReport:
    """Collects events until ``take``; a step without events costs nothing on the wire."""

    def __init__(
        self,
        metrics: WorkerMetrics,
        answers: AnswerSample,
        find: Callable[[str], ServedRequest | None],
    ) -> None:
        """``find`` returns a live request by its id, or None."""
        self._metrics = metrics
        self._answers = answers
        self._find = find
        self._streamed: dict[str, int] = {}  # number of tokens already reported, by rid
        self._steps = 0
        self._events = _no_events()

    def add_step(self, events: list[EngineEvent]) -> None:
        """Record one step and its ``events``."""
        self._steps += 1
        for event in events:
            self._add(event)
        if self._streamed:
            self._add_emitted()

    def stream(self, rid: str) -> None:
        """Report the tokens of the live request ``rid`` from now on."""
        self._streamed[rid] = 0

    def end_stream(self, rid: str) -> None:
        """Stop reporting the tokens of ``rid``; not needed for a request that ends."""
        self._streamed.pop(rid, None)

    def reject(self, rid: str, message: str) -> None:
        """Record a request that was refused on arrival."""
        self._events.rejected.append(Rejected(rid, message))

    def take(self) -> StepEvents | None:
        """Return everything since the last call, or None if there is nothing to report."""
        events = self._events
        if not (
            events.admitted
            or events.first_tokens
            or events.finished
            or events.rejected
            or events.aborted
            or events.emitted
        ):
            return None
        message = msgspec.structs.replace(events, t_s=time.monotonic(), steps=self._steps)
        self._steps, self._events = 0, _no_events()
        return message

    def _add_emitted(self) -> None:
        for rid, reported in list(self._streamed.items()):
            req = self._find(rid)
            if req is None:
                del self._streamed[rid]
            elif len(req.output_ids) > reported:
                self._events.emitted.setdefault(rid, []).extend(req.output_ids[reported:])
                self._streamed[rid] = len(req.output_ids)
                if req.logprobs is not None:
                    self._add_logprobs(rid, req.logprobs[reported:])

    def _add_logprobs(
        self, rid: str, logprobs: Iterable[tuple[float, list[tuple[int, float]]]]
    ) -> None:
        self._events.logprobs.setdefault(rid, []).extend(starmap(TokenLogprobs, logprobs))

    def _add(self, event: EngineEvent) -> None:
        kind = event.kind
        if kind is EventKind.FIRST_TOKEN:
            self._events.first_tokens.append(event.rid)
            if event.ttft_s is not None:
                self._metrics.latencies[TTFT].add(event.ttft_s)
        elif kind is EventKind.ADMITTED:
            self._events.admitted.append(event.rid)
        elif kind is EventKind.REJECTED:
            self._events.rejected.append(Rejected(event.rid, event.reason))
        else:
            latencies = self._metrics.latencies
            for gap_s in event.itl_s:
                latencies[ITL].add(gap_s)
            finished = kind is EventKind.FINISHED
            if event.req is not None:
                self._answers.offer(event.req)
            if finished and event.ttft_s is not None:
                latencies[E2E].add(event.ttft_s + sum(event.itl_s))
            ended = self._events.finished if finished else self._events.aborted
            ended.append(_ended(event))
            if event.logprobs:
                self._add_logprobs(event.rid, event.logprobs[self._streamed.get(event.rid, 0) :])


def _no_events() -> StepEvents:
    return StepEvents(0.0, 0, [], [], [], [], [])


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
