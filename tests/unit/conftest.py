"""Replace a process that commands start by calls in this process; estimate no trend twice."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest

from hybridbench.analysis.trend import metric_trend
from hybridbench.analysis.trend.estimate import Estimate, Options, Samples, estimate
from hybridbench.compare import sides
from hybridbench.defects.defect import Defect
from hybridbench.foundation.errors import HybridbenchError, UsageError
from hybridbench.runs import defect_catalog


@pytest.fixture(scope="module", autouse=True)
def _trends_are_estimated_once() -> Iterator[None]:
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


@pytest.fixture
def catalog_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Return the catalog of defects without starting a process that imports the engine.

    tests/unit/runs/test_defect_catalog.py tests the process itself.
    """

    # Imported here because it imports the engine, which most command-line tests do not need.
    from hybridbench.worker.defect_catalog import described

    def described_defects(*names: str) -> tuple[Defect, ...]:
        try:
            answer = pickle.dumps(described(names))
        except HybridbenchError as error:
            raise UsageError(str(error)) from None
        found: tuple[Defect, ...] = pickle.loads(answer)
        return found

    for room in (defect_catalog, sides):
        monkeypatch.setattr(room, "described_defects", described_defects)
