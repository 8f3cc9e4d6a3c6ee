"""sglang#22862: a session's turn resumes one token too early, and the token after it is lost.

A match may cover the prompt except for the token that is recomputed for its logits.  Upstream's
session cache left out one more.  A retracted turn resumes from exactly that length, one position
too early, and the next prefill overwrites the old index.  No step has to be in flight, so an
engine without overlap has this part of the bug as well.
"""

from __future__ import annotations

from hybridbench.defects.defect import Defect, Patch, Signature
from hybridbench.defects.pr22862_session_retract_tail import DEFECT as RETRACT_TAIL
from hybridbench.defects.truth import Truth
from hybridbench.engine.cache.radix_key import RadixKey
from hybridbench.engine.memory.pages import ceil_align
from hybridbench.engine.sessions.session_slot import SessionSlot
from hybridbench.engine.sessions.streaming_session import StreamingSession

TRUTH = Truth()


def _prefix_len(self: StreamingSession, slot: SessionSlot, key: RadixKey) -> int:
    """Leave out one more token, but never go below the tree's part."""
    kv = slot.kv
    return max(kv.cache_protected_len, min(kv.kv_committed_len, len(key) - 1))


def _free_tail(self: StreamingSession, slot: SessionSlot, prefix_len: int) -> None:
    """Free nothing."""
    kept, held = (
        ceil_align(length, self.page_size) for length in (prefix_len, slot.kv.kv_allocated_len)
    )
    if kept < held:
        TRUTH.add("tokens_lost", held - kept)
        TRUTH.add("tails_overwritten")


DEFECT = Defect(
    slug="session-logit-reserve",
    source="sglang#22862",
    symptom="A KV token is lost each time a session's retracted turn resumes, even with no step in "
    "flight.",
    profile="session-retract",
    signature=Signature(
        verdicts=("LEAK",),
        kinds=("residual",),
        subject="kv",
        event="resume of a retracted turn",
        rate="1 token",
        drivers=("session_tail_frees", "session_retries"),
        harm="tokens_lost",
        per="tails_overwritten",
        counted="missing",
        quick_s=0.0,
    ),
    patches=(
        Patch(StreamingSession, "_prefix_len", _prefix_len, fingerprint="72cd2dd03625"),
        Patch(StreamingSession, "_free_tail", _free_tail, fingerprint="66f9abb00f71"),
    ),
    harmed=RETRACT_TAIL.harmed,
    cure="The prefix is as long as what is committed, and the tail is freed.",
    overrides=(
        ("pools.page_size", "1"),
        ("engine.enable_overlap_schedule", "false"),
    ),
    truth=TRUTH,
)
