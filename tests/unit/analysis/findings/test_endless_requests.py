"""Requests without a client, and requests that never end."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hybridbench.analysis.facts.facts import Facts
from hybridbench.analysis.findings.requests import liveness_findings
from hybridbench.analysis.judge import judge
from hybridbench.analysis.record import FloatArray, RunRecord, Series
from hybridbench.records.events import Phase
from hybridbench.records.finding import Finding, VerdictKind
from tests.unit.analysis.records import Run, healthy_record, with_events, with_manifest, with_series

RUN = Run(duration_s=240.0, steady_s=60.0)
HEALTHY = healthy_record(RUN)
T = HEALTHY.series["events.finishes"].t_s


def found(record: RunRecord) -> list[Finding]:
    return liveness_findings(Facts.of(record))


def ghosts(seed: int) -> RunRecord:
    """Every second client that disconnects leaves its request running for some seconds."""
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
    """The age of the oldest of 16 requests, each replaced when it ends."""
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


def test_time_in_which_the_machine_stood_still_does_not_age_requests() -> None:
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


def stall(begins_s: float, steps_per_s: float = 20.0, ends_s: float = 1e9) -> RunRecord:
    """From ``begins_s`` to ``ends_s``, three requests wait and no step computes anything."""
    stuck = np.clip(T, begins_s, ends_s) - begins_s
    return with_series(
        HEALTHY,
        Series("running_requests", T, np.where(stuck > 0, 0.0, 8.0)),
        Series("waiting_requests", T, np.full(T.size, 3.0)),
        Series("events.idle_steps", T, np.floor(stuck * steps_per_s)),
        Series("forward_s", T, 0.5 * (T - stuck)),
    )


def test_an_engine_that_steps_and_serves_nobody_is_stalled() -> None:
    (finding,) = found(stall(150.0))

    assert (finding.kind, finding.verdict) == ("stalled", VerdictKind.CRASHED)
    assert finding.since_s == pytest.approx(150.0, abs=1.0)
    assert finding.data["requests"] == 3.0


def test_an_engine_that_steps_without_requests_is_stalled() -> None:
    """A transfer whose result is never collected keeps the engine from becoming idle."""
    record = with_series(stall(150.0), Series("waiting_requests", T, np.where(T < 150.0, 3.0, 0.0)))

    verdict = judge(record)

    assert verdict.kind is VerdictKind.CRASHED
    (finding,) = [f for f in verdict.findings if f.kind == "stalled"]
    assert finding.data["requests"] == 0.0


def test_a_released_engine_without_a_model_is_stalled_by_its_counts() -> None:
    record = stall(150.0)
    steps = np.floor(10.0 * record.series["forward_s"].value)
    counted = {name: one for name, one in record.series.items() if name != "forward_s"} | {
        "events.decode_steps": Series("events.decode_steps", T, steps)
    }

    (finding,) = found(replace(record, series=counted))

    assert finding.kind == "stalled"
    assert finding.since_s == pytest.approx(150.0, abs=1.0)
    served = {**counted, "events.admissions": Series("events.admissions", T, np.floor(2.0 * T))}
    assert found(replace(record, series=served)) == []


def test_a_run_whose_last_requests_did_not_end_is_not_clean() -> None:
    def ended(*phases: str) -> RunRecord:
        events = [Phase(name, name, t_s=T[-1] + 120.0 * i) for i, name in enumerate(phases)]
        return with_events(HEALTHY, *events)

    run = ended("drain", "done")
    (finding,) = found(run)

    assert (finding.kind, finding.verdict) == ("not-idle", VerdictKind.INCONCLUSIVE)
    in_flight = Series("client_in_flight", T, np.full(T.size, 46.0))
    (unanswered,) = found(replace(run, series={**run.series, in_flight.name: in_flight}))
    assert unanswered.title.endswith("after its traffic had ended, with 46 requests in it")
    assert finding.data["waited_s"] == 120.0
    assert judge(ended("drain", "done")).kind is VerdictKind.INCONCLUSIVE
    assert found(ended("drain", "idle", "done")) == []
    assert found(ended("drain")) == []


def test_a_stall_is_the_verdict_although_the_run_covers_too_little() -> None:
    asserted = {"assert_coverage": {"retracts": 1000}}

    verdict = judge(with_manifest(stall(150.0), profile=asserted))

    assert verdict.kind is VerdictKind.CRASHED
    assert {f.verdict for f in verdict.findings if f.kind == "coverage"} == {VerdictKind.INVALID}


def test_a_stall_that_ended_is_found_all_the_same() -> None:
    (finding,) = found(stall(100.0, ends_s=140.0))

    assert finding.data["stalled_s"] == pytest.approx(40.0, abs=2.0)


def test_a_heap_scan_amid_a_stall_does_not_hide_it() -> None:
    """No step runs in one second of five; the engine is stuck for the other four."""
    scanned = T % 5.0 == 0.0
    idle = np.cumsum(np.where(scanned | (T < 150.0), 0.0, 20.0))

    (finding,) = found(with_series(stall(150.0), Series("events.idle_steps", T, idle)))

    assert finding.kind == "stalled"
    assert finding.data["stalled_s"] == pytest.approx(0.8 * (T[-1] - 150.0), abs=2.0)
    assert finding.data["requests"] == 3.0


@pytest.mark.parametrize(
    "record",
    [
        stall(100.0, ends_s=125.0),  # a transfer, or the machine slept
        stall(150.0, steps_per_s=0.0),  # paused
        stall(150.0, steps_per_s=1.0),  # hardly a step
        with_series(stall(150.0), Series("forward_s", T, 0.001 * T)),  # slow
        with_series(stall(150.0), Series("events.idle_steps", T, np.zeros(T.size))),
    ],
)
def test_an_engine_that_waits_for_a_while_or_has_nothing_to_do_is_not(record: RunRecord) -> None:
    assert found(record) == []
