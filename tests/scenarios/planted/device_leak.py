"""A leak of device memory: the worker keeps a tensor of logits' size per finished request.

Used as ``--device cuda --defect tests/scenarios/planted/device_leak.py``.  sglang#20697 was of this
kind: a closure in a queue of results kept the tensors of its step.
"""

from __future__ import annotations

import torch

from hybridbench.defects.defect import Defect, Patch, Signature, fingerprint_of
from hybridbench.engine.engine import Engine
from hybridbench.engine.events import EngineEvent, EventKind

BYTES_PER_REQUEST = 64 * 1024


def planted() -> Defect:
    """Return a defect whose engine keeps a tensor for each finished request."""
    healthy = Engine.step
    kept: list[torch.Tensor] = []

    def step(self: Engine) -> list[EngineEvent]:
        events = healthy(self)
        device = self.config.device
        kept.extend(
            torch.ones(BYTES_PER_REQUEST, dtype=torch.uint8, device=device)
            for event in events
            if event.kind is EventKind.FINISHED
        )
        return events

    return Defect(
        slug="device-leak",
        source="test#2",
        symptom="device memory grows with finished requests",
        profile="chat-churn",
        signature=Signature(
            ("LEAK",), ("growth",), "device_allocated_bytes", "finishes", "64 KiB a request"
        ),
        patches=(Patch(Engine, "step", step, fingerprint_of(healthy)),),
    )


DEFECT = planted()
