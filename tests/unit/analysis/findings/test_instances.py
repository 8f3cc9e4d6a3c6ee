"""Instances that wait for collection: found in all three GC modes, never in a healthy run."""

from __future__ import annotations

import numpy as np
import pytest

from hybridbench.analysis.facts.facts import Facts
from hybridbench.analysis.findings.instances import instance_findings
from hybridbench.analysis.judge import judge
from hybridbench.analysis.reading import number
from hybridbench.analysis.record import RunRecord, Series
from hybridbench.records.events import Checkpoint
from hybridbench.records.finding import Finding, VerdictKind
from hybridbench.records.heap import InstanceCount
from tests.unit.analysis.records import (
    Run,
    healthy_record,
    reference_cycles,
    with_events,
    with_series,
)

RUN = Run(duration_s=300.0, steady_s=90.0)
MODES = ("ballast", "bare", "freeze")


def found(record: RunRecord) -> list[Finding]:
    return instance_findings(Facts.of(record))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("share", [0.97, 0.35])
def test_the_rate_per_evicted_node_is_found_in_every_mode(mode: str, share: float) -> None:
    (finding,) = found(reference_cycles(healthy_record(RUN), mode, share))

    assert finding.kind == "instances-wait-for-collector"
    assert finding.verdict is VerdictKind.LEAK
    assert (finding.subject, finding.driver) == ("TreeNode", "nodes_evicted")
    rate = finding.rates[0]
    assert (rate.unit, rate.per) == ("nodes", "evicted node")
    assert rate.lower < share < rate.upper
    assert rate.upper - rate.lower < 0.1


def test_the_rate_is_that_of_the_judged_window() -> None:
    record = reference_cycles(healthy_record(RUN), "freeze", 0.97)
    stray = record.series["instances.TreeNode.stray"]
    before = stray.between(0.0, 90.0).value[-1]
    less = np.where(stray.t_s <= 90.0, 0.8 * stray.value, stray.value - 0.2 * before)

    (finding,) = found(with_series(record, Series(stray.name, stray.t_s, less)))

    rate = finding.rates[0]
    assert (rate.unit, rate.per) == ("nodes", "evicted node")
    assert rate.lower < 0.97 < rate.upper
    assert rate.value == pytest.approx(0.97, abs=0.01)


@pytest.mark.parametrize("mode", MODES)
def test_the_run_is_a_leak_and_its_twin_is_not(mode: str) -> None:
    healthy = healthy_record(RUN)

    verdict = judge(reference_cycles(healthy, mode))

    assert verdict.kind is VerdictKind.LEAK
    assert verdict.findings[0].subject == "TreeNode"
    assert verdict.findings[0].driver == "nodes_evicted"
    assert judge(healthy).kind is not VerdictKind.LEAK


def test_bytes_come_with_their_rate_whether_or_not_memory_grows() -> None:
    (finding,) = found(reference_cycles(healthy_record(RUN), "bare"))

    per_node = next(r for r in finding.rates if r.unit == "B" and r.per == "evicted node")
    per_hour = next(r for r in finding.rates if r.unit == "B" and r.per == "h")
    assert per_node.value == pytest.approx(0.97 * 30e3, rel=0.02)
    assert per_node.lower < per_node.value < per_node.upper
    assert per_hour.value == pytest.approx(0.97 * 30e3 * 9 * 3600, rel=0.03)


