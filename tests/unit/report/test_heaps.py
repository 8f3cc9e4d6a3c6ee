"""The tables of what the probes found."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec.structs import replace as replace_event

from benchmarks.watched_runs import ROLES, Leak, Watched, watched_run
from hybridbench.analysis.judge import judge
from hybridbench.analysis.record import RunRecord
from hybridbench.records.events import PAGE, Census, IdleLook
from hybridbench.report.build import build_document
from hybridbench.report.heaps import heap_tables


@pytest.fixture(scope="module")
def record() -> RunRecord:
    run = Watched(3, idle_s=60.0, roles=ROLES[:2], names=60, leaks=(Leak(),))
    return watched_run(run)


def test_each_name_that_grew_has_its_rate_and_what_it_is(record: RunRecord) -> None:
    growth, _ = heap_tables(record)

    assert growth.texts[0] == (
        "api_server",
        "entries of app.kept",
        "9,947",
        "1 per request",
        "a leak",
    )
    kinds = {row[1]: row[4] for row in growth.texts}
    assert kinds["app.Request objects"] == "a leak"
    assert kinds["entries of api_server.state_26"] == "a cache that slows down"
    assert kinds["entries of api_server.state_21"] == "a cache of at most 583, full in 8m48s"


def test_a_metrics_page_grows_and_has_no_probe(record: RunRecord) -> None:
    looks = [
        replace_event(event, role=PAGE) if event.role == ROLES[0] else event
        for event in record.events
        if isinstance(event, Census | IdleLook)
    ]

    growth, probes = heap_tables(replace(record, events=looks))
    page_alone = replace(record, events=[one for one in looks if one.role == PAGE])

    assert ("/metrics", "series of app.kept") in {row[:2] for row in growth.texts}
    assert [row[0] for row in probes.texts] == [ROLES[1]]
    assert len(heap_tables(page_alone)) == 1


def test_what_looking_cost_is_shown_for_each_process(record: RunRecord) -> None:
    _, probes = heap_tables(record)

    scans = sum(isinstance(e, Census) and e.role == ROLES[0] for e in record.events)
    looks = sum(isinstance(e, IdleLook) and e.role == ROLES[0] for e in record.events)
    assert probes.texts[0][:3] == (ROLES[0], str(scans), str(looks))
    assert probes.texts[0][4] == "20ms"
    assert probes.note == "Pauses at idle points delay no request and are left out."


def test_processes_without_a_probe_are_named(record: RunRecord) -> None:
    seen = [
        e
        for e in record.events
        if not (isinstance(e, Census | IdleLook) and e.role == "engine_core")
    ]

    _, probes = heap_tables(replace(record, events=seen))

    assert probes.note == (
        "Pauses at idle points delay no request and are left out. "
        "Without a probe, so that their heaps were not seen: engine_core."
    )


def test_a_single_heap_scan_is_too_few_and_in_the_singular(record: RunRecord) -> None:
    first = next(event for event in record.events if isinstance(event, Census))

    growth, _ = heap_tables(replace(record, events=[first]))

    assert growth.empty.startswith("A process had only 1 heap scan; 8 are needed")


def test_a_run_without_probes_has_no_such_table(record: RunRecord) -> None:
    unseen = [e for e in record.events if not isinstance(e, Census | IdleLook)]

    assert heap_tables(replace(record, events=unseen)) == ()


def test_looks_of_probes_are_no_rows_of_the_events(record: RunRecord) -> None:
    document = build_document(record, judge(record))

    kinds = {row[1] for row in document.events.texts}
    assert "process_started" in kinds
    assert not kinds & {"census", "idle_look"}


def test_a_process_is_spelled_as_it_calls_itself_in_the_headline_too(record: RunRecord) -> None:
    document = build_document(record, judge(record))

    assert str(document.headline).startswith("api_server keeps ")
