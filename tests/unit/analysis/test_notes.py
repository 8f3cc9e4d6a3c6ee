"""Notes about a run, besides its findings."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from hybridbench.analysis.facts.facts import Facts
from hybridbench.analysis.judge import judge
from hybridbench.analysis.notes import not_seen, run_notes
from hybridbench.analysis.record import RunRecord, Series
from hybridbench.foundation.metrics import declared
from hybridbench.records.events import (
    Crash,
    DiskFull,
    Event,
    Extended,
    Interrupted,
    Reclaim,
    StoppedEarly,
    WorkloadFailed,
)
from hybridbench.records.manifest import OBSERVED, TargetFacts
from tests.unit.analysis.records import (
    GIB,
    Run,
    checkpoint,
    healthy_record,
    with_checkpoints,
    with_events,
    with_manifest,
    with_series,
)
from tests.unit.analysis.resumed import cut_at, resumed

RUN = Run(duration_s=240.0, steady_s=60.0)
ASSERTED = {"assert_coverage": {"retracts": 1000, "refusals": 5}}


def notes(record: RunRecord) -> list[str]:
    return list(run_notes(Facts.of(record)))


@pytest.mark.parametrize(("refused", "is_said"), [(309, True), (2, False)])
def test_requests_that_a_server_did_not_serve_are_a_note(refused: int, is_said: bool) -> None:
    record = healthy_record(RUN)
    counts = {"submitted": 320, "rejected.429": refused, "rejected.400": 9, "failed.500": 1}
    t_s = np.array((0.0, RUN.duration_s))
    series = [Series(f"events.requests_{n}", t_s, np.array((0.0, c))) for n, c in counts.items()]
    watched = msgspec.structs.replace(record.manifest, target=TargetFacts(kind=OBSERVED))

    said = notes(replace(with_series(record, *series), manifest=watched))

    note = "310 of 320 requests were not served: 429 (309), 500 (1)"
    assert (note in said) == is_said
    assert any("not served" in one for one in said) == is_said


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (
            StoppedEarly(reason="leak", text="two looks agree", t_s=230.0),
            "stopped early, after 3m50s: two looks agree",
        ),
        (
            WorkloadFailed(text="a.jsonl:301: not JSON.", t_s=200.0),
            "no request was sent after 3m20s: a.jsonl:301: not JSON",
        ),
        (Interrupted(signal="SIGINT", t_s=225.0), "interrupted after 3m45s; partial results"),
        (
            # Memory allocated while the worker answered does not count as negative release.
            Reclaim(300 * 2**20, 301 * 2**20, 300 * 2**20, 250 * 2**20, t_s=239.0),
            "of 300 MiB held while idle, malloc_trim released 0 B, flushing the cache 1.00 MiB, a "
            "full collection 50.0 MiB",
        ),
    ],
)
def test_an_event_is_a_note(event: Event, said: str) -> None:
    record = healthy_record(RUN)

    assert said in notes(with_events(record, event))
    assert said not in notes(record)


@pytest.mark.parametrize(
    ("event", "cause"),
    [
        (DiskFull(text="no space", t_s=230.0), "the disk was full"),
        (WorkloadFailed(text="not JSON", t_s=230.0), "the workload failed"),
        (Crash(reason="signal", t_s=230.0), "the worker died"),
    ],
)
def test_what_kept_a_run_from_its_required_events_is_named(event: Event, cause: str) -> None:
    record = with_manifest(healthy_record(RUN), profile=ASSERTED)

    said = notes(with_events(record, event))

    assert (
        f"{cause} before the required events were seen: refusals 0 of 5, retracts 11 of 1,000"
        in said
    )


def test_an_interrupted_run_does_not_list_what_its_finding_lists() -> None:
    record = with_manifest(healthy_record(RUN), profile=ASSERTED)

    said = notes(with_events(record, Interrupted(signal="SIGINT", t_s=230.0)))

    assert not any("required events" in note for note in said)


def test_defects_of_a_release_are_not_that_release() -> None:
    record = with_manifest(healthy_record(RUN), defects_as_of=["0.5.2", "0.5.3"])

    assert (
        "this is the bundled engine with defects that 0.5.2 and 0.5.3 had, not that release"
        in notes(record)
    )


def test_an_extension_that_has_not_ended_has_no_length_yet() -> None:
    extended = Extended(limit_s=600.0, text="private memory: growing", t_s=200.0)
    record = with_manifest(with_events(healthy_record(RUN), extended), planned_duration_s=300.0)

    assert (
        "extended (at most 10m) beyond the planned 5m, because the verdict was undecided: "
        "private memory: growing" in notes(record)
    )


def test_checkpoints_that_cannot_be_used_are_said() -> None:
    record, idle = healthy_record(RUN), checkpoint(200.0)
    busy = msgspec.structs.replace(idle, running=3)

    none = "no idle checkpoint was taken: missing slots are judged from samples alone"
    ignored = "1 checkpoint ignored: requests were in flight"
    assert none in notes(with_checkpoints(record, []))
    assert {none, ignored} <= set(notes(with_checkpoints(record, [busy])))
    assert ignored in notes(with_checkpoints(record, [busy, idle]))
    assert not any("checkpoint" in note for note in notes(with_checkpoints(record, [idle])))


def test_time_that_the_worker_waited_for_a_processor_is_said_of_the_judged_window() -> None:
    t = np.arange(0.0, 240.0)
    waits = Series("worker_cpu_wait_s", t, np.where(t > 60.0, 0.4, 0.9) * (t - 60.0))

    said = notes(with_series(healthy_record(RUN), waits))

    assert "the worker waited for a CPU for 40.0% of 2m54s" in said


def test_what_no_sample_shows_is_listed_with_its_meaning() -> None:
    missing = not_seen(Facts.of(healthy_record(RUN)))

    assert f"threads: {declared('threads').meaning}" in missing


def test_notes_of_a_resumed_run_name_their_segment() -> None:
    whole = healthy_record(Run())

    verdict = judge(resumed(cut_at(whole, 5.0), whole))

    assert verdict.notes[:3] == (
        "judged: segment 1 from 1s to 5s, segment 2 from 2m25s to 10m19s",
        "segment 1: not conclusive by itself: only 5 samples of the worker's memory were taken; "
        "run longer",
        "segment 1: no steady event was seen: the judged window may include warm-up, and growth "
        "over less than 45m is not called a leak",
    )


def test_a_run_of_which_no_segment_could_be_judged_says_so() -> None:
    short = cut_at(healthy_record(Run()), 1.0)

    assert judge(resumed(short, short)).notes[0] == "no segment was long enough to be judged"


@pytest.mark.parametrize(
    ("between", "graphs", "said"),
    [
        (0.9, 0.0, "900 MiB of that lies free between tensors: the memory fragments"),
        (0.0, 0.0, "0 B of that lies free between tensors"),
        (0.0, 0.95, ""),
    ],
)
def test_reserved_memory_that_grows_beside_tensors_that_do_not_is_explained(
    between: float, graphs: float, said: str
) -> None:
    record = with_manifest(healthy_record(RUN), model={"name": "m", "device": "cuda"})
    t = record.series["events.finishes"].t_s
    # All growth lies in the judged window, which begins after 60 seconds.
    more = np.where(t > 150.0, 1000.0 * 2**20, 0.0)
    memory = {
        "device_allocated_bytes": 2.0 * GIB + 0.0 * t,
        "device_reserved_bytes": 3.0 * GIB + more,
        "device_inactive_split_bytes": between * more,
        "device_graph_bytes": graphs * more,
    }

    verdict = judge(
        with_series(record, *(Series(n, t, each.astype(np.float64)) for n, each in memory.items()))
    )

    notes = [note for note in verdict.notes if note.startswith("PyTorch reserved")]
    beginning = "PyTorch reserved 1000 MiB more of the device, although its tensors did not grow; "
    assert notes == ([beginning + said] if said else [])


@pytest.mark.parametrize(("more", "noted"), [(200.0, 1), (20.0, 0)])
def test_device_memory_beside_the_allocator_that_grows_is_noted(more: float, noted: int) -> None:
    record = with_manifest(healthy_record(RUN), model={"name": "m", "device": "cuda"})
    t = record.series["events.finishes"].t_s
    beside = (500.0 + np.where(t > 150.0, more, 0.0)) * 2**20
    memory = {"device_allocated_bytes": 2.0 * GIB + 0.0 * t, "device_driver_bytes": beside}

    verdict = judge(with_series(record, *(Series(n, t, each) for n, each in memory.items())))

    notes = [n for n in verdict.notes if n.startswith("the worker took 200 MiB more")]
    assert len(notes) == noted


def test_reserved_memory_that_grows_with_tensors_needs_no_note() -> None:
    record = with_manifest(healthy_record(RUN), model={"name": "m", "device": "cuda"})
    t = record.series["events.finishes"].t_s
    names = ("device_allocated_bytes", "device_reserved_bytes")

    verdict = judge(with_series(record, *(Series(n, t, 2.0 * GIB + 1e7 * t) for n in names)))

    assert [finding.subject for finding in verdict.findings] == ["device_allocated_bytes"]
    assert not any(note.startswith("PyTorch reserved") for note in verdict.notes)


@pytest.mark.parametrize(
    ("others", "aborts", "told"), [(0.0, 4.0, True), (3.0, 4.0, False), (0.0, 0.0, False)]
)
def test_a_server_that_goes_on_after_its_clients_have_left_is_said(
    others: float, aborts: float, told: bool
) -> None:
    """Eight clients wait while it runs twelve; in a pause a second later, none."""
    t = np.arange(0.0, 240.0)
    paused = t % 30.0 < 4.0
    client = Series("client_in_flight", t, np.where(paused, 0.0, 8.0))
    running = Series("running_requests", t, others + np.where(paused, 0.0, 12.0))
    left = Series("events.requests_aborted", t, aborts * t)

    said = notes(with_series(healthy_record(RUN), client, running, left))

    assert any("4.0 more requests than clients waited for" in note for note in said) == told
