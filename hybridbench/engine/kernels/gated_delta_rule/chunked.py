"""The gated delta rule over whole chunks, for prefills in plain PyTorch.

Inside a chunk of C tokens, with G = cumsum(g) and D_ij = e^{G_i - G_j} for i >= j, let
``A = strictly_lower(beta_i (K K') . D)`` and solve ``(I + A) [U|W] = [beta V | beta e^G K]``.
Then, from chunk to chunk, ``V' = U - W S``, ``O = (Q e^G) S + ((Q K') . D) V'`` and
``S <- e^{G_C} S + (K e^{G_C-G})' V'``.

Requests are sorted by their number of chunks, and chunks are stored chunk-index-major.  The j-th
chunks of all remaining requests are thus one contiguous slice, and each step of the scan is a
batched product.

The scan yields the states between chunks.  If a prefix cache wants a snapshot after a certain
token, the request's first chunk is padded on the left so that a chunk ends at that token.  The
padding has no effect: a write strength of 0 writes nothing.

Source: Yang et al. 2024, arXiv 2412.06464, section 3; the layout is ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hybridbench.engine.kernels.index_arrays import to_device
from hybridbench.engine.kernels.rows import store_rows

_Integers: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]

_CHUNK_SIZE = 64
_CPU_CHUNK_SIZE = 32
_BLOCK_SIZE = 16
# Chunks of one block take the least arithmetic; on a CPU, up to this many in a row are fastest.
_BLOCKS_IN_A_ROW = 8
# With 64 tokens per chunk, 2,048 tokens.
_SEGMENT_CHUNKS = 32


@dataclass(frozen=True)
class Snapshots:
    """The states to copy between two chunks."""

    ranks: Tensor
    """[n] int64: ranks of the requests in the plan's order."""
    places: Tensor
    """[n] int64: the row for each copy."""


@dataclass(frozen=True)
class ChunkScan:
    """The chunks of each request; int64 tensors on the device of the step."""

    starts: Tensor
    """[J]: index of the first j-th chunk; add r for that of the request of rank r."""
    counts: Tensor
    """[R]: chunks of each request."""
    snapshot_chunks: Tensor
    """[R]: the chunk after which a request's state is wanted; -1 for none."""
    snapshot_rows: Tensor
    """[R]: the row for that copy."""


@dataclass(frozen=True)
class Segment:
    """A range of consecutive chunks, over all requests that have them."""

    begin: int
    """Index of its first chunk among all chunks."""
    chunks: int
    scan: ChunkScan


