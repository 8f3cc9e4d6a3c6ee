"""Matching the findings of two versions: new, gone, worse, unchanged, or undecided."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from hybridbench.analysis.comparison.leaks import difference, leak_comparisons, leaks_judged
from hybridbench.analysis.comparison.records import Change, ComparisonTerms, LeakComparison, Version
from hybridbench.records.finding import Finding, Rate, VerdictKind
from hybridbench.records.verdict import DecayResult, Why
from tests.unit.analysis.comparisons import (
    GIB,
    MEMORY,
    growth,
    leak,
    run_record,
    strays,
    verdict,
    version,
)
from tests.unit.made_findings import a_finding, typed_finding

TERMS = ComparisonTerms()


def _with(*findings: Finding, events: float = 5000.0, **more: object) -> Version:
    kind = VerdictKind.LEAK if findings else VerdictKind.CLEAN
    own = verdict(kind, findings, **more)  # type: ignore[arg-type]
    return version("v", own, run_record({"nodes_evicted": events}))


def _only(base: Version, other: Version, kind: str = "") -> LeakComparison:
    rows = leak_comparisons(base, other, TERMS)
    (row,) = [row for row in rows if not kind or row.kind == kind]
    return row


def codes(row: LeakComparison) -> list[str]:
    return [why.code for why in row.why]


def test_an_exact_finding_in_the_second_version_alone_is_introduced() -> None:
    row = _only(_with(), _with(strays(0.9)))

    assert row.change is Change.INTRODUCED
    assert row.exact
    assert row.difference is not None
    assert row.difference.value == pytest.approx(0.9)
    assert row.difference.confidence == pytest.approx(0.999)


def test_an_exact_finding_in_the_first_version_alone_is_fixed() -> None:
    row = _only(_with(strays(0.9)), _with())

    assert row.change is Change.FIXED
    assert row.difference is not None
    assert row.difference.upper < 0


def test_a_leak_that_was_counted_in_one_run_and_fitted_in_the_other_is_one_row() -> None:
    def kept(rate: Rate, *, counted: bool) -> Finding:
        return typed_finding(
            "entries-kept",
            {"role": "api", "name": "app.kept", "counted": counted},
            (rate,),
            driver="nodes_evicted",
        )

    counted = _with(kept(Rate(1.0, 1.0, 1.0, "entries", "request"), counted=True))
    fitted = _with(kept(Rate(1.01, 0.98, 1.04, "entries", "request"), counted=False))

    for row in (_only(counted, fitted, "entries-kept"), _only(fitted, counted, "entries-kept")):
        assert row.change is Change.UNCHANGED
        assert row.exact


def _kept(rate: float, *, certain: bool, counted: bool = False) -> Finding:
    ends = (rate, rate, rate) if counted else (rate, 0.98 * rate, 1.02 * rate)
    found = typed_finding(
        "entries-kept",
        {"role": "api", "name": "app.kept", "counted": counted},
        (Rate(*ends, "entries", "request"),),
        driver="nodes_evicted",
    )
    return found if certain else replace(found, verdict=VerdictKind.INCONCLUSIVE)


@pytest.mark.parametrize("counted", [True, False])
def test_a_leak_of_which_the_other_run_was_unsure_is_neither_introduced_nor_fixed(
    counted: bool,
) -> None:
    sure, unsure = (
        _with(_kept(1.0, certain=True, counted=counted)),
        _with(_kept(1.0, certain=False)),
    )

    for row in (_only(unsure, sure, "entries-kept"), _only(sure, unsure, "entries-kept")):
        assert row.change is Change.UNCHANGED
    worse = _only(_with(_kept(0.4, certain=False)), sure, "entries-kept")
    assert worse.change is Change.WORSE
    other_unit = replace(_kept(1.0, certain=False), rates=(Rate(9.0, 8.0, 10.0, "entries", "h"),))
    assert _only(_with(other_unit), sure, "entries-kept").change is Change.UNDECIDED


def test_what_may_leak_in_the_second_version_leaves_the_comparison_undecided() -> None:
    one, other = _with(_kept(1.0, certain=False)), _with(_kept(1.9, certain=False))

    assert _only(_with(), one, "entries-kept").change is Change.UNDECIDED
    assert _only(one, other, "entries-kept").change is Change.UNDECIDED
    assert _only(one, one, "entries-kept").change is Change.UNCHANGED
    assert not leak_comparisons(one, _with(), TERMS)


def test_the_growth_of_each_process_is_compared() -> None:
    def memory(rate: float, outcome: str, role: str = "api") -> Version:
        return _with(metrics=[growth(rate, 0.01, outcome, f'{MEMORY}{{role="{role}"}}')])

    base = memory(0.0, "CLEAN")

    assert _only(base, memory(0.0, "CLEAN")).change is Change.UNCHANGED
    assert _only(base, memory(0.5, "INCONCLUSIVE")).change is Change.UNDECIDED
    renamed = leak_comparisons(base, memory(0.5, "INCONCLUSIVE", "worker"), TERMS)
    assert {row.change for row in renamed} == {Change.UNDECIDED, Change.UNCHANGED}


def test_a_finding_is_not_gone_where_its_event_hardly_happened() -> None:
    row = _only(_with(strays(0.9)), _with(events=4.0))

    assert row.change is Change.UNDECIDED
    (why,) = row.why
    assert why == Why("few-events", {"events": 4.0, "driver": "nodes_evicted"})


def test_a_finding_without_a_driver_is_not_new_beside_a_run_that_was_cut_short() -> None:
    found = a_finding("residual", VerdictKind.LEAK, "mamba slots", "3 slots are missing")
    own = verdict(VerdictKind.LEAK, [found])
    short = version("a", record=run_record(duration_s=60.0))

    row = _only(short, version("b", own, run_record(duration_s=600.0)))
    alike = _only(version("a"), version("b", own, run_record(duration_s=600.0)))

    assert row.change is Change.UNDECIDED
    assert alike.change is Change.INTRODUCED


@pytest.mark.parametrize(
    ("after", "change"), [(0.9, Change.UNCHANGED), (2.7, Change.WORSE), (0.3, Change.LESS)]
)
def test_a_finding_in_both_versions_is_classified_by_its_rate(after: float, change: Change) -> None:
    row = _only(_with(strays(0.9)), _with(strays(after)))

    assert row.change is change


def test_a_small_difference_of_exact_rates_does_not_matter() -> None:
    row = _only(_with(strays(1.00, half=1e-4)), _with(strays(1.02, half=1e-4)))

    assert row.change is Change.UNCHANGED


def test_the_same_leak_under_another_driver_is_told_by_its_rate() -> None:
    before = _with(strays(0.9))

    alike = _only(before, _with(strays(0.9, driver="evict_leaf")))
    worse = _only(before, _with(strays(1.8, driver="evict_leaf")))

    assert alike.change is Change.UNCHANGED
    assert codes(alike) == ["other-driver"]
    assert worse.change is Change.WORSE


def test_another_driver_without_a_rate_to_compare_leaves_it_open() -> None:
    after = strays(3.0, driver="session_closes")
    rate = Rate(3.0, 3.0, 3.0, "nodes", "session close")

    row = _only(_with(strays(0.9)), _with(replace(after, rates=(rate,))))

    assert row.change is Change.UNDECIDED


def test_growth_is_introduced_when_verdicts_differ_and_rates_do_beyond_doubt() -> None:
    base = _with(metrics=[growth(0.0, 0.1, "CLEAN")])
    other = _with(leak(), metrics=[growth(3.7, 0.1, "LEAK")])

    row = _only(base, other, "growth")

    assert row.change is Change.INTRODUCED
    assert row.bytes_per_hour is not None
    assert row.bytes_per_hour.value == pytest.approx(3.7 * GIB)
    # Each version's standard error is 0.1 / 1.96; the interval extends 3.29 standard errors.
    half = row.bytes_per_hour.upper - row.bytes_per_hour.value
    assert half == pytest.approx(3.2905 / 1.95996 * 2**0.5 * 0.1 * GIB, rel=1e-3)


def test_growth_whose_rates_may_be_the_same_is_undecided_though_the_verdicts_differ() -> None:
    base = _with(metrics=[growth(1.0, 1.0, "INCONCLUSIVE")])
    other = _with(leak(), metrics=[growth(1.5, 0.2, "LEAK")])

    row = _only(base, other, "growth")

    assert row.change is Change.UNDECIDED


@pytest.mark.parametrize(
    ("before", "after", "outcome", "change"),
    [
        (0.0, 0.3, "CLEAN", Change.GROWS_FASTER),
        (0.3, 0.0, "CLEAN", Change.GROWS_SLOWER),
        (0.0, 0.3, "INCONCLUSIVE", Change.UNDECIDED),
        (0.0, 0.01, "CLEAN", Change.UNCHANGED),
    ],
)
def test_growth_whose_intervals_do_not_meet_is_never_unchanged(
    before: float, after: float, outcome: str, change: Change
) -> None:
    base = _with(metrics=[growth(before, 0.01, "CLEAN")])
    other = _with(metrics=[growth(after, 0.01, outcome)])

    row = _only(base, other, "growth")

    assert row.change is change
    assert row.verdict is VerdictKind.CLEAN
    if change is Change.UNCHANGED:
        assert codes(row) == []
    else:
        below = outcome == "CLEAN"
        assert codes(row) == ["below-limit" if below else "no-leak"]


def test_a_class_does_not_grow_by_more_than_the_process_without_saying_why() -> None:
    """A report once showed +394 MiB/h of tree nodes beside a process bound of 201 MiB/h."""
    nodes = strays(0.9)
    made = Rate(0.39 * GIB, 0.34 * GIB, 0.44 * GIB, "B", "h")
    nodes = replace(nodes, rates=(*nodes.rates, made))
    other = _with(nodes, metrics=[growth(0.1, 0.09, "INCONCLUSIVE")])

    rows = leak_comparisons(_with(metrics=[growth(0.0, 0.01, "CLEAN")]), other, TERMS)

    (row,) = [row for row in rows if row.subject == "TreeNode"]
    assert row.bytes_per_hour is None
    (why,) = row.why
    assert why.code == "faster-than-memory"
    assert why.data["memory_upper"] == pytest.approx(0.19 * GIB)
    assert row.difference is not None
    assert row.difference.unit == "nodes"


def test_growth_is_fixed_when_the_leak_went_and_the_rate_fell() -> None:
    base = _with(leak(), metrics=[growth(3.7, 0.1, "LEAK")])
    other = _with(metrics=[growth(0.0, 0.1, "CLEAN")])

    row = _only(base, other, "growth")

    assert row.change is Change.FIXED


def test_an_invalid_run_neither_introduces_nor_fixes_growth() -> None:
    base = _with(metrics=[growth(0.0, 0.1, "CLEAN")])
    own = verdict(VerdictKind.INVALID, [leak()], [growth(3.7, 0.1, "LEAK")])

    row = _only(base, version("v", own), "growth")

    assert row.change is Change.UNDECIDED
    assert codes(row) == ["invalid-run"]
    assert not leaks_judged(base, version("v", own))


def test_a_doubt_beside_an_exact_leak_still_sets_growth_and_absence_aside() -> None:
    doubt = a_finding("coverage", VerdictKind.INVALID, "coverage")
    base = _with(metrics=[growth(0.0, 0.1, "CLEAN")])
    own = verdict(VerdictKind.LEAK, [strays(1.0), doubt], [growth(3.7, 0.1, "LEAK")])

    rows = leak_comparisons(base, version("v", own), TERMS)

    assert [row.change for row in rows if row.exact] == [Change.INTRODUCED]
    assert {row.change for row in rows if row.kind == "growth"} == {Change.UNDECIDED}
    assert not leaks_judged(base, version("v", own))


def test_growth_of_too_few_samples_for_a_model_is_not_compared() -> None:
    unknown = msgspec.structs.replace(growth(0.0, 0.0, "INCONCLUSIVE"), rate_per_hour=None)

    rows = leak_comparisons(_with(metrics=[unknown]), _with(metrics=[unknown]), TERMS)

    assert rows == ()


def test_memory_is_always_told_so_that_a_comparison_without_a_leak_has_a_bound() -> None:
    side = _with(metrics=[growth(0.0, 0.1, "CLEAN"), growth(0.0, 0.1, "CLEAN", "threads")])

    rows = leak_comparisons(side, side, TERMS)

    assert [(row.subject, row.change) for row in rows] == [(MEMORY, Change.UNCHANGED)]


def _decaying(change: float, half: float, outcome: str) -> Version:
    result = DecayResult(
        "evict_ms", "time of an eviction", "ms", 1.0, outcome, 0.5, change, change - half,
        change + half,
    )  # fmt: skip
    found = [a_finding("decay", VerdictKind.DEGRADED, "evict_ms", "evictions take longer")]
    return _with(*(found if outcome == "worse" else []), decay=[result])


def test_a_decay_is_introduced_only_when_it_is_worse_than_the_other_beyond_doubt() -> None:
    sure = _only(_decaying(0.0, 0.1, "no change"), _decaying(2.0, 0.1, "worse"))
    chance = _only(_decaying(0.3, 0.3, "no change"), _decaying(0.7, 0.2, "worse"))

    assert sure.change is Change.INTRODUCED
    assert chance.change is Change.UNDECIDED


def test_a_difference_takes_its_errors_from_both_intervals() -> None:
    base = Rate(1.0, 0.0, 2.0, "slots", "request")
    other = Rate(4.0, 3.5, 4.5, "slots", "request", confidence=0.99)

    found = difference(base, other, 0.05)

    assert found is not None
    errors = (1.0 / 1.95996, 0.5 / 2.57583)
    half = 1.95996 * (errors[0] ** 2 + errors[1] ** 2) ** 0.5
    assert found.value == 3.0
    assert found.upper - found.value == pytest.approx(half, rel=1e-4)


def test_an_open_interval_or_another_unit_gives_no_difference() -> None:
    closed = Rate(1.0, 0.5, 1.5, "B", "h")
    open_ = Rate(1.0, float("-inf"), float("inf"), "B", "h")
    slots = Rate(1.0, 0.5, 1.5, "slots", "h")

    assert difference(closed, open_, 0.05) is None
    assert difference(closed, slots, 0.05) is None
    assert difference(None, None, 0.05) is None


def test_the_worst_change_comes_first() -> None:
    base = _with(
        a_finding("residual", VerdictKind.LEAK, "kv", "a"), metrics=[growth(0, 1, "CLEAN")]
    )
    other = _with(strays(0.9), metrics=[growth(0, 1, "CLEAN")])

    rows = leak_comparisons(base, other, TERMS)

    assert [row.change for row in rows] == [Change.INTRODUCED, Change.FIXED, Change.UNCHANGED]
