"""Work that a control does beside the engine's own, after each of its steps."""

from __future__ import annotations

from typing import Protocol

from hybridbench.defects.defect import Defect, Patch, Role, Signature, fingerprint_of
from hybridbench.engine.engine import Engine
from hybridbench.engine.events import EngineEvent

# The allowed verdicts of a control.  A run of minutes cannot bound every growth, so undecided is
# right too; a finding is not.
SILENT = ("CLEAN", "INCONCLUSIVE")


class SideWork(Protocol):
    """Something benign that takes memory."""

    def after_step(self, engine: Engine) -> None:
        """Do what is due by now; called between two steps on the engine's thread."""
        ...


def beside_steps(work: SideWork) -> Patch:
    """Run ``work`` after every step; the step itself is unchanged, whatever it is."""
    healthy = Engine.step

    def step(self: Engine) -> list[EngineEvent]:
        events = healthy(self)
        work.after_step(self)
        return events

    return Patch(Engine, "step", step, fingerprint_of(healthy))


def silent(rate: str, verdicts: tuple[str, ...] = SILENT, duration_s: float = 300.0) -> Signature:
    """The signature of a control: one of ``verdicts``, and nothing reported to leak."""
    return Signature(
        verdicts=verdicts,
        kinds=(),
        subject="",
        event="none",
        rate=rate,
        duration_s=duration_s,
    )


def control(  # noqa: PLR0913 - the fields of a control, each named at the call
    slug: str,
    source: str,
    *,
    symptom: str,
    rate: str,
    patches: tuple[Patch, ...] = (),
    overrides: tuple[tuple[str, str], ...] = (),
    verdicts: tuple[str, ...] = SILENT,
    profile: str = "chat-churn",
) -> Defect:
    """A control on ``profile``."""
    return Defect(
        slug=slug,
        source=source,
        symptom=symptom,
        profile=profile,
        signature=silent(rate, verdicts),
        patches=patches,
        overrides=overrides,
        role=Role.CONTROL,
    )