@dataclass(frozen=True)
class ChunkPlan:
    """The distribution of a ragged step's tokens over N chunks of C rows, with padding."""

    alive: tuple[int, ...]
    """Number of requests that have a j-th chunk, for j = 0, 1, ...; the sum is N."""
    order: Tensor
    """[R] int64: requests by number of chunks, most first."""
    conv_rows: Tensor
    """[N*C] int64: row of each chunk place in the convolution's output; padding repeats a row."""
    gate_rows: Tensor
    """[N*C] int64: token of each chunk place; padding is T, a row of zeros."""
    output_rows: Tensor
    """[T] int64: chunk place of each token."""
    chunk_size: int
    snapshot_chunks: _Integers
    """[R], in ``order``: the chunk after which a request's state is wanted; -1 for none."""
    snapshot_rows: _Integers
    """[R], in ``order``: the row for that copy."""

    @property
    def snapshot_count(self) -> int:
        """S: number of states to copy."""
        return int(np.count_nonzero(self.snapshot_chunks >= 0))

    @cached_property
    def snapshots(self) -> Mapping[int, Snapshots]:
        """The states to copy after the j-th chunks, keyed by j."""
        after, device = self.snapshot_chunks, self.order.device
        wanted = {j: np.flatnonzero(after == j) for j in sorted(set(after[after >= 0].tolist()))}
        return {
            j: Snapshots(
                ranks=to_device(ranks, device),
                places=to_device(self.snapshot_rows[ranks], device),
            )
            for j, ranks in wanted.items()
        }

    @cached_property
    def scan(self) -> ChunkScan:
        """The layout for the Triton kernels, which process the chunks request by request."""
        return self._scan_of(0, len(self.alive))

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """The chunks split into segments, to bound the memory for intermediate results."""
        ends = np.cumsum(self.alive)
        segments, first, begin = [], 0, 0
        while first < len(ends):
            # At least one chunk of each request.
            fitting = int(np.searchsorted(ends, begin + _SEGMENT_CHUNKS, side="right"))
            end = max(fitting, first + 1)
            chunks = int(ends[end - 1]) - begin
            segments.append(Segment(begin, chunks, self._scan_of(first, end)))
            first, begin = end, begin + chunks
        return tuple(segments)

    def _scan_of(self, first: int, end: int) -> ChunkScan:
        """Return the layout of the chunks with index ``first`` to ``end`` (exclusive) of each
        request, with all indices relative to the first of these chunks.
        """
        alive = np.asarray(self.alive[first:end], dtype=np.int64)
        counts = (alive > np.arange(alive[0])[:, None]).sum(axis=1)
        wanted, rows = self.snapshot_chunks[: alive[0]], self.snapshot_rows[: alive[0]]
        # A snapshot chunk outside this range gets an index that no chunk of the range has.
        arrays = np.cumsum(alive) - alive, counts, wanted - first, rows
        return ChunkScan(*(to_device(array, self.order.device) for array in arrays))

    @classmethod
    def build(
        cls,
        extend_lens: Sequence[int],
        source_starts: _Integers,
        device: torch.device,
        chunk_size: int | None = None,
        track_offsets: Sequence[int] | None = None,
    ) -> ChunkPlan:
        """Lay out requests of ``extend_lens`` tokens.

        Args:
            extend_lens: new tokens of each request, at least one.
            source_starts: [R], the row of q|k|v where each request's tokens begin.
            device: device of the index tensors.
            chunk_size: C; by default chosen for the device and the longest request.
            track_offsets: [R], the number of new tokens after which each request's state is
                wanted; 0 for none.
        """
        lens = np.asarray(extend_lens, dtype=np.int64)
        if chunk_size is None:
            chunk_size = _suitable_size(int(lens.max()), device)
        tracked = np.asarray([0] * len(lens) if track_offsets is None else track_offsets, np.int64)
        # Empty places at the start of the first chunk, so that a chunk ends at the wanted state.
        lead = -tracked % chunk_size
        chunks = (lens + lead + chunk_size - 1) // chunk_size
        order = np.argsort(-chunks, kind="stable")
        lead, chunks = lead[order], chunks[order]
        alive = tuple(int((chunks > j).sum()) for j in range(int(chunks[0])))
        total = int(lens.sum())
        # (rank, chunk) of every chunk, chunk-index-major.
        rank = np.concatenate([np.arange(count, dtype=np.int64) for count in alive])
        index = np.repeat(np.arange(len(alive), dtype=np.int64), alive)
        offset = index[:, None] * chunk_size + np.arange(chunk_size, dtype=np.int64)
        offset -= lead[rank][:, None]
        sorted_lens = lens[order][rank][:, None]
        valid = (offset >= 0) & (offset < sorted_lens)
        token_starts = (np.cumsum(lens) - lens)[order][rank][:, None]
        tokens = np.where(valid, token_starts + offset, total)
        # Padding repeats the request's first or last row, which is finite; g = 0 and beta = 0 keep
        # it from changing anything.
        inside = np.clip(offset, 0, sorted_lens - 1)
        rows = source_starts[order][rank][:, None] + inside
        places = np.empty(total, dtype=np.int64)
        flat_valid = valid.ravel()
        places[tokens.ravel()[flat_valid]] = np.flatnonzero(flat_valid)
        return cls(
            alive=alive,
            order=to_device(order, device),
            conv_rows=to_device(rows.ravel(), device),
            gate_rows=to_device(tokens.ravel(), device),
            output_rows=to_device(places, device),
            chunk_size=chunk_size,
            # An untracked request has an offset and a lead of 0, which yields -1.
            snapshot_chunks=(tracked[order] + lead) // chunk_size - 1,
            snapshot_rows=(np.cumsum(tracked > 0) - 1)[order],
        )


