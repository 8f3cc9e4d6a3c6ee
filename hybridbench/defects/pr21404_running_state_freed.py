"""sglang#21404, as first proposed: an admitted request loses its state slot.

The fix of the leak freed the match's slot whenever the adder did not return CONTINUE.  The adder
also returns something else when it has added the request and there is no room for more.  That
request then got another slot with its row, and computed from whatever its last holder had left.
Found in review: the second commit checks whether the request was added.
"""

from __future__ import annotations

from hybridbench.defects.defect import Defect, Patch
from hybridbench.defects.truth import Truth
from hybridbench.defects.wrong_answers import answers
from hybridbench.engine.req import Req
from hybridbench.engine.scheduler.prefill import AddReqResult, PrefillAdder

TRUTH = Truth()
_healthy_match_and_add = PrefillAdder._match_and_add


def _match_and_add(self: PrefillAdder, req: Req) -> AddReqResult:
    """Treat every request without CONTINUE as not added."""
    added = _healthy_match_and_add(self, req)
    if added is not AddReqResult.CONTINUE and self.refused is not req and req.session is None:
        TRUTH.add("states_lost", int(req.kv.mamba_pool_idx is not None))
        self._return_unadmitted(req)
    return added


DEFECT = Defect(
    slug="running-state-freed",
    source="sglang#21404",
    symptom="The last request admitted in a step computes from the state of another one.",
    profile="chat-churn",
    signature=answers(
        "admission that ends because there is no more room, of a request with a prefix hit",
        "one request",
        "states_lost",
    ),
    patches=(Patch(PrefillAdder, "_match_and_add", _match_and_add, fingerprint="d6d06ce55296"),),
    harmed="No user: found in review.",
    cure="The slot is freed only if the request is not in the batch.",
    truth=TRUTH,
    corrupts=True,
)
