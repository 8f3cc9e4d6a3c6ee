"""Reducing samples to blocks, and removing what the load explains."""

from __future__ import annotations

import numpy as np
import pytest

from hybridbench.analysis.trend.blocks import block_count, make_blocks, without_load


@pytest.mark.parametrize(
    ("samples", "count"), [(24, 24), (80, 80), (81, 40), (160, 80), (1000, 76), (100_000, 80)]
)
def test_blocks_hold_equally_many_samples(samples: int, count: int) -> None:
    assert block_count(samples) == count


def test_a_block_is_the_quantile_that_numpy_takes() -> None:
    rng = np.random.default_rng(1)
    t = np.arange(160.0)
    y = rng.normal(size=160)

    blocks = make_blocks(t, y, 0.25)

    position = np.minimum((t / t[-1] * 80).astype(int), 79)
    expected = [np.quantile(y[position == k], 0.25) for k in range(80)]
    assert blocks.value == pytest.approx(expected)


def test_a_low_quantile_does_not_see_single_spikes() -> None:
    t = np.arange(800.0)
    y = np.where(t % 10 == 3, 1e9, 5.0)

    assert np.all(make_blocks(t, y, 0.25).value == 5.0)


def test_a_gap_leaves_blocks_out_and_keeps_their_places() -> None:
    t = np.concatenate([np.arange(300.0), np.arange(600.0, 900.0)])

    blocks = make_blocks(t, t)

    assert len(blocks) < 80
    assert float(np.diff(blocks.index).max()) > 20
    assert blocks.x[-1] <= 1.0


def test_what_follows_the_load_is_taken_out_and_the_trend_stays() -> None:
    rng = np.random.default_rng(2)
    t = np.arange(2000.0)
    load = rng.integers(0, 30, 2000).astype(float)
    leak = 0.01 * t

    cleaned = without_load(100 + leak + 3.0 * load, load)

    assert float(np.std(cleaned - leak)) < 0.05 * float(np.std(3.0 * load))


def test_a_load_that_explains_nothing_changes_nothing() -> None:
    rng = np.random.default_rng(3)
    y = rng.normal(size=1000)

    assert without_load(y, rng.normal(size=1000)) is y
    assert without_load(y, np.full(1000, 4.0)) is y
