"""Copies between device and host, run parallel to the steps, on one thread and in order."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from time import monotonic, sleep
from typing import NamedTuple, Protocol, TypeAlias

import torch

Copy: TypeAlias = Callable[[], object]


class Finished(NamedTuple):
    """A copy that has ended; ``error`` is the reason if it failed, otherwise empty."""

    number: int
    error: str = ""


class Transfers(Protocol):
    """Runs copies, and reports which have ended.  Called from one thread only."""

    def start(self, number: int, copy: Copy) -> None:
        """Run ``copy`` asynchronously; ``number`` identifies it in ``finished``."""

    def finished(self) -> list[Finished]:
        """The copies that ended since the last call, without waiting."""

    def wait(self) -> list[Finished]:
        """Wait for all copies that were started, and return those not yet returned."""


# How long the thread waits for another copy before it exits.
_LINGER_S = 5.0


class ThreadedTransfers:
    """Runs copies on a thread, which exits after some time without any."""

    def __init__(self, least_s: float = 0.0, linger_s: float = _LINGER_S) -> None:
        """Each copy takes at least ``least_s``."""
        self._least_s = least_s
        self._started: SimpleQueue[tuple[int, Copy]] = SimpleQueue()
        self._ended: SimpleQueue[Finished] = SimpleQueue()
        self._linger_s = linger_s
        self._has_thread = False
        # Makes queueing a copy and checking for a thread one step: the thread cannot exit between.
        self._lock = Lock()
        self._outstanding = 0

    def start(self, number: int, copy: Copy) -> None:
        self._outstanding += 1
        with self._lock:
            self._started.put((number, copy))
            if self._has_thread:
                return
            self._has_thread = True
        Thread(target=self._run_copies, name="hicache", daemon=True).start()

    def finished(self) -> list[Finished]:
        ended: list[Finished] = []
        while self._outstanding:
            try:
                ended.append(self._ended.get_nowait())
            except Empty:
                break
            self._outstanding -= 1
        return ended

    def wait(self) -> list[Finished]:
        ended = [self._ended.get() for _ in range(self._outstanding)]
        self._outstanding = 0
        return ended

    def _run_copies(self) -> None:
        while (job := self._next()) is not None:
            number, copy = job
            drawn_out_to_s = monotonic() + self._least_s
            try:
                copy()
                sleep(max(0.0, drawn_out_to_s - monotonic()))
            except Exception as error:
                # On any error the engine must be notified, and the next copy must run.
                self._ended.put(Finished(number, f"{type(error).__name__}: {error}"))
            else:
                self._ended.put(Finished(number))
            # Drop the references now, not when the next copy arrives.
            del job, copy

    def _next(self) -> tuple[int, Copy] | None:
        """The oldest started copy; None ends the thread."""
        with suppress(Empty):
            return self._started.get(timeout=self._linger_s)
        with self._lock:
            if not self._started.empty():
                return self._started.get()
            self._has_thread = False
            return None


class SideStreamTransfers(ThreadedTransfers):
    """The same for a CUDA device: the copies are queued on their own stream."""

    def __init__(self, device: torch.device, least_s: float = 0.0) -> None:
        super().__init__(least_s)
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def start(self, number: int, copy: Copy) -> None:
        # A queued step may still write the source, or read the target.
        queued = torch.cuda.current_stream(self._device).record_event()
        super().start(number, partial(self._copy_after, queued, copy))

    def _copy_after(self, queued: torch.cuda.Event, copy: Copy) -> None:
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(queued)
            try:
                copy()
            finally:
                # Only after this may the next step read the copy, or other work write to its slots
                # if it failed.
                self._stream.synchronize()
