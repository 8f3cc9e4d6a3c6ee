from __future__ import annotations

from hybridbench.workload.traffic_clock import TrafficClock


def test_time_begins_at_the_first_look_and_stands_still_while_paused() -> None:
    clock = TrafficClock()

    assert clock.at(50.0) == 0.0
    assert clock.at(53.0) == 3.0
    clock.pause(54.0)
    clock.pause(60.0)
    assert clock.at(99.0) == 4.0
    clock.resume(104.0)
    assert not clock.paused
    assert clock.at(106.0) == 6.0
    assert clock.wake_s(6.5, now_s=106.0) == 106.5
    assert clock.wake_s(6.0, now_s=106.0) > 106.0


def test_a_resume_without_a_pause_changes_nothing() -> None:
    clock = TrafficClock()
    clock.at(10.0)

    clock.resume(20.0)

    assert clock.at(21.0) == 11.0


def test_a_pause_before_the_first_look_sets_the_zero() -> None:
    clock = TrafficClock()

    clock.pause(10.0)
    clock.resume(30.0)

    assert clock.at(31.0) == 1.0
