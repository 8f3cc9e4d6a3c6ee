"""Force rare paths: wrappers that make engine methods do what pressure alone rarely causes.

These paths are not defects.  A healthy engine may take any of them, and doing so must change no
token and lose no slot.  Each path is taken on average once per n of its events, at random gaps
drawn from the run's seed, so that no periodic traffic can hide one.

The idea is that of SGLang's SGLANG_TEST_RETRACT.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, TypeAlias

from hybridbench.engine.engine import Engine
from hybridbench.engine.events import EngineEvent
from hybridbench.engine.memory.pages import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
from hybridbench.engine.memory.slots import MambaSlotAllocator
from hybridbench.engine.memory.transfers import Copy, ThreadedTransfers
from hybridbench.engine.req import Req
from hybridbench.engine.scheduler.outcome import StepOutcome
from hybridbench.engine.scheduler.prefill import AddReqResult, PrefillAdder
from hybridbench.engine.scheduler.schedule_batch import ChainsToCome, ScheduleBatch
from hybridbench.engine.scheduler.scheduler import Scheduler

# A method as found on its class, possibly already replaced by a defect.
Method: TypeAlias = Callable[..., Any]

ABORT_MESSAGE: Final = "aborted by the profile's `force` setting"
_DELAY_S: Final = 0.25


class ForcedPath:
    """Decides when one path is due, and counts how often it was taken."""

    def __init__(self, every: int, seed: str) -> None:
        """Make the path due once per ``every`` events on average.

        ``seed`` determines when it is due, and for which request.
        """
        self.taken = 0
        # For a path that may be taken only while another request makes progress.
        self.somebody_runs = False
        self.rng = random.Random(seed)
        self._every = every
        self._left = self.rng.randint(1, every)

    def is_due(self) -> bool:
        """Count one event; return whether the path is due, which it stays until it is taken."""
        self._left -= 1
        return self._left <= 0

    def take(self, times: int = 1) -> None:
        """Record that the path was taken (0 ``times`` if without effect), and draw the next gap."""
        self.taken += times
        self._left = self.rng.randint(1, 2 * self._every - 1)


class ForcedPaths:
    """The forced paths of one engine, keyed as in a profile's ``force``."""

    def __init__(self, every: Mapping[str, int], seed: int) -> None:
        """``every`` maps a path's name to the average number of events per use.

        Raises:
            KeyError: no such path.
        """
        self._paths = {name: ForcedPath(n, f"{seed}/{name}") for name, n in every.items()}
        self._wrappers = {name: WRAPPERS[name] for name in every}

    def counts(self) -> dict[str, int]:
        """Return how often each path was taken, by counter name (``forced_retract``)."""
        return {f"forced_{name}": path.taken for name, path in self._paths.items()}

    def apply(self) -> None:
        """Wrap the engine's methods for the rest of this process; call before building one."""
        for name, wrappers in self._wrappers.items():
            path = self._paths[name]
            for (holder, method), wrap in wrappers.items():
                setattr(holder, method, wrap(path, vars(holder)[method]))

    @contextmanager
    def applied(self) -> Iterator[ForcedPaths]:
        """Wrap the engine's methods only inside the ``with`` block."""
        wrapped = {target for wrappers in self._wrappers.values() for target in wrappers}
        before = [(holder, method, vars(holder)[method]) for holder, method in wrapped]
        self.apply()
        try:
            yield self
        finally:
            for holder, method, function in before:
                setattr(holder, method, function)


def _retract(path: ForcedPath, healthy: Method) -> Method:
    """Make a decode step retract a random running request although there is room."""

    def make_room_for_decode(self: Scheduler, outcome: StepOutcome) -> bool:
        retracted: bool = healthy(self, outcome)
        able = [req for req in self.running if not self._awaits_first(req)]
        # Never retract the only running request: one must make progress.
        if path.is_due() and able and len(self.running) > 1:
            path.take()
            self._retract_running(path.rng.choice(able))
            return True
        return retracted

    return make_room_for_decode


def _note_running(path: ForcedPath, healthy: Method) -> Method:
    """Record whether any request runs: if none does, the engine aborts a refused request."""

    def admit(self: Scheduler, adder: PrefillAdder) -> None:
        path.somebody_runs = bool(self.running)
        healthy(self, adder)

    return admit


