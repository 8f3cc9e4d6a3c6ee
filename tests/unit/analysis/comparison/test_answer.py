"""Combining many calls into one answer: its outcome, its wording, and which call prevails."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hybridbench.analysis.comparison.compare import compare
from hybridbench.analysis.comparison.records import (
    Call,
    Comparison,
    ComparisonTerms,
    ComparisonVerdict,
    Outcome,
)
from hybridbench.foundation.errors import ExitCode
from hybridbench.records.finding import VerdictKind
from tests.unit.analysis.comparisons import (
    THROUGHPUT,
    growth,
    leak,
    pair,
    rounds,
    run_record,
    strays,
    verdict,
    version,
)
from tests.unit.made_findings import a_finding

TERMS = ComparisonTerms()
SAME = rounds(12, {THROUGHPUT: 1.0}, noise=0.004)
SLOW = rounds(12, {THROUGHPUT: 0.8}, noise=0.004)
FAST = rounds(12, {THROUGHPUT: 1.25}, noise=0.004)
NOISY = rounds(6, {THROUGHPUT: 1.0}, noise=0.2)
CLEAN = verdict(metrics=[growth(0.0, 0.1, "CLEAN")])
LEAKS = verdict(VerdictKind.LEAK, [leak()], [growth(3.7, 0.1, "LEAK")])


def _answer(comparison: Comparison) -> ComparisonVerdict:
    return compare(comparison, TERMS)


def test_an_introduced_leak_is_a_regression() -> None:
    found = _answer(pair(SAME, version(".", CLEAN), version("defect:x", LEAKS)))

    assert found.word == "LEAK INTRODUCED"
    assert found.exit_code is ExitCode.REGRESSION


def test_an_exact_finding_is_introduced_without_a_test() -> None:
    record = run_record({"nodes_evicted": 5000.0})
    own = verdict(VerdictKind.LEAK, [strays(0.9)])

    found = _answer(pair(SAME, version(".", record=record), version("defect:x", own, record)))

    assert found.word == "LEAK INTRODUCED"


@pytest.mark.parametrize(
    ("blocks", "outcome", "word", "code"),
    [
        (SAME, Outcome.SAME, "SAME", ExitCode.CLEAN),
        (SLOW, Outcome.REGRESSION, "SLOWER", ExitCode.REGRESSION),
        (FAST, Outcome.BETTER, "FASTER", ExitCode.CLEAN),
        (NOISY, Outcome.INCONCLUSIVE, "INCONCLUSIVE", ExitCode.INCONCLUSIVE),
        ((), Outcome.INCONCLUSIVE, "INCONCLUSIVE", ExitCode.INCONCLUSIVE),
    ],
    ids=["same", "slower", "faster", "noisy", "no blocks"],
)
def test_without_a_finding_the_answer_is_that_of_the_speed(
    blocks: tuple[()], outcome: Outcome, word: str, code: ExitCode
) -> None:
    found = _answer(pair(blocks, version(".", CLEAN), version("git:HEAD", CLEAN)))

    assert (found.outcome, found.word, found.exit_code) == (outcome, word, code)


def test_a_leak_outweighs_a_gain_in_speed() -> None:
    found = _answer(pair(FAST, version(".", CLEAN), version("defect:x", LEAKS)))

    assert found.word == "LEAK INTRODUCED"


def test_a_fixed_leak_is_better_but_not_while_the_speed_is_open() -> None:
    sides = (version("defect:x", LEAKS), version(".", CLEAN))

    decided, open_ = _answer(pair(SAME, *sides)), _answer(pair(NOISY, *sides))

    assert (decided.outcome, decided.word) == (Outcome.BETTER, "LEAK FIXED")
    assert open_.outcome is Outcome.INCONCLUSIVE


def test_a_leak_in_both_is_no_regression() -> None:
    found = _answer(pair(SAME, version("a", LEAKS), version("b", LEAKS)))

    assert found.outcome is Outcome.SAME


def test_an_undecided_finding_is_no_pass() -> None:
    unsure = verdict(metrics=[growth(1.0, 3.0, "INCONCLUSIVE")])

    found = _answer(pair(SAME, version(".", unsure), version("defect:x", LEAKS)))

    assert found.outcome is Outcome.INCONCLUSIVE


def test_a_crash_of_the_second_version_alone_is_a_regression_that_is_named() -> None:
    crash = a_finding("crash", VerdictKind.CRASHED, "worker", "the worker died")
    dead = version("git:HEAD", verdict(VerdictKind.CRASHED, [crash]))

    second = _answer(pair(SAME[:6], version(".", CLEAN), dead))
    both = _answer(pair(SAME[:6], replace(dead, name="."), dead))

    assert (second.outcome, second.word) == (Outcome.REGRESSION, "CRASHED")
    assert both.word != "CRASHED"


def test_a_crash_of_the_first_version_is_no_fault_of_the_second_and_leaves_its_leaks_open() -> None:
    dead = version(".", verdict(VerdictKind.CRASHED))

    found = _answer(pair(SAME, dead, version("git:HEAD", CLEAN)))

    assert found.outcome is Outcome.INCONCLUSIVE


@pytest.mark.parametrize("kinds", [("CLEAN", "INVALID"), ("INVALID", "CLEAN")])
def test_an_invalid_run_leaves_the_speed_standing_and_the_leaks_open(kinds: list[str]) -> None:
    base, other = (verdict(VerdictKind(kind)) for kind in kinds)

    found = _answer(pair(SAME, version(".", base), version("b", other)))

    primary = found.sides[0].primary()
    assert primary is not None
    assert primary.call is Call.SAME
    assert found.outcome is Outcome.INCONCLUSIVE


def test_a_single_version_is_no_comparison() -> None:
    with pytest.raises(ValueError, match="two versions"):
        _answer(Comparison((version("."),), (), True))
