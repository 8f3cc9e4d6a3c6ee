"""One burst raises RSS permanently although the memory is freed: the allocator keeps the pages.

Reported repeatedly for glibc arenas (omi#6938: 580 MB of arenas for 270 MB in use).
"""

from __future__ import annotations

from hybridbench.defects.controls.side_work import beside_steps, control
from hybridbench.engine.engine import Engine

BURST_AFTER_REQUESTS = 4_000  # requests finished since the engine became steady
OBJECTS = 24_000
OBJECT_BYTES = 2_000  # too large for Python's own arenas, below malloc's mmap threshold
KEPT_EVERY = 48  # one object in 48 survives, and the survivors pin the top of the heap


class OneBurst:
    """Allocates 48 MB in one step and frees nearly all of it at once."""

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
    symptom="One burst raises RSS by 48 MB permanently; the memory in use falls back.",
    rate="one step",
    patches=(beside_steps(OneBurst()),),
)
