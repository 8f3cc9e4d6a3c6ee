"""Interference with the measurement: silence, clock jumps, other programs, a full machine."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hybridbench.analysis.facts.facts import Facts
from hybridbench.analysis.findings.validity import validity_findings
from hybridbench.analysis.judge import judge
from hybridbench.analysis.record import RunRecord, Series
from hybridbench.records.events import ClockJump, DiskFull, Phase, ProbeLeftOut, StoppedEarly
from hybridbench.records.finding import VerdictKind
from tests.unit.analysis.records import (
    Run,
    checkpoint,
    healthy_record,
    hourly,
    with_checkpoints,
    with_events,
    with_manifest,
    with_series,
)

RUN = Run(duration_s=300.0, steady_s=60.0)


def record_with_rss() -> RunRecord:
    record = healthy_record(RUN)
    memory = record.series["rss_anon_swap_bytes"]
    return with_series(record, Series("rss_bytes", memory.t_s, memory.value))


def kinds(record: RunRecord) -> list[str]:
    return [finding.kind for finding in validity_findings(Facts.of(record))]


def with_share(name: str, share: float) -> RunRecord:
    """The counter ``name`` grows by ``share`` seconds per second."""
    return with_shares(**{name: share})


def with_shares(**shares: float) -> RunRecord:
    """Each named counter grows by its share, in seconds per second."""
    record = record_with_rss()
    t = record.series["rss_bytes"].t_s
    for name, share in shares.items():
        record = with_series(record, Series(name, t, share * t))
    return record


def silent_between(record: RunRecord, start_s: float, end_s: float) -> RunRecord:
    """``record`` without the worker's own samples in this period; the kernel's continue."""
    series = dict(record.series)
    for name, told in record.series.items():
        if name.startswith("events."):
            keep = (told.t_s < start_s) | (told.t_s > end_s)
            series[name] = Series(name, told.t_s[keep], told.value[keep])
    return replace(record, series=series)


def test_a_worker_that_stood_still_while_the_kernel_was_sampled_voids_the_run() -> None:
    record = record_with_rss()

    assert kinds(silent_between(record, 100.0, 110.0)) == []
    assert kinds(silent_between(record, 100.0, 130.0)) == ["worker-silent"]


@pytest.mark.parametrize(
    ("end_s", "drain_s", "resume_s", "silent"),
    [(130.0, 99.0, 131.0, False), (165.0, 108.0, 160.0, False), (190.0, 120.0, 160.0, True)],
)
def test_silence_while_traffic_pauses_is_no_silence(
    end_s: float, drain_s: float, resume_s: float, silent: bool
) -> None:
    """The bench may sample between the worker's last answer and the pause."""
    paused = with_events(
        silent_between(record_with_rss(), 100.0, end_s),
        Phase(name="drain", t_s=drain_s),
        Phase(name="resume", t_s=resume_s),
    )
    assert ("worker-silent" in kinds(paused)) == silent


def test_what_a_worker_computes_in_a_pause_does_not_excuse_its_silence_beside_it() -> None:
    record = record_with_rss()
    t = record.series["rss_bytes"].t_s
    worked = Series("worker_cpu_s", t, np.clip(t - 120.0, 0.0, 40.0))
    paused = with_events(
        silent_between(with_series(record, worked), 100.0, 190.0),
        Phase(name="drain", t_s=120.0),
        Phase(name="resume", t_s=160.0),
    )

    assert "worker-silent" in kinds(paused)


@pytest.mark.parametrize("name", ["worker_cpu_s", "worker_cpu_wait_s"])
def test_a_worker_that_computes_or_waits_for_a_cpu_is_slow_not_stopped(name: str) -> None:
    record = with_share(name, 0.8)

    assert kinds(silent_between(record, 100.0, 130.0)) == []


