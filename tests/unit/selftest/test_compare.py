"""A row is right only if verdict, subject, driver, rate and count are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hybridbench.analysis.findings import Finding, Rate, Verdict, VerdictKind
from hybridbench.defects.defect import Signature
from hybridbench.selftest.compare import compare
from hybridbench.selftest.matrix import Expect, Row
from hybridbench.selftest.table import line, markdown, summary

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
    ),
    duration_s=45.0,
)
TWIN = Row(
    expect=Expect.TWIN,
    profile="smoke",
    signature=Signature(("CLEAN", "INCONCLUSIVE"), (), "", "none", "none"),
    duration_s=45.0,
)
FINDING = Finding(
    kind="residual",
    verdict=VerdictKind.LEAK,
    subject="mamba pool",
    title="30 slots are missing",
    driver="refusals",
    rates=(Rate(2400.0, 2300.0, 2500.0, "slots", "h"), Rate(1.0, 1.0, 1.0, "slots", "refusal")),
    data={"pool": "mamba", "missing": 30},
)
TRUTH = {"slots_lost": 30, "refusals": 30}


def verdict(kind: VerdictKind, *findings: Finding) -> Verdict:
    return Verdict(kind, f"{kind}: said", findings, (), None, "")


def leak(**changes: object) -> Verdict:
    return verdict(VerdictKind.LEAK, replace(FINDING, **changes))  # type: ignore[arg-type]


def test_a_finding_that_says_everything_right_is_right() -> None:
    outcome = compare(CAUGHT, leak(), TRUTH, 20.0)

    assert outcome.wrong == ()
    assert (outcome.driver, outcome.truth, outcome.detect_s) == ("refusals", "1", 20.0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"driver": "retracts"}, "driver retracts, not refusals"),
        ({"subject": "kv pool"}, "no finding residual of mamba"),
        ({"kind": "growth"}, "no finding residual of mamba"),
        ({"data": {"missing": 29}}, "29 slots reported missing; 30 are"),
        ({"rates": (Rate(1.5, 1.4, 1.6, "slots", "refusal"),)}, "the truth is 1"),
        ({"rates": (FINDING.rates[0],)}, "no rate for each event"),
    ],
)
def test_one_thing_wrong_is_wrong(changes: dict[str, object], said: str) -> None:
    outcome = compare(CAUGHT, leak(**changes), TRUTH)

    assert any(said in wrong for wrong in outcome.wrong), outcome.wrong


def test_a_driver_that_cannot_be_told_from_the_right_one_is_right_if_the_finding_says_so() -> None:
    data = {"missing": 30, "rivals": ["finishes", "refusals"]}
    said = compare(CAUGHT, leak(driver="retracts", data=data), TRUTH)

    assert said.wrong == ()


def test_a_rate_is_right_if_the_truth_lies_in_its_interval_at_999_in_a_thousand() -> None:
    # 95 %: 1.2 +- 0.15, so 99.9 %: 1.2 +- 0.25.
    near = compare(CAUGHT, leak(rates=(Rate(1.2, 1.05, 1.35, "slots", "refusal"),)), TRUTH)
    far = compare(CAUGHT, leak(rates=(Rate(1.3, 1.15, 1.45, "slots", "refusal"),)), TRUTH)

    assert near.wrong == ()
    assert len(far.wrong) == 1


def test_a_clean_verdict_on_a_defect_is_wrong_and_on_its_twin_is_right() -> None:
    clean = verdict(VerdictKind.CLEAN)

    assert any("verdict CLEAN, not LEAK" in wrong for wrong in compare(CAUGHT, clean, TRUTH).wrong)
    assert compare(TWIN, clean, {}).wrong == ()


def test_a_twin_that_is_accused_of_anything_is_wrong_even_if_the_verdict_is_allowed() -> None:
    outcome = compare(TWIN, verdict(VerdictKind.INCONCLUSIVE, FINDING), {})

    assert outcome.wrong == ("found residual: 30 slots are missing",)


def test_where_no_event_is_asked_for_no_rate_of_one_is() -> None:
    # What work costs is told in milliseconds, whatever the defect has counted.
    row = replace(CAUGHT, signature=replace(CAUGHT.signature, kinds=("decay",), drivers=()))
    decay = replace(FINDING, kind="decay", driver=None, rates=(), data={})

    assert compare(row, verdict(VerdictKind.LEAK, decay), TRUTH).wrong == ()


def test_what_an_invalid_run_found_accuses_nobody() -> None:
    row = replace(TWIN, signature=replace(TWIN.signature, verdicts=("INVALID",)))

    assert compare(row, verdict(VerdictKind.INVALID, FINDING), {}).wrong == ()
    assert compare(row, verdict(VerdictKind.LEAK, FINDING), {}).wrong


def test_the_table_has_a_line_for_each_row_and_says_what_was_wrong() -> None:
    outcomes = [
        compare(CAUGHT, leak(driver="retracts"), TRUTH),
        compare(TWIN, verdict(VerdictKind.CLEAN), {}),
    ]

    text = markdown(outcomes)

    assert text.count("\n|") == 3
    assert "driver retracts, not refusals" in text
    assert summary(outcomes) == "1 of 2 rows are right."
    assert line(outcomes[0]).startswith("WRONG")
    assert line(outcomes[1]).startswith("ok")
