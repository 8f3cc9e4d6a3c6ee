"""Calls of a comparison: faster, slower or the same, when to stop, and which metrics may gate."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from hybridbench.analysis.comparison.compare import (
    compare,
    complete_rounds,
    look,
    planned_looks,
    primaries,
)
from hybridbench.analysis.comparison.metrics import COMPARED
from hybridbench.analysis.comparison.records import (
    Block,
    Call,
    Comparison,
    ComparisonTerms,
    MetricComparison,
    Outcome,
    Role,
)
from hybridbench.records.manifest import Manifest, ResolvedProfile
from hybridbench.records.verdict import Why
from tests.unit.analysis.comparisons import THROUGHPUT, pair, rounds, version

TERMS = ComparisonTerms()


def _metric(ratios: dict[str, float], name: str, noise: float = 0.004) -> MetricComparison:
    found = compare(pair(rounds(24, ratios, noise=noise, seed=1)), TERMS)
    return next(m for m in found.sides[0].metrics if m.metric == name)


@pytest.mark.parametrize(
    ("ratio", "word"),
    [(0.90, "SLOWER"), (1.0, "SAME"), (0.99, "SAME"), (1.10, "FASTER"), (1 / 1.03, "INCONCLUSIVE")],
)
def test_throughput_is_called_by_where_its_interval_lies_against_the_margin(
    ratio: float, word: str
) -> None:
    found = _metric({THROUGHPUT: ratio}, THROUGHPUT)

    assert found.word == word
    assert found.ratio == pytest.approx(ratio, abs=0.01)


@pytest.mark.parametrize(
    ("name", "worse", "better"),
    [
        ("cpu_ms_per_token", "SLOWER", "FASTER"),
        ("rest_anon_swap_bytes", "MORE", "LESS"),
        ("peak_rss_bytes", "MORE", "LESS"),
        ("itl_ms_p50", "SLOWER", "FASTER"),
    ],
)
def test_a_cost_or_a_size_that_rises_is_worse(name: str, worse: str, better: str) -> None:
    risen = _metric({THROUGHPUT: 1.0, name: 1.3}, name)
    fallen = _metric({THROUGHPUT: 1.0, name: 0.7}, name)

    assert (risen.call, risen.word) == (Call.WORSE, worse)
    assert (fallen.call, fallen.word) == (Call.BETTER, better)


def test_a_hit_rate_that_falls_to_nothing_is_lower_and_not_absent() -> None:
    blocks = rounds(12, {THROUGHPUT: 1.0}, noise=0.004)
    blocks = tuple(
        replace(b, values={**b.values, "hit_rate": 0.0 if b.version else 0.5}) for b in blocks
    )

    found = compare(pair(blocks), TERMS)

    hit_rate = next(m for m in found.sides[0].metrics if m.metric == "hit_rate")
    assert hit_rate.word == "LOWER"
    assert found.outcome is Outcome.REGRESSION


def test_a_guard_alone_turns_the_answer_red() -> None:
    found = compare(pair(rounds(24, {THROUGHPUT: 1.0, "ttft_ms_p50": 1.4}, noise=0.004)), TERMS)

    assert found.outcome is Outcome.REGRESSION
    assert found.word == "TTFT p50 SLOWER"


def test_an_undecided_guard_does_not_delay_the_answer() -> None:
    blocks = rounds(24, {THROUGHPUT: 1.0}, noise=0.004)
    rng = np.random.default_rng(1)
    blocks = tuple(
        replace(b, values={**b.values, "ttft_ms_p50": float(np.exp(rng.normal()))}) for b in blocks
    )

    found = compare(pair(blocks), TERMS)

    ttft = next(m for m in found.sides[0].metrics if m.metric == "ttft_ms_p50")
    assert ttft.call is Call.INCONCLUSIVE
    assert found.outcome is Outcome.SAME


def test_a_tail_is_shown_and_never_gates() -> None:
    found = compare(pair(rounds(24, {THROUGHPUT: 1.0, "itl_ms_p99": 2.0}, noise=0.004)), TERMS)

    tail = next(m for m in found.sides[0].metrics if m.metric == "itl_ms_p99")
    assert (tail.role, tail.call) == (Role.SHOWN, Call.WORSE)
    assert found.outcome is Outcome.SAME


def test_guards_and_the_answer_share_one_error_probability() -> None:
    ratios = {metric.name: 1.0 for metric in COMPARED}

    found = compare(pair(rounds(12, ratios, noise=0.01)), TERMS)

    gated = [m for m in found.sides[0].metrics if m.role is not Role.SHOWN]
    spent = sum((1.0 - m.confidence) / 2.0 for m in gated)
    assert len(gated) == 7
    assert spent == pytest.approx(TERMS.alpha)


def test_three_versions_are_each_compared_with_the_first_at_the_same_alpha() -> None:
    two = rounds(24, {THROUGHPUT: 0.9}, noise=0.004, seed=1)
    # The third version repeats the first version's values.
    third = tuple(replace(b, version=2, position=2) for b in two if b.version == 0)
    versions = (version("."), version("defect:slow"), version("git:HEAD"))
    comparison = Comparison(versions, (*two, *third), True, (6, 12, 18, 24))

    found = compare(comparison, TERMS)

    slow, same = found.sides
    assert (slow.word, same.word) == ("SLOWER", "SAME")
    assert found.outcome is Outcome.REGRESSION
    assert found.worst() is slow
    primary = slow.primary()
    assert primary is not None
    assert primary.confidence == pytest.approx(1.0 - TERMS.alpha)


def test_where_arrivals_are_scheduled_the_answer_rests_on_the_cost_of_a_token() -> None:
    profile = ResolvedProfile(resolved={"arrival": {"process": "poisson"}})
    manifest = Manifest(profile=profile)
    sides = [version(name, manifest=manifest) for name in (".", "defect:slow")]
    blocks = rounds(24, {THROUGHPUT: 1.0, "cpu_ms_per_token": 1.1}, noise=0.004)

    found = compare(pair(blocks, *sides), TERMS)

    primary = found.sides[0].primary()
    assert primary is not None
    assert (primary.metric, primary.word) == ("cpu_ms_per_token", "SLOWER")
    throughput = next(m for m in found.sides[0].metrics if m.metric == THROUGHPUT)
    assert throughput.role is Role.SHOWN


def test_the_pairs_still_needed_are_enough_when_they_have_come() -> None:
    few = rounds(6, {THROUGHPUT: 1.0}, noise=0.025, seed=4)
    (early,) = primaries(few, TERMS)
    assert early.call is Call.INCONCLUSIVE
    assert early.pairs_needed is not None

    decided = 0
    for seed in range(20):
        total = 6 + early.pairs_needed
        blocks = rounds(total, {THROUGHPUT: 1.0}, noise=0.025, seed=seed)
        (late,) = primaries(blocks, TERMS, looks=planned_looks(total, TERMS))
        decided += late.call is Call.SAME

    assert decided >= 10


def test_a_ratio_on_the_edge_of_the_margin_is_promised_no_number_of_pairs() -> None:
    (found,) = primaries(rounds(24, {THROUGHPUT: 1.0 / 1.03}, noise=0.0), TERMS)

    assert found.call is Call.INCONCLUSIVE
    assert found.pairs_needed is None


def test_two_pairs_decide_nothing_however_equal_they_are() -> None:
    (found,) = primaries(rounds(2, {THROUGHPUT: 1.0}, noise=1e-9), TERMS)

    assert found.call is Call.INCONCLUSIVE
    assert found.why == Why("few-pairs", {"pairs": 2})


def test_a_look_stops_at_a_decision_and_says_how_far_it_is_before() -> None:
    calm = look(rounds(6, {THROUGHPUT: 0.7}, noise=0.004), TERMS)
    noisy = look(rounds(6, {THROUGHPUT: 1.0}, noise=0.025, seed=4), TERMS)
    nothing = look((), TERMS)

    assert calm.decided
    assert [metric.word for metric in calm.metrics] == ["SLOWER"]
    assert not noisy.decided
    assert noisy.rounds_needed is not None
    assert not nothing.decided
    assert nothing.metrics == ()


def test_a_look_waits_until_every_version_is_decided() -> None:
    two = rounds(12, {THROUGHPUT: 0.7}, noise=0.004)
    rng = np.random.default_rng(0)
    third = tuple(
        Block(2, b.round, 2, 0.0, {THROUGHPUT: 100 * float(np.exp(0.2 * rng.normal()))})
        for b in two
        if b.version == 0
    )

    found = look((*two, *third), TERMS, versions=3)

    assert not found.decided


def test_planned_looks_end_with_the_last_round_and_go_on_for_long_comparisons() -> None:
    assert planned_looks(4, TERMS) == (4,)
    assert planned_looks(10, TERMS) == (6, 10)
    assert planned_looks(24, TERMS) == (6, 12, 18, 24)
    assert planned_looks(50, TERMS) == (6, 12, 18, 24, 36, 48, 50)


def test_a_round_that_one_version_did_not_finish_is_not_complete() -> None:
    blocks = rounds(3, {THROUGHPUT: 1.0})[:-1]

    assert complete_rounds(blocks, 2) == 2


def test_swapping_the_versions_swaps_the_call() -> None:
    blocks = rounds(24, {THROUGHPUT: 0.95}, noise=0.006)
    swapped = tuple(replace(b, version=1 - b.version) for b in blocks)

    (there,), (back,) = primaries(blocks, TERMS), primaries(swapped, TERMS)

    assert (there.call, back.call) == (Call.WORSE, Call.BETTER)
    assert back.ratio == pytest.approx(1.0 / there.ratio)
    assert back.lower == pytest.approx(1.0 / there.upper)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ComparisonTerms(margin=0.0), "margin"),
        (lambda: ComparisonTerms(margin=1.0), "margin"),
        (lambda: ComparisonTerms(alpha=0.7), "alpha"),
        (lambda: ComparisonTerms(looks=(12, 6)), "looks"),
        (lambda: ComparisonTerms(looks=()), "looks"),
    ],
)
def test_terms_that_mean_nothing_are_refused(make: Callable[[], object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()


def test_twice_the_rounds_take_no_more_than_twice_the_calls() -> None:
    def calls(count: int) -> int:
        comparison = pair(rounds(count, {metric.name: 1.0 for metric in COMPARED}, noise=0.03))
        made: list[str] = []
        sys.setprofile(lambda _, event, __: made.append(event))
        try:
            found = compare(comparison, TERMS)
        finally:
            sys.setprofile(None)
        assert found.rounds == count
        return len(made)

    compare(pair(rounds(4, {THROUGHPUT: 1.0})), TERMS)  # one-time work must not be counted

    assert calls(1000) <= 2 * calls(500)
