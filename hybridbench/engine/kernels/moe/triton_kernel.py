"""The choice of experts, and the products of the chosen ones, in Triton.

Tokens are sorted by expert, so that an expert's rows are adjacent; a program multiplies some of
them.  The expert of a program follows from the counts on the device, so the host need not wait.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from hybridbench.engine.kernels.moe.reference import swiglu

_ROWS_PER_TILE = 16
_COLUMNS_PER_TILE = 64
_INPUTS_PER_STEP = 32


def route(scores: Tensor, top_k: int, normalise: bool) -> tuple[Tensor, Tensor]:
    """See the reference."""
    tokens, experts = scores.shape
    scores = scores.contiguous()
    weights = scores.new_empty(tokens, top_k)
    chosen = torch.empty(tokens, top_k, dtype=torch.int64, device=scores.device)
    if tokens:
        _route[(tokens,)](
            *(scores, weights, chosen),
            NORMALISE=normalise,
            EXPERTS=experts,
            TOP_K=top_k,
            BLOCK_E=triton.next_power_of_2(experts),
            BLOCK_K=triton.next_power_of_2(top_k),
        )
    return weights, chosen


def experts_sorted(
    x: Tensor,
    weights: Tensor,
    chosen: Tensor,
    gate_up: Tensor,
    down: Tensor,
    biases: tuple[Tensor, Tensor] | None = None,
    unit: Callable[[Tensor], Tensor] = swiglu,
) -> Tensor:
    """See the reference."""
    tokens, per_token = chosen.shape
    flat = chosen.reshape(-1)
    order = flat.argsort(stable=True)
    shares = weights.reshape(-1).index_select(0, order).unsqueeze(1)
    counts = torch.zeros(gate_up.shape[0], dtype=torch.int64, device=x.device)
    counts.scatter_add_(0, flat, torch.ones_like(flat))
    both = _per_expert(x.index_select(0, order // per_token), gate_up.transpose(1, 2), counts)
    owners = flat.index_select(0, order)
    if biases is not None:
        both += biases[0].index_select(0, owners)
    mixed = _per_expert(unit(both).mul_(shares), down, counts)
    if biases is not None:
        mixed.addcmul_(biases[1].index_select(0, owners), shares)
    # Back in the order of the tokens, so that sums do not depend on the order of the programs.
    by_token = torch.empty_like(mixed).index_copy_(0, order, mixed)
    return by_token.view(tokens, per_token, -1).sum(dim=1)


def _per_expert(rows: Tensor, matrices: Tensor, counts: Tensor) -> Tensor:
    """``rows[segment e] @ matrices[e]`` for segments of ``counts`` rows: [n, in] -> [n, out]."""
    experts, inputs, outputs = matrices.shape
    out = rows.new_empty(len(rows), outputs)
    # An upper limit for the number of tiles, whatever the counts; excess tiles do nothing.
    tiles = len(rows) // _ROWS_PER_TILE + min(experts, len(rows))
    if tiles:
        double, single = rows.dtype == torch.float64, rows.dtype == torch.float32
        _multiply[(tiles, triton.cdiv(outputs, _COLUMNS_PER_TILE))](
            *(rows.contiguous(), matrices, counts, out, *matrices.stride()),
            EXPERTS=experts,
            INPUTS=inputs,
            OUTPUTS=outputs,
            BLOCK_E=triton.next_power_of_2(experts),
            BLOCK_M=_ROWS_PER_TILE,
            BLOCK_N=_COLUMNS_PER_TILE,
            BLOCK_K=_INPUTS_PER_STEP,
            SUM=tl.float64 if double else tl.float32,
            # tf32 keeps all the bits of half precision.
            PRECISION="ieee" if double or single else "tf32",
        )
    return out


@triton.jit
def _route(
    scores,
    weights,
    chosen,
    NORMALISE: tl.constexpr,
    EXPERTS: tl.constexpr,
    TOP_K: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, BLOCK_E)
    place = tl.arange(0, BLOCK_K)
    inside = expert < EXPERTS
    left = tl.load(scores + token * EXPERTS + expert, mask=inside, other=float("-inf"))
    peak = tl.max(left, axis=0)
    shares = tl.exp(left - peak)
    among = tl.sum(shares, axis=0)
    best = tl.zeros([BLOCK_K], dtype=left.dtype)
    for i in range(TOP_K):
        winner = tl.argmax(left, axis=0)
        share = tl.sum(tl.where(expert == winner, shares, 0.0), axis=0)
        best = tl.where(place == i, share, best)
        tl.store(chosen + token * TOP_K + i, winner)
        left = tl.where(expert == winner, float("-inf"), left)
    if NORMALISE:
        among = tl.sum(best, axis=0)
    tl.store(weights + token * TOP_K + place, best / among, mask=place < TOP_K)


@triton.jit
def _multiply(
    rows,
    matrices,
    counts,
    out,
    expert_stride,
    input_stride,
    output_stride,
    EXPERTS: tl.constexpr,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SUM: tl.constexpr,
    PRECISION: tl.constexpr,
):
    tile = tl.program_id(0)
    experts = tl.arange(0, BLOCK_E)
    sizes = tl.load(counts + experts, mask=experts < EXPERTS, other=0)
    tiles = (sizes + BLOCK_M - 1) // BLOCK_M
    expert = tl.sum((tl.cumsum(tiles, axis=0) <= tile).to(tl.int64), axis=0)
    earlier = experts < expert
    first = tl.sum(tl.where(earlier, sizes, 0), axis=0)
    size = tl.sum(tl.where(experts == expert, sizes, 0), axis=0)
    member = (tile - tl.sum(tl.where(earlier, tiles, 0), axis=0)) * BLOCK_M
    member += tl.arange(0, BLOCK_M)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    # After the last tile there is no expert, and the size is 0.
    in_row, in_column = member < size, column < OUTPUTS
    row = first + member
    matrix = matrices + expert * expert_stride
    total = tl.zeros([BLOCK_M, BLOCK_N], dtype=SUM)
    for begin in range(0, INPUTS, BLOCK_K):
        index = begin + tl.arange(0, BLOCK_K)
        in_input = index < INPUTS
        left = tl.load(
            rows + row[:, None] * INPUTS + index[None, :],
            mask=in_row[:, None] & in_input[None, :],
            other=0.0,
        )
        right = tl.load(
            matrix + index[:, None] * input_stride + column[None, :] * output_stride,
            mask=in_input[:, None] & in_column[None, :] & (expert < EXPERTS),
            other=0.0,
        )
        total += tl.dot(left.to(SUM), right.to(SUM), input_precision=PRECISION)
    place = row[:, None] * OUTPUTS + column[None, :]
    tl.store(out + place, total, mask=in_row[:, None] & in_column[None, :])
