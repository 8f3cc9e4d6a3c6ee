"""The minimum work of one call of each operation: bytes moved and FLOPs.

Bytes: every input is read once and every result written once; only the used rows of a pool count.
An implementation that passes over its data twice moves more bytes than are counted, so its rate
appears lower.
FLOPs: those of matrix products, convolutions and recurrences; a multiplication and an addition
count as two.  Element-wise functions (exp, sigmoid, softmax) and data movement are not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hybridbench.engine.kernels.causal_conv1d.reference import ConvPlan
from hybridbench.engine.kernels.gated_delta_rule.chunked import ChunkPlan
from hybridbench.engine.kernels.paged_attention.reference import DecodePlan, ExtendPlan

_Rows = tuple[Tensor, Tensor] | None


@dataclass(frozen=True)
class Work:
    """The work of one call, or the sum of several."""

    moved_bytes: int = 0
    flops: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(self.moved_bytes + other.moved_bytes, self.flops + other.flops)


def work_of(operation: str, arguments: Sequence[object]) -> Work:
    """The work of calling ``operation`` of the dispatch table with these arguments."""
    return _WORK[operation](*arguments)


def _store_kv(key_buffer: Tensor, value_buffer: Tensor, loc: Tensor, k: Tensor, v: Tensor) -> Work:
    written = k.numel() * key_buffer.itemsize + v.numel() * value_buffer.itemsize
    return Work(_bytes(k, v, loc) + written)


def _decode_attention(
    q: Tensor, key_buffer: Tensor, value_buffer: Tensor, plan: DecodePlan, sinks: Tensor | None
) -> Work:
    seen = int(plan.lens.sum())
    return _attention(q, key_buffer, value_buffer, sinks, keys=seen, pairs=seen)


def _extend_attention(
    q: Tensor, key_buffer: Tensor, value_buffer: Tensor, plan: ExtendPlan, sinks: Tensor | None
) -> Work:
    keys = pairs = 0
    for _, count, prefix_len, _ in plan.spans:
        keys += prefix_len + count
        visible = prefix_len + torch.arange(1, count + 1)
        pairs += int(visible.clamp_(max=plan.window or prefix_len + count).sum())
    return _attention(q, key_buffer, value_buffer, sinks, keys=keys, pairs=pairs)


def _attention(
    q: Tensor,
    key_buffer: Tensor,
    value_buffer: Tensor,
    sinks: Tensor | None,
    *,
    keys: int,
    pairs: int,
) -> Work:
    """Count reading ``keys`` rows of the buffers, and ``pairs`` of a query and a visible key."""
    _, heads, head_dim = q.shape
    rows = keys * (_bytes(key_buffer[0]) + _bytes(value_buffer[0]) + torch.int64.itemsize)
    return Work(2 * _bytes(q) + rows + _bytes(sinks), 4 * pairs * heads * head_dim)


def _gdn_gating(a: Tensor, b: Tensor, decay: Tensor, dt_bias: Tensor) -> Work:
    return Work(_bytes(a, b, decay, dt_bias) + 2 * a.numel() * decay.itemsize)


def _gated_delta_rule_update(
    qk: Tensor, v: Tensor, g: Tensor, beta: Tensor, pool: Tensor, slots: Tensor, into: _Rows
) -> Work:
    """Per number of the state, ``S <- e^g S`` counts as one operation, S'k, S'q and kd' as two."""
    states = len(slots) * pool[0].numel()
    moved = _bytes(qk, v, g, beta, slots) + v.numel() * pool.itemsize
    return Work(moved + _read_and_written(states, pool, into), 7 * states)


def _chunk_gated_delta_rule(
    qk: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    pool: Tensor,
    slots: Tensor,
    plan: ChunkPlan,
    track_slots: Tensor | None,
) -> Work:
    """Count the products of the chunked form; the triangular solve counts as half a product."""
    size, chunks = plan.chunk_size, sum(plan.alive)
    key_heads, key_dim = qk.shape[2:]
    (tokens, heads), value_dim = g.shape, v.shape[2]
    per_key_head = 4 * size * size * key_dim
    solve = size * size * (key_dim + value_dim)
    per_head = solve + 6 * size * key_dim * value_dim + 2 * size * size * value_dim
    rows = tokens * (_bytes(qk[0], v[0]) + v[0].numel() * pool.itemsize)
    tracked = 0 if track_slots is None else len(track_slots)
    states = (2 * len(slots) + tracked) * _bytes(pool[0])
    moved = rows + _bytes(g, beta, slots, plan.conv_rows, plan.gate_rows) + states
    return Work(moved, chunks * (key_heads * per_key_head + heads * per_head))


