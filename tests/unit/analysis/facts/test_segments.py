"""Splitting a run where its worker was replaced."""

from __future__ import annotations

import numpy as np
import pytest

from hybridbench.analysis.facts.facts import Facts
from hybridbench.analysis.facts.window import borders, judged_length_s, last_segment, segments
from hybridbench.records.events import Crash, Segment, Steady
from hybridbench.records.verdict import Covered
from tests.unit.analysis.records import Run, healthy_record, with_events, with_manifest
from tests.unit.analysis.resumed import GAP_S, cut_at, last_moment_s, resumed

RUN = Run(duration_s=240.0, steady_s=60.0)


def test_a_run_of_one_worker_is_its_only_segment() -> None:
    record = healthy_record(RUN)

    assert segments(record) == [record]
    assert segments(record)[0] is record
    assert borders(record) == []


def test_every_sample_and_event_lies_in_exactly_one_segment() -> None:
    first = cut_at(healthy_record(RUN), 100.0)
    whole = resumed(first, healthy_record(RUN))
    early, late = segments(whole)

    assert borders(whole) == [last_moment_s(first) + GAP_S]
    assert len(early.events) + len(late.events) == len(whole.events)
    assert isinstance(late.events[0], Segment)
    for name, series in whole.series.items():
        parts = [part.series[name].value for part in (early, late) if name in part.series]
        assert np.array_equal(np.concatenate(parts), series.value)
    assert early.last_event(Steady) is not None
    assert last_segment(whole).events == late.events


def test_a_metric_that_a_segment_never_had_is_missing_there_and_not_empty() -> None:
    first = cut_at(healthy_record(RUN), 4.0)
    early, late = segments(resumed(first, healthy_record(RUN)))

    assert "gc_collectible_bytes" not in early.series
    assert "gc_collectible_bytes" in late.series


def test_coverage_adds_up_what_each_worker_counted_from_zero() -> None:
    alone = healthy_record(RUN)
    asserted = {"assert_coverage": {"retracts": 15}}
    once = with_manifest(alone, profile=asserted)
    twice = with_manifest(resumed(alone, alone), profile=asserted)

    assert len(Facts.of(once).coverage.missing) == 1
    assert Facts.of(twice).coverage.table["retracts"] == Covered(15.0, 22.0, met=True)
    assert Facts.of(twice).coverage.missing == ()


def test_only_the_end_of_the_last_segment_is_the_end_of_the_run() -> None:
    crashed = with_events(healthy_record(RUN), Crash(t_s=200.0))

    assert Facts.of(crashed).ended_early
    assert not Facts.of(resumed(crashed, healthy_record(RUN))).ended_early
    assert Facts.of(resumed(healthy_record(RUN), crashed)).ended_early


def test_neither_a_gap_nor_a_second_warm_up_counts_as_judged() -> None:
    first = cut_at(healthy_record(RUN), 100.0)
    whole = resumed(first, healthy_record(RUN))
    border_s = borders(whole)[0]

    assert judged_length_s(healthy_record(RUN), (60.0, 240.0)) == 180.0
    judged_s = judged_length_s(whole, (60.0, border_s + 240.0))
    assert judged_s == pytest.approx(last_moment_s(first) - 60.0 + 180.0, abs=5.0)
