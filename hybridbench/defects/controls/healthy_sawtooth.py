"""Cyclic garbage at a constant rate, with a full collection each period: RSS is a sawtooth."""

from __future__ import annotations

from collections import deque

from hybridbench.defects.controls.side_work import beside_steps, control
from hybridbench.engine.engine import Engine

PAIRS_PER_REQUEST = 20
PAYLOAD_BYTES = 400
# Pairs outlive the young generations, so that memory falls only with full collections.
PAIRS_KEPT = 30_000


class Partner:
    """One of two objects that refer to each other."""

    def __init__(self) -> None:
        self.payload = bytes(PAYLOAD_BYTES)
        self.other: Partner | None = None


class PairsThatExpire:
    """Makes pairs for each finished request and drops the oldest beyond a fixed number."""

    def __init__(self) -> None:
        self._kept: deque[Partner] = deque()
        self._served = 0

    def after_step(self, engine: Engine) -> None:
        finished = engine.counters.finishes
        for _ in range((finished - self._served) * PAIRS_PER_REQUEST):
            one, two = Partner(), Partner()
            one.other, two.other = two, one
            self._kept.append(one)
        self._served = finished
        while len(self._kept) > PAIRS_KEPT:
            self._kept.popleft()


DEFECT = control(
    "healthy-sawtooth",
    "cpython gc",
    symptom="Memory rises and falls with the full collections; its troughs stay level.",
    rate="none from trough to trough",
    patches=(beside_steps(PairsThatExpire()),),
    # A full collection waits until new objects reach a quarter of the heap.  With a small heap that
    # happens often, so memory falls often.
    overrides=(("ballast.objects", "0"),),
)
