"""Thresholds on ratios are gated by the whole interval and can only make an answer stricter."""

from __future__ import annotations

import pytest

from hybridbench.analysis.comparison.ratios import check_ratios
from hybridbench.analysis.comparison.records import (
    Call,
    ComparisonTerms,
    ComparisonVerdict,
    MetricComparison,
    Outcome,
    Role,
    SideComparison,
)

THROUGHPUT = "throughput_tokens_per_s"


def verdict(lower: float, upper: float, outcome: Outcome = Outcome.SAME) -> ComparisonVerdict:
    metric = MetricComparison(
        metric=THROUGHPUT, label="throughput", unit="tokens/s", role=Role.PRIMARY, call=Call.SAME,
        word="SAME", margin=0.03, base=100.0, other=99.0, ratio=(lower + upper) / 2, lower=lower,
        upper=upper, confidence=0.95, pairs=6, sd=0.01, robust_ratio=1.0,
    )  # fmt: skip
    side = SideComparison(1, "git:new", outcome, outcome.value, (metric,), ())
    terms = ComparisonTerms()
    return ComparisonVerdict(outcome, outcome.value, (side,), 6, terms, True, headline="head")


@pytest.mark.parametrize(
    ("lower", "upper", "outcome", "code", "headline"),
    [
        (0.985, 1.005, Outcome.SAME, 0, "head"),
        (
            0.96,
            0.99,
            Outcome.INCONCLUSIVE,
            13,
            "git:new: throughput.ratio>0.97 is undecided: 0.975 (0.96 to 0.99, 95%) includes "
            "0.97. SAME: head",
        ),
        (
            0.95,
            0.968,
            Outcome.REGRESSION,
            12,
            "git:new: throughput.ratio>0.97 is missed: 0.959 (0.95 to 0.968, 95%). SAME: head",
        ),
    ],
)
def test_a_ratio_is_met_undecided_or_missed_by_its_whole_interval(
    lower: float, upper: float, outcome: Outcome, code: int, headline: str
) -> None:
    held, ratios = check_ratios(verdict(lower, upper), ["throughput.ratio>0.97"])

    assert held.outcome is outcome
    assert held.exit_code == code
    assert ratios[0].text == "throughput.ratio>0.97"
    assert held.headline == headline


def test_a_regression_stays_one_and_keeps_its_word() -> None:
    compared = verdict(0.95, 0.96, Outcome.REGRESSION)

    held, _ = check_ratios(compared, ["throughput.ratio>0.97", "rss.slope<1MiB/h"])

    assert held.word == "REGRESSION"
    assert held.notes == ("git:new: throughput.ratio>0.97 is missed: 0.955 (0.95 to 0.96, 95%)",)


def test_a_metric_that_no_block_measured_passes_nobody() -> None:
    held, ratios = check_ratios(verdict(0.99, 1.01), ["hit_rate.ratio>0.9"])

    assert held.outcome is Outcome.INCONCLUSIVE
    assert ratios[0].result is None
    assert ratios[0].said == "hit_rate.ratio>0.9 was not checked: no block of git:new measured it"


def test_without_a_ratio_nothing_changes() -> None:
    before = verdict(0.9, 0.95)

    assert check_ratios(before, ["rss.slope<1MiB/h"]) == (before, ())
