"""Grouped-query attention over keys and values kept by slot in a pool: plain PyTorch.

Both forms gather the slots a query may see and call PyTorch's fused attention.  The queries that
share a key head are folded into another dimension, so keys are never repeated in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

_QUERY_BLOCK = 256
# A decode batch is cut into groups of like length: at most this factor is gathered in vain.
_PADDING_FACTOR = 1.5
# ... unless the group is so small that another call costs more than its padding.
_PADDING_FREE = 512


@dataclass(frozen=True)
class DecodeGroup:
    """Requests of like length that share one padded gather."""

    requests: Tensor | None
    """[b] int64 into the batch; None is all of it, in order."""
    slots: Tensor
    """[b * longest] int64; padding repeats a slot of the same request."""
    mask: Tensor | None
    """[b, 1, 1, longest]: 0, or -inf over padding; None when there is no padding."""
    longest: int


@dataclass(frozen=True)
class DecodePlan:
    """Where the keys of a decode step lie; shared by all attention layers."""

    groups: tuple[DecodeGroup, ...]

    @classmethod
    def build(
        cls,
        seq_lens: Sequence[int],
        kv_indices: npt.NDArray[np.int64],
        dtype: torch.dtype,
        device: torch.device,
    ) -> DecodePlan:
        """Group requests by length.

        Args:
            seq_lens: [B], tokens each query may see, its own included.
            kv_indices: [sum(seq_lens)], slot of every position, request after request.
            dtype: of the queries, and so of the masks.
            device: where the index tensors go.
        """
        lens = np.asarray(seq_lens, dtype=np.int64)
        starts = np.cumsum(lens) - lens
        order = np.argsort(lens, kind="stable")
        bounds = _group_bounds(lens[order].tolist())
        groups = []
        for begin, end in pairwise(bounds):
            members = order[begin:end] if len(bounds) > 2 else np.arange(len(lens))
            own = lens[members]
            longest = int(own.max())
            places = np.arange(longest, dtype=np.int64)
            # Padding reads the request's own last slot: finite, whatever unused slots hold.
            inside = np.minimum(places, own[:, None] - 1)
            slots = torch.from_numpy(kv_indices[(starts[members][:, None] + inside).ravel()])
            mask = None
            if int(own.min()) < longest:
                hidden = torch.from_numpy(places >= own[:, None]).to(device)
                mask = torch.zeros(hidden.shape, dtype=dtype, device=device)
                mask = mask.masked_fill_(hidden, float("-inf"))[:, None, None]
            requests = torch.from_numpy(members).to(device) if len(bounds) > 2 else None
            groups.append(DecodeGroup(requests, slots.to(device), mask, longest))
        return cls(tuple(groups))


def decode_attention(
    q: Tensor, key_buffer: Tensor, value_buffer: Tensor, plan: DecodePlan
) -> Tensor:
    """One query per request over all of its slots.

    Args:
        q: [B, H, hd]; H is a multiple of the key heads.
        key_buffer, value_buffer: [S, Hkv, hd], one layer of the pool.
        plan: for these requests.

    Returns:
        [B, H, hd], owned by the caller.
    """
    batch, heads, head_dim = q.shape
    key_heads = key_buffer.shape[1]
    folded = q.view(batch, key_heads, heads // key_heads, head_dim)
    output: Tensor | None = None
    for group in plan.groups:
        queries = folded if group.requests is None else folded.index_select(0, group.requests)
        shape = (queries.shape[0], group.longest, key_heads, head_dim)
        keys = key_buffer.index_select(0, group.slots).view(shape)
        values = value_buffer.index_select(0, group.slots).view(shape)
        rows = functional.scaled_dot_product_attention(
            queries, keys.transpose(1, 2), values.transpose(1, 2), attn_mask=group.mask
        )
        if group.requests is None:
            return rows.reshape(batch, heads, head_dim)
        if output is None:
            output = q.new_empty(folded.shape)
        output.index_copy_(0, group.requests, rows)
    assert output is not None, "a plan has at least one group"
    return output.view(batch, heads, head_dim)


@dataclass(frozen=True)
class ExtendRequest:
    """One request of a prefill step: new tokens [first, first + count) of T, after a prefix."""

    first: int
    count: int
    prefix_len: int
    slots: Tensor
    """[prefix_len + count] int64."""


@dataclass(frozen=True)
class ExtendPlan:
    """Where the keys of a prefill step lie; shared by all attention layers."""

    requests: tuple[ExtendRequest, ...]

    @classmethod
    def build(
        cls,
        extend_lens: Sequence[int],
        prefix_lens: Sequence[int],
        kv_indices: npt.NDArray[np.int64],
        device: torch.device,
    ) -> ExtendPlan:
        """Cut ``kv_indices`` (slot of every position, request after request) into requests."""
        slots = torch.from_numpy(kv_indices).to(device)
        requests = []
        first = start = 0
        for count, prefix_len in zip(extend_lens, prefix_lens, strict=True):
            end = start + prefix_len + count
            requests.append(ExtendRequest(first, count, prefix_len, slots[start:end]))
            first, start = first + count, end
        return cls(tuple(requests))


def extend_attention(
    q: Tensor, key_buffer: Tensor, value_buffer: Tensor, plan: ExtendPlan
) -> Tensor:
    """Causal attention of each request's new tokens over its prefix and themselves.

    Args:
        q: [T, H, hd]; H is a multiple of the key heads.
        key_buffer, value_buffer: [S, Hkv, hd], one layer of the pool, the new tokens stored.
        plan: for these requests.

    Returns:
        [T, H, hd], owned by the caller.
    """
    tokens, heads, head_dim = q.shape
    key_heads = key_buffer.shape[1]
    # [G, Hkv, T, hd]: queries that share a key head become a batch over the same keys.
    queries = q.view(tokens, key_heads, heads // key_heads, head_dim).permute(2, 1, 0, 3)
    output = q.new_empty(q.shape)
    folded = output.view(tokens, key_heads, heads // key_heads, head_dim).permute(2, 1, 0, 3)
    groups = queries.shape[0]
    for request in plan.requests:
        keys = key_buffer.index_select(0, request.slots).transpose(0, 1)
        values = value_buffer.index_select(0, request.slots).transpose(0, 1)
        # Blocks of queries bound the mask, and skip the keys after each block.
        for begin in range(0, request.count, _QUERY_BLOCK):
            end = min(begin + _QUERY_BLOCK, request.count)
            visible = request.prefix_len + end
            rows = slice(request.first + begin, request.first + end)
            folded[:, :, rows] = _attend_causally(
                queries[:, :, rows],
                keys[:, :visible].expand(groups, -1, -1, -1),
                values[:, :visible].expand(groups, -1, -1, -1),
            )
    return output


def attention_reference(q: Tensor, keys: Tensor, values: Tensor, prefix_len: int) -> Tensor:
    """The meaning of both forms, for one request and query by query.

    Args:
        q: [T, H, hd], queries at positions prefix_len, prefix_len + 1, ...
        keys, values: [prefix_len + T, Hkv, hd], in order of position.
        prefix_len: tokens before the first query.

    Returns:
        [T, H, hd].
    """
    repeats = q.shape[1] // keys.shape[1]
    keys = keys.repeat_interleave(repeats, dim=1)
    values = values.repeat_interleave(repeats, dim=1)
    rows = []
    for t in range(q.shape[0]):
        visible = prefix_len + t + 1
        scores = torch.einsum("hd,mhd->hm", q[t], keys[:visible]) * q.shape[2] ** -0.5
        rows.append(torch.einsum("hm,mhd->hd", scores.softmax(dim=-1), values[:visible]))
    return torch.stack(rows)


def _attend_causally(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """The last query sees all keys, the one before it all but one, and so on."""
    count, visible = queries.shape[2], keys.shape[2]
    if count == visible:
        return functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
    mask = None
    if count > 1:
        mask = torch.ones(count, visible, dtype=torch.bool, device=queries.device)
        mask = mask.tril_(diagonal=visible - count)
    return functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)


def _group_bounds(sorted_lens: Sequence[int]) -> list[int]:
    """Where to cut ascending lengths, so that no group gathers much more than it needs."""
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