def test_what_survives_a_collection_is_told() -> None:
    freeze, ballast = (
        found(reference_cycles(healthy_record(RUN), mode))[0] for mode in ("freeze", "ballast")
    )

    assert freeze.data["retained_most"] == pytest.approx(0.1 * 0.97 * 9 * 250, rel=0.1)
    assert ballast.data["retained_most"] == 0.0
    assert ballast.data["retained_measured"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("reused", [False, True])
def test_bytes_beyond_the_bound_of_the_whole_process_are_explained(mode: str, reused: bool) -> None:
    healthy = healthy_record(Run(duration_s=900.0, steady_s=90.0))
    cycles = reference_cycles(healthy, mode)
    flat = healthy.series["rss_anon_swap_bytes"]

    verdict = judge(with_series(cycles, flat) if reused else cycles)

    (memory,) = [m for m in verdict.metrics if m.metric == flat.name]
    assert memory.rate_per_hour is not None
    for finding in verdict.findings:
        if finding.subject == memory.metric:
            continue
        for rate in finding.rates:
            if (rate.unit, rate.per) == ("B", "h") and rate.lower > memory.rate_per_hour.upper:
                assert "faster_than_memory" in finding.data, finding.kind
    nodes = next(f for f in verdict.findings if f.subject == "TreeNode")
    assert not reused or "faster_than_memory" in nodes.data


def test_without_a_correlation_no_event_is_named() -> None:
    """The number of strays is constant from the start, so evictions do not cause them."""
    record = healthy_record(RUN)
    t = record.series["instances.TreeNode.stray"].t_s
    wavering = 500.0 + np.random.default_rng(1).integers(-3, 4, t.size).astype(np.float64)

    (finding,) = found(with_series(record, Series("instances.TreeNode.stray", t, wavering)))

    assert finding.driver is None
    assert "per evicted node" not in finding.title
    assert all(rate.per == "h" for rate in finding.rates)


def test_more_instances_than_evictions_are_not_left_by_evictions() -> None:
    record = reference_cycles(healthy_record(RUN), "ballast")
    thrice = [
        Series(name, series.t_s, 3.0 * series.value)
        for name, series in record.series.items()
        if name.startswith("instances.TreeNode")
    ]

    (finding,) = found(with_series(record, *thrice))

    assert finding.driver is None
    assert "per evicted node" not in finding.title


def test_sessions_that_stay_alive_are_left_by_closes_not_by_the_finishes_of_their_turns() -> None:
    record = healthy_record(RUN)
    finishes = record.series["events.finishes"]
    few = record.series["gc_collectible_bytes"].t_s[10::6]
    rng = np.random.default_rng(2)
    finished = np.diff(finishes.value, prepend=0).astype(np.int64)
    closes = np.cumsum(rng.binomial(finished, 0.5)).astype(np.float64)
    at = np.interp(few, finishes.t_s, closes).round()
    alive = at - rng.integers(0, 4, few.size)

    (finding,) = found(
        with_series(
            record,
            Series("events.session_closes", finishes.t_s, closes),
            Series("instances.Session.stray", few, alive),
            Series("instances.Session.collectible", few, 0.0 * alive),
            Series("instances.Session.retained", few, alive),
        )
    )

    assert (finding.kind, finding.subject) == ("instances-retained", "Session")
    assert finding.driver == "session_closes"


def test_requests_that_stay_alive_may_be_left_by_aborts() -> None:
    record = healthy_record(RUN)
    finishes = record.series["events.finishes"]
    rng = np.random.default_rng(3)
    few = record.series["gc_collectible_bytes"].t_s[10::6]
    finished = np.diff(finishes.value, prepend=0).astype(np.int64)
    queued, decode = (
        np.cumsum(rng.binomial(finished, share)).astype(np.float64) for share in (0.06, 0.07)
    )
    counts = {"abort_queued": queued, "abort_decode": decode, "requests_aborted": queued + decode}
    aborts = [Series(f"events.{n}", finishes.t_s, count) for n, count in counts.items()]
    alive = np.interp(few, finishes.t_s, queued + decode).round()
    columns = {"stray": alive, "collectible": 0.0 * alive, "retained": alive}
    strays = [Series(f"instances.Req.{name}", few, column) for name, column in columns.items()]

    (finding,) = found(with_series(record, *aborts, *strays))

    assert finding.driver == "requests_aborted"
    assert finding.rates[0].value == pytest.approx(1.0, abs=0.05)


def test_three_probes_are_enough() -> None:
    record = reference_cycles(healthy_record(RUN), "ballast")
    few = [
        Series(name, series.t_s[20:50:14], series.value[20:50:14])
        for name, series in record.series.items()
        if name.startswith(("instances.", "gc_collectible"))
    ]

    (finding,) = found(with_series(record, *few))

    assert finding.rates[0].lower < 0.97 < finding.rates[0].upper


def test_one_probe_and_a_node_or_two_in_a_local_variable_are_not_a_finding() -> None:
    record = healthy_record(RUN)
    t = record.series["instances.TreeNode.stray"].t_s
    once = Series("instances.TreeNode.stray", t, np.where(t == t[30], 500.0, 0.0))
    twos = Series("instances.TreeNode.stray", t, np.full(t.size, 2.0))

    assert found(record) == []
    assert found(with_series(record, once)) == []
    assert found(with_series(record, twos)) == []


def test_strays_that_only_something_else_holds_are_another_finding() -> None:
    record = reference_cycles(healthy_record(RUN), "ballast")
    stray = record.series["instances.TreeNode.stray"]
    none = Series("instances.TreeNode.collectible", stray.t_s, np.zeros(len(stray)))
    held = Series("instances.TreeNode.retained", stray.t_s, stray.value)

    (finding,) = found(with_series(record, none, held))

    assert finding.kind == "instances-retained"


@pytest.mark.parametrize(
    ("survives", "kind"), [(0.98, "instances-retained"), (0.02, "instances-wait-for-collector")]
)
def test_the_kind_follows_what_most_of_the_instances_do(survives: float, kind: str) -> None:
    record = reference_cycles(healthy_record(RUN), "ballast")
    stray = record.series["instances.TreeNode.stray"]
    waits = Series("instances.TreeNode.collectible", stray.t_s, (1 - survives) * stray.value)
    held = Series("instances.TreeNode.retained", stray.t_s, survives * stray.value)

    (finding,) = found(with_series(record, waits, held))

    assert finding.kind == kind
    retained, freed = finding.data["retained_most"], finding.data["collectible_most"]
    assert isinstance(retained, float)
    assert isinstance(freed, float)
    assert (retained > freed) == (survives > 0.5)
    assert finding.data["retained_share"] == pytest.approx(survives)
    # Both counts come from one probe, so they add up to its strays.
    both = [number(finding.data, f"fullest_{of}") for of in ("retained", "collectible")]
    assert sum(both) == pytest.approx(finding.data["most"])


def test_checkpoints_count_as_probes() -> None:
    record = healthy_record(RUN)
    seen = [
        Checkpoint(
            running=0,
            waiting=0,
            instances={"TreeNode": InstanceCount(100 + n, 100, n, 0)},
            t_s=t,
        )
        for t, n in ((150.3, 300), (200.3, 700))
    ]

    (finding,) = found(with_events(record, *seen))

    assert finding.data["most"] == 700.0
