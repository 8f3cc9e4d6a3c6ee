"""Record every allocation with memray during extra traffic, as the last step of a leaking run.

It comes after all measurements, since it makes the worker several times slower.  The cache is
flushed before the recording ends: what remains then is never freed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hybridbench.foundation.units import format_duration
from hybridbench.records.events import Allocations
from hybridbench.records.messages import AllocationsTracked, TrackAllocations
from hybridbench.runs.wire_loop import WireLoop
from hybridbench.sampling.allocations import kept_sites

_PATIENCE_S: Final = 60.0
_SITES_MAX: Final = 12


@dataclass(frozen=True)
class AllocationRecord:
    """``seconds`` of extra traffic for a run that leaked, with allocations recorded to ``path``."""

    loop: WireLoop
    path: Path
    seconds: float

    def run(self, drain: Callable[[], bool], flush: Callable[[], None]) -> None:
        """Send traffic, drain and flush; record the remaining allocations as an event.

        The raw recording stays at ``path``, for memray's own reporters.

        Raises:
            WorkerLostError: the worker died; what was recorded before is kept.
        """
        recorder = self.loop.context.recorder
        length = format_duration(self.seconds)
        self.loop.context.view.note(f"{length} of further traffic, with every allocation recorded")
        recorder.enter("allocations")
        self.loop.heap_scans_wanted = self.loop.samples_wanted = False
        finished = self.loop.driver.counts.finished
        if not _is_done(self.loop, str(self.path.absolute())):
            return
        begun_s = self.loop.now_s
        self.loop.resume()
        self.loop.run_until(lambda: self.loop.interrupted, begun_s + self.seconds)
        served_s = self.loop.now_s - begun_s
        at_rest = drain()
        flush()
        if not _is_done(self.loop, "") or not at_rest:
            return
        try:
            sites = kept_sites(self.path, _SITES_MAX)
        except OSError as error:
            recorder.note(f"the record of allocations cannot be read: {error}")
            return
        served = self.loop.driver.counts.finished - finished
        recorder.event(Allocations(served_s, served, self.path.name, tuple(sites)))


def _is_done(loop: WireLoop, path: str) -> bool:
    """Start a recording, or end it if ``path`` is empty; return whether the worker did so."""
    answer = loop.ask(TrackAllocations(path), AllocationsTracked, _PATIENCE_S)
    error = "no answer in time" if answer is None else answer.error
    if error:
        loop.context.recorder.note(f"allocations were not recorded: {error}")
    return not error
