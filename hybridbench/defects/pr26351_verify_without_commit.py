"""sglang#26351: n-gram verification leaves states as they were before the draft tokens.

A step that verifies draft tokens keeps the state after each of them in a separate buffer.  Once the
accepted tokens are known, the matching state must be copied to the request.  The n-gram worker did
not copy it.
"""

from __future__ import annotations

from collections.abc import Sequence

from hybridbench.defects.defect import Defect, Patch
from hybridbench.defects.truth import Truth
from hybridbench.defects.wrong_answers import answers
from hybridbench.engine.scheduler.schedule_batch import ScheduleBatch
from hybridbench.engine.scheduler.verify import DraftVerifier

TRUTH = Truth()


def _update_states(
    self: DraftVerifier, batch: ScheduleBatch, taken: Sequence[Sequence[int]]
) -> None:
    """Copy nothing."""
    if self._pools.has_states:
        TRUTH.add("states_not_committed", sum(map(bool, taken)))


DEFECT = Defect(
    slug="verify-without-commit",
    source="sglang#26351",
    symptom="Each verification step leaves its requests' states behind their tokens.",
    profile="draft-verify",
    signature=answers(
        "request in a step that verifies draft tokens", "one request", "states_not_committed"
    ),
    patches=(Patch(DraftVerifier, "_update_states", _update_states, fingerprint="f3c31a2b23f8"),),
    harmed="Hybrid models with n-gram speculation: the text degenerated after the first guesses.",
    cure="The state after the last accepted token becomes the request's.",
    truth=TRUTH,
    corrupts=True,
)
