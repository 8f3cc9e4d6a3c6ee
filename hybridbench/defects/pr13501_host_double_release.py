"""sglang#13483, sglang#13501: the tail of a prefetch that stopped early is released twice.

The page transfer released the slots that it had not filled, and so did its caller on the same
thread.  The slots are in the host pool's free list twice, and later two nodes share them.

As at the time, the engine's allocators do not check owners.
"""

from __future__ import annotations

from hybridbench.defects.defect import Defect, Patch, Signature
from hybridbench.defects.truth import Truth
from hybridbench.engine.memory.storage_controller import (
    Pages,
    PrefetchOperation,
    StorageController,
)

TRUTH = Truth()
_healthy_page_transfer = StorageController._page_transfer


def _page_transfer(self: StorageController, operation: PrefetchOperation, hits: int) -> Pages:
    """Before #13501 this released the tail, and so did its caller."""
    yield from _healthy_page_transfer(self, operation, hits)
    tail = operation.host_indices[operation.completed_tokens : hits * self.page_size]
    TRUTH.add("tokens_freed_twice", len(tail))
    self.append_host_mem_release(operation, tail)


DEFECT = Defect(
    slug="host-double-release",
    source="sglang#13501",
    symptom="The host pool reports more free slots than exist: slots that prefetches did not fill "
    "are freed twice, and later two tree nodes share them.",
    profile="host-tier-storage",
    signature=Signature(
        verdicts=("INVARIANT",),
        kinds=("negative-residual",),
        subject="host_kv",
        event="prefetch that stopped early",
        rate="one surplus host token for each token it had left to fill",
        harm="tokens_freed_twice",
        counted="surplus",
        # It would need an extra healthy run of its profile; swa-stale-mapping covers the same kind.
        quick_s=0.0,
    ),
    patches=(
        Patch(StorageController, "_page_transfer", _page_transfer, fingerprint="51d36367938b"),
    ),
    harmed="All users who prefetched from storage: host memory was corrupted (sglang#13483).",
    cure="Only the caller releases what was not filled.",
    overrides=(("engine.check_owners", "false"),),
    truth=TRUTH,
    corrupts=True,
)
