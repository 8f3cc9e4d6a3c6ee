"""sglang#22862, as first proposed: the tail of a session is freed from inside a page.

The fix of the lost tail freed everything past what the next turn shares.  The allocator frees
whole pages, so a tail that begins inside a page took that page from the tokens before it,
which the turn continues to read.  Found in review, before it was merged.
"""

from __future__ import annotations

from hybridbench.defects.defect import Defect, Patch, Signature
from hybridbench.defects.truth import Truth
from hybridbench.engine.memory.owners import REQ
from hybridbench.engine.sessions.session_slot import SessionSlot
from hybridbench.engine.sessions.streaming_session import StreamingSession

TRUTH = Truth()


def _free_tail(self: StreamingSession, slot: SessionSlot, prefix_len: int) -> None:
    """Free from ``prefix_len`` on, even inside a page."""
    kv = slot.kv
    if prefix_len < kv.kv_allocated_len:
        tail = self._indices(kv.row, prefix_len, kv.kv_allocated_len)
        TRUTH.add("tails_freed")
        TRUTH.add("tokens_freed_in_use", self.page_size if prefix_len % self.page_size else 0)
        self.token_to_kv_pool_allocator.free(tail, REQ)


DEFECT = Defect(
    slug="session-tail-unaligned-free",
    source="sglang#22862",
    symptom="A page that a session's turn still reads is freed, and soon allocated to another "
    "request as well.",
    profile="session-ahead",
    signature=Signature(
        verdicts=("INVARIANT",),
        kinds=("negative-residual", "engine-residual", "more-free-than-exist"),
        subject="kv",
        event="turn that starts inside a page with allocated positions beyond the start",
        rate="1 page (16 tokens) with two holders; none if it is allocated to the turn itself",
        # In this profile every resumed turn has a tail past its start.
        drivers=("session_tail_frees", "session_restores"),
        harm="tokens_freed_in_use",
        per="tails_freed",
        counted="surplus",
        at_most=True,
    ),
    patches=(Patch(StreamingSession, "_free_tail", _free_tail, fingerprint="66f9abb00f71"),),
    harmed="No user: found in review.  With pages of one token the code is correct.",
    cure="The start of the freed range is rounded up to a page boundary.",
    overrides=(
        # At the time, allocators did not check owners.
        ("engine.check_owners", "false"),
        ("pools.page_size", "16"),
        ("engine.mamba_scheduler_strategy", "extra_buffer"),
        # The run may end at the first such free, after hardly any traffic.
        ("assert_coverage.session_tail_frees", "0"),
    ),
    truth=TRUTH,
    corrupts=True,
)
