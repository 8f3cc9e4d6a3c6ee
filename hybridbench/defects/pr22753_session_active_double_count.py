"""sglang#22753: while a session's turn runs, the engine's check counts what it holds twice.

The session's slot still names the row of the running turn, so both the turn and the session
counted it.  The check of a busy engine then found more slots than exist.  Nothing is lost.
Reported as sglang#22213 and #22152.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hybridbench.defects.defect import Defect, Patch, Signature
from hybridbench.defects.truth import Truth
from hybridbench.engine.req import Req
from hybridbench.engine.scheduler.invariants import InvariantChecker
from hybridbench.engine.scheduler.pool_stats import PoolStats

TRUTH = Truth()


def _account(
    self: InvariantChecker, admitted: Sequence[Req], waiting: Sequence[Req]
) -> dict[str, PoolStats]:
    """Count what sessions hold, without excluding the rows in flight."""
    stats, sessions = self._observer.stats(admitted, waiting), self._pools.sessions
    held = {
        "kv": sessions.session_held_tokens(),
        "mamba": sessions.session_held_mamba_slots(),
        "req": sessions.session_held_req_count(),
    }
    TRUTH.add("checks_misled", int(held["req"] > stats["req"].session_held))
    return {pool: replace(stats[pool], session_held=held[pool]) for pool in stats}


DEFECT = Defect(
    slug="session-active-double-count",
    source="sglang#22753",
    symptom="The engine's own check reports slots with two holders whenever a session's turn runs, "
    "although there are none.",
    profile="session-churn",
    signature=Signature(
        verdicts=("INVARIANT",),
        kinds=("false-alarm",),
        subject="state",
        event="check while a session's turn runs",
        rate="one false alarm; no slot is missing",
        harm="checks_misled",
        # The engine reports an alarm once, however many checks raise the same one.
        counted="count",
        at_most=True,
    ),
    patches=(Patch(InvariantChecker, "_account", _account, fingerprint="4acd84f40729"),),
    harmed="Servers that run the strict check under load, as upstream's own tests do.",
    cure="The session's count excludes what its running request holds.",
    # Only a check in every step sees a running turn.
    overrides=(("engine.check_level", "busy"),),
    truth=TRUTH,
)
