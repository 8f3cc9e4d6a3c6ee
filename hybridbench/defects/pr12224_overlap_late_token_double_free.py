"""sglang#12224: the KV slot of a token that came too late is freed in two places.

With overlapped scheduling a request's next decode step is launched before its results show that it
has ended, so it holds one slot more than it has tokens.  The code that ends the request frees that
slot with all others; one step later the code that handles the late result frees it again.
Allocators of the time did not track owners: the slot is in the free list twice, or while the tree
also holds it; it is allocated to two requests, and more slots are available than exist.

The second free is restored just before late results are dropped, in an engine whose allocators do
not check owners, as at the time.  See also sglang#6888 and #9068: with multi-token pages, the page
that the late token had opened was freed twice.
"""

from __future__ import annotations

from collections.abc import Sequence

from hybridbench.defects.defect import Defect, Patch, Signature
from hybridbench.defects.truth import Truth
from hybridbench.engine.req import FinishKind
from hybridbench.engine.scheduler.outcome import StepOutcome
from hybridbench.engine.scheduler.schedule_batch import ScheduleBatch
from hybridbench.engine.scheduler.scheduler import Scheduler

TRUTH = Truth()


_healthy_settle = Scheduler.settle


def _settle(
    self: Scheduler, batch: ScheduleBatch, tokens: Sequence[Sequence[int]], outcome: StepOutcome
) -> None:
    """Free the slot that each surplus step wrote, although the request's end already freed it."""
    pools = self._pools
    for row, (req, record) in enumerate(zip(batch.reqs, batch.records, strict=True)):
        ended = req.finished_reason
        if req.kv is record or ended is None or ended.kind is FinishKind.ABORT:
            continue
        forward = batch.forward
        if forward.prefix_lens[row] % pools.page_size == 0:
            pools.token_to_kv_pool_allocator.free(forward.out_cache_loc[row : row + 1])
            TRUTH.add("slots_freed_twice", pools.page_size)
        TRUTH.add("surplus_steps")
    _healthy_settle(self, batch, tokens, outcome)


DEFECT = Defect(
    slug="overlap-late-token-double-free",
    source="sglang#12224",
    symptom="The KV pool reports more free slots than exist: the slot of each surplus step is "
    "freed twice, and later two requests write to it.",
    profile="steady-decode",
    signature=Signature(
        verdicts=("INVARIANT",),
        kinds=("negative-residual", "engine-residual", "more-free-than-exist"),
        subject="kv",
        event="surplus step of a request that has ended",
        rate="1 surplus slot",
        drivers=("surplus_steps", "late_tokens", "finishes", "finish_length"),
        harm="slots_freed_twice",
        per="surplus_steps",
        counted="surplus",
    ),
    patches=(Patch(Scheduler, "settle", _settle, fingerprint="c6dce1c4680a"),),
    harmed="Servers with overlapped scheduling, which is on by default.",
    cure="Only one of the two code paths frees the late slot.",
    overrides=(("engine.check_owners", "false"),),
    truth=TRUTH,
    corrupts=True,
)