def chunk_gated_delta_rule(
    qk: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    pool: Tensor,
    slots: Tensor,
    plan: ChunkPlan,
    track_slots: Tensor | None = None,
) -> Tensor:
    """Process all new tokens of several requests, in chunks.

    Args:
        qk: [rows, 2, H, K] in the state's dtype: queries (scaled) and keys, normalised;
            ``plan.conv_rows`` is the row of each chunk place.
        v: [rows, HV, V]; HV is a multiple of H.
        g: [T, HV] in the state's dtype, log of the decay, at most 0.
        beta: [T, HV] in the state's dtype, write strength in (0, 1).
        pool: [S, HV, K, V]; rows ``slots`` are read and overwritten.
        slots: [R] int64, in the order of the plan.
        plan: the layout.
        track_slots: [S] int64, slots for the plan's snapshots, in the order of the requests.
            None if there are none.

    Returns:
        [T, HV, V] in the state's dtype, owned by the caller.
    """
    state = pool.index_select(0, slots)
    snapshots = None
    if track_slots is not None:
        snapshots = state.new_empty(len(track_slots), *state.shape[1:])
    places = (-1, plan.chunk_size)
    qk, v = (part.index_select(0, plan.conv_rows).to(state.dtype) for part in (qk, v))
    # One row of zeros after the tokens serves all padding.
    gates = functional.pad(torch.stack((g, beta), dim=1), (0, 0, 0, 0, 0, 1))
    gates = gates.index_select(0, plan.gate_rows)
    output = _scan_chunks(
        qk.view(*places, *qk.shape[1:]),
        v.view(*places, *v.shape[1:]),
        gates.view(*places, *gates.shape[1:]),
        state,
        plan,
        snapshots,
    )
    store_rows(pool, slots, state)
    if snapshots is not None and track_slots is not None:
        store_rows(pool, track_slots, snapshots)
    return output.reshape(v.shape).index_select(0, plan.output_rows)


def _scan_chunks(
    qk: Tensor,
    v: Tensor,
    gates: Tensor,
    state: Tensor,
    plan: ChunkPlan,
    snapshots: Tensor | None,
) -> Tensor:
    """Return the outputs [N, C, HV, V]; overwrite ``state`` and fill ``snapshots``.

    Args:
        qk: [N, C, 2, H, K].
        v: [N, C, HV, V].
        gates: [N, C, 2, HV]: log decay and write strength; 0 in padding.
        state: [R, HV, K, V], in the order of the plan.
        plan: the layout.
        snapshots: [S, HV, K, V], in the order of the requests.
    """
    size, (chunks, _, heads, value_dim) = plan.chunk_size, v.shape
    key_heads, key_dim = qk.shape[3:]
    repeats = heads // key_heads
    log_decay, beta = gates.permute(2, 0, 3, 1).contiguous().unbind(0)
    log_decay = log_decay.cumsum(dim=-1)
    # [N, HV, C, C].  Masked before exp, because above the diagonal the exponent is positive.
    decay = (log_decay.unsqueeze(3) - log_decay.unsqueeze(2)).tril_().exp_().tril_()
    both = qk.permute(0, 3, 2, 1, 4).reshape(chunks * key_heads, 2 * size, key_dim)
    keys_per_head = both[:, size:]
    products = torch.bmm(both, keys_per_head.transpose(1, 2))
    products = products.view(chunks, key_heads, 1, 2, size, size)
    per_head = decay.view(chunks, key_heads, repeats, size, size)
    attention = (products[:, :, :, 0] * per_head).view(chunks, heads, size, size)
    lower = (products[:, :, :, 1] * per_head).view(chunks, heads, size, size)
    lower.mul_(beta.unsqueeze(3))
    both = both.view(chunks, key_heads, 1, 2, size, key_dim)
    grown = log_decay.exp()
    query = _scaled(both[:, :, :, 0], grown, repeats)
    key_in = _scaled(both[:, :, :, 1], beta * grown, repeats)
    key_out = _scaled(both[:, :, :, 1], (log_decay[..., -1:] - log_decay).exp(), repeats)
    right = v.new_empty(chunks, heads, size, value_dim + key_dim)
    torch.mul(v.transpose(1, 2), beta.unsqueeze(3), out=right[..., :value_dim])
    right[..., value_dim:] = key_in
    solved = _solve_unit_lower(
        lower.view(-1, size, size), right.view(-1, size, value_dim + key_dim)
    ).view(chunks, heads, size, value_dim + key_dim)
    write, read = solved[..., :value_dim], solved[..., value_dim:]
    reads = torch.cat((query, read), dim=2)
    inputs = _ScanInputs(reads, write, attention, key_out, grown[..., -1])
    output = _scan(inputs, state, plan, snapshots)
    return output.transpose(1, 2)


