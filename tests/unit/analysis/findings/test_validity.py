"""Runs that prove nothing."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from hybridbench.analysis.facts.facts import Facts
from hybridbench.analysis.findings.validity import validity_findings
from hybridbench.analysis.judge import judge
from hybridbench.analysis.record import RunRecord, Series
from hybridbench.records.events import Crash, Event, Gap, Interrupted, Phase, WorkloadFailed
from hybridbench.records.finding import VerdictKind
from hybridbench.records.json_value import JsonValue
from hybridbench.records.manifest import OBSERVED, TargetFacts
from hybridbench.records.verdict import Covered
from tests.unit.analysis.records import (
    MB,
    Run,
    healthy_record,
    late_client,
    with_events,
    with_manifest,
    with_series,
)

RUN = Run(duration_s=240.0, steady_s=60.0)


def kinds(record: RunRecord) -> list[str]:
    return [f.kind for f in validity_findings(Facts.of(record))]


def test_a_good_run_is_valid() -> None:
    assert kinds(healthy_record(RUN)) == []


def test_a_path_that_was_not_taken_is_named_with_its_count() -> None:
    asserted = {"assert_coverage": {"retracts": 1000, "finishes": 10}}
    record = with_manifest(healthy_record(RUN), profile=asserted)

    finding = validity_findings(Facts.of(record))[0]

    assert finding.kind == "coverage"
    assert finding.data["missing"] == [{"counter": "retracts", "seen": 11.0, "required": 1000}]
    assert judge(record).kind is VerdictKind.INVALID
    assert Facts.of(record).coverage.table["retracts"] == Covered(1000.0, 11.0, met=False)


@pytest.mark.parametrize("cut", [Crash(t_s=200.0), Interrupted(t_s=200.0)])
def test_a_run_that_was_cut_short_could_not_cover_everything(cut: Event) -> None:
    record = with_manifest(healthy_record(RUN), profile={"assert_coverage": {"retracts": 1000}})

    assert kinds(with_events(record, cut)) == []


def test_samples_that_are_missing_are_a_gap_unless_traffic_paused() -> None:
    record = healthy_record(RUN)
    memory = record.series["rss_anon_swap_bytes"]
    kept = (memory.t_s < 120) | (memory.t_s > 150)
    holed = with_series(record, Series(memory.name, memory.t_s[kept], memory.value[kept]))
    pause = (
        Phase(name="idle", t_s=119.0),
        Phase(name="resume", t_s=151.0),
    )

    assert kinds(holed) == ["gaps"]
    assert kinds(with_events(holed, *pause)) == []
    assert kinds(with_events(record, Gap(seconds=40.0, t_s=130.0))) == ["gaps"]


def test_a_late_sampler_is_told() -> None:
    record = healthy_record(RUN)
    late = record.series["sampler_late_s"]

    assert kinds(with_series(record, replace(late, value=np.full(len(late), 4.0)))) == [
        "sampler-late"
    ]


def test_a_watched_target_that_served_nothing_proves_nothing_unless_its_load_failed() -> None:
    record = healthy_record(RUN)
    memory = record.series["rss_anon_swap_bytes"]
    still = Series(record.drivers.requests, memory.t_s, np.full(len(memory), 7.0))
    watched = msgspec.structs.replace(record.manifest, target=TargetFacts(kind=OBSERVED))
    served_none = replace(with_series(record, still), manifest=watched)
    failed = with_events(served_none, WorkloadFailed("the load command failed", t_s=200.0))

    assert "nothing-served" in kinds(served_none)
    (void,) = (one for one in judge(served_none).findings if one.kind == "nothing-served")
    assert "refused and failed requests" in void.basis.advice(void)
    assert kinds(failed) == []
    assert judge(failed).headline.startswith("the load command failed")


@pytest.mark.parametrize(("failed", "is_told"), [(1.1, True), (0.9, False)])
def test_a_server_that_fails_more_requests_than_it_answers_was_not_tested(
    failed: float, is_told: bool
) -> None:
    """llama.cpp of July 2026 ended three in four streams with an error in the answer."""
    record = healthy_record(RUN)
    answered = record.series["events.finishes"]
    in_answer = replace(
        answered, name="events.requests_failed.error-in-answer", value=answered.value * failed
    )

    run = with_series(record, in_answer)

    assert kinds(run) == (["mostly-failed"] if is_told else [])


@pytest.mark.parametrize(
    ("late_s", "cpu_share", "is_told"),
    [(0.5, 0.1, True), (0.09, 0.1, False), (0.015, 0.1, False), (0.0, 0.97, True)],
)
def test_a_client_that_is_late_or_has_no_time_measured_itself(
    late_s: float, cpu_share: float, is_told: bool
) -> None:
    """The time to first token is half a second."""
    run = late_client(healthy_record(RUN), late_s, cpu_share)

    assert ("client-late" in kinds(run)) == is_told


def test_a_host_that_swaps_is_told() -> None:
    record = healthy_record(RUN)
    swap = record.series["swap_bytes"]
    swapped = np.where(swap.t_s > 150, 60 * MB, 0.0)

    assert kinds(with_series(record, replace(swap, value=swapped))) == ["swapping"]


def test_a_handful_of_samples_is_too_few() -> None:
    record = healthy_record(RUN)
    memory = record.series["rss_anon_swap_bytes"]

    few = with_series(record, Series(memory.name, memory.t_s[:5], memory.value[:5]))

    assert kinds(few) == ["too-few-samples"]


FAILED = WorkloadFailed(text="a.jsonl:301: not JSON.", t_s=200.0)


def test_a_trace_that_became_unreadable_makes_the_run_invalid_and_is_told_with_its_line() -> None:
    record = with_manifest(
        healthy_record(RUN), planned_duration_s=7200.0, trace={"path": "a.jsonl"}
    )

    verdict = judge(with_events(record, FAILED))

    assert verdict.kind is VerdictKind.INVALID
    assert verdict.exit_code == 16
    finding = next(f for f in verdict.findings if f.kind == "workload-failed")
    assert finding.subject == "trace"
    assert finding.since_s == 200.0
    assert finding.data == {"message": "a.jsonl:301: not JSON", "planned_s": 7200.0}


@pytest.mark.parametrize(
    ("workload", "advice"),
    [({}, "load command by hand"), ({"kind": "profile"}, "ended the client")],
)
def test_the_advice_after_a_load_that_ended_is_of_who_sent_it(
    workload: dict[str, JsonValue], advice: str
) -> None:
    record = with_events(healthy_record(RUN), FAILED)
    watched = msgspec.structs.replace(
        record.manifest, target=TargetFacts(kind=OBSERVED), workload=workload
    )

    findings = judge(replace(record, manifest=watched)).findings

    (found,) = (one for one in findings if one.kind == "workload-failed")
    assert advice in found.basis.advice(found)


def test_a_leak_that_was_found_before_the_trace_failed_stands() -> None:
    record = healthy_record(Run(duration_s=1800.0, leak_bytes_per_h=4000 * MB))
    assert judge(record).kind is VerdictKind.LEAK

    verdict = judge(with_events(record, WorkloadFailed(FAILED.text, t_s=1790.0)))

    assert verdict.kind is VerdictKind.LEAK
    assert [f.verdict for f in verdict.findings if f.kind == "workload-failed"] == ["INCONCLUSIVE"]
