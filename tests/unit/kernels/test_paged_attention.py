"""Attention over scattered slots against the query-by-query meaning."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
import torch
from torch import Tensor

from hybridbench.kernels.paged_attention import (
    DecodePlan,
    ExtendPlan,
    attention_reference,
    decode_attention,
    extend_attention,
)

CPU = torch.device("cpu")
HEAD_DIM = 8


class ScatteredKeys:
    """Keys and values of some requests at shuffled slots; every other slot is NaN."""

    def __init__(self, lens: list[int], key_heads: int) -> None:
        generator = torch.Generator().manual_seed(len(lens))
        size = sum(lens) + 5
        order = np.random.default_rng(1).permutation(size - 1)[: sum(lens)] + 1
        self.kv_indices = order.astype(np.int64)
        shape = (2, size, key_heads, HEAD_DIM)
        pool = torch.randn(shape, generator=generator, dtype=torch.float64)
        unused = torch.ones(size, dtype=torch.bool)
        unused[torch.from_numpy(self.kv_indices)] = False
        pool[:, unused] = float("nan")
        self.keys, self.values = pool
        self._slots = torch.split(torch.from_numpy(self.kv_indices), lens)

    def of(self, request: int) -> tuple[Tensor, Tensor]:
        slots = self._slots[request]
        return self.keys[slots], self.values[slots]


@pytest.mark.parametrize("heads", [(4, 2), (3, 1), (2, 2)], ids=str)
@pytest.mark.parametrize("lens", [[1], [9], [5, 5], [1, 2, 3, 40], [2000, 1, 3, 1, 900]], ids=str)
def test_decode_sees_exactly_the_slots_of_its_request(
    lens: list[int], heads: tuple[int, int]
) -> None:
    scattered = ScatteredKeys(lens, heads[1])
    q = torch.randn(len(lens), heads[0], HEAD_DIM, dtype=torch.float64)
    plan = DecodePlan.build(lens, scattered.kv_indices, torch.float64, CPU)

    output = decode_attention(q, scattered.keys, scattered.values, plan)

    for i, length in enumerate(lens):
        expected = attention_reference(q[i : i + 1], *scattered.of(i), prefix_len=length - 1)
        torch.testing.assert_close(output[i : i + 1], expected)


def test_one_long_request_does_not_make_the_others_gather_as_much() -> None:
    lens = [4000] + [20] * 31
    scattered_slots = np.zeros(sum(lens), dtype=np.int64)

    plan = DecodePlan.build(lens, scattered_slots, torch.float32, CPU)

    assert sum(len(group.slots) for group in plan.groups) <= 1.5 * sum(lens)
    members = [g.requests.tolist() for g in plan.groups if g.requests is not None]
    assert sorted(chain.from_iterable(members)) == list(range(32))


@pytest.mark.parametrize("heads", [(4, 2), (3, 1), (2, 2)], ids=str)
@pytest.mark.parametrize(
    ("extend_lens", "prefix_lens"),
    [
        ([1], [0]),
        ([7], [0]),
        ([1, 5, 3], [4, 0, 9]),
        ([300], [0]),
        ([513, 2], [40, 0]),
    ],
)
def test_extend_is_causal_over_prefix_and_new_tokens(
    extend_lens: list[int], prefix_lens: list[int], heads: tuple[int, int]
) -> None:
    seq_lens = [p + n for p, n in zip(prefix_lens, extend_lens, strict=True)]
    scattered = ScatteredKeys(seq_lens, heads[1])
    q = torch.randn(sum(extend_lens), heads[0], HEAD_DIM, dtype=torch.float64)
    plan = ExtendPlan.build(extend_lens, prefix_lens, scattered.kv_indices, CPU)

    output = extend_attention(q, scattered.keys, scattered.values, plan)

    rows = zip(torch.split(q, extend_lens), torch.split(output, extend_lens), strict=True)
    for i, (queries, result) in enumerate(rows):
        expected = attention_reference(queries, *scattered.of(i), prefix_lens[i])
        torch.testing.assert_close(result, expected)
