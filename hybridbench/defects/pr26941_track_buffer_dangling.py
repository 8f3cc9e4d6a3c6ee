"""sglang#26941: the slots of a track buffer are freed, and the request keeps referring to them.

Freeing a request's states cleared the reference to its own slot but not those to its track buffer.
A request readmitted after a retract then seems to have a buffer and is not given one: it saves its
states in slots that are now free or another request's, passes them to the tree and frees them
again.  Upstream a session's record was also readmitted like this; here it moves as a whole, with
its buffer.

This keeps the references, as before the fix, in an engine whose allocators do not check owners.
"""

from __future__ import annotations

from collections.abc import Sequence

from hybridbench.defects.defect import Defect, Patch, Signature
from hybridbench.defects.truth import Truth
from hybridbench.engine.memory.owners import Owner
from hybridbench.engine.memory.req_to_token import NOT_TAKEN, HybridReqToTokenPool, RowHolder

TRUTH = Truth()
_healthy_free_track_buffer = HybridReqToTokenPool._free_track_buffer
_healthy_without_buffer = HybridReqToTokenPool._without_buffer


def _free_track_buffer(
    self: HybridReqToTokenPool, req: RowHolder, keep_idx: int | None, owner: Owner
) -> None:
    """Free the slots, but keep their numbers in the record."""
    buffer = req.kv.mamba_ping_pong_track_buffer
    _healthy_free_track_buffer(self, req, keep_idx, owner)
    req.kv.mamba_ping_pong_track_buffer = buffer


def _without_buffer(self: HybridReqToTokenPool, reqs: Sequence[RowHolder]) -> list[RowHolder]:
    """Count the requests without a row that seem to have a buffer."""
    for req in reqs:
        buffer = req.kv.mamba_ping_pong_track_buffer
        if req.kv.req_pool_idx is None and buffer is not None:
            TRUTH.add("readmissions")
            TRUTH.add("slots_reused", sum(slot != NOT_TAKEN for slot in buffer))
    return _healthy_without_buffer(self, reqs)


DEFECT = Defect(
    slug="track-buffer-dangling",
    source="sglang#26941",
    symptom="A request that is admitted again after a retract uses, and frees again, the track "
    "slots that it had before, which are free or another's.",
    profile="chat-churn",
    signature=Signature(
        # A waiting request refers to a slot, later two requests do; either may be seen first.
        verdicts=("LEAK", "INVARIANT"),
        kinds=("negative-residual", "engine-residual", "more-free-than-exist"),
        subject="mamba",
        event="admission after a retract of a request with a track buffer",
        rate="1 slot with two holders; none until another request takes it",
        drivers=("retract_retries", "retracts"),
        harm="slots_reused",
        per="readmissions",
        counted="surplus",
        at_most=True,
    ),
    patches=(
        Patch(
            HybridReqToTokenPool,
            "_free_track_buffer",
            _free_track_buffer,
            fingerprint="f914d00456d5",
        ),
        Patch(HybridReqToTokenPool, "_without_buffer", _without_buffer, fingerprint="7b61458e8462"),
    ),
    harmed="Sessions on hybrid models with the extra-buffer strategy: the engine's own check shut "
    "the server down at the first close.",
    cure="The reference is cleared together with the slots.",
    overrides=(
        # At the time, allocators did not check owners.
        ("engine.check_owners", "false"),
        ("engine.mamba_scheduler_strategy", "extra_buffer"),
        ("force.retract", "20"),
    ),
    truth=TRUTH,
    corrupts=True,
)
