"""Servers that are restarted from outside during a run."""

from __future__ import annotations

import numpy as np
import pytest

from hybridbench.analysis.findings.restarts import restart_findings
from hybridbench.analysis.judge import judge
from hybridbench.analysis.record import Series
from hybridbench.records.events import ProcessEnded, ProcessStarted, Segment
from hybridbench.records.finding import VerdictKind
from tests.unit.analysis.records import (
    RESTART,
    Run,
    restarted,
    with_events,
    with_manifest,
    with_series,
)

RUN = Run(duration_s=240.0, steady_s=60.0)


def test_a_restart_at_which_requests_failed_is_a_crash_with_its_time() -> None:
    verdict = judge(with_events(restarted(RUN), *RESTART))

    assert verdict.kind is VerdictKind.CRASHED
    (found,) = (one for one in verdict.findings if one.kind == "restarted")
    assert "was restarted once by something other than this run, after 1m40s" in found.title
    words = found.basis.words(found)
    assert words.evidence[0] == "api was killed by SIGKILL"
    assert words.evidence[1].startswith("connections of 7 requests broke")


def test_without_processes_its_counters_show_it() -> None:
    (found,) = restart_findings(restarted(RUN))

    assert found.since_s == pytest.approx(101.0, abs=1.5)
    assert found.data["processes"] == []


def test_processes_that_restart_together_are_one_restart() -> None:
    engine = (
        ProcessStarted("engine", 8, t_s=1.0),
        ProcessEnded("engine", 8, t_s=101.0),
        ProcessStarted("engine", 10, t_s=106.0),
    )
    (found,) = restart_findings(with_events(restarted(RUN), *RESTART, *engine))

    assert found.data["at_s"] == [100.0]
    assert found.data["processes"] == ["api was killed by SIGKILL", "engine ended"]


def test_a_server_that_crashes_again_and_again_is_told_from_usual_failures() -> None:
    crashes = [
        event
        for at_s in np.arange(10.0, 235.0, 5.0)
        for event in (ProcessEnded("api", 7, t_s=at_s), ProcessStarted("api", 7, t_s=at_s + 2))
    ]
    record = with_events(restarted(RUN, usual_per_min=120), ProcessStarted("api", 7), *crashes)

    (found,) = restart_findings(record)

    assert found.basis.words(found).title == (
        "the server was restarted 45 times by something other than this run, after 10s, 15s, 20s, "
        "25s, 30s, 35s, ..."
    )


def test_a_restart_without_lost_requests_is_not_reported() -> None:
    """gunicorn replaces its workers; other requests fail all the time."""
    assert restart_findings(with_events(restarted(RUN, failed=0.0), *RESTART)) == []
    assert (
        restart_findings(with_events(restarted(RUN, failed=1.0, usual_per_min=6), *RESTART)) == []
    )


@pytest.mark.parametrize(("signal", "found"), [(0, 0), (9, 1)])
def test_of_workers_that_are_replaced_all_the_time_one_may_lose_a_request(
    signal: int, found: int
) -> None:
    replaced = [
        event
        for at_s in np.arange(10.0, 235.0, 5.0)
        for event in (
            ProcessEnded("api", 7, code=0, signal=signal * (at_s == 100.0), t_s=at_s),
            ProcessStarted("api", 7, t_s=at_s + 1),
        )
    ]
    record = with_events(restarted(RUN, failed=1.0), ProcessStarted("api", 7), *replaced)

    assert len(restart_findings(record)) == found


def test_a_page_that_shows_another_worker_each_time_shows_no_restart() -> None:
    record = restarted(RUN)
    served = record.series["scraped.requests_total"]
    two = served.value + 1e6 * (np.arange(len(served)) % 2)

    assert restart_findings(with_series(record, Series(served.name, served.t_s, two))) == []


def test_a_restart_by_the_run_itself_is_none() -> None:
    ours = with_events(restarted(RUN), *RESTART, Segment(1, 5.0, t_s=101.5))

    assert restart_findings(ours) == []


def test_a_program_that_gets_no_request_of_ours_is_left_alone() -> None:
    assert restart_findings(with_manifest(with_events(restarted(RUN), *RESTART), workload={})) == []
