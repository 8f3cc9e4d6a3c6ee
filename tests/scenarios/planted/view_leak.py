"""A leak of device memory: the worker keeps a view of a large tensor per finished request.

Used as ``--device cuda --defect tests/scenarios/planted/view_leak.py``.  Only 64 bytes are needed,
but their whole storage stays allocated; the tensors that a heap scan finds are small.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hybridbench.defects.defect import Defect, Patch, Signature, fingerprint_of
from hybridbench.engine.engine import Engine
from hybridbench.engine.events import EngineEvent, EventKind

STORAGE_BYTES = 64 * 1024
VIEW_BYTES = 64


def on_device(size: int) -> Tensor:
    """Allocate ``size`` bytes on the device."""
    return torch.ones(size, dtype=torch.uint8, device="cuda")


def planted(allocate: Callable[[int], Tensor] = on_device, *, copies: bool = False) -> Defect:
    """Return a defect whose engine keeps part of a tensor from ``allocate`` per finished request.

    With ``copies``, it correctly keeps a copy of that part instead of a view.
    """
    healthy = Engine.step
    kept: list[Tensor] = []

    def step(self: Engine) -> list[EngineEvent]:
        events = healthy(self)
        for event in events:
            if event.kind is EventKind.FINISHED:
                part = allocate(STORAGE_BYTES)[:VIEW_BYTES]
                kept.append(part.clone() if copies else part)
        return events

    return Defect(
        slug="view-leak",
        source="test#5",
        symptom="device memory grows with finished requests, and no tensor in it is large",
        profile="chat-churn",
        signature=Signature(
            ("LEAK",), ("growth",), "device_allocated_bytes", "finishes", "64 KiB a request"
        ),
        patches=(Patch(Engine, "step", step, fingerprint_of(healthy)),),
    )


DEFECT = planted()
