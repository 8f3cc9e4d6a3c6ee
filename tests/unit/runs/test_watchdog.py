from __future__ import annotations

from hybridbench.runs.watchdog import Watchdog


def test_a_worker_that_answers_and_steps_is_left_alone() -> None:
    watchdog = Watchdog(limit_s=30.0, now_s=0.0)
    for now_s in range(0, 1000, 20):
        watchdog.heard(float(now_s))
        watchdog.saw_step_age(0.02)
        assert watchdog.complaint(now_s + 19.0) is None


def test_an_idle_worker_does_not_hang() -> None:
    watchdog = Watchdog(limit_s=30.0, now_s=0.0)
    watchdog.heard(100.0)
    watchdog.saw_step_age(0.0)

    assert watchdog.complaint(101.0) is None


def test_a_loop_that_hangs_is_told_although_its_thread_still_answers() -> None:
    watchdog = Watchdog(limit_s=30.0, now_s=0.0)
    watchdog.heard(100.0)
    watchdog.saw_step_age(31.0)

    assert watchdog.complaint(100.0) == "no engine step for 31 s with work pending"


def test_silence_is_a_hang_too() -> None:
    watchdog = Watchdog(limit_s=30.0, now_s=0.0)
    watchdog.heard(50.0)

    assert watchdog.complaint(80.0) is None
    assert watchdog.complaint(80.5) == "no word from the worker for 30 s"
