"""The fake clock moves only when it is advanced."""

from __future__ import annotations

import pytest

from hybridbench.foundation.clock import FakeClock, SystemClock


def test_sleeping_moves_a_fake_clock_and_nothing_else_does() -> None:
    clock = FakeClock(start_s=10.0)
    clock.sleep(2.5)
    clock.sleep(-1.0)

    assert clock.monotonic_s() == 12.5
    assert clock.wall_s() == 1_700_000_012.5


def test_a_fake_clock_cannot_go_back() -> None:
    with pytest.raises(ValueError, match="cannot go back"):
        FakeClock().advance(-0.1)


def test_the_system_clock_never_goes_back() -> None:
    clock = SystemClock()
    stamps = [clock.monotonic_s() for _ in range(100)]

    assert stamps == sorted(stamps)
