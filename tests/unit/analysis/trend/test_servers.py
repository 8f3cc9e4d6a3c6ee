"""A server under a profile's traffic: how much it may grow, and whose connections it has open."""

from __future__ import annotations

import numpy as np
import pytest

from hybridbench.analysis.judge import judge
from hybridbench.analysis.record import FloatArray, RunRecord, Series, observed_drivers
from hybridbench.foundation.labels import labelled
from hybridbench.foundation.metrics import CLIENT_CONNECTIONS, MEMORY, OPEN_FILES
from hybridbench.records.manifest import OBSERVED, Manifest, ResolvedProfile, TargetFacts
from hybridbench.records.verdict import MetricResult
from tests.unit.analysis.traces import ar1

MIB = 2.0**20
T = np.arange(0.0, 900.0, 2.0)
LIMITS = ({"from_s": 120.0, MEMORY: 280 * MIB}, {"from_s": 600.0, MEMORY: 55 * MIB})


def trend(metric: str, *columns: tuple[str, FloatArray], limited: bool = True) -> MetricResult:
    """The trend of ``metric`` in a server's first quarter of an hour."""
    series = {name: Series(name, T, value) for name, value in columns}
    manifest = Manifest(
        planned_duration_s=900.0,
        target=TargetFacts(kind=OBSERVED),
        profile=ResolvedProfile(limits=LIMITS if limited else None),
    )
    verdict = judge(RunRecord(manifest, series, (), drivers=observed_drivers(series)))
    (result,) = [one for one in verdict.metrics if one.metric == metric]
    return result


MEMORY_NAME = labelled(MEMORY, {"role": "server"})


def memory(mib_per_h: float, noise_mib: float) -> tuple[str, FloatArray]:
    noise = ar1(np.random.default_rng(3), T, noise_mib * MIB, 20.0)
    return MEMORY_NAME, 600 * MIB + mib_per_h * MIB * T / 3600 + noise


def test_a_profile_limits_what_a_short_run_of_a_server_must_rule_out() -> None:
    """Without it, a wavering server is undecided in every run that is shorter than hours."""
    assert trend(MEMORY_NAME, memory(0.0, 1.0)).outcome == "CLEAN"
    assert trend(MEMORY_NAME, memory(0.0, 1.0), limited=False).outcome == "INCONCLUSIVE"


@pytest.mark.parametrize("mib_per_h", [10.0, 20.0, 40.0])
def test_growth_that_is_sure_is_not_clean_below_the_limit(mib_per_h: float) -> None:
    assert trend(MEMORY_NAME, memory(mib_per_h, 0.05)).outcome == "INCONCLUSIVE"


def test_a_limit_does_not_change_what_is_a_leak() -> None:
    """It is what the bundled engine may settle by, which says nothing of this server."""
    limited, unlimited = (
        trend(MEMORY_NAME, memory(300.0, 1.0), limited=limited) for limited in (True, False)
    )

    assert limited.outcome == unlimited.outcome
    assert limited.rate_per_hour == unlimited.rate_per_hour


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
