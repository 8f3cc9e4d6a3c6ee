from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridbench.workload.fields import TokenRange
from hybridbench.workload.rng_streams import TokenSource, Zipf, draw_tokens, stream, token_block


def surprise(observed: Sequence[int], expected: Sequence[float]) -> float:
    """Return the chi-squared of these counts as standard deviations; p = 1e-4 is at 3.72.

    Source: Wilson and Hilferty 1931, "The distribution of chi-square".
    """
    chi2 = sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True))
    spread = 2 / (9 * (len(observed) - 1))
    return (math.cbrt(chi2 / (len(observed) - 1)) - (1 - spread)) / math.sqrt(spread)


@pytest.mark.parametrize(("size", "exponent"), [(1, 1.1), (8, 0.0), (16, 1.1), (50, 2.0)])
def test_zipf_ranks_come_as_often_as_their_weights_say_seed_5(size: int, exponent: float) -> None:
    zipf = Zipf(size, exponent)
    weights = [(k + 1) ** -exponent for k in range(size)]
    expected = [weight / sum(weights) for weight in weights]
    random = stream(5, "zipf")

    counts = Counter(zipf.draw(random) for _ in range(20_000))

    assert counts.keys() <= set(range(size))
    if size > 1:
        observed = [counts[k] for k in range(size)]
        assert surprise(observed, [20_000 * p for p in expected]) < 3.72


def test_streams_of_other_seeds_and_purposes_are_others() -> None:
    streams = (stream(1, "a"), stream(1, "b"), stream(2, "a"), stream(1, "a", 1))

    assert len({one.random() for one in streams}) == 4
    assert stream(1, "a").random() == stream(1, "a").random()


@given(st.integers(0, 2**32), st.integers(0, 60), st.integers(0, 60), st.integers(2, 150_000))
def test_a_shorter_block_of_the_same_name_is_a_prefix(
    seed: int, length: int, more: int, vocab_size: int
) -> None:
    short = token_block(seed, vocab_size, length, "block", 7)
    long = token_block(seed, vocab_size, length + more, "block", 7)

    assert long[:length] == short
    assert len(long) == length + more
    assert all(0 <= token < vocab_size for token in long)


def test_blocks_of_other_names_differ_and_are_spread_over_the_vocabulary_seed_1() -> None:
    block = token_block(1, 16, 16_000, "block", 1)

    assert block[:64] != token_block(1, 16, 64, "block", 2)
    assert surprise([block.count(token) for token in range(16)], [1000.0] * 16) < 3.72


def test_a_token_source_never_repeats_itself_seed_2() -> None:
    source = TokenSource(2, 4096, "user")

    assert source.take(32) != source.take(32)
    assert TokenSource(2, 4096, "user").take(8) == TokenSource(2, 4096, "user").take(8)


def test_both_ends_of_a_range_are_drawn_seed_3() -> None:
    random = stream(3, "range")

    assert {draw_tokens(random, TokenRange(2, 4)) for _ in range(200)} == {2, 3, 4}
