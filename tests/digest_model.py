"""A fake model whose next token is a digest of everything it reads, for tests of the engine.

Reading a single wrong slot, or a wrong order, changes the next tokens at once, while a real model
often still chooses the same ones.  A step is a few numpy calls and costs a tenth of a real one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hybridbench.engine.forward_batch import ForwardBatch
from hybridbench.engine.memory.kv_pool import HybridLinearKVPool
from hybridbench.engine.memory.mamba_pool import MambaPool
from hybridbench.engine.memory.swa_pool import SWAKVPool
from hybridbench.engine.models.config import ModelConfig

Words: TypeAlias = NDArray[np.uint64]

_MODULUS = np.uint64(1 << 52)
# Arrays, because numpy converts a scalar anew in each operation.
_ODD, _MULTIPLY_1, _MULTIPLY_2, _SHIFT_1, _SHIFT_2, _SHIFT_3, _TO_52_BITS = (
    np.array(number, dtype=np.uint64)
    for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 30, 27, 31, 12)
)
# Each token is mostly followed by the next in a circle of this many, so that texts repeat and draft
# tokens are accepted.
_CIRCLE = 4
# A stop token that seldom occurs, so that few texts are cut short.
RARE_TOKEN = 7


class DigestModel:
    """A model whose keys, values and states are integers below 2^52, which are exact in float64.

    The layers are those of ``config``.  A full-attention layer digests the keys and values of all
    positions, a sliding-window layer those within the window.  A recurrent layer adds each new
    token to its state, and its convolution reads the previous token.
    """

    def __init__(self, config: ModelConfig) -> None:
        self.config = config

    def forward(self, batch: ForwardBatch, kv_pool: HybridLinearKVPool) -> Tensor:
        """See ``LanguageModel``; the logits are float64."""
        layout = _Layout.of(batch)
        x = _mixed(batch.input_ids.astype(np.uint64))
        for layer_id, kind in enumerate(self.config.layer_types):
            if kind == "linear_attention":
                assert kv_pool.mamba_pool is not None
                x = _recur(x, layer_id, batch, layout, kv_pool.mamba_pool)
            else:
                window = self.config.sliding_window if kind == "sliding_attention" else None
                x = _attend(x, batch, layout, _LayerKv.of(kv_pool, layer_id, window))
        rows = slice(None) if batch.mode == "verify" else layout.last
        return self._logits(x[rows], batch.input_ids[rows])

    def _logits(self, x: Words, tokens: NDArray[np.int64]) -> Tensor:
        """Return [n, vocab] from 0 to 9; most rows prefer the token's successor in its circle."""
        vocab = np.arange(1, self.config.vocab_size + 1, dtype=np.uint64)
        logits = _mixed(x[:, None] + vocab * _ODD) * 2.0**-49
        follows = tokens - tokens % _CIRCLE + (tokens + 1) % _CIRCLE
        repeats = np.flatnonzero(x & np.uint64(7))
        logits[repeats, follows[repeats] % self.config.vocab_size] = 9.0
        logits[:, RARE_TOKEN] -= 1.5
        return torch.from_numpy(logits)


class _Layout(NamedTuple):
    """Indices of the T new tokens of B requests, among new tokens and among all positions."""

    request: NDArray[np.int64]
    """[T]: the request of each new token."""
    first: NDArray[np.int64]
    """[B]: the first new token of each request."""
    last: NDArray[np.int64]
    """[B]: the last new token of each request."""
    starts: NDArray[np.int64]
    """[B]: the first position of each request, among the positions of all requests."""
    position_words: Words
    """[S]: a word for each position of all requests, which depends on the position alone."""

    @classmethod
    def of(cls, batch: ForwardBatch) -> _Layout:
        lens, seq_lens = np.asarray(batch.extend_lens), np.asarray(batch.seq_lens)
        ends = lens.cumsum()
        starts = seq_lens.cumsum() - seq_lens
        positions = np.arange(seq_lens.sum()) - starts.repeat(seq_lens)
        return cls(
            request=np.arange(len(lens)).repeat(lens),
            first=ends - lens,
            last=ends - 1,
            starts=starts,
            position_words=positions.astype(np.uint64) * _ODD,
        )


