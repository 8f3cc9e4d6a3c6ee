"""How much of the time between two stamps belongs to a version."""

from __future__ import annotations

import pytest

from hybridbench.compare.active_clock import ActiveClock


def test_stops_are_left_out_as_far_as_they_lie_between_the_stamps() -> None:
    own = ActiveClock()
    own.freeze(10.0)
    assert own.thaw(12.0) == pytest.approx(2.0)
    own.freeze(15.0)
    assert own.thaw(16.0) == pytest.approx(1.0)

    assert own.between(8.0, 20.0) == pytest.approx(9.0)
    assert own.between(11.0, 15.5) == pytest.approx(3.0)
    assert own.between(12.0, 15.0) == pytest.approx(3.0)


def test_a_version_that_was_not_frozen_loses_no_time() -> None:
    own = ActiveClock()

    assert not own.is_frozen
    assert own.thaw(5.0) == 0.0
    assert own.between(1.0, 5.0) == 4.0
