"""A fixture for the rooms whose tests judge few records many times."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest

from hybridbench.analysis.trend import metric_trend
from hybridbench.analysis.trend.estimate import Estimate, Options, Samples, estimate


@pytest.fixture(scope="module", autouse=True)
def trends_are_estimated_once() -> Iterator[None]:
    """Estimate each trend once for all tests of a file, which judge few records many times.

    Estimating takes most of the time of ``judge``, and depends on samples and options alone.
    """
    known: dict[bytes, Estimate] = {}

    def known_or_estimated(samples: Samples, options: Options | None = None) -> Estimate:
        key = pickle.dumps((samples, options))
        if key not in known:
            known[key] = estimate(samples, options)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metric_trend, "estimate", known_or_estimated)
        yield
