"""What a full collection would free, found by reading references, where a fork is not allowed.

The collector's own idea, in Python: an object whose references all come from tracked objects is a
candidate, and what the others reach is alive.  No finalizer runs, nothing is freed, moved or
marked.  It costs about two microseconds an object while everything stands still, against some tens
of milliseconds for a fork.
"""

from __future__ import annotations

import gc
import sys
import time
from collections import Counter

from hybridbench.sampling.garbage_size import garbage_size
from hybridbench.sampling.heap_scan import (
    TYPES_REPORTED,
    CountedClasses,
    HeapScan,
    instance_counts,
)
from hybridbench.sampling.tensor_storage import TensorStorages

_NO_SWITCH_S = 60.0


class WalkScan:
    """The same calls as ForkScan; ``start`` does all the work and ``poll`` hands it out.

    Objects in the permanent generation (``gc.freeze``) are not seen: the list the walk starts from
    lacks them, so what they refer to counts as alive and they themselves are not counted.
    """

    method = "walk"

    def __init__(self, classes: CountedClasses) -> None:
        self._classes = classes
        self._report: HeapScan | None = None

    def start(self) -> float:
        """Count now; return the seconds it took."""
        started_s = time.perf_counter()
        enabled, interval_s = gc.isenabled(), sys.getswitchinterval()
        gc.disable()
        # Another thread that ran in between would move references under the count.
        sys.setswitchinterval(_NO_SWITCH_S)
        try:
            self._report = self._count()
        finally:
            sys.setswitchinterval(interval_s)
            if enabled:
                gc.enable()
        return time.perf_counter() - started_s

    def poll(self) -> HeapScan | None:
        """The scan that ``start`` took, once."""
        report, self._report = self._report, None
        return report

    def close(self) -> None:
        """Drop an unfetched report."""
        self._report = None

    def _count(self) -> HeapScan:
        reachable = dict(self._classes())
        objects = gc.get_objects()
        alive = Counter(map(type, objects))
        storages = TensorStorages(objects, alive)
        tracked = len(objects)
        garbage = unreachable(objects)
        del objects
        size = garbage_size(garbage, storages)
        return HeapScan(
            method="walk",
            tracked_objects=tracked,
            collectible_objects=len(garbage),
            collectible_bytes=size.total_bytes,
            exact_bytes=size.exact,
            types=list(size.types[:TYPES_REPORTED]),
            instances=instance_counts(reachable, alive, Counter(map(type, garbage))),
        )


def unreachable(objects: list[object]) -> list[object]:
    """Those of ``objects`` (all that the collector tracks) that nothing outside them reaches.

    ``objects`` must be the only new holder: one reference to each is taken off.
    """
    extra = _references_added_here()
    outside = {id(candidate): sys.getrefcount(candidate) - extra for candidate in objects}
    for holder in objects:
        for referent in gc.get_referents(holder):
            key = id(referent)
            if key in outside:
                outside[key] -= 1
    frontier = [found for found in objects if outside.get(id(found), 0) > 0]
    for found in frontier:
        outside[id(found)] = 1
    while frontier:
        for referent in gc.get_referents(frontier.pop()):
            if outside.get(id(referent), 1) <= 0:
                outside[id(referent)] = 1
                frontier.append(referent)
    return [found for found in objects if outside.get(id(found), 1) <= 0]


def _references_added_here() -> int:
    """What ``getrefcount`` says of an object that only the list walked over holds."""
    holder = [object()]
    return next(iter({id(candidate): sys.getrefcount(candidate) for candidate in holder}.values()))
