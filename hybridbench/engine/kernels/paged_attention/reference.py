"""Grouped-query attention over keys and values stored by slot in a pool: plain PyTorch.

Both forms gather the slots that a query may see and call PyTorch's fused attention.  Queries that
share a key head are folded into another dimension, so keys are never repeated in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from hybridbench.engine.kernels.index_arrays import to_device

_QUERY_BLOCK = 256
# A decode batch is cut into groups of similar length.  Padding may enlarge a group by this factor.
_PADDING_FACTOR = 1.5
# Padding of up to this many slots is always accepted: another call would cost more.
_PADDING_FREE = 512


@dataclass(frozen=True)
class DecodeGroup:
    """Requests of similar length that share one padded gather."""

    requests: Tensor | None
    """[b] int64, indices into the batch; None means the whole batch, in order."""
    slots: Tensor
    """[b * longest] int64; padding repeats a slot of the same request."""
    mask: Tensor | None
    """[b, 1, 1, longest]: 0, or -inf over padding; None without padding."""
    longest: int


@dataclass(frozen=True)
class DecodePlan:
    """The keys that a decode step reads; shared by all attention layers of one kind.

    Index tensors are int64, on the device of the step.
    """

    starts: Tensor
    """[B]: the start of each query's slots in ``slots``."""
    lens: Tensor
    """[B]: the number of slots that each query sees."""
    slots: Tensor
    """The slots that the queries see, query after query."""
    dtype: torch.dtype
    """The dtype of the queries and masks."""

    @classmethod
    def build(
        cls,
        seq_lens: Sequence[int],
        kv_indices: npt.NDArray[np.int64],
        dtype: torch.dtype,
        device: torch.device,
        window: int | None = None,
    ) -> DecodePlan:
        """Determine which of ``kv_indices`` each query sees.

        Args:
            seq_lens: [B], tokens that each query may see, including its own.
            kv_indices: [sum(seq_lens)], slot of every position, request after request.
            dtype: dtype of the queries.
            device: device of the index tensors.
            window: number of last tokens that each query sees; None for all.
        """
        starts, lens, slots = (
            to_device(array, device) for array in (*seen_slots(seq_lens, window), kv_indices)
        )
        return cls(starts, lens, slots, dtype)

    @cached_property
    def groups(self) -> tuple[DecodeGroup, ...]:
        """The layout for the reference: requests grouped by length, computed on the host."""
        host = [tensor.cpu().numpy() for tensor in (self.starts, self.lens, self.slots)]
        lens = host[1]
        order = np.argsort(lens, kind="stable")
        bounds = _group_bounds(lens[order].tolist())
        if len(bounds) == 2:
            return (self._group(None, *host),)
        return tuple(self._group(order[begin:end], *host) for begin, end in pairwise(bounds))

    def _group(
        self,
        members: npt.NDArray[np.int64] | None,
        starts: npt.NDArray[np.int64],
        lens: npt.NDArray[np.int64],
        all_slots: npt.NDArray[np.int64],
    ) -> DecodeGroup:
        device = self.lens.device
        requests = None
        if members is not None:
            starts, lens = starts[members], lens[members]
            requests = to_device(members, device)
        longest = int(lens.max())
        places = np.arange(longest, dtype=np.int64)
        # Padding reads the request's own last slot, whose values are finite; those of unused slots
        # may not be.
        inside = np.minimum(places, lens[:, None] - 1)
        slots = torch.from_numpy(all_slots[(starts[:, None] + inside).ravel()])
        mask = None
        if int(lens.min()) < longest:
            hidden = to_device(places >= lens[:, None], device)
            mask = torch.zeros(hidden.shape, dtype=self.dtype, device=device)
            mask = mask.masked_fill_(hidden, float("-inf"))[:, None, None]
        return DecodeGroup(requests, slots.to(device), mask, longest)


