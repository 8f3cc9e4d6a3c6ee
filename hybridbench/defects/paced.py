"""Native memory kept at a set rate: the common part of defects that only private memory shows.

Such a defect has no count that grows, so it is identified by its bytes per hour, on any machine.
It works block by block, for a request that has just finished, whenever the clock makes a block due.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from hybridbench.defects.controls.side_work import beside_steps, control
from hybridbench.defects.defect import BYTES_KEPT, MILLISECONDS, Defect, Signature
from hybridbench.defects.truth import Truth
from hybridbench.engine.engine import Engine
from hybridbench.foundation.clock import Clock, SystemClock
from hybridbench.foundation.metrics import MEMORY

# The maximum of work per request.  What frameworks keep with each block is negligible in
# comparison: under one percent.
BLOCK_BYTES: Final = 512 * 1024
# The last is the default.  The first is near the least that five minutes can call a leak: 8 MiB of
# the window are attributed to a healthy allocator, 107 MiB/h (detection.md).
RATES: Final = ("200MiB/h", "1GiB/h", "4GiB/h")
DEFAULT_BYTES_PER_HOUR: Final = 4 * 2.0**30


class PacedWork:
    """Runs ``block`` for finished requests, ``bytes_per_hour`` of blocks in total.

    Args:
        bytes_per_hour: of work; ``block`` returns how much of it is kept.
        block: works with ``BLOCK_BYTES`` of memory and returns how many bytes of it are kept.
        truth: counts the bytes that were kept and the time over which they were.
    """

    def __init__(
        self,
        bytes_per_hour: float,
        block: Callable[[], int],
        truth: Truth,
        clock: Clock | None = None,
    ) -> None:
        self._bytes_per_ms = bytes_per_hour / 3_600_000
        self._block = block
        self._truth = truth
        self._clock = SystemClock() if clock is None else clock
        self._start_s: float | None = None
        self._served = 0
        self._worked_bytes = 0
        self._counted_ms = 0

    def after_step(self, engine: Engine) -> None:
        """Run a block for each request that finished in the step, as long as one is due."""
        now_s = self._clock.monotonic_s()
        if self._start_s is None:
            self._start_s = now_s
        elapsed_ms = round(1000 * (now_s - self._start_s))
        finished = engine.counters.finishes - self._served
        self._served += finished
        for _ in range(finished):
            if self._worked_bytes + BLOCK_BYTES > elapsed_ms * self._bytes_per_ms:
                return
            self._worked_bytes += BLOCK_BYTES
            kept = self._block()
            self._truth.add(BYTES_KEPT, kept)
            self._truth.add(MILLISECONDS, elapsed_ms - self._counted_ms)
            self._counted_ms = elapsed_ms


def private_memory_grows(rate: str) -> Signature:
    """Private memory, and nothing else, grows at the rate of the truth."""
    return Signature(
        verdicts=("LEAK",),
        kinds=("growth",),
        subject=MEMORY,
        event="finished request, as often as the rate requires",
        rate=rate,
        harm=BYTES_KEPT,
        per=MILLISECONDS,
        alone=True,
        duration_s=300.0,
        quick_s=0.0,
    )


def gives_back(slug: str, source: str, symptom: str, block: Callable[[], int]) -> Defect:
    """A healthy twin: the defect's work at its largest rate, of which nothing is kept."""
    truth = Truth()
    work = PacedWork(DEFAULT_BYTES_PER_HOUR, block, truth)
    twin = control(
        slug,
        source,
        symptom=symptom,
        rate="none: every block is freed",
        patches=(beside_steps(work),),
        verdicts=("CLEAN",),
    )
    return replace(twin, truth=truth)
