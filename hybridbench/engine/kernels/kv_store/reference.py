"""Store the keys and values of new tokens by slot: plain PyTorch."""

from __future__ import annotations

from torch import Tensor


def store_kv(key_buffer: Tensor, value_buffer: Tensor, loc: Tensor, k: Tensor, v: Tensor) -> None:
    """Write row t of ``k`` and ``v`` to row ``loc[t]`` of the buffers.

    Args:
        key_buffer, value_buffer: [S, Hkv, hd], contiguous, one layer of the pool.
        loc: [T] int64, distinct except for the dump slots.
        k, v: [T, Hkv, hd], cast to the buffers' dtype; only the first dimension may have gaps.
    """
    key_buffer.index_copy_(0, loc, k.to(key_buffer.dtype))
    value_buffer.index_copy_(0, loc, v.to(value_buffer.dtype))
