"""Combining censuses and idle looks, process by process."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hybridbench.analysis.facts.censuses import Heap, heaps_of
from hybridbench.analysis.facts.facts import Facts
from hybridbench.analysis.record import RunRecord, Series, observed_drivers
from hybridbench.records.events import Census, Event, IdleLook, Phase
from hybridbench.records.manifest import Manifest

REQUESTS = "scraped.requests_total"


def heaps(*events: Event, requests: Sequence[float] = (0.0, 100.0)) -> list[Heap]:
    t = np.linspace(0.0, 100.0, len(requests))
    series = {REQUESTS: Series(REQUESTS, t, np.array(requests))}
    record = RunRecord(Manifest(), series, events, drivers=observed_drivers(series))
    return heaps_of(record, Facts.of(record).counters)


def census(t_s: float, pid: int = 7, role: str = "server", **said: object) -> Census:
    return Census(role=role, pid=pid, t_s=t_s, **said)  # type: ignore[arg-type]


def entries(heap: Heap, name: str) -> list[float]:
    found = heap.entries.of(name)
    assert found is not None
    return [float(count) for count in found]


def test_a_name_that_is_left_out_keeps_its_count() -> None:
    (heap,) = heaps(
        census(1.0, entries={"app.kept": 3}),
        census(2.0),
        census(3.0, entries={"app.kept": 5, "app.late": 1}),
    )

    assert entries(heap, "app.kept") == [3, 3, 5]
    assert entries(heap, "app.late") == [0, 0, 1]


def test_counts_of_a_process_that_was_started_anew_begin_from_nothing() -> None:
    (heap,) = heaps(
        census(1.0, entries={"app.kept": 300}),
        census(2.0, pid=8, entries={"app.other": 2}),
    )

    assert entries(heap, "app.kept") == [300, 0]
    assert heap.first.tolist() == [True, True]


def test_processes_are_told_by_their_role() -> None:
    server, worker = heaps(
        census(1.0, entries={"a": 1}), census(1.5, pid=9, role="worker", entries={"a": 5})
    )

    assert (server.role, worker.role) == ("server", "worker")
    assert entries(worker, "a") == [5]
    assert worker.subject("a") == 'a{role="worker"}'


def test_a_path_without_a_number_of_containers_has_one() -> None:
    (heap,) = heaps(census(1.0, containers={"a": 2}), census(2.0, containers={"a": 3, "b": 4}))

    assert heap.containers.value.tolist() == [[2, 3], [1, 4]]


def test_what_only_whole_censuses_find_is_compared_between_these() -> None:
    (heap,) = heaps(
        census(1.0, whole=True, entries={"of ints": 5, "of both": 5}),
        census(2.0, entries={"of both": 6}),
        census(3.0, whole=True, entries={"of ints": 9, "of both": 7}),
    )

    found = [heap.comparable(heap.entries.value[i]).tolist() for i in range(2)]

    assert found == [[True, False, True], [True, True, True]]


def test_a_census_belongs_to_the_idle_point_at_which_no_traffic_came_between() -> None:
    (heap,) = heaps(
        Phase(name="idle", phase="idle", t_s=49.0),
        IdleLook(role="server", pid=7, index=1, blocks=10, t_s=50.0),
        census(51.0),
        Phase(name="resume", phase="steady", t_s=52.0),
        census(53.0),
    )

    assert [point.census for point in heap.points] == [0]


def test_without_phases_the_work_says_whether_traffic_came_between() -> None:
    looks = [IdleLook(role="server", pid=7, index=i, t_s=t) for i, t in enumerate((20.0, 80.0))]

    (heap,) = heaps(*looks, census(10.0), census(24.0), census(85.0), requests=[0, 5, 5, 5, 9])

    assert [point.census for point in heap.points] == [None, None]
    (heap,) = heaps(*looks, census(22.0), census(81.0), requests=[4, 4, 4, 4, 4])
    assert [point.census for point in heap.points] == [0, 1]


def test_a_point_that_was_not_idle_is_not_an_idle_point() -> None:
    (heap,) = heaps(IdleLook(role="server", pid=7, idle=False, t_s=50.0), census(51.0))

    assert heap.points == ()
    assert len(heap.looks) == 1


def test_counters_of_a_point_are_those_of_the_look_itself() -> None:
    (heap,) = heaps(IdleLook(role="server", pid=7, counters={REQUESTS: 48.0}, t_s=50.0))

    assert heap.points[0].counts == {"requests_total": 48.0}
