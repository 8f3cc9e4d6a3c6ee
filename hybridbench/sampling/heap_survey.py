"""Survey the heap in a forked child: garbage, its reference cycles, and what holds live objects.

At the baseline the child also rehearses the reclaim steps: a child of its own trims, collects and
flushes, and reads its memory after each step.  That measures the baseline's allocator slack,
garbage and cache exactly, and leaves the process under test unchanged.
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
    """Where a survey starts and what it excludes.

    Args:
        roots: the program's own state.
        ballast: a list that is excluded with its members.
        excluded: memory that is not in the child.
        close_in_child: descriptors that the child closes.
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
    """Fork the child; once it is done, ``survey_of`` returns its result.

    Args:
        scope: where the survey starts and what it excludes.
        baseline: the tables of the first survey; None for the first survey itself.
        rehearse: the process's reclaim hooks, if the child is to rehearse the reclaim steps.

    Raises:
        OSError: the kernel refused.
    """

    def work() -> bytes:
        # Rehearse first: the survey's own tables would fill this process.
        rehearsal = [] if rehearse is None else _rehearsed(scope, rehearse)
        found = survey_and_destroy(scope, baseline)
        return msgspec.msgpack.encode(msgspec.structs.replace(found, rehearsal=rehearsal))

    return fork_child(work, scope.close_in_child, scope.timeout_s)


def survey_of(child: ForkedChild) -> SurveyRecord:
    """Return the result of a finished child.

    ``error`` is empty on success; otherwise the rest is meaningless.  ``retained`` is empty at the
    baseline itself.
    """
    found = child.decoded(SurveyRecord)
    return SurveyRecord(error=found) if isinstance(found, str) else found


def survey_and_destroy(scope: SurveyScope, baseline: Tables | None) -> SurveyRecord:
    """Survey this process and ruin its collector: only for a forked child."""
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
    """Run all steps in a child of this child; empty if that failed."""

    def steps() -> bytes:
        return msgspec.msgpack.encode([at_rest(work), trim(work), *destructive_steps(work)])

    child = fork_child(steps, (), scope.timeout_s / 2)
    child.wait()
    found = child.decoded(list[StageReading])
    return [] if isinstance(found, str) else found
