"""A leak of pinned host memory: the worker keeps a pinned buffer for every finished request.

Used as ``--device cuda --defect tests/scenarios/planted/pinned_leak.py``.  A transfer that nothing
waits for leaks in this way, and private memory does not show it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from hybridbench.defects.defect import Defect, Patch, Signature, fingerprint_of
from hybridbench.engine.engine import Engine
from hybridbench.engine.events import EngineEvent, EventKind

BYTES_PER_REQUEST = 64 * 1024


def pinned(size: int) -> object:
    """Return a pinned buffer of ``size`` bytes."""
    return torch.ones(size, dtype=torch.uint8, pin_memory=True)


def planted(allocate: Callable[[int], object] = pinned) -> Defect:
    """Return a defect whose engine keeps a buffer from ``allocate`` per finished request."""
    healthy = Engine.step
    kept: list[object] = []

    def step(self: Engine) -> list[EngineEvent]:
        events = healthy(self)
        finished = sum(event.kind is EventKind.FINISHED for event in events)
        kept.extend(allocate(BYTES_PER_REQUEST) for _ in range(finished))
        return events

    return Defect(
        slug="pinned-leak",
        source="test#3",
        symptom="pinned host memory grows with finished requests",
        profile="chat-churn",
        signature=Signature(
            ("LEAK",), ("growth",), "pinned_allocated_bytes", "finishes", "64 KiB a request"
        ),
        patches=(Patch(Engine, "step", step, fingerprint_of(healthy)),),
    )


DEFECT = planted()
