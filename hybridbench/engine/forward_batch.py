"""One step as the scheduler hands it over: host arrays, laid out request after request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

ForwardMode: TypeAlias = Literal["extend", "decode", "verify"]
IndexArray: TypeAlias = npt.NDArray[np.int64]

NOT_TRACKED = -1
"""In the place of a length: no copy of this request's state is wanted."""


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """B requests with T new tokens; the model turns the arrays into tensors once, at its door.

    A request whose prefix is 0 brings a cleared state slot, and the KV slots of a step's new tokens
    are distinct.  Slot 0 of either pool may be named any number of times: what is written there is
    never read in earnest.
    """

    mode: ForwardMode
    """"decode" means exactly one new token for each request; "verify" a chain of some: logits of
    each are wanted, and the states after each are kept apart from the slots."""
    input_ids: IndexArray
    """[T]: the new tokens; ``-1 - row`` stands for the token that the step before gives to the
    request in that row, and is replaced before the model sees it."""
    positions: IndexArray
    """[T]: the place of each new token in its request."""
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
    """[B]: the length after which a request's state is wanted besides, within this step's tokens;
    ``NOT_TRACKED`` for none.  In a decode step it is the length after the step."""
    mamba_track_indices: IndexArray | None = None
    """[B]: the state slot that gets that copy, 0 where none is wanted; None with the other."""

    @property
    def batch_size(self) -> int:
        """B."""
        return len(self.seq_lens)
