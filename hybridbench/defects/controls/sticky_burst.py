"""A burst fills slots that keep their payload until a request of the same kind reuses them.

Growth is bounded: in vllm#57974 it ends at 256 MiB for 8 slots, once every slot has been used.
"""

from __future__ import annotations

from hybridbench.defects.controls.side_work import beside_steps, control
from hybridbench.engine.engine import Engine

BURST_AFTER_REQUESTS = 3_000  # requests finished since the engine became steady
BURST_REQUESTS = 600
SLOTS = 32
PAYLOAD_BYTES = 2 * 2**20


class SlotsThatKeep:
    """During the burst, each request leaves its payload in the next slot."""

    def __init__(self) -> None:
        self._slots: list[bytearray | None] = [None] * SLOTS
        self._steady_at: int | None = None
        self._served = 0

    def after_step(self, engine: Engine) -> None:
        finished = engine.counters.finishes
        if self._steady_at is None:
            self._steady_at = finished if engine.is_steady else None
            self._served = finished
            return
        for index in range(self._served, finished):
            if 0 <= index - self._steady_at - BURST_AFTER_REQUESTS < BURST_REQUESTS:
                self._slots[index % SLOTS] = bytearray(b"\x01") * PAYLOAD_BYTES
        self._served = finished


DEFECT = control(
    "sticky-burst",
    "vllm#57974",
    symptom="A burst leaves 64 MiB in slots that are never emptied; later requests add nothing.",
    rate="one step",
    patches=(beside_steps(SlotsThatKeep()),),
)
