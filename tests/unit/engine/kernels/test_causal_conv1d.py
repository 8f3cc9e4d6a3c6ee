"""The ragged and the one-token convolution against the token-by-token reference."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hybridbench.engine.kernels.causal_conv1d.reference import (
    ConvPlan,
    causal_conv1d_reference,
    causal_conv1d_update,
    causal_conv1d_varlen,
)

CHANNELS = 5
SLOTS = 9


def make_pool(kernel_size: int) -> tuple[Tensor, Tensor]:
    """Return a random pool [S, D, K-1] and taps [K, D]."""
    generator = torch.Generator().manual_seed(0)
    shape = (SLOTS, CHANNELS, kernel_size - 1)
    pool = torch.randn(shape, generator=generator, dtype=torch.float64)
    weight = torch.randn((kernel_size, CHANNELS), generator=generator, dtype=torch.float64)
    return pool, weight


def run_varlen(
    x: Tensor, weight: Tensor, pool: Tensor, slots: list[int], lens: list[int]
) -> list[Tensor]:
    """Return the output of each request."""
    plan = ConvPlan.build(lens, weight.shape[0], torch.device("cpu"))
    y = causal_conv1d_varlen(x, weight, pool, torch.tensor(slots), plan)
    starts = plan.output_starts.tolist()
    return [y[start : start + length] for start, length in zip(starts, lens, strict=True)]


@pytest.mark.parametrize("kernel_size", [2, 3, 4])
@pytest.mark.parametrize("lens", [[1], [7], [1, 1], [2, 5, 1, 3], [4, 64, 1]])
def test_ragged_requests_give_the_meaning_of_each_alone(lens: list[int], kernel_size: int) -> None:
    pool, weight = make_pool(kernel_size)
    before = pool.clone()
    slots = [6, 2, 8, 3][: len(lens)]
    x = torch.randn(sum(lens), CHANNELS, dtype=torch.float64)

    outputs = run_varlen(x, weight, pool, slots, lens)

    for slot, new, output in zip(slots, torch.split(x, lens), outputs, strict=True):
        expected, window = causal_conv1d_reference(new, weight, before[slot].T)
        torch.testing.assert_close(output, expected)
        torch.testing.assert_close(pool[slot].T, window)
    untouched = [slot for slot in range(SLOTS) if slot not in slots]
    assert torch.equal(pool[untouched], before[untouched])


@pytest.mark.parametrize("kernel_size", [2, 4])
def test_the_window_after_any_token_can_be_had_besides(kernel_size: int) -> None:
    pool, weight = make_pool(kernel_size)
    before = pool.clone()
    lens, offsets = [9, 3, 2, 5], [4, 0, 1, 5]
    x = torch.randn(sum(lens), CHANNELS, dtype=torch.float64)
    plan = ConvPlan.build(lens, kernel_size, torch.device("cpu"), offsets)
    slots, track_slots = [6, 2, 8, 3], [1, 7, 4]

    causal_conv1d_varlen(x, weight, pool, torch.tensor(slots), plan, torch.tensor(track_slots))

    tracked = iter(track_slots)
    for slot, new, offset in zip(slots, torch.split(x, lens), offsets, strict=True):
        _, window = causal_conv1d_reference(new, weight, before[slot].T)
        torch.testing.assert_close(pool[slot].T, window)
        if offset:
            _, window = causal_conv1d_reference(new[:offset], weight, before[slot].T)
            assert torch.equal(pool[next(tracked)].T, window)
    assert torch.equal(pool[[0, 5]], before[[0, 5]])


def test_fewer_tokens_than_the_window_keep_part_of_it() -> None:
    pool, weight = make_pool(4)
    before = pool[5].clone()
    x = torch.randn(1, CHANNELS, dtype=torch.float64)

    run_varlen(x, weight, pool, [5], [1])

    assert torch.equal(pool[5][:, :2], before[:, 1:])
    assert torch.equal(pool[5][:, 2], x[0])


@pytest.mark.parametrize("splits", [[1, 9], [2, 1, 7], [1] * 10])
def test_a_text_in_pieces_gives_what_it_gives_whole(splits: list[int]) -> None:
    pool, weight = make_pool(4)
    pool[1] = pool[2]
    x = torch.randn(10, CHANNELS, dtype=torch.float64)

    whole = run_varlen(x, weight, pool, [1], [10])[0]
    pieces = [
        run_varlen(part, weight, pool, [2], [len(part)])[0] for part in torch.split(x, splits)
    ]

    torch.testing.assert_close(torch.cat(pieces), whole)
    torch.testing.assert_close(pool[2], pool[1])


def test_one_token_updates_give_the_meaning_and_spare_other_slots() -> None:
    pool, weight = make_pool(4)
    before = pool.clone()
    slots = [7, 1, 4]
    x = torch.randn(3, CHANNELS, dtype=torch.float64)

    y = causal_conv1d_update(x, weight, pool, torch.tensor(slots))

    for row, slot in enumerate(slots):
        expected, window = causal_conv1d_reference(x[row : row + 1], weight, before[slot].T)
        torch.testing.assert_close(y[row], expected[0])
        torch.testing.assert_close(pool[slot].T, window)
    untouched = [slot for slot in range(SLOTS) if slot not in slots]
    assert torch.equal(pool[untouched], before[untouched])


def test_nan_in_unused_slots_reaches_nobody() -> None:
    pool, weight = make_pool(4)
    pool[[0, 1, 3, 5, 7]] = float("nan")
    x = torch.randn(6, CHANNELS, dtype=torch.float64)

    outputs = run_varlen(x, weight, pool, [2, 8], [1, 5])
    y = causal_conv1d_update(x[:2], weight, pool, torch.tensor([2, 8]))

    assert not any(output.isnan().any() for output in outputs)
    assert not y.isnan().any()


def test_new_windows_can_go_elsewhere_and_the_pool_is_only_read() -> None:
    pool, weight = make_pool(4)
    other, before = torch.zeros_like(pool), pool.clone()
    x = torch.randn(2, pool.shape[1], dtype=pool.dtype)
    expected_pool = pool.clone()
    expected = causal_conv1d_update(x, weight, expected_pool, torch.tensor([5, 2]))

    y = causal_conv1d_update(x, weight, pool, torch.tensor([5, 2]), (other, torch.tensor([1, 3])))

    assert torch.equal(y, expected)
    assert torch.equal(pool, before)
    assert torch.equal(other[[1, 3]], expected_pool[[5, 2]])
    assert bool((other[[0, 2, 4]] == 0).all())