def _suitable_size(longest: int, device: torch.device) -> int:
    """Return a chunk size: larger chunks need more arithmetic, smaller ones more calls.

    A GPU uses only two sizes, because its kernels are compiled for each.
    """
    blocks = -(-longest // _BLOCK_SIZE)
    if device.type != "cpu":
        return _BLOCK_SIZE if blocks == 1 else _CHUNK_SIZE
    return _BLOCK_SIZE if blocks <= _BLOCKS_IN_A_ROW else _CPU_CHUNK_SIZE


@dataclass(frozen=True)
class _ScanInputs:
    """Inputs of the pass from chunk to chunk; the first two dimensions are [N, HV]."""

    reads: Tensor
    """[.., 2C, K]: Q e^G above W."""
    write: Tensor
    """[.., C, V]: U."""
    attention: Tensor
    """[.., C, C]: (Q K') . D."""
    key_out: Tensor
    """[.., C, K]: K e^{G_C - G}."""
    decay: Tensor
    """[..]: e^{G_C}."""


def _scan(inputs: _ScanInputs, state: Tensor, plan: ChunkPlan, snapshots: Tensor | None) -> Tensor:
    size = inputs.write.shape[2]
    output = state.new_empty(inputs.write.shape)
    start = 0
    for j, count in enumerate(plan.alive):
        part = slice(start, start + count)
        start += count
        current = state[:count]
        reads = torch.matmul(inputs.reads[part], current)
        fresh = inputs.write[part] - reads[:, :, size:]
        torch.add(reads[:, :, :size], torch.matmul(inputs.attention[part], fresh), out=output[part])
        current.mul_(inputs.decay[part, :, None, None])
        current.add_(torch.matmul(inputs.key_out[part].transpose(2, 3), fresh))
        wanted = plan.snapshots.get(j)
        if wanted is not None and snapshots is not None:
            snapshots.index_copy_(0, wanted.places, current.index_select(0, wanted.ranks))
    return output


def _scaled(rows: Tensor, factor: Tensor, repeats: int) -> Tensor:
    """Multiply [N, H, 1, C, K] by [N, HV, C] -> [N, HV, C, K], repeating the heads."""
    chunks, heads, size = factor.shape
    scaled = rows * factor.view(chunks, heads // repeats, repeats, size, 1)
    return scaled.view(chunks, heads, size, rows.shape[-1])


def _solve_unit_lower(lower: Tensor, right: Tensor) -> Tensor:
    """Solve ``(I + strictly_lower(lower)) X = right`` for many small systems, in place.

    Uses forward substitution by blocks: LAPACK inverts the diagonal blocks, and products do the
    rest.  A power series would lose precision: the norm of ``lower`` can reach the chunk size, and
    its powers cancel.
    """
    count, size, _ = lower.shape
    block = _BLOCK_SIZE if size % _BLOCK_SIZE == 0 else size
    blocks = size // block
    diagonal = lower.view(count, blocks, block, blocks, block).diagonal(dim1=1, dim2=3)
    diagonal = diagonal.permute(0, 3, 1, 2).reshape(count * blocks, block, block)
    eye = torch.eye(block, dtype=lower.dtype, device=lower.device).expand_as(diagonal)
    inverse = torch.linalg.solve_triangular(diagonal, eye, upper=False, unitriangular=True)
    inverse = inverse.view(count, blocks, block, block)
    for i in range(blocks):
        rows = slice(i * block, (i + 1) * block)
        known = right[:, rows]
        if i:
            above = slice(0, i * block)
            known = torch.baddbmm(known, lower[:, rows, above], right[:, above], alpha=-1)
        right[:, rows] = torch.bmm(inverse[:, i], known)
    return right
