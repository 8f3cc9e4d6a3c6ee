"""sglang#31616: the pages that rejected draft tokens took are not freed.

A step that verifies draft tokens takes KV for all of them, in whole pages.  Then the request's
length was set back to the accepted tokens, and nothing recorded how much had been taken: the pages
beyond that length belonged to no owner.  Each was lost until the server was restarted.
See also sglang#13826 and sglang-jax#1147: with pages of 64 tokens a request could lose two at once.
"""

from __future__ import annotations

from hybridbench.defects.defect import Defect, Patch, Signature
from hybridbench.defects.truth import Truth
from hybridbench.engine.memory.pages import ceil_align
from hybridbench.engine.req import Req
from hybridbench.engine.scheduler.release import RequestRelease

TRUTH = Truth()


def _free_draft_tail(self: RequestRelease, req: Req) -> None:
    """Set back only the length; free nothing."""
    kv, page_size = req.kv, self._pools.page_size
    kept, taken = (ceil_align(n, page_size) for n in (kv.kv_committed_len, kv.kv_allocated_len))
    if kept < taken:
        TRUTH.add("tokens_lost", taken - kept)
        TRUTH.add("draft_tails")
    kv.kv_allocated_len = kv.kv_committed_len


DEFECT = Defect(
    slug="spec-tail-unrecorded",
    source="sglang#31616",
    symptom="A KV page is lost each time rejected draft tokens had reached into it.",
    profile="draft-verify",
    signature=Signature(
        verdicts=("LEAK",),
        kinds=("residual",),
        subject="kv",
        event="verified step whose rejected draft tokens reach into a further page",
        rate="one page (16 tokens)",
        drivers=("draft_tails",),
        harm="tokens_lost",
        per="draft_tails",
        counted="missing",
    ),
    patches=(
        Patch(RequestRelease, "free_draft_tail", _free_draft_tail, fingerprint="c0fca3a1b60b"),
    ),
    harmed="Servers with speculative decoding and multi-token pages: the pool shrinks every few "
    "steps.",
    cure="The allocated length is recorded separately from the accepted length, and the difference "
    "is freed.",
    model="attention-tiny",
    overrides=(
        ("pools.page_size", "16"),
        # About five thousand tokens are lost per minute: room for a few minutes.
        ("pools.kv_tokens", "65536"),
        # Attention alone has no states to copy; and a shrinking pool serves less and less.
        ("assert_coverage.cow_copies", "0"),
        ("assert_coverage.draft_tails", "50"),
        ("assert_coverage.verify_steps", "200"),
        ("assert_coverage.drafts_proposed", "1000"),
        ("assert_coverage.drafts_accepted", "50"),
        ("assert_coverage.finishes", "60"),
    ),
    truth=TRUTH,
)
