"""Observe which calls remove objects from their structure, in a few steps of the running engine.

A leak of removed objects is reported with the calls that remove them.  A hand-written list of these
calls would fit only one engine and one version.  Instead, an occasional step runs under
``sys.setprofile``, and the frame in which a counter moves is the call.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from hybridbench.engine.counters import REMOVED_CLASSES
from hybridbench.records.heap import SiteRecord
from hybridbench.worker.port import ServedEngine

_EVERY: Final = 31  # steps; prime, so that it is no multiple of short periods in the traffic
_MOST_STEPS: Final = 200  # run under the profiler, which makes them several times slower
_SEEN_ENOUGH: Final = 20  # movements of a counter
_FRAMES: Final = 4


class CallWatch:
    """Owned by the engine's loop; ``step`` wraps each step, ``sites`` returns the observations."""

    def __init__(self, engine: ServedEngine) -> None:
        self._read = engine.removals
        self._counts = self._before = self._read()
        self._chains = tuple(Counter[tuple[str, ...]]() for _ in REMOVED_CLASSES)
        self._steps = 0
        self._watched = 0

    @contextmanager
    def step(self) -> Iterator[None]:
        """Watch the calls within, in one of ``_EVERY`` steps, until enough were seen."""
        self._steps += 1
        if self._steps % _EVERY or not self._is_wanted() or sys.getprofile() is not None:
            yield
            return
        self._watched += 1
        self._counts = self._read()
        sys.setprofile(self._on_call)
        try:
            yield
        finally:
            sys.setprofile(None)

    def stop(self) -> None:
        """Watch no further steps, because another profiler takes over."""
        self._watched = _MOST_STEPS

    def sites(self) -> list[SiteRecord]:
        """Return, for each counter of removals, its most common call chain, outermost first."""
        return [
            SiteRecord(name, list(chains.most_common(1)[0][0]) if chains else [], removes)
            for (name, removes), chains in zip(REMOVED_CLASSES.items(), self._chains, strict=True)
        ]

    def _is_wanted(self) -> bool:
        """Whether some moving counter has not been seen often enough."""
        if self._watched >= _MOST_STEPS:
            return False
        before, self._before = self._before, self._read()
        return any(
            now != then and chains.total() < _SEEN_ENOUGH
            for now, then, chains in zip(self._before, before, self._chains, strict=True)
        )

    def _on_call(self, frame: FrameType, event: str, _: object) -> None:
        """Count a call chain if a counter moved since the last event.

        Between two of these events only one frame ran: the returning one, or the caller.
        """
        if event == "return":
            ran: FrameType | None = frame
        elif event == "call":
            ran = frame.f_back
        else:
            return
        counts = self._read()
        if counts == self._counts:
            return
        for now, then, chains in zip(counts, self._counts, self._chains, strict=True):
            if now != then:
                chains[_chain(ran)] += 1
        self._counts = counts


def _chain(frame: FrameType | None) -> tuple[str, ...]:
    """Return the names of the innermost calls, outermost first."""
    names: list[str] = []
    while frame is not None and len(names) < _FRAMES:
        names.append(frame.f_code.co_qualname)
        frame = frame.f_back
    return tuple(reversed(names))
