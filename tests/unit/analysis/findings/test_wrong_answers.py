"""When answers are called wrong, and which traits the wrong ones share."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
import pytest

from hybridbench.analysis.distributions import fisher
from hybridbench.analysis.findings.wrong_answers import WrongAnswers, answer_notes
from hybridbench.analysis.judge import judge
from hybridbench.analysis.record import RunRecord
from hybridbench.foundation.errors import ExitCode
from hybridbench.records.answers import Trait
from hybridbench.records.events import AnswersCompared, Crash, Interrupted, Lineages, WrongAnswer
from hybridbench.records.finding import VerdictKind
from hybridbench.records.manifest import Manifest
from hybridbench.records.verdict import Verdict
from tests.unit.analysis.records import Run, healthy_record, with_events

RUN = Run(duration_s=240.0, steady_s=60.0)
TOLERANCE = 5e-4


def wrong(rid: str, distance: float = 0.01, *traits: str) -> WrongAnswer:
    return WrongAnswer(rid=rid, prompt_tokens=20, place=3, distance=distance, traits=traits)


def compared(
    *answers: WrongAnswer, right: int = 100, right_traits: dict[str, int] | None = None
) -> AnswersCompared:
    traits: dict[str, int] = {}
    for answer in answers:
        for trait in answer.traits:
            traits[trait] = traits.get(trait, 0) + 1
    return AnswersCompared(
        t_s=240.0,
        compared=right + len(answers),
        tokens=2000,
        tolerance=TOLERANCE,
        wrong=answers,
        wrong_answers=len(answers),
        wrong_traits=traits,
        right_traits=right_traits or {},
        left_out={"sampled": 30, "aborted": 2},
    )


def judged(*events: AnswersCompared | Crash | Interrupted) -> Verdict:
    return judge(with_events(healthy_record(RUN), *events))


def test_answers_that_all_agree_change_nothing_but_a_note() -> None:
    without, verdict = judge(healthy_record(RUN)), judged(compared())

    assert verdict.kind is without.kind
    assert verdict.findings == without.findings
    (note,) = [note for note in verdict.notes if "reference" in note]
    assert "all agree" in note
    assert "30 sampled at a temperature, 2 aborted" in note


def test_one_wrong_answer_alone_does_not_decide() -> None:
    verdict = judged(compared(wrong("a")))

    assert verdict.kind is judge(healthy_record(RUN)).kind
    assert any("one different answer alone does not decide" in note for note in verdict.notes)


@pytest.mark.parametrize(
    "events",
    [
        [compared(wrong("a"), wrong("b"))],
        [compared(wrong("a")), compared(wrong("b"))],  # in two segments
        [compared(wrong("a", 100 * TOLERANCE))],
    ],
)
def test_two_do_and_so_does_one_that_is_far_beyond(events: list[AnswersCompared]) -> None:
    verdict = judged(*events)

    assert verdict.kind is VerdictKind.CORRUPT
    assert verdict.exit_code is ExitCode.CORRUPT
    assert int(verdict.exit_code) == 17
    assert verdict.findings[0].exact


def test_wrong_answers_come_before_a_crash_and_stand_in_a_doubtful_run() -> None:
    answers = compared(wrong("a"), wrong("b"))

    assert judged(answers, Crash(t_s=239.0)).kind is VerdictKind.CORRUPT
    verdict = judged(answers)
    assert verdict.stands(verdict.findings[0])


def test_what_wrong_answers_have_in_common_leads_the_sentence() -> None:
    tracked = [wrong(str(i), 1.0, Trait.REUSED_TRACKED, Trait.BESIDE_OTHERS) for i in range(17)]
    right: dict[str, int] = {Trait.REUSED_TRACKED: 31, Trait.BESIDE_OTHERS: 380}

    verdict = judged(compared(*tracked, right=395, right_traits=right))

    finding = verdict.findings[0]
    assert finding.title == (
        "17 of 412 answers are wrong; 17 of 17 had taken a state from a track buffer, through the "
        "tree, 31 of 395 right ones had"
    )
    assert isinstance(finding.basis, WrongAnswers)
    assert [one.trait for one in finding.basis.common] == [Trait.REUSED_TRACKED]
    assert "request 0, 20 prompt tokens: output token 4" in " ".join(finding.evidence)


def test_faults_of_sampling_are_told_from_those_of_a_state() -> None:
    answers = [wrong(f"r{n}", 0.1) for n in range(12)]
    sampled = msgspec.structs.replace(compared(*answers), greedy=50)

    [found] = [f for f in judged(sampled).findings if isinstance(f.basis, WrongAnswers)]

    assert found.title.endswith(
        "all of them were sampled at a temperature, and none of 50 greedy ones is wrong"
    )
    assert "seed" in found.cause
    assert "seed" in found.basis.advice(found)
    # Too few greedy answers, a wrong greedy answer, or an older run that did not count them.
    few = msgspec.structs.replace(sampled, greedy=5)
    one = msgspec.structs.replace(sampled, wrong_greedy=1)
    for event in (few, one, compared(*answers)):
        [other] = [f for f in judged(event).findings if isinstance(f.basis, WrongAnswers)]
        assert "sampled" not in other.title
        assert "state" in other.cause


def test_what_is_shared_is_said_of_those_that_reused_nothing_of_a_wrong_one() -> None:
    heirs = [wrong(str(i), 1.0, Trait.REUSED_TREE) for i in range(5)]
    first = [wrong(f"first-{i}", 1.0, Trait.RETRACTED) for i in range(12)]
    answers = msgspec.structs.replace(
        compared(*heirs, *first, right=395),
        wrong_first=12,
        right_first=300,
        wrong_traits={Trait.RETRACTED: 12, Trait.BESIDE_OTHERS: 12},
        right_traits={Trait.RETRACTED: 31, Trait.BESIDE_OTHERS: 60},
    )

    finding = judged(answers).findings[0]

    assert finding.title == (
        "17 of 412 answers are wrong; 12 of 12 that do not continue from another wrong one had "
        "been retracted, 31 of 300 right ones had"
    )
    assert (
        finding.evidence[0]
        == "12 of 12 that do not continue from another wrong one had run beside others from the "
        "start, 60 of 300 right ones had"
    )


def test_a_place_in_the_answer_is_compared_with_one_drawn_in_right_answers() -> None:
    first = [wrong(str(i), 1.0, Trait.PAGE_START) for i in range(9)]

    verdict = judged(compared(*first, right=50, right_traits={Trait.PAGE_START: 2}))

    assert verdict.findings[0].title == (
        "9 of 59 answers are wrong; 9 of 9 differ at the first token of a page, a randomly drawn "
        "token is there in 2 of 50 right ones"
    )


def test_what_chance_may_explain_is_not_named() -> None:
    two = [wrong(str(i), 1.0, Trait.RETRACTED) for i in range(2)]

    verdict = judged(compared(*two, right=50, right_traits={Trait.RETRACTED: 20}))

    assert verdict.findings[0].title == "2 of 52 answers are wrong"


def test_a_trait_that_all_have_is_never_named() -> None:
    every = [wrong(str(i), 1.0, Trait.REUSED_TREE) for i in range(40)]

    verdict = judged(compared(*every, right=40, right_traits={Trait.REUSED_TREE: 40}))

    assert verdict.findings[0].title == "40 of 80 answers are wrong"


@pytest.mark.parametrize(
    ("at_start", "said", "advised"),
    [
        (155, "; all of them differ at their first token", "such as an empty state slot"),
        (118, "; 118 of them differ at their first token", "such as an empty state slot"),
        (0, "; none of them differ at their first token", "Look at the decode steps"),
        (None, "; 4 agree, too few to show what only the wrong ones have in common", "slot"),
    ],
)
def test_where_nearly_all_answers_are_wrong_the_sentence_says_from_where(
    at_start: int | None, said: str, advised: str
) -> None:
    every = [wrong(str(i), 1.0, Trait.REUSED_NOTHING) for i in range(155)]
    answers = compared(*every, right=4, right_traits={Trait.REUSED_NOTHING: 4})

    finding = judged(msgspec.structs.replace(answers, wrong_at_start=at_start)).findings[0]

    assert finding.title == f"155 of 159 answers are wrong{said}"
    assert any("4 agree, too few" in line for line in (finding.title, *finding.evidence))
    assert advised in finding.basis.advice(finding)


def test_the_first_tokens_of_all_segments_count_if_all_counted_them() -> None:
    answers = compared(*(wrong(str(i), 1.0) for i in range(5)))
    known = msgspec.structs.replace(answers, wrong_at_start=3)

    assert "6 of them differ at their first token" in judged(known, known).findings[0].evidence
    assert "first token" not in " ".join(judged(known, answers).findings[0].evidence)


@pytest.mark.parametrize(
    "table", [(17, 17, 31, 395), (3, 10, 4, 20), (0, 5, 7, 9), (5, 5, 0, 1), (1, 1, 0, 300)]
)
def test_fishers_test_is_that_of_scipy(table: tuple[int, int, int, int]) -> None:
    # Imported here because it takes seconds, and not every process runs this test.
    from scipy.stats import fisher_exact

    wrong_with, all_wrong, right_with, all_right = table

    found = fisher(table)

    counts = np.array([[wrong_with, all_wrong - wrong_with], [right_with, all_right - right_with]])
    assert found == pytest.approx(fisher_exact(counts, alternative="greater").pvalue, rel=1e-9)


def test_strata_are_dealt_apart_and_their_sum_is_tested() -> None:
    # Imported here because it takes seconds, and not every process runs this test.
    from scipy.stats import hypergeom

    tables = [(4, 5, 3, 20), (2, 3, 1, 9), (0, 2, 5, 6)]

    found = fisher(*tables)

    chance = 0.0
    for counts in itertools.product(range(6), range(4), range(3)):
        if sum(counts) < 6:
            continue
        chances = [
            hypergeom.pmf(k, wrong + right, wrong_with + right_with, wrong)
            for k, (wrong_with, wrong, right_with, right) in zip(counts, tables, strict=True)
        ]
        chance += float(np.prod(chances))
    assert found == pytest.approx(chance, rel=1e-9)


def test_a_trait_of_those_that_wrong_answers_go_on_from_is_named_if_it_is_not_their_own() -> None:
    trait = Trait.ENDED_AFTER_HIT
    answers = compared(
        *(wrong(str(i), 1.0, *([trait] if i < 3 else [])) for i in range(18)),
        right=300,
        right_traits={trait: 30},
    )
    of_three = Lineages(
        ancestors=3,
        wrong=18,
        right=300,
        wrong_traits={trait: 13},
        right_traits={trait: 90},
        repeated={trait: 4},
    )

    finding = judged(msgspec.structs.replace(answers, lineages=(of_three,))).findings[0]

    assert finding.title == (
        "18 of 318 answers are wrong; 13 of 14 had used up the room of the step that admitted "
        "them, after a hit, or continue from a request that had, 90 of 300 right ones do"
    )
    assert isinstance(finding.basis, WrongAnswers)
    assert [one.of_wrong for one in finding.basis.common] == [14]


def test_a_trait_of_the_answers_themselves_is_not_reported_for_earlier_requests() -> None:
    answers = compared(
        *(wrong(str(i), 1.0, Trait.RETRACTED) for i in range(18)),
        right=300,
        right_traits={Trait.RETRACTED: 30},
    )
    traits: dict[str, int] = {Trait.RETRACTED: 18}
    all_of_them = Lineages(
        ancestors=2, wrong=18, right=300, wrong_traits=traits, right_traits={Trait.RETRACTED: 90}
    )

    finding = judged(msgspec.structs.replace(answers, lineages=(all_of_them,))).findings[0]

    assert isinstance(finding.basis, WrongAnswers)
    assert [one.of_wrong for one in finding.basis.common] == [None]


def test_answers_chosen_for_a_rare_trait_count_for_that_trait_alone() -> None:
    rare, other = Trait.LOADED_BACK, Trait.BESIDE_OTHERS
    answers = msgspec.structs.replace(
        compared(*(wrong(str(i), 1.0, rare, other) for i in range(14)), right=330),
        wrong_first=2,
        right_first=300,
        wrong_traits={rare: 2, other: 2},
        right_traits={rare: 4, other: 100},
        wrong_for={rare: 12},
        right_for={rare: 10, Trait.RETRACTED: 20},
    )

    finding = judged(answers).findings[0]

    # The twelve were chosen for the rare trait, so they do not count for the other one.
    assert isinstance(finding.basis, WrongAnswers)
    assert [one.trait for one in finding.basis.common] == [rare]
    assert finding.title == (
        "14 of 344 answers are wrong; 14 of 14 had a part of their prefix loaded back from the "
        "host, 14 of 310 right ones had"
    )


def test_those_chosen_for_a_trait_join_the_stratum_they_were_chosen_from() -> None:
    trait = Trait.LOADED_BACK
    drawn = Lineages(ancestors=1, wrong=3, right=200, right_traits={trait: 6})
    chosen = Lineages(
        ancestors=1,
        chosen_for=trait,
        wrong=9,
        right=3,
        wrong_traits={trait: 9},
        right_traits={trait: 3},
    )
    answers = msgspec.structs.replace(
        compared(*(wrong(str(i)) for i in range(12)), right=203), lineages=(drawn, chosen)
    )
    elsewhere = msgspec.structs.replace(chosen, chosen_for=Trait.RETRACTED)

    named = judged(answers).findings[0]
    not_named = judged(msgspec.structs.replace(answers, lineages=(drawn, elsewhere))).findings[0]

    assert "9 of 12 had a part of their prefix loaded back" in named.title
    assert "loaded back" not in not_named.title


def test_a_trait_that_only_follows_from_longer_chats_is_not_reported() -> None:
    """Long chats are wrong more often, and more often one of their requests was retracted."""
    short = Lineages(wrong=5, right=400, wrong_traits={}, right_traits={Trait.RETRACTED: 8})
    long = Lineages(
        ancestors=7,
        wrong=45,
        right=100,
        wrong_traits={Trait.RETRACTED: 36},
        right_traits={Trait.RETRACTED: 80},
    )
    answers = compared(*(wrong(str(i)) for i in range(50)), right=500)

    finding = judged(msgspec.structs.replace(answers, lineages=(short, long))).findings[0]

    assert finding.title == "50 of 550 answers are wrong"
    assert fisher((36, 50, 88, 500)) < 1e-10  # significant without strata


def test_one_answer_is_in_the_singular() -> None:
    (note,) = answer_notes(RunRecord(Manifest(), {}, [AnswersCompared(compared=1, tokens=16)]))

    assert note == "1 answer (16 tokens) was recomputed by a reference: it agrees"
