"""sglang#22862: the tail of what a session holds is overwritten by the next turn's prefill.

Launched steps whose results were dropped leave positions past the next turn's start: a token in
flight when its turn was retracted or had ended, or room for rejected draft tokens.  The next
prefill wrote new positions over them in the session's row, and the old indices were lost.  Upstream
lost another token by counting the one recomputed for its logits twice; the fix freed both.
"""

from __future__ import annotations

from hybridbench.defects.defect import Defect, Patch, Signature
from hybridbench.defects.truth import Truth
from hybridbench.engine.memory.pages import ceil_align
from hybridbench.engine.sessions.session_slot import SessionSlot
from hybridbench.engine.sessions.streaming_session import StreamingSession

TRUTH = Truth()


def _free_tail(self: StreamingSession, slot: SessionSlot, prefix_len: int) -> None:
    """Free nothing."""
    kept, held = (
        ceil_align(length, self.page_size) for length in (prefix_len, slot.kv.kv_allocated_len)
    )
    if kept < held:
        TRUTH.add("tokens_lost", held - kept)
        TRUTH.add("tails_overwritten")


DEFECT = Defect(
    slug="session-retract-tail",
    source="sglang#22862",
    symptom="A KV token is lost each time a session's turn starts before the end of what the "
    "session has allocated.",
    profile="session-ahead",
    signature=Signature(
        verdicts=("LEAK",),
        kinds=("residual",),
        subject="kv",
        event="turn whose session has an allocated position beyond the turn's start",
        rate="1 token",
        drivers=("session_tail_frees",),
        harm="tokens_lost",
        per="tails_overwritten",
        counted="missing",
    ),
    patches=(Patch(StreamingSession, "_free_tail", _free_tail, fingerprint="66f9abb00f71"),),
    harmed="Sessions under KV pressure or with speculative decoding: about 14 tokens were lost per "
    "retract.",
    cure="The tail is freed before the next prefill overwrites it.",
    versions=(("0.5.10", "0.5.10.post1"),),
    truth=TRUTH,
)
