"""Attention over scattered slots against the query-by-query reference."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
import torch
from torch import Tensor

from hybridbench.engine.kernels.paged_attention.reference import (
    DecodePlan,
    ExtendPlan,
    attention_reference,
    decode_attention,
    extend_attention,
)

CPU = torch.device("cpu")
HEAD_DIM = 8


class ScatteredKeys:
    """Keys and values of requests in shuffled slots; all other slots are NaN."""

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


@pytest.mark.parametrize("window", [None, 1, 3, 300], ids=str)
@pytest.mark.parametrize("with_sinks", [False, True], ids=["plain", "sinks"])
@pytest.mark.parametrize("heads", [(4, 2), (3, 1)], ids=str)
def test_decode_with_a_window_and_sinks(
    heads: tuple[int, int], with_sinks: bool, window: int | None
) -> None:
    lens = [1, 2, 3, 40, 700, 4]
    scattered = ScatteredKeys(lens, heads[1])
    q = torch.randn(len(lens), heads[0], HEAD_DIM, dtype=torch.float64)
    sinks = 3.0 * torch.randn(heads[0], dtype=torch.float64) if with_sinks else None
    plan = DecodePlan.build(lens, scattered.kv_indices, torch.float64, CPU, window)

    output = decode_attention(q, scattered.keys, scattered.values, plan, sinks)

    for i, length in enumerate(lens):
        own = scattered.of(i)
        expected = attention_reference(q[i : i + 1], *own, length - 1, window, sinks)
        torch.testing.assert_close(output[i : i + 1], expected)
    if window is not None:
        assert sum(group.longest for group in plan.groups) <= window * len(plan.groups)


@pytest.mark.parametrize("window", [None, 1, 3, 256, 257, 700], ids=str)
@pytest.mark.parametrize("with_sinks", [False, True], ids=["plain", "sinks"])
def test_extend_with_a_window_and_sinks(with_sinks: bool, window: int | None) -> None:
    extend_lens, prefix_lens = [1, 5, 3, 513, 2], [4, 0, 9, 300, 700]
    seq_lens = [p + n for p, n in zip(prefix_lens, extend_lens, strict=True)]
    scattered = ScatteredKeys(seq_lens, 2)
    q = torch.randn(sum(extend_lens), 4, HEAD_DIM, dtype=torch.float64)
    sinks = 3.0 * torch.randn(4, dtype=torch.float64) if with_sinks else None
    plan = ExtendPlan.build(extend_lens, prefix_lens, scattered.kv_indices, CPU, window)

    output = extend_attention(q, scattered.keys, scattered.values, plan, sinks)

    rows = zip(torch.split(q, extend_lens), torch.split(output, extend_lens), strict=True)
    for i, (queries, result) in enumerate(rows):
        expected = attention_reference(queries, *scattered.of(i), prefix_lens[i], window, sinks)
        torch.testing.assert_close(result, expected)


def test_a_sink_far_above_all_scores_takes_everything_and_overflows_nothing() -> None:
    scattered = ScatteredKeys([5], 1)
    q = torch.randn(1, 1, HEAD_DIM, dtype=torch.float64)
    plan = DecodePlan.build([5], scattered.kv_indices, torch.float64, CPU)

    for sink, share in ((2000.0, 0.0), (-2000.0, 1.0)):
        sinks = torch.tensor([sink], dtype=torch.float64)
        output = decode_attention(q, scattered.keys, scattered.values, plan, sinks)
        plain = decode_attention(q, scattered.keys, scattered.values, plan)
        torch.testing.assert_close(output, share * plain)


def test_what_lies_before_the_window_is_not_read() -> None:
    scattered = ScatteredKeys([40], 1)
    scattered.keys[torch.from_numpy(scattered.kv_indices[:24])] = float("nan")
    scattered.values[torch.from_numpy(scattered.kv_indices[:24])] = float("nan")
    q = torch.randn(10, 1, HEAD_DIM, dtype=torch.float64)

    extend = ExtendPlan.build([10], [30], scattered.kv_indices, CPU, 7)
    decode = DecodePlan.build([40], scattered.kv_indices, torch.float64, CPU, 16)

    prefilled = extend_attention(q, scattered.keys, scattered.values, extend)
    decoded = decode_attention(q[-1:], scattered.keys, scattered.values, decode)
    assert torch.isfinite(prefilled).all()
    assert torch.isfinite(decoded).all()
