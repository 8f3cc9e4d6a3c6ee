"""sglang#31369, #29792: a saved state is filed one token short under overlapped scheduling.

Which states a decode step saves was decided by the committed length.  With a step in flight that
length is one token behind what the coming step computes: the saved state contains one token more
than the tree records, and a request that continues from it processes that token twice.
"""

from __future__ import annotations

from collections.abc import Sequence

from hybridbench.defects.defect import Defect, Patch
from hybridbench.defects.truth import Truth
from hybridbench.defects.wrong_answers import answers
from hybridbench.engine.forward_batch import NOT_TRACKED
from hybridbench.engine.req import Req
from hybridbench.engine.scheduler.tracking import StateTracker, Tracked

TRUTH = Truth()
_healthy_decode = StateTracker.decode


def _decode(self: StateTracker, reqs: Sequence[Req], seq_lens: Sequence[int]) -> Tracked:
    """Use the committed length plus the next token."""
    committed = [req.kv.kv_committed_len + 1 for req in reqs]
    tracked = _healthy_decode(self, reqs, committed)
    for label, seq_len in zip(tracked.mamba_track_seqlens or (), seq_lens, strict=False):
        TRUTH.add("states_mislabelled", int(label not in (NOT_TRACKED, seq_len)))
    return tracked


DEFECT = Defect(
    slug="tracked-length-lags",
    source="sglang#31369",
    symptom="States saved while decoding are filed under a length that is one token too short.",
    profile="state-tracking",
    signature=answers(
        "decode step that saves a state while another is in flight",
        "one state",
        "states_mislabelled",
    ),
    patches=(Patch(StateTracker, "decode", _decode, fingerprint="5c4f3b43e7a9"),),
    harmed="Hybrid models with the extra-buffer strategy and overlapped scheduling.",
    cure="The length is that of the sequence after the step.",
    overrides=(("engine.enable_overlap_schedule", "true"),),
    truth=TRUTH,
    corrupts=True,
)
