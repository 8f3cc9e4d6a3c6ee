"""sglang#23496, second half: the engine's check ignores what idle sessions hold.

The check that adds up the state pool used a literal 0 for what sessions hold, so every open, idle
session looked like a leak, and a strict server shut itself down.  Nothing is lost: the pools
themselves are correct.
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
    """Set the state pool's term for sessions to 0, whatever they hold."""
    stats = self._observer.stats(admitted, waiting)
    if "mamba" in stats:
        TRUTH.add("checks_misled", int(stats["mamba"].session_held > 0))
        stats["mamba"] = replace(stats["mamba"], session_held=0)
    return stats


DEFECT = Defect(
    slug="session-held-blind-check",
    source="sglang#23496",
    symptom="The engine's own check reports the state slots of open, idle sessions as leaked "
    "although none is.",
    profile="session-idle",
    signature=Signature(
        verdicts=("INVARIANT",),
        kinds=("false-alarm",),
        subject="state",
        event="check while a session is open and idle",
        rate="one false alarm; no slot is missing",
        harm="checks_misled",
        # The engine reports an alarm once, however many checks raise the same one.
        counted="count",
        at_most=True,
    ),
    patches=(Patch(InvariantChecker, "_account", _account, fingerprint="4acd84f40729"),),
    harmed="Servers with the strict check, which is the default when idle: it shuts the server "
    "down.",
    cure="The check also counts what sessions hold.",
    versions=(("0.5.10", "0.5.10.post1"),),
    truth=TRUTH,
)
