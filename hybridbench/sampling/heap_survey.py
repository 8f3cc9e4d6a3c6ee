"""A survey of the heap in a forked child: cycles by attribute, who holds what, what is garbage.

At the baseline the child also rehearses the reclaim steps: a second child, its own, trims,
collects and flushes, and reads its memory after each.  So the baseline's slack, garbage and cache
are known to the byte, and the process under test stays as it is.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from hybridbench.records.heap import StageReading, SurveyRecord
from hybridbench.sampling.forked_child import ForkedChild, MemoryRange, fork_child
from hybridbench.sampling.garbage_cycles import garbage_cycles
from hybridbench.sampling.garbage_size import garbage_size
from hybridbench.sampling.heap_scan import collect_into_garbage
from hybridbench.sampling.live_paths import LivePaths, counts_by_class
from hybridbench.sampling.reclaim import ReclaimHooks, at_rest, destructive_steps, trim
from hybridbench.sampling.retained_growth import retained_growth

_TYPES_REPORTED = 12
_CYCLES_REPORTED = 4
_TABLE_COUNT_MIN = 8
_TABLE_BYTES_MIN = 2048

# Objects and bytes by path, and objects by class.
Tables: TypeAlias = tuple[Mapping[str, Sequence[int]], Mapping[str, int]]


@dataclass(frozen=True)
class SurveyScope:
    """What a survey starts from and what it leaves alone.

    Args:
        roots: the program's own state.
        ballast: a list that is left out with its members.
        excluded: memory that is not in the child.
        close_in_child: descriptors the child lets go of.
        timeout_s: after which the child is killed.
    """

    roots: Callable[[], Sequence[object]]
    ballast: Sequence[object] = ()
    excluded: tuple[MemoryRange, ...] = ()
    close_in_child: tuple[int, ...] = ()
    timeout_s: float = 90.0


def start_survey(
    scope: SurveyScope, baseline: Tables | None = None, rehearse: ReclaimHooks | None = None
) -> ForkedChild:
    """Fork the child; ``survey_of`` reads it when it is done.  ``baseline`` are the tables of the
    first survey.

    Raises:
        OSError: the kernel refused.
    """

    def work() -> bytes:
        # First of all: afterwards this process is full of the survey's own tables.
        rehearsal = [] if rehearse is None else _rehearsed(scope, rehearse)
        found = survey_and_destroy(scope, baseline)
        return msgspec.msgpack.encode(msgspec.structs.replace(found, rehearsal=rehearsal))

    return fork_child(work, scope.close_in_child, scope.timeout_s)


def survey_of(child: ForkedChild) -> SurveyRecord:
    """What a child that is done has found.  ``error`` is empty when it worked; the rest means
    nothing otherwise.  ``retained`` is empty at the baseline itself.
    """
    found = child.decoded(SurveyRecord)
    return SurveyRecord(error=found) if isinstance(found, str) else found


def survey_and_destroy(scope: SurveyScope, baseline: Tables | None) -> SurveyRecord:
    """Look at this process and leave the collector in ruins: only for a forked child."""
    started_s = time.process_time()
    heap = collect_into_garbage(scope.excluded)
    gc.set_debug(0)
    garbage = list(gc.garbage)
    gc.garbage.clear()
    size = garbage_size(garbage, heap.storages, scope.excluded)
    cycles = garbage_cycles(garbage)
    live = LivePaths(
        scope.roots(), gc.get_objects(), (garbage, scope.ballast, heap.disarmed), scope.excluded
    )
    compared = () if baseline is None else retained_growth(live, *baseline)
    return SurveyRecord(
        child_s=time.process_time() - started_s,
        tracked_objects=heap.alive.total(),
        garbage_objects=len(garbage),
        garbage_bytes=size.total_bytes,
        garbage_types=list(size.types[:_TYPES_REPORTED]),
        components=cycles.components,
        on_cycles=cycles.objects,
        hanging=cycles.hanging,
        cycle_types=dict(cycles.types),
        cycles=list(cycles.shapes[:_CYCLES_REPORTED]),
        paths=live.table(_TABLE_COUNT_MIN, _TABLE_BYTES_MIN),
        classes=dict(counts_by_class(live.top)),
        retained=list(compared),
        views=list(live.views.rows()),
    )


def _rehearsed(scope: SurveyScope, work: ReclaimHooks) -> list[StageReading]:
    """All steps in a child of this child; empty if that did not come to its end."""

    def steps() -> bytes:
        return msgspec.msgpack.encode([at_rest(work), trim(work), *destructive_steps(work)])

    child = fork_child(steps, (), scope.timeout_s / 2)
    child.wait()
    found = child.decoded(list[StageReading])
    return [] if isinstance(found, str) else found
