"""The contents of a document, before it is rendered in any format."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from msgspec.structs import replace as replace_fields

from hybridbench.analysis.findings.engine_reports import Crashed
from hybridbench.analysis.findings.growth import Undecided
from hybridbench.analysis.record import RunRecord, Series
from hybridbench.foundation.labels import labelled
from hybridbench.records.events import (
    Crash,
    DiagnosisBaseline,
    EngineViolation,
    ExtensionEnded,
    Interrupted,
    Note,
    Phase,
    Steady,
)
from hybridbench.records.finding import Finding, VerdictKind
from hybridbench.report.advice import MEANING
from hybridbench.report.build import build_document, build_so_far
from hybridbench.report.document import Ink
from tests.unit.report import synthetic


def test_every_verdict_has_a_meaning() -> None:
    assert set(MEANING) == set(VerdictKind)


def test_the_ledger_of_a_pool_adds_up_to_its_size() -> None:
    record = synthetic.record_of(300.0)
    document = build_document(record, synthetic.leak_verdict(record))

    charts = {chart.key: chart for group in document.charts for chart in group.charts}
    for pool in ("kv", "mamba", "req"):
        chart = charts[f"pool-{pool}"]
        parts = [line.value for line in chart.lines if line.ink is Ink.PLAIN]
        size = next(line.value for line in chart.lines if line.ink is Ink.LIMIT)
        assert abs(sum(parts) - size).max() == 0
        # The part that must be zero is at the bottom, where it lifts everything above it.
        assert chart.lines[0].label == "unaccounted"


def test_the_driver_of_a_finding_gets_a_chart_of_its_own() -> None:
    record = synthetic.record_of(300.0)
    document = build_document(record, synthetic.leak_verdict(record))

    charts = {chart.key: chart for group in document.charts for chart in group.charts}
    assert [line.label for line in charts["drivers"].lines] == ["nodes_evicted"]


def test_phases_fill_the_run_and_collections_come_from_the_counter() -> None:
    record = synthetic.record_of(600.0)
    timeline = build_document(record, synthetic.leak_verdict(record)).timeline

    assert [span.name for span in timeline.phases] == ["boot", "prefill", "load", "drain"]
    assert all(
        this.end_s == following.start_s
        for this, following in zip(timeline.phases, timeline.phases[1:], strict=False)
    )
    assert len([mark for mark in timeline.marks if mark.kind == "gc"]) == 3
    assert len([mark for mark in timeline.marks if mark.kind == "checkpoint"]) == 5


def test_marks_are_of_the_engine_and_its_traffic_in_words() -> None:
    record = synthetic.record_of(300.0)
    events = (Steady(t_s=60.0), DiagnosisBaseline(t_s=70.0), ExtensionEnded(t_s=280.0))
    marked = replace(record, series={}, events=events)

    marks = build_document(marked, synthetic.leak_verdict(record)).timeline.marks

    assert [mark.label for mark in marks] == ["steady", "extension ended at 0:04:40"]


def test_what_the_reader_had_to_leave_out_is_told_in_the_notes() -> None:
    record = synthetic.record_of(120.0)
    torn = Note(text="the last line was torn", t_s=120.0)
    noted = RunRecord(record.manifest, record.series, (*record.events, torn))

    document = build_document(noted, synthetic.clean_verdict(record))

    assert "the last line was torn" in document.notes
    assert not any(row[1] == "note" for row in document.events.rows)


def test_requests_of_a_trace_that_were_cut_are_a_note() -> None:
    record = synthetic.record_of(120.0)
    counts = {"submitted": 1090, "clipped_inputs": 54, "clipped_outputs": 0}
    manifest = replace_fields(record.manifest, workload_counts=counts)

    said = build_document(replace(record, manifest=manifest), synthetic.clean_verdict(record)).notes
    whole = build_document(record, synthetic.clean_verdict(record)).notes

    note = "of 1090 requests of the trace 54 prompts and 0 answers were cut to fit pools.max_cont"
    assert [str(one).startswith(note) for one in said].count(True) == 1
    assert not any("were cut" in str(one) for one in whole)


def test_a_finding_of_a_lesser_kind_does_not_hide_the_one_of_the_verdict() -> None:
    record = synthetic.record_of(120.0)
    verdict = synthetic.leak_verdict(record)
    slow = replace(verdict.findings[1], verdict=VerdictKind.DEGRADED, subject="throughput")

    document = build_document(record, replace(verdict, findings=(slow, verdict.findings[0])))

    what = next(fact for fact in document.answer if fact.label == "What leaks")
    assert str(what.text).startswith("TreeNode")
    others = next(fact for fact in document.answer if fact.label == "Other findings")
    assert str(others.text) == "1 DEGRADED"


def test_an_interrupted_run_ends_with_the_code_of_its_signal_whatever_the_verdict() -> None:
    record = synthetic.record_of(300.0)
    verdict = synthetic.leak_verdict(record)
    codes = []
    for name in ("SIGINT", "SIGTERM"):
        stopped = Interrupted(signal=name, t_s=200.0)
        cut = replace(record, events=(*record.events, stopped))
        codes.append(build_document(cut, verdict).exit_code)

    assert build_document(record, verdict).exit_code == 10
    assert codes == [130, 143]


def test_only_an_interrupted_run_of_the_engine_is_to_be_resumed() -> None:
    def command(record: RunRecord) -> str:
        undecided = replace(
            synthetic.clean_verdict(record), kind=VerdictKind.INCONCLUSIVE, headline="undecided"
        )
        return build_document(record, undecided).answer[-1].code

    record = synthetic.record_of(300.0)
    events = (*record.events, Interrupted(signal="SIGINT", t_s=200.0))
    manifest = replace_fields(record.manifest, command=("hybridbench", "soak"))
    watched = replace_fields(manifest, target=replace_fields(manifest.target, kind="observed"))

    assert command(replace(record, events=events, manifest=manifest)).startswith(
        f"hybridbench soak --resume results/{manifest.run_id}"
    )
    assert "--resume" not in command(replace(record, manifest=manifest))
    assert "--resume" not in command(replace(record, events=events, manifest=watched))


def test_a_run_without_an_end_says_so_unless_its_report_is_of_a_run_in_progress() -> None:
    record = synthetic.record_of(300.0)
    verdict = synthetic.leak_verdict(record)
    half = replace(record, manifest=replace_fields(record.manifest, planned_duration_s=600.0))
    said = (
        "the end of this run is not recorded: it was killed, or it is still running, after 4m55s "
        "of the planned 10m"
    )

    assert said in build_document(half, verdict).notes
    assert said not in build_so_far(half, verdict).notes
    for end in (Phase(name="done", t_s=301.0), Crash(t_s=301.0), Interrupted(t_s=301.0)):
        ended = replace(half, events=(*half.events, end))
        notes = map(str, build_document(ended, verdict).notes)
        assert not any("not recorded" in note for note in notes)


def test_of_many_events_of_a_kind_the_first_mark_alone_has_a_label() -> None:
    record = synthetic.record_of(300.0)
    violations = [EngineViolation(kind="alias", t_s=float(t)) for t in (100, 101, 102)]
    marked = replace(record, events=(*record.events, *violations))

    marks = build_document(marked, synthetic.leak_verdict(record)).timeline.marks

    labels = [mark.label for mark in marks if mark.kind == "engine_violation"]
    assert labels == ["engine violation at 0:01:40, first of 3", "", ""]


def test_a_clean_page_has_one_bound_of_memory_and_its_limit_in_the_table_alone() -> None:
    record = synthetic.record_of(leaky=False)
    document = build_document(record, synthetic.clean_verdict(record))

    assert document.ruling_label == "Detection limit"
    assert not any("limit" in str(fact.text) for fact in document.answer)
    assert all("200 MiB/h" in row for row in document.bounds.texts)


def test_the_growth_of_a_leak_is_not_labelled_as_a_detection_limit() -> None:
    record = synthetic.record_of()

    assert build_document(record, synthetic.leak_verdict(record)).ruling_label == "Memory growth"


def test_names_that_differ_in_punctuation_have_charts_of_their_own() -> None:
    record = synthetic.record_of(120.0)
    t = np.linspace(0.0, 120.0, 50)
    names = ("container.Pool.free.len", "container.Pool._free.len")
    added = {name: Series(name, t, t * (1 + i)) for i, name in enumerate(names)}
    both = replace(record, series={**record.series, **added})

    document = build_document(both, synthetic.clean_verdict(record))

    keys = [chart.key for group in document.charts for chart in group.charts]
    assert len(keys) == len(set(keys))
    assert {"other-container-pool-free-len", "other-container-pool-free-len--2"} <= set(keys)


def test_private_memory_has_an_axis_of_its_own() -> None:
    """In a chart with RSS and PSS, a leak of 12 MiB would look flat."""
    record = synthetic.record_of()

    (memory, *_) = build_document(record, synthetic.leak_verdict(record)).charts

    by_key = {chart.key: {line.label for line in chart.lines} for chart in memory.charts}
    assert by_key["private"] >= {"private (RssAnon + swap)", "fit"}
    assert not by_key["private"] & by_key["rss"]
    assert by_key["rss"] == {"resident (RSS)", "proportional (PSS)"}


def test_a_title_that_is_cut_in_the_headline_names_its_metric_once() -> None:
    """It began 'private memory of X, in RAM (RssAnon) ...: private memory of X: growing by ...'."""
    record = synthetic.record_of(300.0)
    role = "process" * 30
    undecided = Undecided(needed_s=900.0, judged_s=300.0)
    subject = labelled("rss_anon_swap_bytes", {"role": role})
    finding = Finding(undecided, VerdictKind.INCONCLUSIVE, subject)
    verdict = replace(
        synthetic.open_verdict(record), findings=(finding,), headline=finding.title[:100]
    )

    (fact, *_) = build_document(record, verdict).answer

    assert (fact.label, fact.text) == ("Undecided", finding.title)
    assert finding.title.startswith(f"private memory of {role}: ")


def test_a_headline_never_capitalises_the_name_of_a_program() -> None:
    record = synthetic.record_of(300.0)
    crashed = Crashed(reason="exit", detail="(exit code 1)", stderr=(), target="vllm")
    finding = Finding(crashed, VerdictKind.CRASHED, "vllm", since_s=8.0)
    verdict = replace(
        synthetic.clean_verdict(record),
        kind=VerdictKind.CRASHED,
        findings=(finding,),
        headline=finding.title,
    )

    assert build_document(record, verdict).headline == "vllm exited after 8s (exit code 1)"
