"""All workers of a comparison on one processor, so that they meet the same neighbours.

Free to move, two versions sit on different processors for a slice or for minutes, and what else
runs there is in the difference: on two busy cores the standard deviation of a pair of 5 s blocks
was 4 % of throughput, on one of them 2 %.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


def cpu_for_workers() -> int | None:
    """The last processor that we may use, as the first gets most interrupts; None if it is the
    only one, and whoever drives the workers has nowhere to go.
    """
    usable = sorted(os.sched_getaffinity(0))
    return usable[-1] if len(usable) > 1 else None


@contextmanager
def children_on(cpu: int | None) -> Iterator[None]:
    """Processes that are started within run on ``cpu`` alone; None leaves them free."""
    if cpu is None:
        yield
        return
    before = os.sched_getaffinity(0)
    # Inherited at birth, so that no thread of the child can be missed.
    os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
