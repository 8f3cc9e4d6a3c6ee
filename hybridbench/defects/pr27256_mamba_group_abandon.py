"""sglang#27256: state slots set aside for an admission loop are forgotten when it ends early.

The allocator hands out single slots from a group that was taken off the free list at once.  The
loop that opened the group returned early on a refusal, without reaching the end that would have
closed it, and the next begin replaced the group with a new one.  The slots left in the old group
are in no free list and belong to no request.

The review of the refactoring (merged 2026-06-07, first in 0.5.13) asked about exactly this: the
group is not cleared, and beginning a new one drops it.
"""

from __future__ import annotations

from collections.abc import Sequence

from hybridbench.defects.defect import Defect, Patch, Signature
from hybridbench.defects.truth import Truth
from hybridbench.engine.memory.owners import RESERVED
from hybridbench.engine.memory.slots import MambaSlotAllocator, SlotAllocator
from hybridbench.engine.req import Req
from hybridbench.engine.scheduler.prefill import AddReqResult, PrefillAdder

TRUTH = Truth()


def _admit_from(self: PrefillAdder, waiting_queue: Sequence[Req]) -> AddReqResult:
    """Close the group at the end of the loop, and only there."""
    result = AddReqResult.CONTINUE
    allocator = self._pools.mamba_allocator
    allocator.alloc_group_begin(min(len(waiting_queue), self.rem_rows()))
    for req in waiting_queue:
        if self.rem_rows() < self._pools.rows_wanted(req):
            result = AddReqResult.NO_TOKEN
            break
        result = self._match_and_add(req)
        if self.refused is not None:
            TRUTH.add("early_returns")
            return result
        if result is not AddReqResult.CONTINUE:
            break
    allocator.alloc_group_end()
    return result


def _alloc_group_begin(self: MambaSlotAllocator, num_reqs: int) -> None:
    """Replace the old group with a new one, whatever the old one still had."""
    TRUTH.add("slots_dropped", len(self._group))
    taken = SlotAllocator.alloc(self, num_reqs, RESERVED)
    self._group = [] if taken is None else taken[::-1]
    self._group_depth = 1


DEFECT = Defect(
    slug="mamba-group-abandon",
    source="sglang#27256",
    symptom="State slots leak whenever admission is refused with requests still waiting; the pool "
    "is empty within minutes.",
    profile="admission-squeeze",
    signature=Signature(
        verdicts=("LEAK",),
        kinds=("residual",),
        subject="mamba",
        event="refusal",
        # The loss differs between refusals: no rate is required, but the count must agree exactly.
        rate="the unused slots of the group, at most one per waiting request; none once too few "
        "slots are free to set any aside",
        drivers=("refusals",),
        harm="slots_dropped",
        counted="missing",
    ),
    patches=(
        Patch(PrefillAdder, "admit_from", _admit_from, fingerprint="827281bf3e22"),
        Patch(
            MambaSlotAllocator, "alloc_group_begin", _alloc_group_begin, fingerprint="a1a94a9df700"
        ),
    ),
    harmed="Found in review; each admission that ends early would lose the slots that were set "
    "aside for its batch.",
    cure="The group is closed on every exit path, and beginning a new group frees what the old one "
    "left.",
    # Enough states to see the loss grow; the profile's number would last a second.
    overrides=(("pools.mamba_slots", "2048"),),
    truth=TRUTH,
)
