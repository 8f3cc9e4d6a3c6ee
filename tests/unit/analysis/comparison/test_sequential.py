"""Critical values for repeated looks, against scipy's multivariate normal and by simulation."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from hybridbench.analysis.comparison.sequential import POWER, boundaries, critical_t, error_shares


@pytest.mark.parametrize("alpha", [0.08, 0.05, 0.0033])
def test_the_chance_to_have_passed_by_each_look_is_what_the_spending_function_allows(
    alpha: float,
) -> None:
    # Imported here because it takes seconds, and not every process runs this test.
    from scipy.stats import multivariate_normal

    shares = (0.25, 0.5, 0.75, 1.0)

    values = boundaries(shares, alpha)

    times = np.array(shares)
    correlation = np.sqrt(np.minimum.outer(times, times) / np.maximum.outer(times, times))
    for count in range(2, 5):
        edge, expected = np.array(values[:count]), alpha * shares[count - 1] ** POWER
        inside = multivariate_normal.cdf(
            edge, cov=correlation[:count, :count], lower_limit=-edge, abseps=1e-3 * expected
        )
        assert 1.0 - inside == pytest.approx(expected, rel=0.01)


def test_one_look_at_the_end_needs_the_quantile_that_everyone_knows() -> None:
    values = boundaries((1.0,), 0.05)

    assert values[0] == pytest.approx(1.959964, abs=1e-5)


def test_early_looks_ask_for_more_than_late_ones() -> None:
    values = boundaries((0.25, 0.5, 0.75, 1.0), 0.05)

    assert all(early > late for early, late in pairwise(values))


def test_a_look_that_time_forced_spends_only_its_share_of_the_planned_rounds() -> None:
    planned = (6, 12, 18, 24)

    at_nine, at_end = error_shares(9, planned, 0.05), error_shares(24, planned, 0.05)

    assert sum(at_nine) < 0.05 * (9 / 24) ** POWER * 1.5
    assert len(at_nine) == 2
    assert len(at_end) == 4


def test_peeking_at_every_look_is_wrong_no_more_often_than_alpha() -> None:
    rng = np.random.default_rng(3)
    planned, repeats = (6, 12, 18, 24), 4000
    reach = [critical_t(n, planned, 0.10, n - 1) for n in planned]
    draws = rng.normal(size=(repeats, 24))

    missed = np.zeros(repeats, bool)
    for n, width in zip(planned, reach, strict=True):
        seen = draws[:, :n]
        error = seen.std(axis=1, ddof=1) / np.sqrt(n)
        missed |= np.abs(seen.mean(axis=1)) > width * error

    # Allow three standard errors of the simulation above the nominal value.
    assert missed.mean() < 0.10 + 3 * np.sqrt(0.1 * 0.9 / repeats)


@pytest.mark.parametrize("shares", [(), (0.0,), (0.5, 1.2)])
def test_looks_outside_of_the_data_are_refused(shares: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="shares of the data"):
        boundaries(shares, 0.05)
