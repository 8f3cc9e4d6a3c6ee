"""sglang#31833: the states that a step saves are looked up in the wrong order.

Only some requests of a step reach a length at which their state is saved.  Their states were read
from the first rows of the batch instead of from the rows of these requests.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hybridbench.defects.defect import Defect, Patch
from hybridbench.defects.truth import Truth
from hybridbench.defects.wrong_answers import answers
from hybridbench.engine.forward_batch import NOT_TRACKED, ForwardBatch
from hybridbench.engine.model_runner import ModelRunner

TRUTH = Truth()
_healthy_track_decoded = ModelRunner._track_decoded


def _track_decoded(self: ModelRunner, batch: ForwardBatch) -> None:
    """Take the k-th due state from the k-th request of the batch."""
    seqlens = batch.mamba_track_seqlens
    if batch.mode != "decode" or seqlens is None:
        return
    due = np.flatnonzero(np.asarray(seqlens) != NOT_TRACKED)
    own = batch.mamba_indices.copy()
    own[due] = batch.mamba_indices[: len(due)]
    TRUTH.add("states_of_others", int((due != np.arange(len(due))).sum()))
    _healthy_track_decoded(self, replace(batch, mamba_indices=own))


DEFECT = Defect(
    slug="flattened-snapshot",
    source="sglang#31833",
    symptom="States saved while decoding are those of other requests in the batch.",
    profile="state-tracking",
    signature=answers(
        "state saved of a request that is not at the front of its batch",
        "one state",
        "states_of_others",
    ),
    patches=(Patch(ModelRunner, "_track_decoded", _track_decoded, fingerprint="58c15e801ceb"),),
    harmed="Hybrid models with the extra-buffer strategy and more than one running request.",
    cure="The states are looked up by the request's place in the batch.",
    truth=TRUTH,
    corrupts=True,
)
