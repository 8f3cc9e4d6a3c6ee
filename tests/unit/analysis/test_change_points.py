"""Changes in a series of nightly runs: found where they are, rarely where there are none."""

from __future__ import annotations

import numpy as np
import pytest

from hybridbench.analysis.change_points import change_points


def noise(count: int, seed: int, level: float = 100.0) -> list[float]:
    return [float(one) for one in np.random.default_rng(seed).normal(level, 3.0, count)]


def test_a_step_is_found_at_its_first_run() -> None:
    (change,) = change_points([*noise(12, 1), *noise(8, 2, 80.0)])

    assert change.at == 12
    assert change.before == pytest.approx(100, abs=3)
    assert change.after == pytest.approx(80, abs=3)
    assert change.p_value is not None
    assert change.p_value < 0.01


def test_two_steps_are_two_changes() -> None:
    found = change_points([*noise(12, 1), *noise(12, 2, 80.0), *noise(12, 3, 120.0)])

    assert [change.at for change in found] == [12, 24]


def test_one_value_far_off_is_a_change_only_while_it_is_the_newest() -> None:
    before, after = noise(10, 4), noise(10, 5)

    (change,) = change_points([*before, 200.0])

    assert (change.at, change.p_value) == (10, None)
    assert change_points([*before, 200.0, *after]) == []


def test_a_step_too_small_to_matter_is_none() -> None:
    series = [*noise(12, 1), *noise(8, 2, 80.0)]

    assert change_points(series, least=30.0) == []
    assert len(change_points(series, least=10.0)) == 1


def test_chance_makes_few_changes() -> None:
    found = [bool(change_points(noise(count, seed))) for seed in range(60) for count in (8, 15)]

    # By chance, either of the two tests fires in about one series of fifty.
    assert sum(found) <= 7


@pytest.mark.parametrize("values", [[], [1.0], [5.0] * 20, [1.0, 2.0, 3.0]])
def test_few_or_equal_values_have_no_change(values: list[float]) -> None:
    assert change_points(values) == []


def test_equal_values_with_a_step_are_still_a_change() -> None:
    (change,) = change_points([1.0] * 10 + [2.0] * 10)

    assert change.at == 10
