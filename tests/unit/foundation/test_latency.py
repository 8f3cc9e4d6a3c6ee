from __future__ import annotations

import math
from random import Random

import pytest

from hybridbench.foundation.latency import RELATIVE_ERROR, LatencyHistogram, add_latencies


def durations(seed: int, count: int = 5000) -> list[float]:
    random = Random(seed)
    return [math.exp(random.gauss(-4.0, 1.5)) for _ in range(count)]


def histogram_of(values: list[float]) -> LatencyHistogram:
    histogram = LatencyHistogram()
    for value in values:
        histogram.add(value)
    return histogram


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99])
def test_quantiles_are_within_the_stated_error_of_the_sorted_truth(share: float) -> None:
    values = durations(4)
    histogram = histogram_of(values)

    truth = sorted(values)[math.ceil(share * len(values)) - 1]
    assert histogram.quantile_s(share) == pytest.approx(truth, rel=RELATIVE_ERROR)
    assert len(histogram) == 5000


def test_the_mean_is_within_the_stated_error() -> None:
    values = durations(5)

    truth = sum(values) / len(values)
    assert histogram_of(values).mean_s() == pytest.approx(truth, rel=RELATIVE_ERROR)


def test_two_histograms_add_up_to_that_of_all_durations() -> None:
    first, second = durations(6, 300), durations(7, 200)
    added: dict[str, dict[int, int]] = {}
    for part in (first, second):
        add_latencies(added, {"ttft": histogram_of(part).counts()})
    both = LatencyHistogram()
    both.add_counts(added["ttft"])

    assert both.counts() == histogram_of(first + second).counts()
    assert len(both) == 500


def test_an_empty_histogram_has_no_quantile_and_a_cleared_one_is_empty() -> None:
    histogram = LatencyHistogram()
    assert histogram.quantile_s(0.5) is None
    assert histogram.mean_s() is None
    histogram.add(1.0)
    histogram.clear()
    assert histogram.quantile_s(0.5) is None
    assert histogram.counts() == {}


def test_absurd_durations_are_counted_at_the_ends() -> None:
    histogram = histogram_of([0.0, 1e9])

    low, high = histogram.quantile_s(0.5), histogram.quantile_s(1.0)
    assert low is not None
    assert high is not None
    assert low <= 1e-5
    assert high > 3600
