"""sglang#23496: closing a session frees its KV and its row, but keeps its states.

At the end of each turn the session's slot takes over what its request holds, including the
recurrent state.  The close freed the KV and the row; the call that freed the state was lost when
the code moved to another file.
"""

from __future__ import annotations

from hybridbench.defects.defect import Defect, Patch, Signature
from hybridbench.defects.truth import Truth
from hybridbench.engine.sessions.session_slot import SessionSlot
from hybridbench.engine.sessions.streaming_session import StreamingSession

TRUTH = Truth()


def _free_slot_mamba(self: StreamingSession, slot: SessionSlot) -> None:
    """Before #23496 nothing returned the state slots that the session had taken over."""
    TRUTH.add("releases")
    TRUTH.add("slots_lost", slot.kv.state_slots_held)


DEFECT = Defect(
    slug="session-close-mamba",
    source="sglang#23496",
    symptom="Each close of a streaming session on a hybrid model leaks a state slot; concurrency "
    "collapses when the pool is empty.",
    profile="session-churn",
    signature=Signature(
        verdicts=("LEAK",),
        kinds=("residual",),
        subject="mamba",
        event="close of a session that has had a turn",
        rate="1 slot, plus those of the track buffer if there is one",
        drivers=("session_closes", "session_opens"),
        harm="slots_lost",
        per="releases",
        counted="missing",
    ),
    patches=(
        Patch(StreamingSession, "_free_slot_mamba", _free_slot_mamba, fingerprint="5d5e47af67e5"),
    ),
    harmed="Full-duplex and streaming use of hybrid models, with short sessions: the state pool "
    "was exhausted after as many closes as it had slots.",
    cure="Closing a session also frees its state, and the idle check counts what open sessions "
    "hold.",
    versions=(("0.5.10", "0.5.10.post1"),),
    # Enough states to see the loss grow; the profile's number is used up in seconds.
    overrides=(("pools.mamba_slots", "4096"),),
    truth=TRUTH,
)
