"""The last step of a run that leaked: more traffic with every allocation recorded by memray.

It comes after all that is measured, since it makes the worker several times slower.  The cache is
flushed before the record ends: what is left then is what nobody gives back.
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
_SITES_TOLD: Final = 12


@dataclass(frozen=True)
class AllocationRecord:
    """What a run that leaked gets at its end: ``seconds`` of traffic, recorded to ``path``."""

    loop: WireLoop
    path: Path
    seconds: float

    def run(self, drain: Callable[[], bool], flush: Callable[[], None]) -> None:
        """The traffic, ``drain``, ``flush``; what is left becomes an event of the run.

        The raw record stays at ``path``, for memray's own reporters.

        Raises:
            WorkerLostError: the worker died of it; what was recorded stands.
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
            sites = kept_sites(self.path, _SITES_TOLD)
        except OSError as error:
            recorder.note(f"the record of allocations cannot be read: {error}")
            return
        served = self.loop.driver.counts.finished - finished
        recorder.event(Allocations(served_s, served, self.path.name, tuple(sites)))


def _is_done(loop: WireLoop, path: str) -> bool:
    """Whether the worker did as asked: start a record, or end it if ``path`` is empty."""
    answer = loop.ask(TrackAllocations(path), AllocationsTracked, _PATIENCE_S)
    error = "no answer in time" if answer is None else answer.error
    if error:
        loop.context.recorder.note(f"allocations were not recorded: {error}")
    return not error
