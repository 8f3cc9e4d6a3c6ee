"""sglang#26941: a session is closed, its state is freed, and its track buffer is forgotten.

The record that a session takes over names the slot of the state and, with extra buffers, those of
the track buffer.  The way out of a session freed the first and left the reference to the second as
it was: nobody frees those slots, and when the record goes, nobody knows of them.
"""

from __future__ import annotations

from hybridbench.defects.defect import Defect, Patch, Signature
from hybridbench.defects.truth import Truth
from hybridbench.engine.memory.owners import SESSION, Owner
from hybridbench.engine.memory.req_to_token import NOT_TAKEN, HybridReqToTokenPool, RowHolder

TRUTH = Truth()
_healthy_free_track_buffer = HybridReqToTokenPool._free_track_buffer


def _free_track_buffer(
    self: HybridReqToTokenPool, req: RowHolder, keep_idx: int | None, owner: Owner
) -> None:
    """Whoever closes a session thinks of the state alone: the reference to the buffer stays."""
    if owner != SESSION:
        _healthy_free_track_buffer(self, req, keep_idx, owner)
        return
    TRUTH.add("releases")
    buffer = req.mamba_ping_pong_track_buffer or []
    TRUTH.add("slots_dangling", sum(slot != NOT_TAKEN for slot in buffer))


DEFECT = Defect(
    slug="session-pingpong-dangling",
    source="sglang#26941",
    symptom="Each close of a streaming session on an engine with extra buffers leaks its track "
    "slots: two with overlapped scheduling.",
    profile="session-churn",
    signature=Signature(
        verdicts=("LEAK",),
        kinds=("residual",),
        subject="mamba",
        event="close of a session that has had a turn",
        rate="2 slots",
        drivers=("session_closes", "session_opens"),
        harm="slots_dangling",
        per="releases",
        counted="missing",
    ),
    patches=(
        Patch(
            HybridReqToTokenPool,
            "_free_track_buffer",
            _free_track_buffer,
            fingerprint="517868a738fe",
        ),
    ),
    harmed="Sessions on hybrid models with the extra-buffer strategy: the engine's own check shut "
    "the server down at the first close.",
    cure="The reference is cleared together with the slots.",
    overrides=(
        ("engine.mamba_scheduler_strategy", "extra_buffer"),
        ("engine.enable_overlap_schedule", "true"),
        # Enough states for the loss to be seen growing, and for three to a request.
        ("pools.mamba_slots", "8192"),
    ),
    truth=TRUTH,
)
