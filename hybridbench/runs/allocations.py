"""The last step of a run that leaked: more traffic with every allocation recorded by memray.

It comes after all that is measured, since it makes the worker several times slower.  The cache is
flushed before the record ends: what is left then is what nobody gives back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Final

from hybridbench.analysis.diagnosis import ALLOCATIONS_EVENT
from hybridbench.runs.loop import LoopParts, SoakLoop
from hybridbench.sampling.allocations import kept_sites
from hybridbench.targets.messages import AllocationsTracked, Resume, TrackAllocations
from hybridbench.units import format_duration

_PATIENCE_S: Final = 60.0
_SITES_TOLD: Final = 12


class AllocationRecord:
    """One for a run; ``record`` is its only act."""

    def __init__(self, seconds: float, path: Path, loop: SoakLoop, parts: LoopParts) -> None:
        """The raw record goes to ``path``, for memray's own reporters."""
        self._seconds = seconds
        self._path = path.absolute()
        self._loop = loop
        self._parts = parts

    def record(self, drain: Callable[[], bool], flush: Callable[[], None]) -> None:
        """Traffic for a while, ``drain``, ``flush``; what is left becomes an event of the run.

        Raises:
            WorkerLostError: the worker died of it; what was recorded stands.
        """
        loop, parts = self._loop, self._parts
        length = format_duration(self._seconds)
        parts.view.note(f"{length} more of traffic, with every allocation recorded")
        parts.recorder.enter("allocations")
        loop.censuses_wanted = loop.samples_wanted = False
        finished = parts.driver.counts.finished
        if not self._told(str(self._path)):
            return
        begun_s = loop.now_s
        parts.target.post(Resume())
        loop.resume()
        loop.run_until(lambda: loop.interrupted, begun_s + self._seconds)
        served_s = loop.now_s - begun_s
        at_rest = drain()
        flush()
        if not self._told("") or not at_rest:
            return
        try:
            sites = kept_sites(self._path, _SITES_TOLD)
        except OSError as error:
            self._note(f"the record of allocations cannot be read: {error}")
            return
        parts.recorder.event(
            ALLOCATIONS_EVENT,
            {
                "seconds": served_s,
                "requests": parts.driver.counts.finished - finished,
                "file": self._path.name,
                "sites": [{**asdict(site), "stack": list(site.stack)} for site in sites],
            },
        )

    def _told(self, path: str) -> bool:
        """Whether the worker did as asked: start a record, or end it if ``path`` is empty."""
        self._loop.tracked = None
        self._parts.target.post(TrackAllocations(path))
        limit_s = self._loop.now_s + _PATIENCE_S
        self._loop.run_until(lambda: self._answer() is not None, limit_s)
        answer = self._answer()
        if answer is None:
            self._note("allocations were not recorded: no answer in time")
        elif answer.error:
            self._note(f"allocations were not recorded: {answer.error}")
        return answer is not None and not answer.error

    def _answer(self) -> AllocationsTracked | None:
        return self._loop.tracked

    def _note(self, text: str) -> None:
        self._parts.recorder.event("note", {"text": text})
