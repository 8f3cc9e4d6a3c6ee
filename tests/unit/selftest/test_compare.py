"""A row is right only if its verdict, subject, driver, rate and count are all right."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hybridbench.analysis.comparison.records import (
    Call,
    ComparisonTerms,
    ComparisonVerdict,
    MetricComparison,
    Outcome,
    Role,
    SideComparison,
)
from hybridbench.defects.defect import FoundBy, Signature
from hybridbench.defects.paced import private_memory_grows
from hybridbench.records.finding import Finding, HowDriven, Rate, VerdictKind
from hybridbench.records.verdict import MetricResult, Verdict
from hybridbench.selftest.compare import Outcome as RowOutcome
from hybridbench.selftest.compare import RowTruth, compare, compare_versions
from hybridbench.selftest.matrix import Expect, Row
from hybridbench.selftest.table import line, markdown, summary
from tests.unit.made_findings import a_finding, changed

CAUGHT = Row(
    expect=Expect.CAUGHT,
    profile="smoke",
    signature=Signature(
        verdicts=("LEAK",),
        kinds=("residual",),
        subject="mamba",
        event="refusal",
        rate="1 slot",
        drivers=("refusals",),
        harm="slots_lost",
        per="refusals",
        counted="missing",
    ),
    duration_s=45.0,
)
TWIN = Row(
    expect=Expect.TWIN,
    profile="smoke",
    signature=Signature(("CLEAN", "INCONCLUSIVE"), (), "", "none", "none"),
    duration_s=45.0,
)
FINDING = a_finding(
    kind="residual",
    verdict=VerdictKind.LEAK,
    subject="mamba pool",
    title="30 slots are missing",
    driver="refusals",
    rates=(Rate(2400.0, 2300.0, 2500.0, "slots", "h"), Rate(1.0, 1.0, 1.0, "slots", "refusal")),
    data={"pool": "mamba", "missing": 30},
)
TRUTH = {"slots_lost": 30, "refusals": 30}


GROWING = Row(
    expect=Expect.CAUGHT,
    profile="smoke",
    signature=private_memory_grows("one block a request"),
    duration_s=300.0,
)
# Two MiB in 1.8 s are 4,000 MiB/h.
KEPT = {"bytes_kept": 2 * 2**20, "milliseconds": 1_800}
MIB = 2.0**20


def growth(lower: float, upper: float) -> Finding:
    """Return a finding: private memory grows by 4,100 MiB/h, with these bounds in MiB/h."""
    return a_finding(
        kind="growth",
        verdict=VerdictKind.LEAK,
        subject="rss_anon_swap_bytes",
        title="private memory grows",
        driver="finishes",
        rates=(
            Rate(4100.0 * MIB, lower * MIB, upper * MIB, "B", "h"),
            Rate(7.0, 6.0, 8.0, "B", "request"),
        ),
    )


def verdict(kind: VerdictKind, *findings: Finding) -> Verdict:
    return Verdict(kind, "said", findings, (), None, "")


COMPARED = replace(
    CAUGHT,
    signature=replace(
        CAUGHT.signature,
        verdicts=("REGRESSION",),
        kinds=("LOWER",),
        subject="hit_rate",
        drivers=(),
        counted="other",
        found_by=FoundBy.COMPARE,
    ),
)


def metric(name: str, call: Call, word: str, *, other: float) -> MetricComparison:
    return MetricComparison(
        metric=name,
        label=name,
        unit="ratio",
        role=Role.GUARD,
        call=call,
        word=word,
        margin=0.05,
        base=other / 0.89,
        other=other,
        ratio=0.89,
        lower=0.86,
        upper=0.91,
        confidence=0.95,
        pairs=6,
        sd=0.01,
        robust_ratio=0.89,
    )


def answer(outcome: Outcome, *metrics: MetricComparison) -> ComparisonVerdict:
    side = SideComparison(1, "defect:x", outcome, outcome.value, metrics, ())
    return ComparisonVerdict(outcome, outcome.value, (side,), 6, ComparisonTerms(), True)


def compared(
    row: Row,
    verdict: Verdict,
    counts: dict[str, int],
    detect_s: float | None = None,
    objections: dict[str, int] | None = None,
) -> RowOutcome:
    """Call ``compare`` for a run that ended with an idle checkpoint."""
    return compare(row, verdict, RowTruth(counts, counts, {}), detect_s, objections)


def leak(**changes: object) -> Verdict:
    return verdict(VerdictKind.LEAK, changed(FINDING, **changes))


def test_a_finding_that_says_everything_right_is_right() -> None:
    outcome = compared(CAUGHT, leak(), TRUTH, 20.0)

    assert outcome.wrong == ()
    assert (outcome.driver, outcome.truth, outcome.detect_s) == ("refusals", "1", 20.0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"driver": "retracts"}, "driver retracts, not refusals"),
        ({"subject": "kv pool"}, "no finding residual of mamba"),
        ({"kind": "growth"}, "no finding residual of mamba"),
        ({"data": {"missing": 29}}, "missing: 29; the truth is 30"),
        ({"data": {}}, "the finding has no number 'missing'; the truth is 30"),
        ({"rates": (Rate(1.5, 1.4, 1.6, "slots", "refusal"),)}, "the truth is 1"),
        ({"rates": (FINDING.rates[0],)}, "no rate to compare"),
    ],
)
def test_one_thing_wrong_is_wrong(changes: dict[str, object], said: str) -> None:
    outcome = compared(CAUGHT, leak(**changes), TRUTH)

    assert any(said in wrong for wrong in outcome.wrong), outcome.wrong


def test_a_finding_of_idle_checkpoints_is_compared_with_the_counts_at_the_last_one() -> None:
    truth = RowTruth({"slots_lost": 70, "refusals": 35}, TRUTH, {})
    grown = replace(CAUGHT, signature=replace(CAUGHT.signature, kinds=("growth",)))

    assert compare(CAUGHT, leak(), truth).wrong == ()
    assert compare(grown, leak(kind="growth"), truth).wrong != ()


def test_a_trend_is_compared_with_what_happened_since_the_engine_was_steady() -> None:
    early = {name: 3 * count for name, count in TRUTH.items()}
    late = {name: early[name] + count for name, count in TRUTH.items()}
    grown = replace(CAUGHT, signature=replace(CAUGHT.signature, kinds=("growth",)))

    assert compare(grown, leak(kind="growth"), RowTruth(late, {}, early)).wrong == ()
    assert compare(grown, leak(kind="growth"), RowTruth(late, {}, {})).wrong != ()


def test_a_driver_that_cannot_be_told_from_the_right_one_is_right_if_the_finding_says_so() -> None:
    driven = HowDriven(events=30.0, share=1.0, rivals=("finishes", "refusals"))
    data = {"missing": 30}
    said = compared(CAUGHT, leak(driver="retracts", driven=driven, data=data), TRUTH)

    assert said.wrong == ()


def test_a_rate_is_right_if_the_truth_lies_in_its_interval_at_999_in_a_thousand() -> None:
    # 95%: 1.2 +- 0.15, so 99.9%: 1.2 +- 0.25.
    near = compared(CAUGHT, leak(rates=(Rate(1.2, 1.05, 1.35, "slots", "refusal"),)), TRUTH)
    far = compared(CAUGHT, leak(rates=(Rate(1.3, 1.15, 1.45, "slots", "refusal"),)), TRUTH)

    assert near.wrong == ()
    assert len(far.wrong) == 1


def test_a_clean_verdict_on_a_defect_is_wrong_and_on_its_twin_is_right() -> None:
    clean = verdict(VerdictKind.CLEAN)

    assert any("verdict CLEAN, not LEAK" in wrong for wrong in compared(CAUGHT, clean, TRUTH).wrong)
    assert compared(TWIN, clean, {}).wrong == ()


def test_a_twin_that_is_accused_of_anything_is_wrong_even_if_the_verdict_is_allowed() -> None:
    outcome = compared(TWIN, verdict(VerdictKind.INCONCLUSIVE, FINDING), {})

    assert outcome.wrong == ("found residual: 30 slots are missing",)


def test_a_defect_that_did_nothing_was_not_found_whatever_the_report_says() -> None:
    idle = compared(CAUGHT, leak(), {"slots_lost": 0, "refusals": 30})

    assert idle.wrong == ("the defect did nothing: its truth counts no slots_lost",)
    assert compared(CAUGHT, leak(), {}).wrong == idle.wrong


def test_a_finding_without_a_number_to_compare_is_wrong() -> None:
    row = replace(CAUGHT, signature=replace(CAUGHT.signature, counted=""))

    driven = HowDriven(events=30.0, share=1.0, rivals=("refusals",))

    # Its driver may be the right one, but its rate is for a wrong one.
    other = compared(row, leak(driver="retracts", driven=driven), TRUTH)

    assert other.wrong == ("nothing in the finding is compared with the truth, 1",)
    assert compared(row, leak(), TRUTH).wrong == ()


def test_a_row_that_must_be_caught_cannot_be_made_without_a_truth() -> None:
    for lacking in ({"harm": ""}, {"per": "", "counted": ""}):
        with pytest.raises(ValueError, match="must name what the defect's truth counts"):
            replace(CAUGHT, signature=replace(CAUGHT.signature, **lacking))  # type: ignore[arg-type]
    assert TWIN.signature.harm == ""


def test_what_work_costs_is_compared_for_each_event_in_the_units_of_the_finding() -> None:
    cost = replace(CAUGHT.signature, kinds=("decay",), drivers=(), counted="value", scale=1e-6)
    row = replace(CAUGHT, signature=cost)
    truth = {"slots_lost": 90_000_000, "refusals": 30}
    data = {"value": 2.9, "lower": 2.8, "upper": 3.1}
    decay = changed(FINDING, kind="decay", driver=None, rates=(), data=data)

    assert compared(row, verdict(VerdictKind.LEAK, decay), truth).wrong == ()
    off = changed(decay, data={**data, "upper": 2.95})
    (wrong,) = compared(row, verdict(VerdictKind.LEAK, off), truth).wrong
    assert wrong == "value: 2.9 (2.8 to 2.95); the truth is 3"


def test_a_report_that_sees_a_part_may_say_less_than_the_truth_and_never_more() -> None:
    row = replace(CAUGHT, signature=replace(CAUGHT.signature, at_most=True))
    rates = (Rate(0.5, 0.4, 0.6, "slots", "refusal"),)

    assert compared(row, leak(rates=rates, data={"missing": 12}), TRUTH).wrong == ()
    assert compared(row, leak(data={"missing": 31}), TRUTH).wrong == (
        "missing: 31; the truth is 30",
    )


def test_in_a_healthy_run_allocators_that_check_nothing_have_nothing_to_object_to() -> None:
    clean = verdict(VerdictKind.CLEAN)

    assert compared(TWIN, clean, {}, objections={"kv": 0, "mamba": 0}).wrong == ()
    (wrong,) = compared(TWIN, clean, {}, objections={"kv": 16, "mamba": 0}).wrong
    assert wrong == "16 slots of kv were freed by an owner that did not hold them"
    assert compared(CAUGHT, leak(), TRUTH, objections={"kv": 16}).wrong == ()


def test_a_comparison_is_right_if_the_metric_is_worse_and_agrees_with_the_truth() -> None:
    lower = metric("hit_rate", Call.WORSE, "LOWER", other=0.65)
    slower = metric("throughput_tokens_per_s", Call.WORSE, "SLOWER", other=9000.0)
    same = metric("hit_rate", Call.SAME, "SAME", other=0.65)
    truth = {"slots_lost": 66, "refusals": 100}

    right = compare_versions(COMPARED, answer(Outcome.REGRESSION, slower, lower), truth)
    assert right.wrong == ()
    assert (right.verdict, right.subject, right.rate) == ("REGRESSION", "hit_rate", "0.65 other")
    other_truth = compare_versions(
        COMPARED, answer(Outcome.REGRESSION, lower), {"slots_lost": 70, "refusals": 100}
    )
    assert other_truth.wrong == ("other: 0.65 (0.6175 to 0.6825); the truth is 0.7",)
    missed = compare_versions(COMPARED, answer(Outcome.SAME, same), truth)
    assert missed.wrong[0].startswith("verdict SAME, not REGRESSION")
    assert missed.wrong[1] == "no finding LOWER of hit_rate; there is none"


def test_an_invalid_run_is_wrong_for_counted_findings_but_not_for_fitted_ones() -> None:
    row = replace(TWIN, signature=replace(TWIN.signature, verdicts=("INVALID", "LEAK")))
    doubt = a_finding("gaps", VerdictKind.INVALID, "sampler")
    fitted = changed(FINDING, kind="growth")

    assert compared(row, verdict(VerdictKind.INVALID, doubt, fitted), {}).wrong == ()
    assert compared(row, verdict(VerdictKind.LEAK, fitted), {}).wrong
    assert compared(row, verdict(VerdictKind.LEAK, FINDING, doubt), {}).wrong


def test_growth_of_memory_is_compared_with_the_truth_for_each_hour() -> None:
    # 95%: 4,100 +- 60, so 99.9%: 4,100 +- 101.
    near = compared(GROWING, verdict(VerdictKind.LEAK, growth(4040.0, 4160.0)), KEPT)
    far = compared(GROWING, verdict(VerdictKind.LEAK, growth(4050.0, 4150.0)), KEPT)

    assert near.wrong == ()
    assert near.truth == f"{4000 * MIB:.4g}"
    assert len(far.wrong) == 1
    assert "the truth is" in far.wrong[0]


def test_what_a_process_grows_by_without_the_defect_comes_to_the_truth_of_an_hour() -> None:
    found = verdict(VerdictKind.LEAK, growth(4080.0, 4120.0))

    def beside(lower: float, upper: float, metric: str = "rss_anon_swap_bytes") -> RowOutcome:
        rate = Rate((lower + upper) / 2 * MIB, lower * MIB, upper * MIB, "B", "h")
        of_control = MetricResult(metric, "CLEAN", (0.0, 300.0), rate, None, 0.0, None, "")
        return compare(GROWING, found, RowTruth(KEPT, KEPT, {}, (of_control,)))

    assert beside(50.0, 110.0).wrong == ()
    assert "and 5.24e+07 to 1.15e+08 without the defect" in beside(50.0, 110.0).truth
    assert beside(0.0, 50.0).wrong
    assert beside(170.0, 200.0).wrong, "the control grew by more than the row did"
    assert beside(50.0, 110.0, "rest_anon_swap_bytes").wrong, "of another metric"


def test_growth_that_the_defect_did_not_count_is_wrong() -> None:
    outcome = compared(GROWING, verdict(VerdictKind.LEAK, growth(4000.0, 4200.0)), {})

    assert any("the defect did nothing" in wrong for wrong in outcome.wrong)


def test_a_defect_seen_only_in_memory_must_have_no_other_leak_finding() -> None:
    also = changed(FINDING, kind="container-grows", title="a table grows")
    other = compared(GROWING, verdict(VerdictKind.LEAK, growth(4000.0, 4200.0), also), KEPT)
    slower = replace(also, verdict=VerdictKind.DEGRADED)
    busy = compared(GROWING, verdict(VerdictKind.LEAK, growth(4000.0, 4200.0), slower), KEPT)

    assert other.wrong == ("not alone: found container-grows: a table grows",)
    assert busy.wrong == ()


def test_an_undecided_twin_is_wrong_where_it_must_be_clean_and_is_counted_where_it_may() -> None:
    open_ = verdict(VerdictKind.INCONCLUSIVE)
    short = compared(TWIN, open_, {})
    full = compared(
        replace(TWIN, signature=replace(TWIN.signature, verdicts=("CLEAN",))), open_, {}
    )

    assert short.wrong == ()
    assert full.wrong == ("verdict INCONCLUSIVE, not CLEAN: said",)
    assert "1 of 1 healthy rows stayed undecided" in summary([short])
    assert "too short to bound memory" in summary([short])


def test_the_table_has_a_line_for_each_row_and_says_what_was_wrong() -> None:
    outcomes = [
        compared(CAUGHT, leak(driver="retracts"), TRUTH),
        compared(TWIN, verdict(VerdictKind.CLEAN), {}),
    ]

    text = markdown(outcomes)

    assert text.count("\n|") == 3
    assert "driver retracts, not refusals" in text
    assert summary(outcomes) == "1 of 2 rows are right."
    assert line(outcomes[0]).startswith("WRONG")
    assert line(outcomes[1]).startswith("ok")
