"""The last step of a run that leaked: more traffic with every allocation recorded by memray.

It comes after all that is measured, since it makes the worker several times slower.  The cache is
flushed before the record ends: what is left then is what nobody gives back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hybridbench.records.events import Allocations
from hybridbench.records.messages import AllocationsTracked, TrackAllocations
from hybridbench.runs.wire_loop import WireLoop
from hybridbench.sampling.allocations import kept_sites
from hybridbench.units import format_duration

_PATIENCE_S: Final = 60.0
_SITES_TOLD: Final = 12


@dataclass(frozen=True)
class AllocationRecord:
    """What a run that leaked gets at its end: ``seconds`` of traffic, recorded to ``path``."""

    loop: WireLoop
    path: Path
    seconds: float

    def run(self, drain: Callable[[], bool], flush: Callable[[], None]) -> None:
        """See ``record_allocations``."""
        record_allocations(self.loop, self.path, self.seconds, drain, flush)


def record_allocations(
    loop: WireLoop,
    path: Path,
    seconds: float,
    drain: Callable[[], bool],
    flush: Callable[[], None],
) -> None:
    """Traffic for ``seconds``, ``drain``, ``flush``; what is left becomes an event of the run.

    The raw record goes to ``path``, for memray's own reporters.

    Raises:
        WorkerLostError: the worker died of it; what was recorded stands.
    """
    recorder = loop.context.recorder
    length = format_duration(seconds)
    loop.context.view.note(f"{length} of further traffic, with every allocation recorded")
    recorder.enter("allocations")
    loop.heap_scans_wanted = loop.samples_wanted = False
    finished = loop.driver.counts.finished
    if not _is_done(loop, str(path.absolute())):
        return
    begun_s = loop.now_s
    loop.resume()
    loop.run_until(lambda: loop.interrupted, begun_s + seconds)
    served_s = loop.now_s - begun_s
    at_rest = drain()
    flush()
    if not _is_done(loop, "") or not at_rest:
        return
    try:
        sites = kept_sites(path, _SITES_TOLD)
    except OSError as error:
        recorder.note(f"the record of allocations cannot be read: {error}")
        return
    served = loop.driver.counts.finished - finished
    recorder.event(Allocations(served_s, served, path.name, tuple(sites)))


def _is_done(loop: WireLoop, path: str) -> bool:
    """Whether the worker did as asked: start a record, or end it if ``path`` is empty."""
    answer = loop.ask(TrackAllocations(path), AllocationsTracked, _PATIENCE_S)
    error = "no answer in time" if answer is None else answer.error
    if error:
        loop.context.recorder.note(f"allocations were not recorded: {error}")
    return not error
