"""Choose experts and compute the products of the chosen ones, in Triton.

Pairs of a token and one of its experts are sorted by expert; a tile is some pairs of one expert.
Tiles are listed on the device, so that the host need not wait for their number.  As many programs
as can run at once take tiles in turn.  The first product gathers the tokens' rows, the second
scatters its result.  Tiles of one expert are adjacent, so that its matrices are read from the cache
(the grouped order of Triton's matrix multiplication tutorial).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from hybridbench.engine.kernels.moe.reference import swiglu


@dataclass(frozen=True)
class Tile:
    """One program's share of a product: ``pairs`` x ``columns``, ``inputs`` summed at a time."""

    pairs: int
    columns: int
    inputs: int
    warps: int = 4
    stages: int = 3

    def programs(self, itemsize: int, shared_bytes: int) -> int:
        """Return how many programs fit on a multiprocessor with ``shared_bytes`` of memory."""
        taken = self.stages * self.inputs * (self.pairs + self.columns) * itemsize
        return max(1, min(_WARPS_AT_ONCE // self.warps, shared_bytes // taken))


_PRECISE = Tile(16, 64, 32)
"""For float32 and float64, which tensor cores do not multiply exactly."""
_TILES = (
    # With few pairs, time goes into reading the matrices, so more stages prefetch them.
    (8, Tile(16, 64, 128, stages=4)),
    (32, Tile(32, 64, 64, stages=4)),
    (128, Tile(64, 128, 64)),
)
"""Tiles for half precision, each after the largest mean number of pairs per expert it suits."""
_LARGEST = Tile(128, 128, 64, warps=8)
_TILES_PER_GROUP = 8
_WARPS_AT_ONCE = 16
"""Maximum number of warps on one multiprocessor."""
_REGISTERS = 128
"""Maximum per thread: a multiprocessor has 65,536 registers for its warps of 32 threads."""
_INTERPRETED = 2
"""Number of programs in the interpreter, which has no multiprocessors; each takes several tiles."""
_LISTED_PER_PROGRAM = 32


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
    experts, outputs, hidden = gate_up.shape
    if not tokens:
        return torch.zeros_like(x)
    tile = _tile_for(x.dtype, chosen.numel() // experts)
    owners, order = chosen.reshape(-1).sort(stable=True)
    tiles, count = _listed(owners, experts, tile)
    products = _Products(tile, tiles, count, order, weights.contiguous(), per_token)
    biased = (None, None) if biases is None else biases
    fused = unit is swiglu and biases is None
    both = x.new_empty(len(order), outputs // 2 if fused else outputs)
    products.multiply(x, gate_up.transpose(1, 2), biased[0], both, first=True, gated=fused)
    mixed = x.new_empty(len(order), hidden)
    products.multiply(both if fused else unit(both), down, biased[1], mixed)
    # Summed in token order, so that the result does not depend on the order of the programs.
    return mixed.view(tokens, per_token, hidden).sum(dim=1)


def _tile_for(dtype: torch.dtype, pairs_per_expert: int) -> Tile:
    if dtype.itemsize > 2:
        return _PRECISE
    return next((tile for most, tile in _TILES if pairs_per_expert <= most), _LARGEST)


def _listed(owners: Tensor, experts: int, tile: Tile) -> tuple[Tensor, Tensor]:
    """List the tiles of all experts.

    Returns:
        [n, 3]: each tile's expert, its first pair, and the end of the expert's pairs; and [1]: the
        number of tiles.  n is an upper bound for any distribution; rows past the tiles are not
        written.
    """
    pairs = len(owners)
    most = pairs // tile.pairs + min(experts, pairs)
    tiles, count = owners.new_empty(most, 3), owners.new_empty(1)
    _list_tiles[(triton.cdiv(most, _LISTED_PER_PROGRAM),)](
        *(owners, tiles, count, pairs, pairs.bit_length()),
        BLOCK_E=triton.next_power_of_2(experts),
        BLOCK_M=tile.pairs,
        BLOCK_T=_LISTED_PER_PROGRAM,
    )
    return tiles, count


def _programs_at_once(device: torch.device, tile: Tile, itemsize: int) -> int:
    if device.type != "cuda":
        return _INTERPRETED
    facts = torch.cuda.get_device_properties(device)
    shared_bytes = facts.shared_memory_per_multiprocessor
    return facts.multi_processor_count * tile.programs(itemsize, shared_bytes)


@dataclass(frozen=True)
class _Products:
    """The inputs that both products of a call share."""

    tile: Tile
    tiles: Tensor
    count: Tensor
    order: Tensor
    """[n]: indices of the pairs in token order, sorted by expert."""
    weights: Tensor
    per_token: int

    def multiply(
        self,
        rows: Tensor,
        matrices: Tensor,
        bias: Tensor | None,
        out: Tensor,
        *,
        first: bool = False,
        gated: bool = False,
    ) -> None:
        """Multiply the row of each pair by the matrix of its expert.

        Args:
            rows: [T, in] if ``first``, else [n, in], sorted by expert.
            matrices: [E, in, out]; [E, in, 2*out] if ``gated``.
            bias: [E, out].
            out: [n, out], overwritten: sorted by expert if ``first``, else weighted, in token
                order.
            first: whether this is the first product of the call.
            gated: whether ``out`` is ``silu(gate) * up``, gate before up in the matrices.
        """
        tile = self.tile
        columns = tile.columns // 2 if gated else tile.columns
        blocks = triton.cdiv(out.shape[1], columns)
        most = len(self.tiles) * blocks
        at_once = _programs_at_once(rows.device, tile, rows.dtype.itemsize)
        _multiply[(min(most, at_once),)](
            *(rows.contiguous(), matrices, self.tiles, self.count, self.order, self.weights),
            *(rows if bias is None else bias.contiguous(), out),
            STRIDES=matrices.stride(),
            HAS_BIAS=bias is not None,
            FIRST=first,
            GATED=gated,
            PER_TOKEN=self.per_token,
            INPUTS=matrices.shape[1],
            OUTPUTS=out.shape[1],
            BLOCKS=blocks,
            GROUP=_TILES_PER_GROUP,
            BLOCK_M=tile.pairs,
            BLOCK_N=columns,
            BLOCK_K=tile.inputs,
            SUM=tl.float64 if rows.dtype == torch.float64 else tl.float32,
            num_warps=tile.warps,
            num_stages=tile.stages,
            maxnreg=_REGISTERS,
        )


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


@triton.jit(do_not_specialize=["pairs", "steps"])
def _list_tiles(
    owners,
    tiles,
    count,
    pairs,
    steps,
    BLOCK_E: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    expert = tl.arange(0, BLOCK_E)
    start = _first_of(owners, expert, pairs, steps)
    # There are no pairs after the last expert, so its end is the total.
    end = _first_of(owners, expert + 1, pairs, steps)
    needed = (end - start + BLOCK_M - 1) // BLOCK_M
    behind = tl.cumsum(needed, axis=0)
    tile = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    owner = tl.sum((behind[None, :] <= tile[:, None]).to(tl.int32), axis=1)
    own = expert[None, :] == owner[:, None]
    skipped = tl.sum(tl.where(own, (start - (behind - needed) * BLOCK_M)[None, :], 0), axis=1)
    last = tl.sum(tl.where(own, end[None, :], 0), axis=1)
    tl.store(count, tl.sum(needed, axis=0), mask=tl.program_id(0) == 0)
    inside = tile < tl.sum(needed, axis=0)
    tl.store(tiles + 3 * tile, owner, mask=inside)
    tl.store(tiles + 3 * tile + 1, skipped + tile * BLOCK_M, mask=inside)
    tl.store(tiles + 3 * tile + 2, last, mask=inside)


@triton.jit
def _first_of(owners, expert, pairs, steps):
    """Bisect for the first of the sorted pairs that belongs to ``expert`` or a later one."""
    low = expert * 0
    high = low + pairs
    for _ in range(steps):
        middle = (low + high) // 2
        searching = low < high
        earlier = tl.load(owners + middle, mask=searching, other=0) < expert
        low = tl.where(searching & earlier, middle + 1, low)
        high = tl.where(searching & earlier, high, middle)
    return low


@triton.jit
def _multiply(
    rows,
    matrices,
    tiles,
    count,
    order,
    weights,
    bias,
    out,
    STRIDES: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    FIRST: tl.constexpr,
    GATED: tl.constexpr,
    PER_TOKEN: tl.constexpr,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    BLOCKS: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SUM: tl.constexpr,
):
    filled = tl.load(count).to(tl.int32)
    # One stage: with two, the sums of two tiles would take up registers.
    for work in tl.range(tl.program_id(0), filled * BLOCKS, tl.num_programs(0), num_stages=1):
        # All tiles of a group come before the next block of columns.
        begin = work // (GROUP * BLOCKS) * GROUP
        members = tl.minimum(filled - begin, GROUP)
        within = work % (GROUP * BLOCKS)
        tile = tiles + 3 * (begin + within % members)
        expert, first, end = tl.load(tile), tl.load(tile + 1), tl.load(tile + 2)
        pair = first + tl.arange(0, BLOCK_M)
        column = within // members * BLOCK_N + tl.arange(0, BLOCK_N)
        in_row, in_column = pair < end, column < OUTPUTS
        row = pair
        if FIRST:
            row = tl.load(order + pair, mask=in_row, other=0) // PER_TOKEN
        left_row = rows + row[:, None] * INPUTS
        right_column = matrices + expert * STRIDES[0] + column[None, :] * STRIDES[2]
        total = tl.zeros([BLOCK_M, BLOCK_N], dtype=SUM)
        up = tl.zeros([BLOCK_M, BLOCK_N], dtype=SUM)
        for i in range(0, INPUTS, BLOCK_K):
            index = i + tl.arange(0, BLOCK_K)
            in_left = in_row[:, None] & (index < INPUTS)[None, :]
            in_right = (index < INPUTS)[:, None] & in_column[None, :]
            left = tl.load(left_row + index[None, :], mask=in_left, other=0.0)
            right_at = right_column + index[:, None] * STRIDES[1]
            right = tl.load(right_at, mask=in_right, other=0.0)
            total += tl.dot(left, right, input_precision="ieee")
            if GATED:
                right = tl.load(right_at + OUTPUTS * STRIDES[2], mask=in_right, other=0.0)
                up += tl.dot(left, right, input_precision="ieee")
        if GATED:
            total = total / (1.0 + tl.exp(-total)) * up
        if HAS_BIAS:
            added = tl.load(bias + expert * OUTPUTS + column, mask=in_column, other=0.0)
            total += added.to(SUM)[None, :]
        place = pair
        if not FIRST:
            # Loaded only here, because it would take registers from the sums.
            place = tl.load(order + pair, mask=in_row, other=0)
            total *= tl.load(weights + place, mask=in_row, other=0.0).to(SUM)[:, None]
        out_at = out + place[:, None] * OUTPUTS + column[None, :]
        tl.store(out_at, total, mask=in_row[:, None] & in_column[None, :])
