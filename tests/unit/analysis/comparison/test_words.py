"""A comparison in words: headline, notes and reasons."""

from __future__ import annotations

from dataclasses import replace

from hybridbench.analysis.comparison import reasons
from hybridbench.analysis.comparison.compare import compare, look
from hybridbench.analysis.comparison.reasons import (
    FasterThanMemory,
    FewEvents,
    NearMargin,
    NotAlone,
    OtherDriver,
)
from hybridbench.analysis.comparison.records import (
    Change,
    Comparison,
    ComparisonTerms,
    ComparisonVerdict,
    InterimAnalysis,
    Outcome,
)
from hybridbench.analysis.comparison.words import look_text, phrased_comparison, undecided_text
from hybridbench.records.finding import VerdictKind
from tests.unit.analysis.comparisons import (
    GIB,
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
from tests.unit.made_findings import a_finding, changed

TERMS = ComparisonTerms()
SAME = rounds(12, {THROUGHPUT: 1.0}, noise=0.004)
SLOW = rounds(12, {THROUGHPUT: 0.8}, noise=0.004)
NOISY = rounds(6, {THROUGHPUT: 1.0}, noise=0.2)
CLEAN = verdict(metrics=[growth(0.0, 0.1, "CLEAN")])
LEAKS = verdict(VerdictKind.LEAK, [leak()], [growth(3.7, 0.1, "LEAK")])


def answer(comparison: Comparison) -> ComparisonVerdict:
    return phrased_comparison(comparison, compare(comparison, TERMS))


def test_an_introduced_leak_leads_with_its_rate_and_the_speed_follows() -> None:
    found = answer(pair(SAME, version(".", CLEAN), version("defect:x", LEAKS)))

    assert found.full_headline.startswith(
        "LEAK INTRODUCED: private memory +3.70 GiB/h; throughput "
    )
    assert found.headline.endswith("%), SAME")


def test_an_exact_finding_leads_with_its_title() -> None:
    record = run_record({"nodes_evicted": 5000.0})
    stray = strays(0.9)
    own = verdict(VerdictKind.LEAK, [stray])

    found = answer(pair(SAME, version(".", record=record), version("defect:x", own, record)))

    assert found.full_headline.startswith(f"LEAK INTRODUCED: {stray.title}; throughput")


def test_a_finding_of_both_versions_leads_with_its_title_and_the_difference() -> None:
    record = run_record({"nodes_evicted": 5000.0})
    first, second = (verdict(VerdictKind.LEAK, [strays(rate)]) for rate in (0.9, 2.7))

    found = answer(pair(SAME, version(".", first, record), version("b", second, record)))

    assert found.word == "LEAK WORSE"
    assert f"{strays(2.7).title}; difference +1.80 nodes per evicted node" in found.headline


def test_a_slower_version_is_told_with_its_change_and_no_word_twice() -> None:
    found = answer(pair(SLOW, version(".", CLEAN), version("b", CLEAN)))

    assert found.full_headline.startswith("SLOWER: throughput \N{MINUS SIGN}2")
    assert found.full_headline.count("SLOWER") == 1


def test_an_undecided_speed_says_why() -> None:
    found = answer(pair(NOISY, version(".", CLEAN), version("b", CLEAN)))

    assert "the interval crosses the margin of 3%" in found.headline


def test_other_changes_stay_in_the_headline_of_an_undecided_comparison() -> None:
    unsure = verdict(metrics=[growth(1.0, 3.0, "INCONCLUSIVE")])

    gone = answer(pair(NOISY, version("defect:x", LEAKS), version(".", CLEAN)))
    open_ = answer(pair(SAME, version(".", unsure), version("defect:x", LEAKS)))

    assert "LEAK FIXED: private memory" in gone.headline
    assert "finding UNDECIDED: private memory" in open_.headline


def test_a_crash_or_an_invalid_run_says_that_leaks_were_not_compared() -> None:
    crash = a_finding("crash", VerdictKind.CRASHED, "worker", "the worker died")
    dead = verdict(VerdictKind.CRASHED, [crash])
    void = verdict(VerdictKind.INVALID)

    first = answer(pair(SAME, version(".", dead), version("b", CLEAN)))
    second = answer(pair(SAME, version(".", CLEAN), version("b", void)))
    alike = answer(pair(SAME, version(".", void), version(".", void)))

    said, why = "leaks were not compared: {} is {}", "leaks were not compared, because the run of "
    assert said.format(". (working tree)", "CRASHED") in first.headline
    assert said.format("b", "INVALID") in second.headline
    assert alike.headline.count(said.format(". (working tree)", "INVALID")) == 1
    for found in (first, second, alike):
        assert sum(note.startswith(why) for note in found.sides[0].notes) == 1


def test_every_outcome_has_a_headline_of_two_lines() -> None:
    """Even if some side leaks, is undecided or was not compared."""
    record = run_record({"nodes_evicted": 5000.0})
    stray = changed(strays(0.9), title="removed TreeNode objects stay alive: 0.99 per node " * 3)
    void = replace(verdict(VerdictKind.INVALID, [stray]), headline="too little " * 20)
    worse = verdict(VerdictKind.LEAK, [strays(2.7), leak()], [growth(3.7, 0.1, "LEAK")])
    crash = verdict(VerdictKind.CRASHED, [a_finding("crash", VerdictKind.CRASHED, "worker", "it")])
    own = [CLEAN, LEAKS, void, worse, crash, verdict(metrics=[growth(1.0, 3.0, "INCONCLUSIVE")])]
    names = (".", "git:refs/remotes/origin/a-branch-with-a-long-name-of-somebody")

    words = set()
    for blocks in (SAME, SLOW, NOISY, rounds(12, {THROUGHPUT: 1.3}, noise=0.004), ()):
        for first in own:
            for second in own:
                sides = (
                    version(name, one, record)
                    for name, one in zip(names, (first, second), strict=True)
                )
                found = answer(pair(blocks, *sides))
                words.add(found.word)
                assert len(found.full_headline) <= 160, found.headline
                assert found.full_headline.startswith(f"{found.word}: ")

    assert words >= {"LEAK INTRODUCED", "LEAK WORSE", "LEAK FIXED", "SLOWER", "CRASHED", "SAME"}
    assert words >= {"INCONCLUSIVE", "FASTER"}


def test_a_bench_that_failed_leaves_the_comparison_open_and_says_so() -> None:
    title = "hybridbench failed in the comparison (OSError: no)"
    failure = a_finding("bench-failed", VerdictKind.INCONCLUSIVE, "the comparison", title)
    cut = verdict(VerdictKind.INCONCLUSIVE, [failure])

    found = answer(pair(SAME, version(".", CLEAN), version("b", cut)))

    assert found.outcome is Outcome.INCONCLUSIVE
    assert "leaks were not compared: b is INCONCLUSIVE" in found.headline
    assert any(f"the run of b is INCONCLUSIVE: {title}" in note for note in found.sides[0].notes)


def test_without_a_common_round_there_is_nothing_to_compare() -> None:
    found = answer(pair((), version(".", CLEAN), version("b", CLEAN)))

    assert "no complete round has a throughput or a cost to compare" in found.headline


def test_of_several_versions_the_gravest_leads_with_its_name() -> None:
    two = rounds(24, {THROUGHPUT: 0.9}, noise=0.004, seed=1)
    third = tuple(replace(b, version=2, position=2) for b in two if b.version == 0)
    versions = (version("."), version("defect:slow"), version("git:HEAD"))

    found = answer(Comparison(versions, (*two, *third), True, (6, 12, 18, 24)))

    assert found.full_headline.startswith("defect:slow: SLOWER: ")
    assert found.headline.endswith("(and git:HEAD SAME)")


def test_a_large_effect_of_the_order_is_noted() -> None:
    blocks = rounds(12, {THROUGHPUT: 1.0}, noise=0.004, second_turn=0.08)

    (note,) = [n for n in answer(pair(blocks)).sides[0].notes if "second in a round" in n]
    assert "differs by +8" in note
    assert not any("second in a round" in note for note in answer(pair(SAME)).sides[0].notes)


def test_the_bound_on_memory_is_noted() -> None:
    found = answer(pair(SAME, version(".", CLEAN), version("b", CLEAN)))

    assert (
        "judged alone, the private memory of . (working tree) grows by at most 102 MiB/h, that of "
        "b by at most 102 MiB/h (95% each)"
    ) in found.sides[0].notes


def test_what_one_process_per_version_cannot_tell_is_noted_unless_each_block_had_its_own() -> None:
    comparison = pair(SAME)

    usual, fresh = answer(comparison), answer(replace(comparison, renew_every=1))
    some = answer(replace(comparison, renew_every=6))

    assert any("one process:" in note for note in usual.notes)
    assert any("ran in 2 processes" in note for note in some.notes)
    assert fresh.notes == ()


def test_allowed_mismatches_are_noted() -> None:
    found = answer(replace(pair(SAME), allowed_mismatches=frozenset({"gc", "malloc"})))

    # They may be equal all the same.
    assert "these were allowed to differ (--allow-mismatch): gc, malloc" in found.notes


def test_growth_without_a_finding_has_a_name() -> None:
    base = version(".", verdict(metrics=[growth(0.0, 0.01, "CLEAN")]))
    other = version("b", verdict(metrics=[growth(0.3, 0.01, "CLEAN")]))

    (row,) = [row for row in answer(pair(SAME, base, other)).sides[0].leaks if row.why]

    assert row.change is Change.GROWS_FASTER
    assert row.title == "growth of private memory"
    assert row.reason == "growth differs, and is below the limit in both versions"


def test_an_interim_analysis_is_one_line() -> None:
    decided = look(rounds(6, {THROUGHPUT: 0.7}, noise=0.004), TERMS)
    open_ = look(rounds(6, {THROUGHPUT: 1.0}, noise=0.025, seed=4), TERMS)

    assert look_text(decided).startswith("throughput \N{MINUS SIGN}3")
    assert look_text(decided).endswith("SLOWER")
    assert look_text(open_).endswith(f"; about {open_.rounds_needed} more rounds")
    assert look_text(replace(open_, rounds_needed=1)).endswith("; about 1 more round")
    assert look_text(InterimAnalysis(False)) == "no two rounds are complete"


def test_one_more_pair_is_in_the_singular() -> None:
    (metric, *_) = look(rounds(6, {THROUGHPUT: 1.0}, noise=0.025, seed=4), TERMS).metrics

    said = undecided_text(replace(metric, reason="", pairs_needed=1))

    assert said == "about 1 more pair would decide"


def test_every_reason_has_a_code_of_its_own() -> None:
    kinds = [one for one in vars(reasons).values() if isinstance(one, type)]
    own = [vars(kind)["code"] for kind in kinds if "code" in vars(kind)]

    assert len(set(own)) == len(own) == 15


def test_reasons_carry_their_numbers() -> None:
    rate = {"value": 0.39 * GIB, "lower": 0.34 * GIB, "upper": 0.44 * GIB}

    assert NotAlone(shares=(0.0, 0.4)).text().endswith("0% and 40% of the time")
    assert FewEvents(events=4.0, driver="evict_leaf").text() == (
        "only 4 evict_leaf in the version without it"
    )
    assert NearMargin(margin=0.03).text().endswith("the margin of 3%")
    assert "evict_leaf in the first run, by no event in the second" in (
        OtherDriver(first="evict_leaf", second=None).text()
    )
    faster = FasterThanMemory(**rate, memory_upper=0.19 * GIB)
    assert faster.text().startswith("these objects accumulate 399 MiB/h (")
    assert "(at most 195 MiB/h, 95%)" in faster.text()
    assert faster.why().data == {**rate, "memory_upper": 0.19 * GIB}
