"""The tables of a comparison: words for ratios, levels and rates."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hybridbench.analysis.comparison.records import MetricComparison
from hybridbench.analysis.comparison.words import change_text, percent
from hybridbench.records.finding import VerdictKind
from hybridbench.report.comparison_tables import (
    comparison_tables,
    letter,
)
from hybridbench.report.document import Table
from tests.unit.analysis.comparisons import verdict
from tests.unit.made_findings import a_finding
from tests.unit.report.comparisons import comparison, judged


def _metric() -> MetricComparison:
    return judged(comparison()).sides[0].metrics[0]


@pytest.mark.parametrize(
    ("ratio", "said"),
    [(0.951, "\N{MINUS SIGN}4.9%"), (1.02, "+2.0%"), (1.0, "0.0%"), (0.9999, "0.0%")],
)
def test_a_ratio_is_said_as_a_signed_change(ratio: float, said: str) -> None:
    assert percent(ratio) == said


def test_a_change_has_the_ends_of_its_interval() -> None:
    metric = replace(_metric(), ratio=0.951, lower=0.943, upper=0.959)

    assert change_text(metric) == "\N{MINUS SIGN}4.9% (\N{MINUS SIGN}5.7% to \N{MINUS SIGN}4.1%)"


def test_nothing_falls_by_more_than_all_of_it() -> None:
    metric = replace(_metric(), ratio=0.355, lower=-0.5, upper=1.21)

    assert change_text(metric) == "\N{MINUS SIGN}64.5% (\N{MINUS SIGN}100% to +21.0%)"


def test_an_interval_that_says_nothing_is_not_spelt_out() -> None:
    metric = replace(_metric(), ratio=1.1, lower=0.001, upper=900.0)

    assert change_text(metric) == "+10.0% (\N{MINUS SIGN}99.9% to over +1,000%)"


def test_an_interval_far_above_tenfold_has_only_its_lower_end() -> None:
    metric = replace(_metric(), ratio=20.0, lower=15.0, upper=27.0)

    assert change_text(metric) == "+1,900% (at least +1,400%)"


def test_versions_are_lettered() -> None:
    assert [letter(i) for i in (0, 1, 25, 26)] == ["A", "B", "Z", "#27"]


def _table(title: str, *, leaks: bool = False) -> Table:
    made = comparison(leaks=leaks)
    return next(t for t in comparison_tables(made, judged(made)) if t.title.startswith(title))


def test_every_metric_that_both_have_is_a_row_with_its_role() -> None:
    table = _table("Metrics")

    roles = {row[0]: row[-1] for row in table.texts}
    assert roles["throughput"] == "primary"
    assert roles["idle memory"] == "guardrail"
    assert roles["ITL p99"] == "informational"
    margins = {row[0]: row[-2] for row in table.texts}
    assert (margins["throughput"], margins["ITL p99"]) == ("3%", "10%")
    assert "12 pairs" in str(table.note)


def test_the_leak_table_has_both_rates_and_the_interval_of_their_difference() -> None:
    table = _table("Leaks", leaks=True)

    (row,) = table.texts
    assert row[:5] == (
        "growth of private memory",
        "INTRODUCED",
        "0 B/h",
        "+3.70 GiB/h",
        "+3.70 GiB/h",
    )
    assert table.columns[5] == "99.9% interval of B \N{MINUS SIGN} A"


@pytest.mark.parametrize(
    ("subject", "said"),
    [
        ('entries of app.kept{role="api"}', "entries of app.kept of api: "),
        ("pool {odd}", "pool {odd}: "),
    ],
)
def test_a_leak_of_a_process_is_named_with_it_in_words(subject: str, said: str) -> None:
    made = comparison(leaks=True)
    found = a_finding("residual", VerdictKind.LEAK, subject, "3 slots are missing")
    own = verdict(VerdictKind.LEAK, [found])
    made = replace(made, versions=(made.versions[0], replace(made.versions[1], verdict=own)))

    tables = comparison_tables(made, judged(made))

    (table,) = [one for one in tables if one.title.startswith("Leaks")]
    assert any(str(row[0]).startswith(said) for row in table.texts)


def test_the_versions_table_shows_the_engine_that_ran() -> None:
    table = _table("Versions")

    assert [row[1] for row in table.texts] == [". (working tree)", "defect:x"]
    assert table.texts[0][2] == "abababababab"
