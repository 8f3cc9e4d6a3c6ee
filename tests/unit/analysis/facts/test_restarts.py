"""Distinguishing a restarted process from one whose memory only fell."""

from __future__ import annotations

import numpy as np

from hybridbench.analysis.facts.restarts import (
    Falls,
    counter_resets,
    level_falls,
    longest_stretch,
    swapped_out,
)


def test_a_counter_that_falls_is_a_new_process() -> None:
    t = np.arange(6.0)

    assert counter_resets(t, np.array([0, 5, 9, 0, 4, 8.0])) == (3.0,)


def test_one_fall_may_be_a_restart_and_a_burst_is_not() -> None:
    t = np.arange(300.0)
    restarted = np.where(t < 150, 100 + t, 100.0)
    restarted[150:] = 60.0
    burst = np.where((t > 100) & (t < 130), 300.0, 100.0)

    assert level_falls(t, restarted, (), counted=False) == Falls(possible_s=(150.0,))
    assert level_falls(t, restarted, (150.0,), counted=True) == Falls(certain_s=(150.0,))
    assert level_falls(t, burst, (), counted=False) == Falls()


def test_many_falls_are_possible_restarts_unless_a_counter_went_on() -> None:
    t = np.arange(600.0)
    saw = 50 + 3.0 * (t % 100)

    assert len(level_falls(t, saw, (), counted=False).possible_s) >= 3
    assert level_falls(t, saw, (), counted=True).possible_s == ()


def test_the_longest_stretch_lies_between_two_restarts() -> None:
    t = np.arange(100.0)

    assert longest_stretch(t, (20.0, 90.0)) == (20.0, 89.0)
    assert longest_stretch(t, ()) == (0.0, 99.0)


def test_a_fall_after_a_silence_is_a_restart_only_if_something_else_says_so() -> None:
    t = np.arange(200.0)
    t[100:] += 60.0
    value = np.where(t < 100, 100.0, 30.0)

    assert level_falls(t, value, (), counted=False) == Falls(possible_s=(160.0,))
    assert level_falls(t, value, (), counted=True) == Falls()


def test_memory_that_goes_to_swap_has_neither_fallen_nor_been_freed() -> None:
    t = np.arange(200.0)
    rss = np.where(t < 100, 400.0, 150.0)
    falls = level_falls(t, rss, (), counted=False)

    assert swapped_out(t, rss, 400.0 - rss, falls) == Falls()
    assert swapped_out(t, rss, np.zeros(200), falls) == falls
