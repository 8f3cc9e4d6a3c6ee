"""Slots touched for the first time at a falling rate: memory saturates (moq#2745).

Upstream the slope halved every quarter of an hour, and a straight line fitted with R2 0.91.
"""

from __future__ import annotations

from random import Random

import numpy as np
from numpy.typing import NDArray

from hybridbench.defects.controls.side_work import beside_steps, control
from hybridbench.engine.engine import Engine

PAGES = 32_768
PAGE_BYTES = 4_096
# Half of the pages are touched after 0.69 * PAGES / PAGES_PER_REQUEST = 2,800 requests.
PAGES_PER_REQUEST = 8


class PagesOnDemand:
    """A table of 128 MiB, reserved at once and touched at random by each finished request."""

    def __init__(self) -> None:
        self._table: NDArray[np.uint8] | None = None
        self._random = Random(1)
        self._served = 0

    def after_step(self, engine: Engine) -> None:
        if self._table is None:
            self._table = np.empty(PAGES * PAGE_BYTES, dtype=np.uint8)
        finished = engine.counters.finishes
        touches = (finished - self._served) * PAGES_PER_REQUEST
        for _ in range(touches):
            self._table[self._random.randrange(PAGES) * PAGE_BYTES] = 1
        self._served = finished


DEFECT = control(
    "slot-fill-log",
    "moq#2745",
    symptom="Memory grows ever more slowly, as fewer slots are touched for the first time.",
    rate="halves every few thousand requests",
    patches=(beside_steps(PagesOnDemand()),),
)
