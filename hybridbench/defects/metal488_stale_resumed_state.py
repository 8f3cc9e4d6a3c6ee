"""vllm-metal#488: a retracted request resumes from the state that it had at that time.

States were stored by request id.  A retracted request that resumed found its old state, although
its prompt and its output were computed again from the beginning.
"""

from __future__ import annotations

from collections.abc import Sequence

from hybridbench.defects.defect import Defect, Patch
from hybridbench.defects.truth import Truth
from hybridbench.defects.wrong_answers import answers
from hybridbench.engine.memory.mamba_pool import MambaHostCopy
from hybridbench.engine.req import Req
from hybridbench.engine.scheduler.batch_builder import BatchBuilder
from hybridbench.engine.scheduler.release import RequestRelease

TRUTH = Truth()
_healthy_retract = RequestRelease.retract
_healthy_clear_fresh_states = BatchBuilder._clear_fresh_states
# By request id.  Only the latest are kept, because some requests never return.
_KEPT: dict[str, MambaHostCopy] = {}
_REMEMBERED = 64


def _retract(self: RequestRelease, req: Req) -> None:
    """Keep the state under the request's id."""
    if req.kv.mamba_pool_idx is not None and req.session is None and req.output_ids:
        _KEPT[req.rid] = self._pools.mamba_pool.get_cpu_copy([req.kv.mamba_pool_idx])
        if len(_KEPT) > _REMEMBERED:
            del _KEPT[next(iter(_KEPT))]
    _healthy_retract(self, req)


def _clear_fresh_states(self: BatchBuilder, reqs: Sequence[Req], prefix_lens: list[int]) -> None:
    """Load the state that was kept for a resumed request."""
    _healthy_clear_fresh_states(self, reqs, prefix_lens)
    for req in reqs:
        kept = _KEPT.pop(req.rid, None)
        if kept is not None:
            self._pools.mamba_pool.load_cpu_copy(kept, [req.kv.state_slot])
            TRUTH.add("stale_states")


DEFECT = Defect(
    slug="stale-resumed-state",
    source="vllm-metal#488",
    symptom="A resumed request computes its prompt and output again, on top of its old state.",
    profile="retract-storm",
    signature=answers("resume of a retracted request", "one request", "stale_states"),
    patches=(
        Patch(RequestRelease, "retract", _retract, fingerprint="1aeb348cb02e"),
        Patch(BatchBuilder, "_clear_fresh_states", _clear_fresh_states, fingerprint="5fb4bde347d7"),
    ),
    harmed="Hybrid models on Apple silicon under memory pressure.",
    cure="A request's state is dropped when the request is retracted.",
    model="qwen3-next",
    overrides=(("pools.page_size", "1"), ("pools.mamba_slots", "128")),
    truth=TRUTH,
    corrupts=True,
)
