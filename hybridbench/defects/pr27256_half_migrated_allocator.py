"""sglang#27256: one cache still frees its state slots to the pool, which no longer hands any out.

The refactoring moved the free list from the state pool to a separate allocator, and every caller
had to change.  The review found paths of one cache that had not: the slots it evicts go to the old
object's list, from which nothing is allocated.
"""

from __future__ import annotations

from hybridbench.defects.defect import Defect, Patch, Signature
from hybridbench.defects.truth import Truth
from hybridbench.engine.cache.unified_mamba import MambaComponent

TRUTH = Truth()


def _free_slot(self: MambaComponent, slot: int) -> None:
    """Free to the pool's old list, which nothing reads."""
    TRUTH.add("slots_dropped")


DEFECT = Defect(
    slug="half-migrated-allocator",
    source="sglang#27256",
    symptom="Each state that the unified tree evicts is lost to the pool; requests and sessions "
    "free theirs correctly.",
    profile="chat-churn",
    signature=Signature(
        verdicts=("LEAK",),
        kinds=("residual",),
        subject="mamba",
        event="evicted state",
        # A state is evicted with a leaf or alone: no single counter drives it; the count is exact.
        rate="1 state slot, until the pool is empty",
        harm="slots_dropped",
        counted="missing",
    ),
    patches=(Patch(MambaComponent, "_free_slot", _free_slot, fingerprint="9e2f4552d9cd"),),
    harmed="Found in review of the refactoring; in the released version all callers had been "
    "changed.",
    cure="Every caller frees to the allocator that it allocates from.",
    # About 40 states are lost per second, and the pool lasts for a minute and a half.  At the
    # profile's own pace 2,048 are lost in five seconds, and an engine without states does nothing.
    overrides=(
        ("engine.cache", "unified"),
        ("pools.mamba_slots", "4096"),
        ("arrival.process", "poisson"),
        ("arrival.rate", "16/s"),
        ("arrival.concurrency", "null"),
        # With that many slots, no state has to be evicted before its leaf.
        ("assert_coverage.evict_internal_state", ">=0"),
    ),
    truth=TRUTH,
)