def _refuse(path: ForcedPath, healthy: Method) -> Method:
    """Make the adder refuse a request that would fit."""

    def add_one_req(self: PrefillAdder, req: Req) -> AddReqResult:
        if path.is_due() and (path.somebody_runs or self.can_run_list):
            path.take()
            return AddReqResult.NO_TOKEN
        result: AddReqResult = healthy(self, req)
        return result

    return add_one_req


def _fail_allocation(path: ForcedPath, healthy: Method) -> Method:
    """Make a KV or state allocation fail, however many slots are free."""

    def alloc(self: object, *args: object, **kwargs: object) -> object:
        if path.is_due():
            path.take()
            return None
        return healthy(self, *args, **kwargs)

    return alloc


def _delay_transfer(path: ForcedPath, healthy: Method) -> Method:
    """Make a copy between device and host end late, which also delays the copies after it."""

    def start(self: ThreadedTransfers, number: int, copy: Copy) -> None:
        if path.is_due():
            path.take()
            copy = partial(_late, copy)
        healthy(self, number, copy)

    return start


def _late(copy: Copy) -> None:
    copy()
    time.sleep(_DELAY_S)


def _flush(path: ForcedPath, healthy: Method) -> Method:
    """Retract all running requests, and empty the cache before they resume.

    Nothing is flushed while a session holds KV, because the tree must keep it.
    """

    def step(self: Engine) -> list[EngineEvent]:
        events: list[EngineEvent] = []
        scheduler = self.scheduler
        if path.is_due() and not (scheduler.is_paused or self.pools.sessions.any_holding_kv()):
            self.pause_generation("retract")
            while scheduler.has_work:
                # Settle outstanding results and transfers first.
                events += healthy(self)
            path.take(self.flush_cache())
            self.continue_generation()
        events += healthy(self)
        return events

    return step


def _abort(path: ForcedPath, scheduler: Scheduler, req: Req) -> None:
    if not req.finished and req.to_abort is None:
        path.take()
        scheduler.request_abort(req, ABORT_MESSAGE)


def _abort_queued(path: ForcedPath, healthy: Method) -> Method:
    """Abort a request, new or retracted, before admission considers it."""

    def enqueue(self: Scheduler, req: Req) -> None:
        healthy(self, req)
        if path.is_due():
            _abort(path, self, req)

    return enqueue


def _abort_prefill(path: ForcedPath, healthy: Method) -> Method:
    """Abort a request between two chunks of its prompt."""

    def stash_chunk(self: Scheduler, req: Req) -> None:
        healthy(self, req)
        if path.is_due():
            _abort(path, self, req)

    return stash_chunk


def _abort_decode(path: ForcedPath, healthy: Method) -> Method:
    """Abort a running request in the step after a decode step.

    With overlap, that decode step is then still in flight.
    """

    def next_decode(self: Scheduler, outcome: StepOutcome) -> ScheduleBatch | ChainsToCome | None:
        batch: ScheduleBatch | ChainsToCome | None = healthy(self, outcome)
        if path.is_due() and self.running:
            _abort(path, self, path.rng.choice(self.running))
        return batch

    return next_decode


Target: TypeAlias = tuple[type, str]
Wrapper: TypeAlias = Callable[[ForcedPath, Method], Method]

WRAPPERS: Final[Mapping[str, Mapping[Target, Wrapper]]] = {
    "retract": {(Scheduler, "_make_room_for_decode"): _retract},
    "refuse": {
        (Scheduler, "_admit"): _note_running,
        (PrefillAdder, "add_one_req"): _refuse,
    },
    "fail_allocation": {
        (holder, method): _fail_allocation
        for holder in (TokenToKVPoolAllocator, PagedTokenToKVPoolAllocator)
        for method in ("alloc_extend", "alloc_decode")
    }
    | {
        (TokenToKVPoolAllocator, "alloc"): _fail_allocation,
        (MambaSlotAllocator, "alloc"): _fail_allocation,
    },
    "delay_transfer": {(ThreadedTransfers, "start"): _delay_transfer},
    "flush": {(Engine, "step"): _flush},
    "abort_queued": {(Scheduler, "_enqueue"): _abort_queued},
    "abort_prefill": {(Scheduler, "_stash_chunk"): _abort_prefill},
    "abort_decode": {(Scheduler, "_next_decode"): _abort_decode},
}
