from __future__ import annotations

import gc

import pytest

from hybridbench.sampling.ballast import Ballast


def test_every_object_of_the_ballast_is_one_that_the_collector_tracks() -> None:
    gc.collect()
    before = len(gc.get_objects())
    ballast = Ballast(5000)
    grown = len(gc.get_objects()) - before

    assert len(ballast) == 5000
    assert 5000 <= grown < 5050


def test_a_negative_ballast_is_refused() -> None:
    with pytest.raises(ValueError, match="0 or more"):
        Ballast(-1)
