"""Growth caused by the observer: each poll of the worker leaves something behind (rocky#1256).

In the original, a soak polled an endpoint whose answer grew with every poll, so the soak itself
caused the growth.
"""

from __future__ import annotations

from hybridbench.defects.controls.side_work import control
from hybridbench.defects.defect import Patch, fingerprint_of
from hybridbench.engine.engine import Engine

RECORD_BYTES = 128 * 1024


def polled(history: list[bytes]) -> Patch:
    """Keep another record whenever ``containers`` is called, which only the bench does."""
    healthy = Engine.containers

    def containers(self: Engine) -> dict[str, int]:
        history.append(bytes(RECORD_BYTES))
        return healthy(self)

    return Patch(Engine, "containers", containers, fingerprint_of(healthy))


DEFECT = control(
    "observer-growth",
    "rocky#1256",
    symptom="Memory grows by 128 KiB with every sample that hybridbench takes, and with nothing "
    "else.",
    rate="128 KiB per sample, which the report attributes to hybridbench and not to the engine",
    patches=(polled([]),),
    verdicts=("INVALID",),
)
