"""sglang#21404: a request that matched and was then refused keeps the state slot of the match.

Matching copies the state of a hit into a slot of the request's own, before the adder decides.
When the adder refuses, the slot is not freed: it is in no free list, no tree node and no running
request.  It is freed when the request is finally admitted or aborted, so the loss is bounded by
the number of waiting requests that were once refused.  It shows as an exact violation (a waiting
request holds a slot) long before it exhausts the pool.

Present up to sglang 0.5.9, fixed in 0.5.10 (merged 2026-03-30).
"""

from __future__ import annotations

from hybridbench.defects.defect import Defect, Patch, Signature
from hybridbench.defects.truth import Truth
from hybridbench.engine.req import Req
from hybridbench.engine.scheduler.prefill import PrefillAdder

TRUTH = Truth()
_REMEMBERED = 4096


class KeptSlots:
    """The slot that each refused request kept, so that repeated refusals count once.

    Only the latest requests are remembered: one refused long ago no longer waits.
    """

    def __init__(self) -> None:
        self._slots: dict[str, int] = {}

    def is_new(self, rid: str, slot: int) -> bool:
        """Return whether ``rid`` is refused with ``slot`` for the first time."""
        if self._slots.get(rid) == slot:
            return False
        self._slots[rid] = slot
        if len(self._slots) > _REMEMBERED:
            del self._slots[next(iter(self._slots))]
        return True


_KEPT = KeptSlots()


def _return_unadmitted(self: PrefillAdder, req: Req) -> None:
    """Before #21404 nothing was freed."""
    TRUTH.add("refusals")
    if req.kv.mamba_pool_idx is not None and _KEPT.is_new(req.rid, req.kv.mamba_pool_idx):
        TRUTH.add("slots_kept")


DEFECT = Defect(
    slug="mamba-adder-reject",
    source="sglang#21404",
    symptom="State slots leak when a request that matched a cached prefix is refused admission; "
    "the waiting request keeps the slot.",
    profile="admission-squeeze",
    signature=Signature(
        verdicts=("LEAK",),
        kinds=("waiting-holds-slots",),
        subject="mamba",
        event="refusal",
        rate="1 slot for a request with a prefix hit, until it is admitted or aborted",
        drivers=("refusals",),
        harm="slots_kept",
        per="refusals",
    ),
    patches=(
        Patch(PrefillAdder, "_return_unadmitted", _return_unadmitted, fingerprint="302c6ae4859c"),
    ),
    harmed="Hybrid models such as Qwen3-Next: the idle check found the missing slot and shut the "
    "server down.",
    cure="The slot is freed if the request does not enter the batch.",
    versions=(("0.5.9", "0.5.9"),),
    truth=TRUTH,
)
