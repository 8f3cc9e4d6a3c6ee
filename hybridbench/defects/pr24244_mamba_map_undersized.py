"""sglang#24244: the map from request rows to state slots has as many entries as there are slots.

It is indexed by row, so it needs an entry for each row.  With fewer state slots than rows, every
row past its end accesses memory outside the map: silently, on a GPU.  Here the index
wraps around instead, since an array on the host would raise: rows that share an entry share a
state, and when one of their requests ends, the other computes in the padding slot.  No slot is
lost, and every sum balances.

Found through kernels that failed elsewhere; see also sglang#24236 and #24243.
"""

from __future__ import annotations

import numpy as np

from hybridbench.defects.defect import Defect, Patch, Signature
from hybridbench.defects.truth import Truth
from hybridbench.engine.memory.indices import IntArray, SlotInput, as_index_array
from hybridbench.engine.memory.req_to_token import HybridReqToTokenPool

TRUTH = Truth()


def _map_state(self: HybridReqToTokenPool, row: int, slot: int) -> None:
    """Before #24244 there were ``mamba_size + 1`` entries for any number of rows."""
    mapping = self.req_index_to_mamba_index_mapping
    entry = row % (self.mamba_allocator.size + 1)
    if slot and entry != row:
        TRUTH.add("rows_past_the_end")
    if slot and mapping[entry] not in (0, slot):
        TRUTH.add("shared_states")
    mapping[entry] = slot


def _get_mamba_indices(self: HybridReqToTokenPool, rows: SlotInput) -> IntArray:
    """Make the same mistake when reading."""
    entries = as_index_array(rows, self.device) % (self.mamba_allocator.size + 1)
    return self.req_index_to_mamba_index_mapping[entries].astype(np.int64)


DEFECT = Defect(
    slug="mamba-map-undersized",
    source="sglang#24244",
    symptom="Two requests share one recurrent state, or the padding slot, once request rows beyond "
    "the number of state slots are in use; all pools balance.",
    profile="many-small",
    signature=Signature(
        verdicts=("INVARIANT",),
        kinds=("engine-alias",),
        subject="mamba",
        event="request on a row beyond the number of state slots",
        rate="no growth; at most one request on another request's state",
        harm="rows_past_the_end",
        # A check sees only what is wrong when it runs, and the engine reports the same alias once.
        counted="count",
        at_most=True,
    ),
    patches=(
        Patch(HybridReqToTokenPool, "_map_state", _map_state, fingerprint="368aa2f7fd2b"),
        Patch(
            HybridReqToTokenPool,
            "get_mamba_indices",
            _get_mamba_indices,
            fingerprint="99fab5d09d88",
        ),
    ),
    harmed="Hybrid models with max_mamba_cache_size below max_running_requests: wrong output, and "
    "kernels that failed far from the cause.",
    cure="The map is sized by the request pool, and slot 0 is reserved for padding.",
    truth=TRUTH,
    corrupts=True,
)
