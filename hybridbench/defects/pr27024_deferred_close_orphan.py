"""sglang#27024: a session closed during a turn is never closed.

A close cannot free what a running turn uses, so it is deferred until the turn has ended.  If that
moment was missed, nothing retried it: the session accepts no more turns, and holds its row,
its KV, its state and its lock in the tree until the server ends.
"""

from __future__ import annotations

from hybridbench.defects.defect import Defect, Patch, Signature
from hybridbench.defects.truth import Truth
from hybridbench.engine.req import Session
from hybridbench.engine.sessions.session_controller import SessionController

TRUTH = Truth()
_healthy_close = SessionController.close


def close(self: SessionController, session_id: str) -> bool:
    """Close as usual, and count the deferred closes."""
    session = self.get(session_id)
    if session is not None and session.is_inflight:
        TRUTH.add("closes_put_off", int(not session.close_on_finish))
    return _healthy_close(self, session_id)


def _close_deferred(self: SessionController, session: Session) -> None:
    """Ignore the close that was deferred until the turn ended."""
    still_open = session.session_id in self.sessions and not session.is_inflight
    TRUTH.add("sessions_left_open", int(session.close_on_finish and still_open))


DEFECT = Defect(
    slug="deferred-close-orphan",
    source="sglang#27024",
    symptom="A session closed during a turn stays open forever and keeps everything it holds.",
    profile="session-churn",
    signature=Signature(
        verdicts=("LEAK",),
        kinds=("container-grows",),
        subject="sessions",
        event="close of a session during a turn",
        rate="1 session",
        drivers=("session_deferred_closes",),
        harm="sessions_left_open",
        per="closes_put_off",
        duration_s=180.0,
        quick_s=0.0,
    ),
    patches=(
        Patch(SessionController, "close", close, fingerprint="8ae9f51952c0"),
        Patch(SessionController, "_close_deferred", _close_deferred, fingerprint="9f0148b33dae"),
    ),
    harmed="Servers with parallel, overlapping turns: KV stays locked and cannot be evicted.",
    cure="At the end of a turn the engine checks whether the session is to be closed.",
    # A timeout would close the session after all.
    overrides=(
        ("sessions.abandon", "0"),
        ("sessions.timeout", "null"),
        ("assert_coverage.session_timeouts", "0"),
    ),
    truth=TRUTH,
)