@pytest.mark.parametrize("seconds", [3600.0, -3600.0])
def test_a_clock_that_jumped_far_while_it_was_judged_voids_the_run(seconds: float) -> None:
    record = record_with_rss()

    assert kinds(with_events(record, ClockJump(seconds=seconds, t_s=150.0))) == ["clock-jump"]
    assert kinds(with_events(record, ClockJump(seconds=5.0, t_s=150.0))) == []
    assert kinds(with_events(record, ClockJump(seconds=seconds, t_s=10.0))) == []


@pytest.mark.parametrize(
    ("name", "harmless", "void", "kind"),
    [
        ("worker_cpu_wait_s", 0.8, 0.95, "starved"),
        ("host_steal_s", 0.3, 0.6, "starved"),
        ("probe_stop_s", 0.05, 0.2, "probe-stall"),
    ],
)
def test_time_that_others_took_voids_the_run_when_little_is_left(
    name: str, harmless: float, void: float, kind: str
) -> None:
    assert kinds(with_share(name, harmless)) == []
    assert kinds(with_share(name, void)) == [kind]


def test_a_probe_that_waits_for_a_cpu_does_not_stop_the_engine_but_one_that_computes_does() -> None:
    """The first shares are those of a healthy run beside three others on two processors."""
    crowded = with_shares(worker_cpu_s=0.10, worker_cpu_wait_s=0.68, probe_stop_s=0.11)
    slow_probe = with_shares(worker_cpu_s=0.25, worker_cpu_wait_s=0.70, probe_stop_s=0.38)
    quiet = with_shares(worker_cpu_s=0.60, worker_cpu_wait_s=0.0, probe_stop_s=0.11)

    assert kinds(crowded) == []
    assert kinds(slow_probe) == ["probe-stall"]
    assert kinds(quiet) == ["probe-stall"]

    measured = with_shares(worker_cpu_wait_s=0.76, probe_stop_s=0.19, probe_wait_s=0.18)
    computing = with_shares(worker_cpu_wait_s=0.76, probe_stop_s=0.19, probe_wait_s=0.14)
    assert kinds(measured) == []
    assert kinds(computing) == ["probe-stall"]


def test_a_gated_metric_that_was_declared_and_never_came_voids_the_run() -> None:
    declared = {"metrics": ["gc_collectible_bytes", "events.*"]}
    record = with_manifest(record_with_rss(), target=declared)
    blind = replace(
        record, series={n: s for n, s in record.series.items() if n != "gc_collectible_bytes"}
    )
    told = with_events(blind, ProbeLeftOut(metrics=("gc_collectible_bytes",), t_s=20.0))

    assert kinds(record) == []
    assert kinds(blind) == ["metric-missing"]
    assert kinds(told) == []
    assert kinds(with_manifest(blind, target={})) == []


def test_a_full_disk_cannot_refute_what_was_counted() -> None:
    lost = with_checkpoints(record_with_rss(), [checkpoint(280.0, mamba={"residual": 3})])
    full = with_events(lost, DiskFull(text="cannot write: no space", t_s=290.0))
    verdict = judge(full)

    assert judge(lost).kind is VerdictKind.LEAK
    assert verdict.kind is VerdictKind.LEAK
    assert [finding.kind for finding in verdict.findings[:2]] == ["residual", "disk-full"]
    assert verdict.findings[1].data["message"] == "cannot write: no space"


def test_a_run_that_ended_before_its_time_is_judged_on_what_it_covered() -> None:
    record = with_manifest(record_with_rss(), profile={"assert_coverage": {"retracts": 1000}})
    event = StoppedEarly(reason="leak", text="two looks agree", t_s=290.0)
    stopped = with_events(record, event)

    assert kinds(record) == ["coverage"]
    assert kinds(stopped) == []
    assert "stopped early, after 4m50s: two looks agree" in judge(stopped).notes


def test_a_machine_that_gave_out_leaves_the_engine_undecided() -> None:
    event = StoppedEarly(reason="memory-low", text="3 MiB left", t_s=290.0)
    verdict = judge(with_events(record_with_rss(), event))

    assert verdict.kind is VerdictKind.INCONCLUSIVE
    assert verdict.findings[0].data["message"] == "3 MiB left"
    assert np.isfinite(hourly(verdict.metrics[0]).value)
