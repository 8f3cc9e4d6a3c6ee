"""The scheduler's input to the model for one step: host arrays, request after request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

ForwardMode: TypeAlias = Literal["extend", "decode", "verify"]
IndexArray: TypeAlias = npt.NDArray[np.int64]

NOT_TRACKED = -1
"""In place of a length: do not save a copy of this request's state."""


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """B requests with T new tokens; the model converts the arrays to tensors once, on entry.

    The state slot of a request without a prefix has been cleared.  The KV slots of a step's new
    tokens are distinct.  Slot 0 of either pool is an exception: it may occur any number of times,
    since its contents are never used.
    """

    mode: ForwardMode
    """"decode" means exactly one new token per request.  "verify" means a chain of several tokens
    per request: the model returns the logits of each, and writes the states after each to separate
    buffers, not to the slots."""
    input_ids: IndexArray
    """[T]: the new tokens.  ``-1 - row`` is a future: before the model runs, it is replaced by the
    token that the previous step chose for the request in that row."""
    positions: IndexArray
    """[T]: the position of each new token in its request."""
    extend_lens: Sequence[int]
    """[B]: new tokens of each request, at least one."""
    prefix_lens: Sequence[int]
    """[B]: tokens whose KV and state are already in the pools."""
    seq_lens: Sequence[int]
    """[B]: tokens of each request after this step."""
    out_cache_loc: IndexArray
    """[T]: the KV slot of each new token."""
    kv_indices: IndexArray
    """[sum(seq_lens)]: the KV slot of every position, new tokens included."""
    mamba_indices: IndexArray
    """[B]: the state slot of each request."""
    mamba_track_seqlens: Sequence[int] | None = None
    """[B]: the length, reached in this step, at which to save a copy of a request's state;
    ``NOT_TRACKED`` for no copy.  In a decode step it is the length after the step."""
    mamba_track_indices: IndexArray | None = None
    """[B]: the state slot for that copy, 0 for no copy; None if the lengths are None."""

    @property
    def batch_size(self) -> int:
        """B."""
        return len(self.seq_lens)
