"""Student's t and the binomial against scipy.

The tests import scipy themselves, because it takes seconds and not every process runs them.
"""

from __future__ import annotations

import pytest

from hybridbench.analysis.distributions import t_quantile, t_tail, wilson_interval


@pytest.mark.parametrize("df", [1, 2, 3.5, 10, 77, 1e6])
@pytest.mark.parametrize("probability", [0.001, 0.2, 0.5, 0.9, 0.975, 0.999])
def test_quantiles_of_t_agree_with_scipy(df: float, probability: float) -> None:
    from scipy import stats

    expected = float(stats.t.ppf(probability, df))

    assert t_quantile(probability, df) == pytest.approx(expected, rel=1e-8, abs=1e-8)


@pytest.mark.parametrize("value", [-3.0, 0.0, 0.4, 12.0])
def test_tails_of_t_agree_with_scipy(value: float) -> None:
    from scipy import stats

    assert t_tail(value, 7) == pytest.approx(float(stats.t.sf(value, 7)), rel=1e-9)


def test_the_wilson_interval_agrees_with_scipy_and_knows_nothing_without_trials() -> None:
    from scipy import stats

    expected = stats.binomtest(97, 100).proportion_ci(method="wilson")

    assert wilson_interval(97, 100) == pytest.approx((expected.low, expected.high), abs=1e-4)
    assert wilson_interval(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(("probability", "df"), [(0.0, 5), (1.0, 5), (0.5, 0)])
def test_a_quantile_that_does_not_exist_is_refused(probability: float, df: float) -> None:
    with pytest.raises(ValueError, match="t_quantile needs"):
        t_quantile(probability, df)
