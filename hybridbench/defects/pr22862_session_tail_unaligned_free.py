"""sglang#22862, as first proposed: the tail of a session is freed from inside a page.

The cure of the lost tail freed everything behind what the next turn shares.  The allocator frees
whole pages, so a tail that begins inside a page took that page away from the tokens before it,
which the turn goes on to read.  Found in review, before it was merged.
"""

from __future__ import annotations

from hybridbench.defects.defect import Defect, Patch, Signature
from hybridbench.defects.truth import Truth
from hybridbench.engine.cache.radix_key import RadixKey
from hybridbench.engine.memory.owners import REQ
from hybridbench.engine.req import ReqKv
from hybridbench.engine.sessions.session_slot import SessionSlot
from hybridbench.engine.sessions.streaming_session import StreamingSession

TRUTH = Truth()


def _prefix_len(self: StreamingSession, slot: SessionSlot, key: RadixKey) -> int:
    """The key is without its last token already; one more was taken off."""
    return min(slot.kv.kv_committed_len, len(key) - 1)


def _free_kv_aligned(self: StreamingSession, kv: ReqKv, start: int) -> None:
    """From ``start`` on, wherever in its page that is."""
    if start < kv.kv_allocated_len:
        tail = self._indices(kv.row, start, kv.kv_allocated_len)
        TRUTH.add("tails_freed")
        TRUTH.add("tokens_freed_in_use", self.page_size if start % self.page_size else 0)
        self.token_to_kv_pool_allocator.free(tail, REQ)


DEFECT = Defect(
    slug="session-tail-unaligned-free",
    source="sglang#22862",
    symptom="A page that a session's turn still reads is free, and soon somebody else's as well.",
    profile="session-retract",
    signature=Signature(
        verdicts=("INVARIANT",),
        kinds=("negative-residual", "engine-residual", "more-free-than-exist"),
        subject="kv",
        event="match of a session's turn that was retracted inside a page",
        rate="1 page (16 tokens) with two holders; none if the turn itself gets it again",
        drivers=("session_retries", "session_retracts"),
        harm="tokens_freed_in_use",
        per="tails_freed",
        counted="surplus",
        at_most=True,
    ),
    patches=(
        Patch(StreamingSession, "_prefix_len", _prefix_len, fingerprint="72cd2dd03625"),
        Patch(StreamingSession, "_free_kv_aligned", _free_kv_aligned, fingerprint="4177d4ede711"),
    ),
    harmed="Nobody: the review saw it.  With pages of one token it is right.",
    cure="The start is rounded up to a page border.",
    # No account of holders stood in the way.
    overrides=(("engine.check_owners", "false"),),
    truth=TRUTH,
    corrupts=True,
)
