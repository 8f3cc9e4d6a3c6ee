"""sglang#27256: the tree with a host tier still queries the state pool for free slots.

The refactoring moved the free list from the pool to a separate allocator.  The review found a
caller that had not been changed, on the path that loads KV and states back from the host.  The pool
no longer has that method, so the first load ends the scheduler; no test of the refactoring did a
load.
"""

from __future__ import annotations

from collections.abc import Sequence

from hybridbench.defects.defect import Defect, Patch, Signature
from hybridbench.defects.truth import Truth
from hybridbench.engine.cache.base import EvictParams
from hybridbench.engine.cache.hi_mamba_radix_cache import HiMambaRadixCache
from hybridbench.engine.cache.host_part import Run

TRUTH = Truth()


def _make_device_room(self: HiMambaRadixCache, run: Run, loads: Sequence[list[Run]]) -> None:
    """Query the pool, as before the free list was moved."""
    del loads
    missing = run.tokens - self.token_to_kv_pool_allocator.available_size()
    TRUTH.add("calls")
    lacks_state = self.mamba_pool.available_size() == 0  # type: ignore[attr-defined]
    self.evict(EvictParams(num_tokens=max(0, missing), mamba_num=int(lacks_state)))


DEFECT = Defect(
    slug="himamba-unmigrated-caller",
    source="sglang#27256",
    symptom="The first load from the host ends the scheduler with an AttributeError.",
    profile="host-tier-hybrid",
    signature=Signature(
        verdicts=("CRASHED",),
        kinds=("crash",),
        subject="worker",
        event="load from the host",
        rate="the first one ends the engine",
        harm="calls",
        says="'MambaPool' object has no attribute 'available_size'",
        quick_s=0.0,
    ),
    patches=(
        Patch(
            HiMambaRadixCache, "_make_device_room", _make_device_room, fingerprint="1c6901b443eb"
        ),
    ),
    harmed="Found in review; HiCache on a hybrid model would have ended at its first load.",
    cure="The caller asks the allocator.",
    truth=TRUTH,
)
