"""A leak of CUDA events: the engine records one in each step and keeps them all.

Used as ``--device cuda --defect tests/scenarios/planted/event_leak.py``; streams can leak in the
same way.  An event's memory belongs to the driver, so no allocator of PyTorch counts it; only the
list of events grows.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from hybridbench.defects.defect import Defect, Patch, Signature, fingerprint_of
from hybridbench.engine.engine import Engine
from hybridbench.engine.events import EngineEvent

ATTRIBUTE = "_copy_done"


def recorded() -> object:
    """Record an event after the work submitted so far."""
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return event


def planted(record: Callable[[], object] = recorded) -> Defect:
    """Return a defect whose engine keeps a result of ``record`` per step."""
    healthy = Engine.step

    def step(self: Engine) -> list[EngineEvent]:
        events = healthy(self)
        vars(self).setdefault(ATTRIBUTE, []).append(record())
        return events

    return Defect(
        slug="event-leak",
        source="test#6",
        symptom="a list of events of the device grows with steps",
        profile="chat-churn",
        signature=Signature(
            ("LEAK",), ("container-grows",), f"Engine.{ATTRIBUTE}", "steps", "1 a step"
        ),
        patches=(Patch(Engine, "step", step, fingerprint_of(healthy)),),
    )


DEFECT = planted()
