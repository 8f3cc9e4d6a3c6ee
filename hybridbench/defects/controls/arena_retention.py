"""One burst raises RSS permanently while the memory in use returns: the allocator keeps the pages.

Reported repeatedly for glibc arenas (omi#6938: 580 MB of arenas for 270 MB in use).
"""

from __future__ import annotations

from hybridbench.defects.controls.side_work import beside_steps, control
from hybridbench.engine.engine import Engine

BURST_AFTER_REQUESTS = 4_000  # finished since the engine was steady
OBJECTS = 24_000
OBJECT_BYTES = 2_000  # above Python's own arenas, below what malloc maps by itself
KEPT_EVERY = 48  # the survivors that pin the heap's top


class OneBurst:
    """Takes 48 MB at once and frees nearly all of it at once."""

    def __init__(self) -> None:
        self._kept: list[bytes] = []
        self._steady_at: int | None = None

    def after_step(self, engine: Engine) -> None:
        finished = engine.counters.finishes
        if self._steady_at is None:
            self._steady_at = finished if engine.is_steady else None
        elif not self._kept and finished - self._steady_at >= BURST_AFTER_REQUESTS:
            self._kept = [bytes(OBJECT_BYTES) for _ in range(OBJECTS)][::KEPT_EVERY]


DEFECT = control(
    "arena-retention",
    "omi#6938",
    symptom="One burst raises RSS by 48 MB for good; the memory in use falls back.",
    rate="one step",
    patches=(beside_steps(OneBurst()),),
)
