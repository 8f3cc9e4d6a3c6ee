"""Copies between the device and the host beside the steps: one thread, in order of their start."""

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
    """A copy that is over; ``error`` says why it failed, and is empty if it did not."""

    number: int
    error: str = ""


class Transfers(Protocol):
    """Who runs copies, and tells later which are over.  Asked from one thread only."""

    def start(self, number: int, copy: Copy) -> None:
        """Run ``copy`` some time from now; ``number`` names it in ``finished``."""

    def finished(self) -> list[Finished]:
        """The copies that ended since the last call; waits for none."""

    def wait(self) -> list[Finished]:
        """The same after waiting for all that were started."""


# How long the thread waits for another copy before it ends.
_LINGER_S = 5.0


class ThreadedTransfers:
    """A thread of its own runs the copies; it ends when there has been none for a while."""

    def __init__(self, least_s: float = 0.0, linger_s: float = _LINGER_S) -> None:
        """A copy that takes less than ``least_s`` is drawn out to it."""
        self._least_s = least_s
        self._started: SimpleQueue[tuple[int, Copy]] = SimpleQueue()
        self._ended: SimpleQueue[Finished] = SimpleQueue()
        self._linger_s = linger_s
        self._has_thread = False
        # The thread must not end between the arrival of a copy and the decision that it has one.
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
                # Whatever it is, the engine has to learn of it, and the next copy to run.
                self._ended.put(Finished(number, f"{type(error).__name__}: {error}"))
            else:
                self._ended.put(Finished(number))
            # What was copied may go now, not with the next copy.
            del job, copy

    def _next(self) -> tuple[int, Copy] | None:
        """The oldest copy that was started; None ends the thread."""
        with suppress(Empty):
            return self._started.get(timeout=self._linger_s)
        with self._lock:
            if not self._started.empty():
                return self._started.get()
            self._has_thread = False
            return None


class SideStreamTransfers(ThreadedTransfers):
    """The same on a CUDA device: the copies are queued on a stream beside that of the steps."""

    def __init__(self, device: torch.device, least_s: float = 0.0) -> None:
        super().__init__(least_s)
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def start(self, number: int, copy: Copy) -> None:
        # A step that is queued already may still write what is read, or read what is overwritten.
        queued = torch.cuda.current_stream(self._device).record_event()
        super().start(number, partial(self._copy_after, queued, copy))

    def _copy_after(self, queued: torch.cuda.Event, copy: Copy) -> None:
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(queued)
            try:
                copy()
            finally:
                # Only now may the next step read what was copied, or, if the copy failed,
                # others write to its slots.
                self._stream.synchronize()
