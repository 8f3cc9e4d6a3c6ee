"""What is run again before a cell fails, and what never is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from hybridbench.over_time.policy import NextAttempt, Rules, extension_s, next_attempt, result
from hybridbench.records.finding import VerdictKind
from hybridbench.records.nightly import Attempt, AttemptReason, CellKind, CellState, Policy
from tests.unit.over_time.planned_runs import GROWTH, NODES, UNDECIDED, attempt, planned_run

FALSE_LEAK = attempt("LEAK", GROWTH)
LEAK = attempt("LEAK", NODES)
CLEAN = attempt()
SHORT = attempt("INCONCLUSIVE", UNDECIDED)


@pytest.fixture
def rules(tmp_path: Path) -> Rules:
    planned = planned_run(tmp_path)
    return planned.rules(planned.cells[0])


def again(why: AttemptReason, verdict: str = "CLEAN", *findings: object) -> Attempt:
    return attempt(verdict, *findings, reason=why, seed=99)  # type: ignore[arg-type]


def test_a_leak_of_statistics_is_tried_with_another_seed(rules: Rules) -> None:
    wanted = next_attempt(rules, [FALSE_LEAK])

    assert wanted is not None
    assert wanted.reason is AttemptReason.RERUN
    assert wanted.seed != rules.cell.seed


def test_a_leak_that_was_counted_fails_at_once(rules: Rules) -> None:
    both = attempt("LEAK", NODES, GROWTH)

    assert next_attempt(rules, [LEAK]) is None
    assert next_attempt(rules, [both]) is None
    assert result(rules, [LEAK]).exit_code == 10


def test_a_second_seed_that_agrees_makes_it_fail(rules: Rules) -> None:
    attempts = [FALSE_LEAK, again(AttemptReason.RERUN, "LEAK", GROWTH)]

    assert next_attempt(rules, attempts) is None
    assert (result(rules, attempts).state, result(rules, attempts).exit_code) == ("fail", 10)


def test_a_second_seed_that_disagrees_decides_and_is_reported(rules: Rules) -> None:
    attempts = [FALSE_LEAK, again(AttemptReason.RERUN)]

    said = result(rules, attempts)

    assert next_attempt(rules, attempts) is None
    assert said.state is CellState.PASS
    assert said.notes[0].startswith("not confirmed: ")
    assert said.notes[0].endswith("does not show it")


@pytest.mark.parametrize("word", ["INCONCLUSIVE", "INVALID"])
def test_a_second_seed_without_an_answer_is_not_said_to_be_free_of_the_leak(
    rules: Rules, word: str
) -> None:
    undecided = replace(UNDECIDED, verdict=VerdictKind(word))
    attempts = [FALSE_LEAK, again(AttemptReason.RERUN, word, undecided)]

    note = result(rules, attempts).notes[0]

    assert note.endswith(f"the run with seed 99 is {word} and does not rule it out")


def test_the_policy_may_take_the_first_word(rules: Rules) -> None:
    hasty = replace(rules, policy=replace(rules.policy, rerun_statistical_leak=False))

    assert next_attempt(hasty, [FALSE_LEAK]) is None
    assert result(hasty, [FALSE_LEAK]).state is CellState.FAIL


def test_an_undecided_soak_went_on_by_itself_and_is_neutral(rules: Rules) -> None:
    went_on = msgspec.structs.replace(SHORT, extend_s=1800.0, extended_s=1800.0)

    assert next_attempt(rules, []) == NextAttempt(AttemptReason.FIRST, 1, 1800.0, 1800.0)
    assert next_attempt(rules, [went_on]) is None
    said = result(rules, [went_on])
    assert (said.state, said.exit_code, said.word) == (CellState.NEUTRAL, 0, "INCONCLUSIVE")
    assert said.notes == ("run 1 was extended by 30m beyond its 30m, as it was undecided",)


def test_what_the_budget_left_no_time_for_is_told(rules: Rules) -> None:
    none = result(rules, [msgspec.structs.replace(SHORT, extend_s=0.0)])
    some = result(rules, [msgspec.structs.replace(SHORT, extend_s=120.0)])

    assert none.notes == ("undecided, and the budget left no time to extend it",)
    assert some.notes == ("undecided, and the budget left only 2m to extend it",)


def test_how_long_a_run_may_go_on_is_the_plans_or_the_soaks_default(rules: Rules) -> None:
    never = Policy(extend=0.0)
    short = msgspec.structs.replace(rules.cell, duration_s=300.0)
    comparison = msgspec.structs.replace(rules.cell, kind=CellKind.COMPARE)

    assert extension_s(short, rules.policy) == 600.0
    assert extension_s(short, never) == 0.0
    assert extension_s(comparison, rules.policy) == 0.0


def test_the_plan_may_let_undecided_cells_fail(rules: Rules) -> None:
    strict = replace(rules, policy=Policy(inconclusive="fail"))

    said = result(strict, [SHORT])

    assert (said.state, said.exit_code) == (CellState.FAIL, 13)


def test_a_run_that_proved_nothing_is_made_once_more_and_then_fails(rules: Rules) -> None:
    gap = replace(UNDECIDED, kind="gaps", verdict=VerdictKind.INVALID)
    invalid = attempt("INVALID", gap)
    again_invalid = again(AttemptReason.RETRY, "INVALID", gap)

    assert next_attempt(rules, [invalid]) == NextAttempt(AttemptReason.RETRY, 1, 1800.0, 1800.0)
    assert next_attempt(rules, [invalid, again_invalid]) is None
    said = result(rules, [invalid, again_invalid])
    assert (said.state, said.exit_code) == (CellState.FAIL, 16)


def test_an_exact_leak_in_a_doubtful_run_fails_at_once(rules: Rules) -> None:
    gap = replace(UNDECIDED, kind="gaps", verdict=VerdictKind.INVALID)
    counted, fitted = attempt("LEAK", NODES, gap), attempt("INVALID", gap, GROWTH)

    assert next_attempt(rules, [counted]) is None
    assert result(rules, [counted]).exit_code == 10
    assert next_attempt(rules, [fitted]) is not None


def test_no_cell_is_run_for_ever(rules: Rules) -> None:
    gap = replace(UNDECIDED, kind="gaps", verdict=VerdictKind.INVALID)
    worst = [
        attempt("INVALID", gap),
        again(AttemptReason.RETRY, "LEAK", GROWTH),
        again(AttemptReason.RERUN, "INCONCLUSIVE", UNDECIDED),
    ]

    made: list[Attempt] = []
    for step in worst:
        wanted = next_attempt(rules, made)
        assert wanted is not None
        made.append(msgspec.structs.replace(step, reason=wanted.reason))

    assert next_attempt(rules, made) is None


def test_a_run_without_a_verdict_is_missing_with_its_last_words(rules: Rules) -> None:
    broken = attempt("", exit_code=2, complaint="no such model")

    assert next_attempt(rules, [broken]) is None
    said = result(rules, [broken])
    assert (said.state, said.exit_code) == (CellState.MISSING, 16)
    assert said.headline == "no such model"


def test_a_waived_leak_is_neither_failed_nor_run_again(tmp_path: Path) -> None:
    waiver = (
        "waivers: [{kind: growth, subject: rss_anon_swap_bytes, expires: 2026-11-20, "
        "link: tracker/1, reason: known}]\n"
    )
    planned = planned_run(tmp_path, "name: test\ncells: [{profile: smoke}]\n" + waiver)
    rules = planned.rules(planned.cells[0])

    assert next_attempt(rules, [FALSE_LEAK]) is None
    assert result(rules, [FALSE_LEAK]).state is CellState.PASS
    assert result(rules, [attempt("LEAK", GROWTH, NODES)]).state is CellState.FAIL


def test_a_run_that_was_cut_off_and_went_on_is_told(rules: Rules) -> None:
    once = result(rules, [attempt()])
    twice = result(rules, [attempt(segments=2)])

    assert once.notes == ()
    assert "has 2 segments" in twice.notes[0]