def _causal_conv1d_update(
    x: Tensor, weight: Tensor, pool: Tensor, slots: Tensor, into: _Rows, bias: Tensor | None
) -> Work:
    windows = len(slots) * pool[0].numel()
    moved = 2 * _bytes(x) + _bytes(weight, slots, bias) + _read_and_written(windows, pool, into)
    return Work(moved, 2 * weight.shape[0] * x.numel())


def _causal_conv1d_varlen(
    x: Tensor,
    weight: Tensor,
    pool: Tensor,
    slots: Tensor,
    plan: ConvPlan,
    track_slots: Tensor | None,
    bias: Tensor | None,
) -> Work:
    tracked = 0 if track_slots is None else len(track_slots)
    windows = (2 * len(slots) + tracked) * _bytes(pool[0])
    rows = _bytes(plan.source_rows, plan.tail_rows, slots)
    return Work(2 * _bytes(x) + _bytes(weight, bias) + windows + rows, 2 * len(weight) * x.numel())


def _copy_states(
    targets: Sequence[Tensor], target_rows: Tensor, sources: Sequence[Tensor], source_rows: Tensor
) -> Work:
    row = sum(
        _bytes(target[0]) + _bytes(own[0]) for target, own in zip(targets, sources, strict=True)
    )
    return Work(len(target_rows) * row + _bytes(target_rows, source_rows))


def _mamba2_state_update(
    x: Tensor, dt: Tensor, a: Tensor, bc: Tensor, pool: Tensor, slots: Tensor, into: _Rows
) -> Work:
    """Per number of the state, the decay counts as one operation, writing and reading as two."""
    states = len(slots) * pool[0].numel()
    moved = 2 * _bytes(x) + _bytes(dt, a, bc, slots)
    return Work(moved + _read_and_written(states, pool, into), 5 * states)


def _mamba2_chunk_scan(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    d: Tensor,
    bc: Tensor,
    pool: Tensor,
    slots: Tensor,
    plan: ChunkPlan,
    track_slots: Tensor | None,
) -> Work:
    """Count products of whole chunks; of the rows of x and bc, only those of tokens are read."""
    size, chunks = plan.chunk_size, sum(plan.alive)
    (tokens, heads), head_dim = dt.shape, x.shape[2]
    groups, width = bc.shape[2:]
    per_head = 2 * size * size * head_dim + 4 * size * head_dim * width
    per_group = 2 * size * size * width
    rows = tokens * (_bytes(x[0], bc[0]) + x[0].numel() * dt.itemsize)
    tracked = 0 if track_slots is None else len(track_slots)
    states = (2 * len(slots) + tracked) * _bytes(pool[0])
    moved = rows + _bytes(dt, a, d, slots, plan.conv_rows, plan.gate_rows) + states
    return Work(moved, chunks * (heads * per_head + groups * per_group))


def _route(scores: Tensor, top_k: int, normalise: bool) -> Work:
    del normalise
    return Work(_bytes(scores) + len(scores) * top_k * (scores.itemsize + torch.int64.itemsize))


def _experts_sorted(
    x: Tensor,
    weights: Tensor,
    chosen: Tensor,
    gate_up: Tensor,
    down: Tensor,
    biases: _Rows,
    unit: Callable[[Tensor], Tensor],
) -> Work:
    """Count the matrices of every chosen expert as read once."""
    del unit
    used = len(set(chosen.flatten().tolist()))
    parts = (
        (gate_up[0], down[0]) if biases is None else (gate_up[0], down[0], *(b[0] for b in biases))
    )
    per_pair = 2 * (gate_up[0].numel() + down[0].numel())
    return Work(
        2 * _bytes(x) + _bytes(weights, chosen) + used * _bytes(*parts), chosen.numel() * per_pair
    )


def _bytes(*tensors: Tensor | None) -> int:
    return sum(0 if tensor is None else tensor.numel() * tensor.itemsize for tensor in tensors)


def _read_and_written(numbers: int, pool: Tensor, into: _Rows) -> int:
    written = pool if into is None else into[0]
    return numbers * (pool.itemsize + written.itemsize) + (0 if into is None else _bytes(into[1]))


_WORK: Mapping[str, Callable[..., Work]] = {
    "store_kv": _store_kv,
    "decode_attention": _decode_attention,
    "extend_attention": _extend_attention,
    "gdn_gating": _gdn_gating,
    "gated_delta_rule_update": _gated_delta_rule_update,
    "chunk_gated_delta_rule": _chunk_gated_delta_rule,
    "causal_conv1d_update": _causal_conv1d_update,
    "causal_conv1d_varlen": _causal_conv1d_varlen,
    "copy_states": _copy_states,
    "mamba2_state_update": _mamba2_state_update,
    "mamba2_chunk_scan": _mamba2_chunk_scan,
    "route": _route,
    "experts_sorted": _experts_sorted,
}
