from __future__ import annotations

import pytest

from hybridbench.sampling.cadence import CHILD_SHARE_MAX, STOP_SHARE_MAX, Beat, ScanPace


def test_a_beat_is_due_once_an_interval_and_says_how_late_it_is() -> None:
    beat = Beat(interval_s=2.0, start_s=10.0)

    assert beat.take(9.9) is None
    assert beat.take(10.0) == 0.0
    assert beat.take(11.9) is None
    assert beat.take(12.5) == 0.5
    assert beat.next_s == 14.0, "lateness does not add up"


def test_missed_beats_are_skipped_and_not_made_up_for() -> None:
    beat = Beat(interval_s=2.0, start_s=0.0)

    assert beat.take(7.0) == 7.0
    assert beat.next_s == 8.0
    assert beat.take(7.5) is None


def test_an_interval_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="above 0"):
        Beat(0.0, 0.0)


def test_a_cheap_heap_scan_keeps_its_planned_pace() -> None:
    pace = ScanPace(planned_s=2.0, next_s=0.0)
    pace.asked(0.0)
    pace.learn(stop_s=0.005, child_s=0.3)

    assert not pace.due(1.9)
    assert pace.due(2.0)


def test_a_long_stop_stretches_the_pace_at_once_and_keeps_its_share() -> None:
    pace = ScanPace(planned_s=2.0, next_s=0.0)
    pace.asked(10.0)
    pace.learn(stop_s=0.06, child_s=0.3)

    assert pace.interval_s == pytest.approx(0.06 / STOP_SHARE_MAX)
    assert not pace.due(10.0 + 0.06 / STOP_SHARE_MAX - 0.01)


def test_waiting_for_a_processor_does_not_stretch_the_pace() -> None:
    pace = ScanPace(planned_s=2.0, next_s=0.0)
    for _ in range(5):
        pace.asked(0.0)
        pace.learn(stop_s=0.06, child_s=0.3, stop_cpu_s=0.01)

    assert pace.interval_s == 2.0


def test_a_stop_that_is_all_work_stretches_the_pace() -> None:
    pace = ScanPace(planned_s=2.0, next_s=0.0)
    pace.learn(stop_s=0.06, child_s=0.3, stop_cpu_s=0.05)

    assert pace.interval_s == pytest.approx(0.05 / STOP_SHARE_MAX)


def test_a_busy_child_stretches_the_pace_too() -> None:
    pace = ScanPace(planned_s=2.0, next_s=0.0)
    pace.asked(0.0)
    pace.learn(stop_s=0.001, child_s=4.0)

    assert pace.interval_s == pytest.approx(4.0 / CHILD_SHARE_MAX)


def test_one_outlier_does_not_set_the_pace_for_good() -> None:
    pace = ScanPace(planned_s=2.0, next_s=0.0)
    for stop_s in (0.01, 0.2, *[0.01] * 12):
        pace.asked(0.0)
        pace.learn(stop_s, 0.1)

    assert pace.interval_s == pytest.approx(2.0, rel=0.05)


def test_two_stops_in_a_row_above_the_budget_end_the_heap_scans_and_one_does_not() -> None:
    pace = ScanPace(planned_s=2.0, next_s=0.0, stall_max_s=0.1)
    for stop_s in (0.05, 0.3, 0.05, 0.3):
        pace.learn(stop_s, 0.1)
    assert not pace.given_up
    assert pace.due(1e6)

    pace.learn(0.2, 0.1)

    assert not pace.due(1e6)


def test_without_a_budget_no_stop_is_too_long() -> None:
    pace = ScanPace(planned_s=2.0, next_s=0.0)
    for _ in range(3):
        pace.learn(60.0, 0.1)

    assert pace.due(1e6)
