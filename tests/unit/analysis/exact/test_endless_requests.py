"""Requests for nobody, and requests without an end."""

from __future__ import annotations

import numpy as np
import pytest

from hybridbench.analysis.exact.requests import liveness_findings
from hybridbench.analysis.facts.facts import Facts
from hybridbench.analysis.record import FloatArray, RunRecord, Series
from hybridbench.records.verdict import Finding, VerdictKind
from tests.unit.analysis.records import Run, healthy_record, with_series

RUN = Run(duration_s=240.0, steady_s=60.0)
HEALTHY = healthy_record(RUN)
T = HEALTHY.series["events.finishes"].t_s


def found(record: RunRecord) -> list[Finding]:
    return liveness_findings(Facts.of(record))


def ghosts(seed: int) -> RunRecord:
    """Every other client that leaves leaves its request behind, for some seconds."""
    rng = np.random.default_rng(seed)
    left = rng.binomial(1, 0.1, T.size)
    living = np.zeros(T.size)
    for at in np.flatnonzero(left)[::2]:
        living[at : at + 4] += 1
    return with_series(
        HEALTHY,
        Series("events.disconnects", T, np.cumsum(left).astype(np.float64)),
        Series("requests_without_client", T, living),
    )


@pytest.mark.parametrize("seed", range(5))
def test_requests_without_a_client_are_a_leak_upon_disconnects(seed: int) -> None:
    (finding,) = found(ghosts(seed))

    assert (finding.kind, finding.verdict) == ("running-without-client", VerdictKind.LEAK)
    assert finding.driver == "disconnects"
    assert finding.rates[0].per == "disconnect"
    assert 0.3 < finding.rates[0].value < 0.7


def test_a_look_between_leaving_and_hearing_of_it_is_no_finding() -> None:
    once = Series("requests_without_client", T, np.where(np.isin(T, [50.0, 90.0, 130.0]), 1.0, 0.0))

    assert found(with_series(HEALTHY, once)) == []
    assert found(HEALTHY) == []


def ages(seed: int, usual_s: float) -> FloatArray:
    """The oldest of some requests, each replaced when it ends."""
    rng = np.random.default_rng(seed)
    born = np.full(16, 1.0)
    age = []
    for now in T.tolist():
        done = now - born > rng.exponential(usual_s, born.size)
        born[done] = now
        age.append(now - born.min())
    return np.array(age)


@pytest.mark.parametrize("name", ["oldest_request_s", "oldest_silence_s"])
@pytest.mark.parametrize("seed", range(3))
def test_a_request_that_never_ends_while_all_others_do_is_a_leak(name: str, seed: int) -> None:
    usual = ages(seed, 2.0)
    stuck = np.where(T < 100.0, usual, T - 98.0)

    (finding,) = found(with_series(HEALTHY, Series(name, T, stuck)))

    assert (finding.kind, finding.verdict) == ("request-too-old", VerdictKind.LEAK)
    assert finding.since_s == pytest.approx(98.0)
    assert found(with_series(HEALTHY, Series(name, T, usual))) == []


def test_a_machine_that_stands_still_makes_nobody_too_old() -> None:
    usual = ages(1, 2.0)
    stands = T > 120.0
    finishes = HEALTHY.series["events.finishes"].value
    slow = with_series(
        HEALTHY,
        Series("events.finishes", T, np.where(stands, finishes[119], finishes)),
        Series("oldest_silence_s", T, np.where(stands, T - 119.0, usual)),
    )

    assert found(slow) == []


def test_one_long_request_that_ends_was_merely_long() -> None:
    long = np.where((T > 60.0) & (T < 200.0), T - 60.0, ages(2, 2.0))

    assert found(with_series(HEALTHY, Series("oldest_request_s", T, long))) == []
