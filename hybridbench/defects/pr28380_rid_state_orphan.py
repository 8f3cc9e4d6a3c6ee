"""sglang#28380, #24070: a request that never reached the model leaves its entry in the front end.

The entry is made before the request is validated, and only the output of a step removes it.  A
request that is rejected, or aborted while it waits in the queue, has no output: each leaves one
entry permanently, and its id can never be used again ("duplicate request id").
"""

from __future__ import annotations

from hybridbench.defects.defect import Defect, Patch, Signature
from hybridbench.defects.truth import Truth
from hybridbench.engine.front_end import FrontEnd

TRUTH = Truth()


def _forget_unserved(self: FrontEnd, rid: str) -> None:
    """Before #28380 the entry stayed."""
    if self.knows(rid):
        TRUTH.add("entries_orphaned")
    TRUTH.add("requests_unserved")


DEFECT = Defect(
    slug="rid-state-orphan",
    source="sglang#28380",
    symptom="The front end's request table keeps an entry for each request that was rejected, or "
    "aborted in the queue.",
    profile="bad-input",
    signature=Signature(
        verdicts=("LEAK",),
        kinds=("container-grows",),
        subject="front_end",
        event="rejected request, or request aborted in the queue",
        rate="exactly 1 entry",
        drivers=("requests_rejected",),
        harm="entries_orphaned",
        per="requests_unserved",
        quick_s=45.0,
    ),
    patches=(Patch(FrontEnd, "forget_unserved", _forget_unserved, fingerprint="691d86bd2bf0"),),
    harmed="Servers that receive prompts that are too long, or batches with one invalid item: host "
    "memory grew, and a client that reused a request id was refused.",
    cure="Rejecting or aborting a request before dispatch also deletes its entry.",
    truth=TRUTH,
)
