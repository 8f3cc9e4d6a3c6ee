"""A server under our traffic: whose connections it has open."""

from __future__ import annotations

import numpy as np

from hybridbench.analysis.judge import judge
from hybridbench.analysis.record import FloatArray, RunRecord, Series, observed_drivers
from hybridbench.foundation.labels import labelled
from hybridbench.foundation.metrics import CLIENT_CONNECTIONS, OPEN_FILES
from hybridbench.records.manifest import OBSERVED, Manifest, TargetFacts
from hybridbench.records.verdict import MetricResult
from tests.unit.analysis.traces import ar1

T = np.arange(0.0, 900.0, 2.0)


def trend(metric: str, *columns: tuple[str, FloatArray]) -> MetricResult:
    """The trend of ``metric`` in a server's first quarter of an hour."""
    series = {name: Series(name, T, value) for name, value in columns}
    manifest = Manifest(
        planned_duration_s=900.0,
        target=TargetFacts(kind=OBSERVED),
    )
    verdict = judge(RunRecord(manifest, series, (), drivers=observed_drivers(series)))
    (result,) = [one for one in verdict.metrics if one.metric == metric]
    return result


FILES_NAME = labelled(OPEN_FILES, {"role": "server"})


def files(leaked_per_h: float = 0.0) -> list[tuple[str, FloatArray]]:
    """Open files of a server whose client keeps connections, more of them towards the end."""
    rng = np.random.default_rng(8)
    kept = np.clip(12 + 8 * T / T[-1] + ar1(rng, T, 4.0, 30.0), 0, None).round()
    return [
        (FILES_NAME, 20 + kept + np.floor(leaked_per_h * T / 3600)),
        (CLIENT_CONNECTIONS, kept),
    ]


def test_connections_of_our_client_are_no_growth_of_the_server() -> None:
    assert trend(FILES_NAME, *files()).outcome == "CLEAN"
    assert trend(FILES_NAME, files()[0]).outcome != "CLEAN"


def test_files_that_the_server_keeps_are_found_beside_our_connections() -> None:
    found = trend(FILES_NAME, *files(leaked_per_h=240.0))

    assert found.rate_per_hour is not None
    assert found.outcome != "CLEAN"
    assert 150 < found.rate_per_hour.lower < 240 < found.rate_per_hour.upper < 330