def seen_slots(
    seq_lens: Sequence[int], window: int | None = None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the start and number of each query's slots in the list of all requests' slots.

    Both are [B].  With a ``window``, a query sees only its last ``window`` slots.
    """
    lens = np.asarray(seq_lens, dtype=np.int64)
    ends = np.cumsum(lens)
    lens = lens if window is None else np.minimum(lens, window)
    return ends - lens, lens


def decode_attention(
    q: Tensor,
    key_buffer: Tensor,
    value_buffer: Tensor,
    plan: DecodePlan,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attend with one query per request to the slots that the plan makes visible.

    Args:
        q: [B, H, hd]; H is a multiple of the key heads.
        key_buffer, value_buffer: [S, Hkv, hd], one layer of the pool.
        plan: the plan for these requests.
        sinks: [H], logits that enter only the denominators of the softmax.

    Returns:
        [B, H, hd], owned by the caller.
    """
    batch, heads, head_dim = q.shape
    key_heads = key_buffer.shape[1]
    folded = q.reshape(batch, key_heads, heads // key_heads, head_dim)
    sink = None if sinks is None else sinks.view(1, key_heads, -1, 1)
    output: Tensor | None = None
    for group in plan.groups:
        queries = folded if group.requests is None else folded.index_select(0, group.requests)
        shape = (queries.shape[0], group.longest, key_heads, head_dim)
        keys = key_buffer.index_select(0, group.slots).view(shape)
        values = value_buffer.index_select(0, group.slots).view(shape)
        rows = _attend(queries, keys.transpose(1, 2), values.transpose(1, 2), group.mask, sink)
        if group.requests is None:
            return rows.reshape(batch, heads, head_dim)
        if output is None:
            output = q.new_empty(folded.shape)
        output.index_copy_(0, group.requests, rows)
    assert output is not None, "a plan has at least one group"
    return output.view(batch, heads, head_dim)


@dataclass(frozen=True)
class ExtendRequest:
    """One request of a prefill step: tokens [first, first + count) of T, after a prefix."""

    first: int
    count: int
    prefix_len: int
    slots: Tensor
    """[prefix_len + count] int64."""


@dataclass(frozen=True)
class ExtendTiles:
    """A prefill step's queries in tiles, each within one request; int64, on the step's device."""

    requests: Tensor
    """[n]: the request of each tile."""
    begins: Tensor
    """[n]: index of a tile's first query within its request."""
    spans: Tensor
    """[R, 4]: first query of T, number of queries, prefix length, first slot in ``slots``."""
    slots: Tensor
    """Slot of every position, request after request."""


@dataclass(frozen=True)
class ExtendPlan:
    """The keys that a prefill step reads; shared by all attention layers.

    With a ``window``, each query sees that many of the last tokens, including its own.  Each
    implementation has its own layout, which is built on first use.
    """

    spans: tuple[tuple[int, int, int, int], ...]
    """Per request: first query of T, number of queries, prefix length, first slot in
    ``kv_indices``.
    """
    kv_indices: npt.NDArray[np.int64]
    device: torch.device
    window: int | None = None
    _tiles: dict[int, ExtendTiles] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def build(
        cls,
        extend_lens: Sequence[int],
        prefix_lens: Sequence[int],
        kv_indices: npt.NDArray[np.int64],
        device: torch.device,
        window: int | None = None,
    ) -> ExtendPlan:
        """Cut ``kv_indices`` (slot of every position, request after request) into requests.

        Prefix tokens before the first new token's ``window`` are left out.
        """
        spans = []
        first = end = 0
        for count, prefix_len in zip(extend_lens, prefix_lens, strict=True):
            end += prefix_len + count
            kept = prefix_len if window is None else min(prefix_len, window - 1)
            spans.append((first, count, kept, end - kept - count))
            first += count
        return cls(tuple(spans), kv_indices, device, window)

    @cached_property
    def requests(self) -> tuple[ExtendRequest, ...]:
        """The layout for the reference."""
        slots = to_device(self.kv_indices, self.device)
        return tuple(
            ExtendRequest(first, count, prefix_len, slots[start : start + prefix_len + count])
            for first, count, prefix_len, start in self.spans
        )

    def tiles(self, size: int) -> ExtendTiles:
        """The layout for the Triton kernel, with tiles of at most ``size`` queries."""
        if size not in self._tiles:
            counts = [count for _, count, _, _ in self.spans]
            tiles = [-(-count // size) for count in counts]
            requests = np.repeat(np.arange(len(counts)), tiles)
            firsts = np.repeat(np.cumsum(tiles) - tiles, tiles)
            begins = (np.arange(len(requests)) - firsts) * size
            arrays = requests, begins, np.asarray(self.spans, dtype=np.int64), self.kv_indices
            tensors = (to_device(array, self.device) for array in arrays)
            self._tiles[size] = ExtendTiles(*tensors)
        return self._tiles[size]


def extend_attention(
    q: Tensor,
    key_buffer: Tensor,
    value_buffer: Tensor,
    plan: ExtendPlan,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attend causally with each request's new tokens to its prefix and to each other.

    Args:
        q: [T, H, hd]; H is a multiple of the key heads.
        key_buffer, value_buffer: [S, Hkv, hd], one layer of the pool that already holds the new
            tokens.
        plan: the plan for these requests.
        sinks: [H], logits that enter only the denominators of the softmax.

    Returns:
        [T, H, hd], owned by the caller.
    """
    tokens, heads, head_dim = q.shape
    key_heads = key_buffer.shape[1]
    # [G, Hkv, T, hd]: queries that share a key head become a batch over the same keys.
    queries = q.reshape(tokens, key_heads, heads // key_heads, head_dim).permute(2, 1, 0, 3)
    sink = None if sinks is None else sinks.view(key_heads, -1).t()[:, :, None, None]
    output = q.new_empty(q.shape)
    folded = output.view(tokens, key_heads, heads // key_heads, head_dim).permute(2, 1, 0, 3)
    groups = queries.shape[0]
    for request in plan.requests:
        keys = key_buffer.index_select(0, request.slots).transpose(0, 1)
        values = value_buffer.index_select(0, request.slots).transpose(0, 1)
        # Blocks of queries bound the size of the mask and skip the keys after each block.
        for begin in range(0, request.count, _QUERY_BLOCK):
            end = min(begin + _QUERY_BLOCK, request.count)
            visible = request.prefix_len + end
            # The first query of a block sees the furthest back.
            hidden = 0 if plan.window is None else max(0, visible - (end - begin) + 1 - plan.window)
            rows = slice(request.first + begin, request.first + end)
            folded[:, :, rows] = _attend_causally(
                queries[:, :, rows],
                keys[:, hidden:visible].expand(groups, -1, -1, -1),
                values[:, hidden:visible].expand(groups, -1, -1, -1),
                plan.window,
                sink,
            )
    return output


def attention_reference(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    prefix_len: int,
    window: int | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attend query by query for one request; the reference for both forms.

    Args:
        q: [T, H, hd], queries at positions prefix_len, prefix_len + 1, ...
        keys, values: [prefix_len + T, Hkv, hd], in order of position.
        prefix_len: tokens before the first query.
        window: tokens that a query sees, including its own; None for all up to its own.
        sinks: [H], one logit per head that enters only the denominator of the softmax.

    Returns:
        [T, H, hd].
    """
    repeats = q.shape[1] // keys.shape[1]
    keys = keys.repeat_interleave(repeats, dim=1)
    values = values.repeat_interleave(repeats, dim=1)
    rows = []
    for t in range(q.shape[0]):
        visible = prefix_len + t + 1
        first = 0 if window is None else max(0, visible - window)
        scores = torch.einsum("hd,mhd->hm", q[t], keys[first:visible]) * q.shape[2] ** -0.5
        if sinks is not None:
            scores = torch.cat((scores, sinks[:, None]), dim=1)
        shares = scores.softmax(dim=-1)[:, : visible - first]
        rows.append(torch.einsum("hm,mhd->hd", shares, values[first:visible]))
    return torch.stack(rows)


def _attend_causally(
    queries: Tensor, keys: Tensor, values: Tensor, window: int | None, sink: Tensor | None
) -> Tensor:
    """Attend so that the last query sees all keys, the one before it all but one, and so on.

    With a ``window``, each query sees at most that many.
    """
    count, visible = queries.shape[2], keys.shape[2]
    slides = window is not None and visible > window
    if count == visible and not slides and sink is None:
        return functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
    mask = None
    if count > 1 or slides:
        hidden = queries.new_full((count, visible), float("-inf"))
        mask = hidden.triu(diagonal=visible - count + 1)
        if slides and window is not None:
            mask += hidden.tril_(diagonal=visible - count - window)
    return _attend(queries, keys, values, mask, sink)


def _attend(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, sink: Tensor | None
) -> Tensor:
    """Compute softmax attention over [n, Hkv, T, hd].

    ``mask`` is added to the scores.  ``sink`` has its heads in the same dimension and enters only
    the denominator.
    """
    if sink is None:
        return functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
    mixed = torch.empty_like(queries)
    # Head by head: a single product over all heads would first copy the gathered keys.
    for head in range(queries.shape[1]):
        scaled = queries[:, head] * queries.shape[-1] ** -0.5
        scores = scaled @ keys[:, head].transpose(1, 2)
        if mask is not None:
            scores += mask[:, 0] if mask.dim() > 2 else mask
        # Shifted by the largest logit, including the sink, so that nothing overflows.
        peak = torch.maximum(scores.amax(dim=-1, keepdim=True), sink[:, head])
        shares = scores.sub_(peak).exp_()
        whole = shares.sum(dim=-1, keepdim=True) + (sink[:, head] - peak).exp_()
        torch.div(shares @ values[:, head], whole, out=mixed[:, head])
    return mixed


def _group_bounds(sorted_lens: Sequence[int]) -> list[int]:
    """Return where to cut ascending lengths so that no group gathers much padding."""
    bounds = [0]
    used = 0
    for i, length in enumerate(sorted_lens):
        padded = (i - bounds[-1] + 1) * length
        used += length
        if padded > max(_PADDING_FACTOR * used, used + _PADDING_FREE):
            bounds.append(i)
            used = length
    bounds.append(len(sorted_lens))
    return bounds
