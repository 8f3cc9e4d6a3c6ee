"""sglang#35936, #36333, #37833: a client disconnects, and its request runs on without a reader.

The fix for orphaned entries went too far: on a disconnect the front end's entry was dropped first,
and the abort that followed looked the request up by its id, found nothing, and did nothing.  The
request then decodes to its limit, in a slot that others wait for.  Memory stays flat.

Reported: 16 abandoned requests held 4.24 of 32 slots for up to 1,800 s.
"""

from __future__ import annotations

from hybridbench.defects.defect import Defect, Patch, Signature
from hybridbench.defects.truth import Truth
from hybridbench.engine.engine import Engine

TRUTH = Truth()


def _disconnect(self: Engine, rid: str) -> bool:
    """Before #35936: drop the entry first, so that the abort finds no request to end."""
    req = self._front_end.drop(rid)
    if req is None:
        return False
    self.counters.disconnects += 1
    TRUTH.add("disconnects")
    if not self.abort(rid):
        TRUTH.add("ghosts")
        TRUTH.add("tokens_for_nobody_at_most", req.remaining_new_tokens)
    return True


DEFECT = Defect(
    slug="ghost-request",
    source="sglang#35936",
    symptom="Requests of disconnected clients run to their last token and keep their slots; memory "
    "does not grow.",
    profile="disconnect",
    signature=Signature(
        verdicts=("LEAK",),
        kinds=("running-without-client",),
        subject="request",
        event="disconnect",
        # Seen only in samples: one that ends before the next sample is not counted.
        rate="at most 1 request, which runs to its output limit",
        drivers=("disconnects",),
        harm="ghosts",
        per="disconnects",
        at_most=True,
    ),
    patches=(Patch(Engine, "disconnect", _disconnect, fingerprint="72f07102bac9"),),
    harmed="Chat front ends whose users close the tab: about 13% of the running slots served "
    "no client.",
    cure="The abort is sent first, or carries the request itself rather than its id.",
    truth=TRUTH,
)
