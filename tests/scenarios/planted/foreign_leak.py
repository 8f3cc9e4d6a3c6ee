"""A leak that is not in hybridbench's catalogue: the worker keeps 1 GiB/h of a foreign object.

Used as ``--defect tests/scenarios/planted/foreign_leak.py``; ``foreign_twin.py`` creates the same
objects and keeps none of them.
"""

from __future__ import annotations

import time

from hybridbench.defects.defect import Defect, Patch, Signature, fingerprint_of
from hybridbench.engine.engine import Engine
from hybridbench.engine.events import EngineEvent

BYTES_PER_S = 2**30 / 3600
OBJECT_BYTES = 16 * 1024


class ForeignRecord:
    """An object that has nothing to do with slots, trees or requests."""

    def __init__(self) -> None:
        # Written to, so that the memory becomes resident.
        self.payload = bytearray(b"\x01") * OBJECT_BYTES


class ForeignStore:
    """Keeps one record for each 16 KiB due by the clock."""

    def __init__(self, keeps: bool) -> None:
        self.keeps = keeps
        self.records: list[ForeignRecord] = []
        self.made = 0
        self.start_s = time.monotonic()

    def work(self) -> None:
        """Create the records that are due by now."""
        due = (time.monotonic() - self.start_s) * BYTES_PER_S / OBJECT_BYTES
        while self.made < due:
            record = ForeignRecord()
            self.made += 1
            if self.keeps:
                self.records.append(record)


def planted(slug: str, keeps: bool) -> Defect:
    """Return a defect whose engine steps add records to a store."""
    healthy = Engine.step
    store = ForeignStore(keeps)

    def step(self: Engine) -> list[EngineEvent]:
        store.work()
        return healthy(self)

    return Defect(
        slug=slug,
        source="test#1",
        symptom="memory of an unknown class grows with time",
        profile="chat-churn",
        signature=Signature(("LEAK",), ("growth",), "rss_anon_swap_bytes", "time", "1 GiB/h"),
        patches=(Patch(Engine, "step", step, fingerprint_of(healthy)),),
    )


DEFECT = planted("planted-leak", keeps=True)
