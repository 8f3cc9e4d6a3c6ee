"""sglang#20182: an abort from the waiting queue leaks the state slot that matching took.

A request that matched a cached prefix kept its slot while it waited (the design of the time), and
slots were freed only on leaving the running batch.  A request aborted in the queue (by a limit, a
timeout or its client) still had the slot in its record, which was dropped with the request.

Reported as sglang#20010 and #20069: the idle check found slots missing and shut the server down.
"""

from __future__ import annotations

from hybridbench.defects.defect import Defect, Patch, Signature
from hybridbench.defects.truth import Truth
from hybridbench.engine.req import Req
from hybridbench.engine.scheduler.release import RequestRelease

TRUTH = Truth()


def _return_mamba_slot(self: RequestRelease, req: Req) -> None:
    """Free nothing: slots were freed only together with a running request's KV.

    Refusals also call this, so a waiting request keeps the slot of its match.
    """
    if req.to_abort is not None and req.kv.kv_allocated_len == 0:
        TRUTH.add("queued_aborts")
        TRUTH.add("slots_lost", req.kv.state_slots_held)
    elif req.kv.mamba_pool_idx is not None:
        TRUTH.add("refusals_that_kept_a_slot")


DEFECT = Defect(
    slug="mamba-queued-abort",
    source="sglang#20182",
    symptom="Each request that matched a cached prefix, waited in the queue and was then aborted "
    "leaks a state slot.",
    profile="queue-abort",
    signature=Signature(
        verdicts=("LEAK",),
        kinds=("residual",),
        subject="mamba",
        event="abort of a waiting request",
        rate="1 slot if the request had matched a prefix, else none",
        drivers=("abort_queued",),
        harm="slots_lost",
        per="queued_aborts",
        counted="missing",
    ),
    patches=(
        Patch(RequestRelease, "return_mamba_slot", _return_mamba_slot, fingerprint="f6a4a4be1bcd"),
    ),
    harmed="Hybrid models behind a bounded queue: the server shut itself down at 20 concurrent "
    "requests.",
    cure="Aborting a queued request frees its state slot.",
    truth=TRUTH,
)
