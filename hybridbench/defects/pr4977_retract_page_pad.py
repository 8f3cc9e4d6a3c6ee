"""sglang#4977: a retraction frees KV from the next page boundary instead of the previous one.

The tree holds whole pages of the prompt; the rest of the prompt is in a page of the request's own.
To find where its own KV begins, a retraction rounded the length of the prefix up to whole pages,
where it must round down.  The page with the end of the prompt lies between the two: the tree never
had it, and the retraction did not free it.

Seen again as sglang#9989, where fewer tokens were released than had been counted.
"""

from __future__ import annotations

from hybridbench.defects.defect import Defect, Patch, Signature
from hybridbench.defects.truth import Truth
from hybridbench.engine.memory.pages import ceil_align
from hybridbench.engine.req import Req
from hybridbench.engine.scheduler.release import RequestRelease

TRUTH = Truth()


def _retract(self: RequestRelease, req: Req) -> None:
    """Before #4977 the prefix was rounded up to a page, not down."""
    kv = req.kv
    padded = ceil_align(len(kv.prefix_indices), self._pools.page_size)
    if padded > kv.cache_protected_len:
        TRUTH.add("tokens_lost", padded - kv.cache_protected_len)
        TRUTH.add("unaligned_retracts")
        kv.cache_protected_len = padded
    TRUTH.add("retracts")
    self.release(req, is_insert=False)


DEFECT = Defect(
    slug="retract-page-pad",
    source="sglang#4977",
    symptom="A KV page is lost at each retract of a request whose prompt does not end on a page "
    "boundary.",
    profile="retract-storm",
    signature=Signature(
        verdicts=("LEAK",),
        kinds=("residual",),
        subject="kv",
        event="retract of a request whose prefix ends inside a page",
        rate="one page (16 tokens); none where the prefix fills its last page",
        drivers=("retracts",),
        harm="tokens_lost",
        per="retracts",
        counted="missing",
    ),
    patches=(Patch(RequestRelease, "retract", _retract, fingerprint="1aeb348cb02e"),),
    harmed="Servers with multi-token pages under KV pressure: the pool shrinks with every retract.",
    cure="The length is rounded down to whole pages before the rest is freed.",
    truth=TRUTH,
)
