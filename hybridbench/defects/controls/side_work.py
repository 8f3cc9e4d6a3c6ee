"""Extra work that a control does after each step of the engine."""

from __future__ import annotations

from typing import Protocol

from hybridbench.defects.defect import Defect, Patch, Role, Signature, fingerprint_of
from hybridbench.engine.engine import Engine
from hybridbench.engine.events import EngineEvent

# The allowed verdicts of a control.  A run of minutes cannot bound every growth, so INCONCLUSIVE is
# also correct; a finding is not.
SILENT = ("CLEAN", "INCONCLUSIVE")


class SideWork(Protocol):
    """Benign work that uses memory."""

    def after_step(self, engine: Engine) -> None:
        """Do the work that is due; called between two steps on the engine's thread."""
        ...


def beside_steps(work: SideWork) -> Patch:
    """Return a patch that runs ``work`` after every step and leaves the step itself unchanged."""
    healthy = Engine.step

    def step(self: Engine) -> list[EngineEvent]:
        events = healthy(self)
        work.after_step(self)
        return events

    return Patch(Engine, "step", step, fingerprint_of(healthy))


def silent(rate: str, verdicts: tuple[str, ...] = SILENT, duration_s: float = 300.0) -> Signature:
    """Return the signature of a control: one of ``verdicts``, and no leak reported."""
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
    """Return a control that runs on ``profile``."""
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
