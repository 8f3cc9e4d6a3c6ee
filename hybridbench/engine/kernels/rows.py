"""Store whole rows of a pool, such as state slots, as contiguous blocks."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def store_rows(pool: Tensor, rows: Tensor, values: Tensor) -> None:
    """Set ``pool[rows] = values``, copying each row as one block.

    ``index_copy_`` does the same, but on a CPU it copies one number at a time and takes three
    times as long for the states of a decode step.

    Args:
        pool: [S, ...]; there may be gaps between rows.
        rows: [n] int64, distinct except for the dump slot.
        values: [n, ...] in the pool's dtype, contiguous.
    """
    if pool.device.type != "cpu":
        pool.index_copy_(0, rows, values)
        return
    size = math.prod(pool.shape[1:])
    blocks, new = (t.view(-1, size).view(torch.uint8).numpy() for t in (pool, values))
    blocks[rows.numpy()] = new
