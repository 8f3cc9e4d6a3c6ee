"""sglang#26941: a session is closed, its state is freed, and its track buffer is forgotten.

The record that a session takes over names the slot of the state and, with extra buffers, those of
the track buffer.  One way out freed the first and left the reference to the second standing; the
next user of the record believed that it had a buffer, took none, and lost this one at its end.
"""

from __future__ import annotations

from hybridbench.defects.defect import Defect, Patch, Signature
from hybridbench.defects.truth import Truth
from hybridbench.engine.memory.owners import SESSION, Owner
from hybridbench.engine.memory.req_to_token import NOT_TAKEN, HybridReqToTokenPool, RowHolder

TRUTH = Truth()


def _free_track_buffer(
    self: HybridReqToTokenPool, req: RowHolder, keep_idx: int | None, owner: Owner
) -> None:
    """Whoever closes a session thinks of the state alone."""
    buffer = req.mamba_ping_pong_track_buffer
    if buffer is None:
        return
    slots = [slot for idx, slot in enumerate(buffer) if idx != keep_idx and slot != NOT_TAKEN]
    if owner == SESSION:
        TRUTH.add("releases")
        TRUTH.add("slots_lost", len(slots))
    else:
        self.mamba_allocator.free(slots, owner)
    req.mamba_ping_pong_track_buffer = None
    req.mamba_next_track_idx = 0
    req.mamba_last_track_seqlen = None
    if req.req_pool_idx is not None:
        self.req_index_to_mamba_ping_pong_track_buffer_mapping[req.req_pool_idx] = 0


DEFECT = Defect(
    slug="session-pingpong-dangling",
    source="sglang#26941",
    symptom="Each close of a streaming session on an engine with extra buffers takes its track "
    "slots along: two with overlapped scheduling.",
    profile="session-churn",
    signature=Signature(
        verdicts=("LEAK",),
        kinds=("residual",),
        subject="mamba",
        event="close of a session that has had a turn",
        rate="2 slots",
        drivers=("session_closes", "session_opens"),
        harm="slots_lost",
        per="releases",
    ),
    patches=(
        Patch(
            HybridReqToTokenPool,
            "_free_track_buffer",
            _free_track_buffer,
            fingerprint="517868a738fe",
        ),
    ),
    harmed="Sessions on hybrid models with the extra-buffer strategy: the server was killed by its "
    "own check at the first close.",
    cure="The reference is cleared together with the slots.",
    overrides=(
        ("engine.mamba_scheduler_strategy", "extra_buffer"),
        ("engine.enable_overlap_schedule", "true"),
        # Enough states for the loss to be seen growing, and for three to a request.
        ("pools.mamba_slots", "8192"),
    ),
    truth=TRUTH,
)
