"""sglang#22862: a session's turn that goes on after a retract loses the last token's position.

A turn that was pushed back is matched again: all its tokens but the last, which is computed anew
for its logits.  The match took that one token off twice.  So the next prefill wrote a new position
over one that still had KV, and its index was gone.  The same happened to positions that a drafter
had allocated beyond the answer.
"""

from __future__ import annotations

from hybridbench.defects.defect import Defect, Patch, Signature
from hybridbench.defects.truth import Truth
from hybridbench.engine.cache.radix_key import RadixKey
from hybridbench.engine.sessions.session_slot import SessionSlot
from hybridbench.engine.sessions.streaming_session import StreamingSession

TRUTH = Truth()


def _prefix_len(self: StreamingSession, slot: SessionSlot, key: RadixKey) -> int:
    """The key is without its last token already; one more was taken off."""
    return min(slot.kv.kv_committed_len, len(key) - 1)


def _free_tail(self: StreamingSession, slot: SessionSlot, prefix_len: int) -> None:
    """Lengths go down; who frees what lies behind them, nobody said."""
    kv = slot.kv
    if self.page_size == 1:
        TRUTH.add("tokens_lost", kv.kv_allocated_len - prefix_len)
    TRUTH.add("tails_overwritten", int(kv.kv_allocated_len > prefix_len))
    kv.kv_allocated_len = prefix_len
    kv.kv_committed_len = min(kv.kv_committed_len, prefix_len)


DEFECT = Defect(
    slug="session-retract-tail",
    source="sglang#22862",
    symptom="A KV token is lost each time a retracted turn of a session is matched again.",
    profile="session-retract",
    signature=Signature(
        verdicts=("LEAK",),
        kinds=("residual",),
        subject="kv",
        event="match of a session's turn that was retracted",
        rate="1 token",
        drivers=("session_retries", "session_retracts"),
        harm="tokens_lost",
        per="tails_overwritten",
        counted="missing",
        quick_s=45.0,
    ),
    patches=(
        Patch(StreamingSession, "_prefix_len", _prefix_len, fingerprint="72cd2dd03625"),
        Patch(StreamingSession, "_free_tail", _free_tail, fingerprint="a0fc4cccdfa9"),
    ),
    harmed="Sessions under KV pressure or with speculative decoding; some 14 tokens a retract were "
    "counted.",
    cure="The tail is freed before the next prefill writes over it, and no second token is taken "
    "off.",
    versions=(("0.5.10", "0.5.10.post1"),),
    # In pages of 16 the overwritten position is mostly given out again as the same one.
    overrides=(("pools.page_size", "1"),),
    truth=TRUTH,
    corrupts=True,
)
