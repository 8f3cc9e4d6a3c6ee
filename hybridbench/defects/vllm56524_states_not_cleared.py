"""vllm#56524: a new request's state begins with what the slot's last holder left there.

A recurrent state is not overwritten but updated, so a slot that is allocated again must be set to
zero.  That was not done for a request that reuses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from hybridbench.defects.defect import Defect, Patch
from hybridbench.defects.truth import Truth
from hybridbench.defects.wrong_answers import answers
from hybridbench.engine.req import Req
from hybridbench.engine.scheduler.batch_builder import BatchBuilder

TRUTH = Truth()


def _clear_fresh_states(self: BatchBuilder, reqs: Sequence[Req], prefix_lens: list[int]) -> None:
    """Clear nothing; the slots of a new pool are zero."""
    if not self._pools.has_states:
        return
    states = self._pools.mamba_pool.mamba_cache.temporal
    for req, prefix in zip(reqs, prefix_lens, strict=True):
        if prefix == 0:
            TRUTH.add("dirty_starts", int(states[:, req.kv.state_slot].any()))


DEFECT = Defect(
    slug="states-not-cleared",
    source="vllm#56524",
    symptom="Requests that reuse nothing compute from the state of an earlier request.",
    profile="chat-churn",
    signature=answers("request without a prefix hit", "one request", "dirty_starts"),
    patches=(
        Patch(BatchBuilder, "_clear_fresh_states", _clear_fresh_states, fingerprint="5fb4bde347d7"),
    ),
    harmed="Hybrid models in production: answers changed with what had been served before.",
    cure="State blocks are set to zero when they are allocated again.",
    truth=TRUTH,
    corrupts=True,
)
