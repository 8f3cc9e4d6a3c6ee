"""Two clocks that should agree."""

from __future__ import annotations

from hybridbench.clock import FakeClock
from hybridbench.runs.clock_watch import ClockWatch


class TwoClocks(FakeClock):
    """Its wall clock can be set."""

    ahead_s = 0.0

    def wall_s(self) -> float:
        return super().wall_s() + self.ahead_s


def test_a_jump_of_the_wall_clock_is_told_once_with_its_sign() -> None:
    clock = TwoClocks()
    watch = ClockWatch(clock)
    clock.advance(3600.0)
    assert watch.jump_s() is None

    clock.ahead_s = 40.0
    assert watch.jump_s() == 40.0
    assert watch.jump_s() is None
    clock.ahead_s = 10.0
    assert watch.jump_s() == -30.0


def test_a_clock_that_is_slewed_does_not_jump() -> None:
    clock = TwoClocks()
    watch = ClockWatch(clock)

    for _ in range(100):
        clock.ahead_s += 0.5
        assert watch.jump_s() is None
