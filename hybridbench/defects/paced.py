"""Native memory leaked at a set rate: the common part of defects that only private memory shows.

No count grows in such a defect, so it is identified by its bytes per hour, on any machine.
It works in blocks: a finished request triggers the next block as soon as the rate allows it.
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

# The maximum work per request.  What frameworks keep along with a block is negligible: under one
# percent of it.
BLOCK_BYTES: Final = 512 * 1024
# The last is the default.  The first is close to the smallest leak that five minutes can detect:
# a healthy allocator may account for 8 MiB per window, 107 MiB/h (detection.md).
RATES: Final = ("200MiB/h", "1GiB/h", "4GiB/h")
DEFAULT_BYTES_PER_HOUR: Final = 4 * 2.0**30


class PacedWork:
    """Runs ``block`` when requests finish, at ``bytes_per_hour`` in total.

    Args:
        bytes_per_hour: the rate of work, whether or not the memory is kept.
        block: works with ``BLOCK_BYTES`` of memory and returns how many bytes of it are kept.
        truth: counts the bytes kept and the time over which they accumulated.
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
    """Return the signature of a leak that shows only in private memory, at the truth's rate."""
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
    """Return a healthy twin: it does the defect's work at the default rate and keeps nothing."""
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