class _LayerKv(NamedTuple):
    """Keys and values of an attention layer by location, and the positions that a token sees."""

    keys: NDArray[np.float64]
    values: NDArray[np.float64]
    window: int | None
    to_row: Callable[[NDArray[np.int64]], NDArray[np.int64]]

    @classmethod
    def of(cls, kv_pool: HybridLinearKVPool, layer_id: int, window: int | None) -> _LayerKv:
        keys, values = (_floats(buffer)[:, 0, 0] for buffer in kv_pool.get_kv_buffer(layer_id))
        if window is not None and isinstance(kv_pool, SWAKVPool):
            return cls(keys, values, window, kv_pool.translate_loc_from_full_to_swa)
        return cls(keys, values, window, lambda locations: locations)


def _attend(x: Words, batch: ForwardBatch, layout: _Layout, kv: _LayerKv) -> Words:
    """[T] -> [T]: mix in a digest of the positions that each token sees, including its own."""
    new_rows, rows = kv.to_row(batch.out_cache_loc), kv.to_row(batch.kv_indices)
    kv.keys[new_rows], kv.values[new_rows] = x, _mixed(x)
    read = _words(kv.keys[rows]) + _mixed(_words(kv.values[rows]))
    totals = np.zeros(len(rows) + 1, dtype=np.uint64)
    _mixed(read + layout.position_words).cumsum(out=totals[1:])
    seen = batch.positions + 1
    end = layout.starts[layout.request] + seen
    # Positions before the window cancel out, even if their rows have been overwritten.
    return _mixed(x + totals[end] - totals[end - np.minimum(seen, kv.window or seen)])


def _recur(x: Words, layer_id: int, batch: ForwardBatch, layout: _Layout, pool: MambaPool) -> Words:
    """[T] -> [T]: mix in the state after each token; write states to the batch's slots."""
    cache = pool.mamba2_layer_cache(layer_id)
    window, state = _floats(cache.conv[0])[:, 0, 0], _floats(cache.temporal)[:, 0, 0, 0]
    before = np.empty_like(x)
    before[1:] = x[:-1]
    before[layout.first] = _words(window[batch.mamba_indices])
    added = _mixed(_mixed(x + batch.positions.astype(np.uint64) * _ODD) + before)
    totals = added.cumsum()
    offset = _words(state[batch.mamba_indices]) - (totals - added)[layout.first]
    after = (totals + offset[layout.request]) % _MODULUS
    if batch.mode == "verify":
        drafts = pool.mamba2_draft_cache(layer_id)
        places = np.arange(len(x)) - layout.first[layout.request]
        _floats(drafts.intermediate_conv_window[0])[places, layout.request, 0, 0] = x
        _floats(drafts.intermediate_ssm)[places, layout.request, 0, 0, 0] = after
        return _mixed(after)
    window[batch.mamba_indices], state[batch.mamba_indices] = x[layout.last], after[layout.last]
    wanted, slots = batch.mamba_track_seqlens, batch.mamba_track_indices
    if batch.mode == "extend" and wanted is not None and slots is not None:
        offsets = np.asarray(wanted) - np.asarray(batch.prefix_lens)
        due = np.flatnonzero((np.asarray(wanted) > 0) & (offsets > 0))
        tokens = layout.first[due] + offsets[due] - 1
        window[slots[due]], state[slots[due]] = x[tokens], after[tokens]
    return _mixed(after)


def _floats(pool: Tensor) -> NDArray[np.float64]:
    """Return a view of the pool's memory."""
    assert pool.dtype == torch.float64
    floats: NDArray[np.float64] = pool.numpy()
    return floats


def _words(floats: NDArray[np.float64]) -> Words:
    return floats.astype(np.uint64)


def _mixed(words: Words) -> Words:
    """Hash each of ``words`` to a number below 2^52.  Source: Steele et al. 2014, SplitMix64."""
    words = words + _ODD
    words ^= words >> _SHIFT_1
    words *= _MULTIPLY_1
    words ^= words >> _SHIFT_2
    words *= _MULTIPLY_2
    words ^= words >> _SHIFT_3
    words >>= _TO_52_BITS
    return words
