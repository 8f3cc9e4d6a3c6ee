"""The worker's side of a leak diagnosis: runs its stages without blocking the wire."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator

import msgspec
import torch

from hybridbench.records.heap import StageReading, SurveyRecord
from hybridbench.records.messages import Diagnose, Diagnosis
from hybridbench.sampling.heap_survey import SurveyScope, start_survey, survey_of
from hybridbench.sampling.malloc import MallocInfo, malloc_reader
from hybridbench.sampling.process import own_private_bytes
from hybridbench.sampling.reclaim import (
    COLLECT,
    REST,
    TRIM,
    ReclaimHooks,
    at_rest,
    destructive_steps,
    trim,
)
from hybridbench.worker.metrics import WorkerMetrics, device_memory
from hybridbench.worker.port import ServedEngine

SURVEY, REHEARSE = "survey", "rehearse"


class WorkerDiagnosis:
    """Handles one request at a time; the engine's thread calls ``advance`` between steps.

    A survey's forks capture the moment of the first ``advance`` after ``ask``.
    """

    def __init__(self, engine: ServedEngine, metrics: WorkerMetrics, scope: SurveyScope) -> None:
        self._metrics = metrics
        self._scope = scope
        self._work = reclaim_hooks(engine)
        self._requests: deque[Diagnose] = deque()
        self._running: Iterator[Diagnosis | None] | None = None

    @property
    def pending(self) -> bool:
        """Whether anything is requested or in progress."""
        return self._running is not None or bool(self._requests)

    def ask(self, request: Diagnose) -> None:
        """Queue a diagnosis."""
        self._requests.append(request)

    def advance(self) -> list[Diagnosis]:
        """Continue as far as possible without waiting; return the answer when it is complete."""
        if self._running is None:
            if not self._requests:
                return []
            self._running = self._stages(self._requests.popleft())
        for answer in self._running:
            if answer is None:
                return []
            self._running = None
            return [answer]
        raise AssertionError("a diagnosis ends with its answer")

    def _stages(self, request: Diagnose) -> Iterator[Diagnosis | None]:
        """Yield None while waiting, then the answer."""
        now_s, wanted = time.monotonic(), set(request.stages)
        readings: list[StageReading] = []
        survey: SurveyRecord | None = None
        if REST in wanted:
            readings.append(at_rest(self._work))
        if TRIM in wanted:
            readings.append(trim(self._work))
        if SURVEY in wanted:
            survey = yield from self._survey(request)
        if COLLECT in wanted:
            for stage in destructive_steps(self._work):
                readings.append(stage)
                yield None
        yield Diagnosis(request.probe_id, now_s, readings, survey, self._metrics.calls.sites())

    def _survey(self, request: Diagnose) -> Generator[None, None, SurveyRecord]:
        """Yield None while waiting for the child; return what it found."""
        baseline = (request.paths, request.classes) if request.classes else None
        # A forked child may read a CUDA process, but cannot use CUDA to flush its cache.
        rehearses = REHEARSE in request.stages and not self._work.empty_device_cache
        rehearsed = self._work if rehearses else None
        began_s = time.perf_counter()
        try:
            with self._metrics.stops:
                child = start_survey(self._scope, baseline, rehearsed)
        except OSError as error:
            return SurveyRecord(f"no fork: {error}")
        stop_s = time.perf_counter() - began_s
        while not child.is_done():
            yield None
        survey = survey_of(child)
        self._metrics.probe_child_s += survey.child_s
        if baseline is None:
            return msgspec.structs.replace(survey, stop_s=stop_s)
        # The tables are large, and only a later survey compares with them.
        return msgspec.structs.replace(survey, stop_s=stop_s, paths={}, classes={})


def reclaim_hooks(engine: ServedEngine) -> ReclaimHooks:
    """Return the hooks through which the stages read this process and empty its caches."""
    on_cuda = engine.config.device.startswith("cuda")
    return ReclaimHooks(
        read=_reader(malloc_reader(), engine.config.device),
        flush=engine.flush_cache,
        empty_device_cache=torch.cuda.empty_cache if on_cuda else None,
    )


def _reader(malloc: Callable[[], MallocInfo] | None, device: str) -> Callable[[], StageReading]:
    def read() -> StageReading:
        info = MallocInfo(0, 0) if malloc is None else malloc()
        on_device = device_memory(device)
        return StageReading(
            # Read at each call: a rehearsing child must read its own memory.
            private_bytes=own_private_bytes(),
            malloc_in_use_bytes=info.in_use_bytes,
            malloc_arena_bytes=info.arena_bytes,
            device_allocated_bytes=on_device.get("device_allocated_bytes", 0),
            device_reserved_bytes=on_device.get("device_reserved_bytes", 0),
        )

    return read
