"""Tokens from logits: greedy, filtered, seeded, and independent of other rows."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from torch import Tensor

from hybridbench.engine.next_token import choose_next_tokens, logprobs_of, uniform
from hybridbench.engine.sampling_params import SamplingParams

DRAWS = 4000


def draw(logits: Tensor, draws: int = DRAWS, **fields: float) -> Counter[int]:
    """Count how often each token is drawn in ``draws`` positions of one request."""
    params = SamplingParams(temperature=fields.pop("temperature", 1.0), **fields)  # type: ignore[arg-type]
    rows = logits.expand(draws, -1)
    return Counter(choose_next_tokens(rows, [params] * draws, range(draws)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_greedy_takes_the_most_probable_token(dtype: torch.dtype) -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0], [2.0, -1.0, 2.0]], dtype=dtype)
    assert choose_next_tokens(logits, [SamplingParams()] * 2, [5, 6]) == [1, 0]


def test_tokens_come_as_often_as_the_tempered_softmax_says() -> None:
    logits = torch.tensor([1.0, 0.0, -1.0, 2.0])
    counts = draw(logits, temperature=2.0)
    expected = (logits / 2.0).softmax(dim=-1)
    for token, probability in enumerate(expected.tolist()):
        # Five standard deviations of a binomial.
        assert abs(counts[token] / DRAWS - probability) < 5 * (probability / DRAWS) ** 0.5


def test_top_k_keeps_k_tokens_in_their_proportion() -> None:
    logits = torch.tensor([1.0, 0.0, -1.0, 2.0])
    counts = draw(logits, top_k=2)
    assert set(counts) == {0, 3}
    assert counts[3] / DRAWS == pytest.approx(float(logits[[0, 3]].softmax(-1)[1]), abs=0.05)


@pytest.mark.parametrize(
    ("top_p", "kept"), [(0.3, {3}), (0.44, {3}), (0.46, {3, 1}), (0.7, {3, 1}), (0.95, {3, 1, 0})]
)
def test_top_p_keeps_the_fewest_tokens_that_reach_it(top_p: float, kept: set[int]) -> None:
    logits = torch.tensor([0.2, 0.3, 0.05, 0.45]).log()
    assert set(draw(logits, draws=500, top_p=top_p)) == kept


def test_top_p_is_a_share_of_what_top_k_left() -> None:
    logits = torch.tensor([0.2, 0.3, 0.05, 0.45]).log()
    assert set(draw(logits, draws=500, top_k=2, top_p=0.59)) == {3}
    assert set(draw(logits, draws=500, top_k=2, top_p=0.61)) == {3, 1}


def test_equal_probabilities_pass_a_filter_together() -> None:
    logits = torch.zeros(6)
    logits[2] = 1.0
    assert set(draw(logits, draws=500, top_k=3)) == set(range(6))


@pytest.mark.parametrize("top_p", [0.5, 0.999])
def test_top_p_holds_over_a_large_flat_vocabulary(top_p: float) -> None:
    logits = torch.linspace(0.0, 1.0, 3000)
    probabilities = logits.softmax(dim=-1).flip(0)
    kept = int((probabilities.cumsum(dim=-1) < top_p).sum()) + 1
    seen = draw(logits, draws=2000, top_p=top_p)
    assert min(seen) >= 3000 - kept - 1
    assert min(seen) < 3000 - kept + 60


def test_a_draw_depends_on_logits_seed_and_position_alone() -> None:
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(0))
    params = [
        SamplingParams(temperature=1.0, seed=1),
        SamplingParams(),
        SamplingParams(temperature=0.7, top_k=5, seed=2),
        SamplingParams(temperature=1.5, top_p=0.8, seed=3),
        SamplingParams(temperature=1.0, top_k=20, top_p=0.5, seed=4),
        SamplingParams(temperature=0.3, seed=5),
    ]
    positions = [3, 4, 5, 6, 7, 8]

    together = choose_next_tokens(logits, params, positions)

    for row in range(6):
        alone = choose_next_tokens(logits[row : row + 1], [params[row]], [positions[row]])
        assert alone == [together[row]]
    order = [4, 2, 0, 5, 1, 3]
    shuffled = choose_next_tokens(
        logits[order], [params[i] for i in order], [positions[i] for i in order]
    )
    assert shuffled == [together[i] for i in order]


def test_other_seeds_and_positions_draw_other_tokens() -> None:
    logits = torch.zeros(1, 1000)
    tokens = {
        choose_next_tokens(logits, [SamplingParams(temperature=1.0, seed=seed)], [position])[0]
        for seed in range(5)
        for position in range(5)
    }
    assert len(tokens) > 20


@pytest.mark.parametrize("temperature", [1e-300, 1e-46, 1e-30, 1e-6, 1e30, 1e300])
def test_extreme_temperatures_stay_defined(temperature: float) -> None:
    logits = torch.tensor([[100.0, -50.0, 99.0, float("-inf")]])
    tokens = set(draw(logits[0], draws=200, temperature=temperature, top_p=0.9))
    assert tokens == {0} if temperature < 1.0 else tokens == {0, 1, 2}


@pytest.mark.parametrize("top_p", [1e-300, 1e-46, 1e-30])
@pytest.mark.parametrize("top_k", [-1, 3])
def test_the_smallest_top_p_keeps_the_most_probable_token(top_p: float, top_k: int) -> None:
    logits = torch.tensor([0.2, 0.3, 0.05, 0.45]).log()
    assert set(draw(logits, draws=50, top_p=top_p, top_k=top_k)) == {3}


def test_tokens_of_no_probability_never_come() -> None:
    logits = torch.full((50,), float("-inf"))
    logits[[10, 20]] = 0.0
    assert set(draw(logits, draws=500)) == {10, 20}


def test_random_numbers_fill_the_unit_interval_evenly() -> None:
    numbers = np.array([uniform(seed, position) for seed in range(50) for position in range(100)])
    assert numbers.min() >= 0.0
    assert numbers.max() < 1.0
    counts, _ = np.histogram(numbers, bins=10, range=(0.0, 1.0))
    assert abs(counts - 500).max() < 5 * 500**0.5
    assert len(np.unique(numbers)) == len(numbers)


def asked(*counts: int | None) -> list[SamplingParams]:
    return [SamplingParams(logprobs=count, temperature=5.0, top_k=1) for count in counts]


def test_nothing_is_computed_for_rows_that_do_not_ask() -> None:
    logits = torch.full((2, 3), float("nan"))
    assert logprobs_of(logits, asked(None, None), [0, 1]) == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_logprobs_are_those_of_the_plain_softmax_in_float32(dtype: torch.dtype) -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0], [2.0, -1.0, 0.5], [9.0, 8.0, 7.0]], dtype=dtype)
    every = logits.float().log_softmax(dim=-1).tolist()

    given = logprobs_of(logits, asked(2, None, 0), [0, 1, 2])

    assert set(given) == {0, 2}
    assert given[0] == (every[0][0], [(1, every[0][1]), (2, every[0][2])])
    assert given[2] == (every[2][2], [])


def test_there_are_no_more_best_tokens_than_the_vocabulary_has() -> None:
    (given,) = logprobs_of(torch.tensor([[0.0, 3.0]]), asked(20), [0]).values()
    assert [id_ for id_, _ in given.best] == [1, 0]


def test_logprobs_of_a_row_do_not_depend_on_the_other_rows() -> None:
    logits = torch.randn(5, 300, generator=torch.Generator().manual_seed(3))
    together = logprobs_of(logits, asked(4, 1, 20, 0, 3), [7] * 5)
    for row, params in enumerate(asked(4, 1, 20, 0, 3)):
        assert together[row] == logprobs_of(logits[row : row + 1], [params], [7])[0]
