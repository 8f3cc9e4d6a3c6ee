from __future__ import annotations

import math
from random import Random

import pytest

from hybridbench.sampling.latency import LatencyWindow


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99])
def test_quantiles_are_within_two_per_cent_of_the_sorted_truth(share: float) -> None:
    random = Random(4)
    values = [math.exp(random.gauss(-4.0, 1.5)) for _ in range(5000)]
    window = LatencyWindow()
    for value in values:
        window.add(value)

    truth = sorted(values)[math.ceil(share * len(values)) - 1]
    assert window.quantile_s(share) == pytest.approx(truth, rel=0.021)
    assert len(window) == 5000


def test_an_empty_window_has_no_quantile_and_a_cleared_one_is_empty() -> None:
    window = LatencyWindow()
    assert window.quantile_s(0.5) is None
    window.add(1.0)
    window.clear()
    assert window.quantile_s(0.5) is None


def test_absurd_durations_are_counted_at_the_ends() -> None:
    window = LatencyWindow()
    window.add(0.0)
    window.add(1e9)

    low, high = window.quantile_s(0.5), window.quantile_s(1.0)
    assert low is not None
    assert high is not None
    assert low < 1e-5
    assert high > 3600
