"""When answers that a server does not reproduce are called wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import pytest
from msgspec.structs import replace

from hybridbench.analysis.findings.repeated_answers import (
    repeated_answer_findings,
    repeated_answer_notes,
)
from hybridbench.analysis.judge import judge
from hybridbench.analysis.record import RunRecord
from hybridbench.foundation.errors import ExitCode
from hybridbench.records.events import AnswersRepeated
from hybridbench.records.finding import VerdictKind
from hybridbench.records.load import Differing, Repeated
from tests.unit.analysis.records import Run, healthy_record, with_events

RUN = Run(duration_s=240.0, steady_s=60.0)


def differing(*margins: float | None, reused: bool | None = None) -> tuple[Differing, ...]:
    return tuple(Differing(3, 100, margin, reused) for margin in margins)


def record(
    served: tuple[Differing, ...],
    control: tuple[Differing, ...] = (),
    *,
    usual_gap: float | None = 0.5,
    noise: float = 0.01,
    noise_tokens: int = 2000,
    known: int = 0,
    reused: int = 0,
    exact: bool = False,
    beside: Mapping[str, int] | None = None,
    met: int = 0,
    undecided: int = 0,
) -> RunRecord:
    so_far = Repeated(
        compared=1000,
        tokens=16_000,
        served_differ=len(served),
        control_differ=len(control),
        served=served,
        control=control,
        usual_gap=usual_gap,
        noise=noise,
        noise_tokens=noise_tokens,
        left_out={"sampled": 40} | ({"undecided": undecided} if undecided else {}),
        known=known,
        reused=reused,
        exact=exact,
        beside=dict(beside or {}),
        met=met,
    )
    return with_events(healthy_record(RUN), AnswersRepeated(so_far=so_far, t_s=230.0))


@pytest.mark.parametrize("streamed", [True, False])
def test_a_fault_of_streaming_alone_is_named(*, streamed: bool) -> None:
    wrong = (Differing(3, 100, 2.5, streamed=True), Differing(3, 100, 2.5, streamed=streamed))

    (found,) = repeated_answer_findings(record(wrong, wrong))

    assert ("look at the code that streams them" in found.basis.advice(found)) is streamed
    words = found.basis.words(found)
    assert ("a part of each stream was lost" in str(words.cause)) is streamed
    assert "gives it alone, not streamed, three times" in " ".join(words.evidence)


def test_two_answers_that_rounding_does_not_explain_are_corrupt() -> None:
    verdict = judge(record(differing(3.0, 0.01, 2.5)))

    assert verdict.kind is VerdictKind.CORRUPT
    assert verdict.exit_code is ExitCode.CORRUPT
    (finding,) = (one for one in verdict.findings if one.kind == "answers-differ")
    assert finding.data["wrong"] == 2
    assert "2 of 1,000 answers differ" in finding.title
    assert not any("asked for again" in note for note in verdict.notes)


def test_differences_that_time_left_undecided_make_the_count_a_lower_bound() -> None:
    (finding,) = repeated_answer_findings(record(differing(3.0, 2.5), undecided=7))

    assert "At least 2 of 1,007 answers differ" in finding.title
    assert "7 that differ, but time ran out before" in " ".join(finding.evidence)


def test_answers_that_are_wrong_without_reuse_as_well_are_wrong() -> None:
    (finding,) = repeated_answer_findings(record(differing(3.0), differing(2.0)))

    assert (finding.data["wrong"], finding.data["control"]) == (1, 1)
    assert "Answers without reuse are wrong as well" in finding.basis.advice(finding)


@pytest.mark.parametrize("certain", ["length", "text"])
def test_what_no_rounding_does_needs_no_margin(certain: Literal["length", "text"]) -> None:
    """A server without logprobs may also lose the end of an answer."""
    lost = (Differing(3, 100, None, certain=certain),) * 2
    unknown: dict[str, Any] = {"usual_gap": None, "noise": 0.0, "noise_tokens": 0}

    (finding,) = repeated_answer_findings(record(lost, differing(None), **unknown))

    assert (finding.verdict, finding.data["wrong"]) == (VerdictKind.CORRUPT, 2)
    words = finding.basis.words(finding)
    assert any("the effect of rounding was not measured" in line for line in words.evidence)
    (with_another,) = repeated_answer_findings(record(lost[:1], differing(3.0), **unknown))
    assert with_another.verdict is VerdictKind.INCONCLUSIVE


@pytest.mark.parametrize(
    ("served", "control", "known"),
    [
        # Rounding can decide these, even if reuse makes that happen more often.
        (differing(*[0.19] * 200), (), {}),
        (differing(*[0.049] * 200), (), {"noise": 0.0}),
        # Only ten times what the measured rounding can reverse.
        (differing(*[3.0] * 40), differing(2.9), {"noise": 0.15}),
        # A single one, also if the server reports no logprobs; too few tokens measured.
        (differing(3.0, 0.1), (), {}),
        (differing(None), (), {"usual_gap": None, "noise_tokens": 0}),
        (differing(3.0, *[0.19] * 40), (), {"noise_tokens": 499}),
    ],
)
def test_differences_that_rounding_may_explain_are_a_note(
    served: tuple[Differing, ...], control: tuple[Differing, ...], known: dict[str, Any]
) -> None:
    found = record(served, control, **known)

    assert repeated_answer_findings(found) == []
    (note,) = repeated_answer_notes(found)
    with_reuse, without = (f"{len(n)} differ{'s' * (len(n) == 1)}" for n in (served, control))
    assert f"{with_reuse}, and {without} without reuse" in note


@pytest.mark.parametrize(
    ("margin", "is_longer_run"),
    [(3.0, True), (None, False)],
)
def test_differences_are_open_if_rounding_was_not_measured(
    margin: float | None, *, is_longer_run: bool
) -> None:
    """A server without logprobs was CLEAN, although it gave answers to the wrong requests."""
    verdict = judge(record(differing(margin, margin), usual_gap=None, noise_tokens=0))

    assert verdict.kind is VerdictKind.INCONCLUSIVE
    (finding,) = (one for one in verdict.findings if one.kind == "answers-differ")
    assert "its effect was not measured" in str(finding.cause)
    assert ("diverge at position 4" in finding.evidence[0]) is not is_longer_run
    assert finding.basis.needs_longer_run is is_longer_run
    assert ("Run longer" in finding.basis.advice(finding)) is is_longer_run


def test_differences_beyond_the_rounding_measured_so_far_are_open() -> None:
    """A soak of four minutes had measured 476 tokens, and each wrong answer was off by 2 nats."""
    verdict = judge(record(differing(2.0), differing(6.0), noise_tokens=499))

    assert verdict.kind is VerdictKind.INCONCLUSIVE
    (finding,) = (one for one in verdict.findings if one.kind == "answers-differ")
    assert "more than rounding has caused so far" in str(finding.cause)
    assert "Run longer" in finding.basis.advice(finding)


@pytest.mark.parametrize(
    ("margins", "known", "verdict"),
    [
        ((0.001, 0.0004), {}, VerdictKind.CORRUPT),
        # The server was seen to break its promise; a single difference; exact ties.
        ((0.001, 0.0004), {"noise": 1e-6}, None),
        ((0.001,), {}, None),
        ((0.0, 0.0), {}, None),
        ((0.001, 0.0004), {"noise_tokens": 499}, VerdictKind.INCONCLUSIVE),
    ],
)
def test_on_a_batch_invariant_server_nothing_is_rounding(
    margins: tuple[float, ...], known: dict[str, Any], verdict: VerdictKind | None
) -> None:
    found = repeated_answer_findings(
        record(differing(*margins), exact=True, **{"noise": 0.0, **known})
    )

    assert [one.verdict for one in found] == [verdict] * (verdict is not None)
    if verdict is not None:
        assert any("the same bits each time" in line for line in found[0].evidence)


def test_a_server_that_breaks_its_promise_of_equal_bits_is_named_in_the_note() -> None:
    (note,) = repeated_answer_notes(record((), exact=True, noise=0.002))

    assert "logprobs differ by up to 0.002 although the server was started so" in note


def test_the_last_event_has_all_that_came_before() -> None:
    earlier = AnswersRepeated(so_far=Repeated(compared=5), t_s=100.0)

    (note,) = repeated_answer_notes(with_events(record(()), earlier))

    assert "1,000 answers (16,000 tokens) were asked for again" in note
    assert "all agree; not compared: 40 sampled at a temperature" in note


def test_reuse_is_named_where_it_is_no_chance() -> None:
    of_both = differing(*[3.0] * 6, reused=True) + differing(*[3.0] * 6, reused=False)
    (named,) = repeated_answer_findings(
        record(differing(*[3.0] * 12, reused=True), known=1000, reused=300)
    )
    (mixed,) = repeated_answer_findings(record(of_both, known=1000, reused=300))

    assert "12 of 12 had reused a prefix, 288 of 988 right ones had" in named.evidence
    assert not any("prefix" in line for line in mixed.evidence)


@pytest.mark.parametrize(("seeds", "is_named"), [(150, True), (400, False)])
def test_requests_beside_which_answers_go_wrong_are_named(*, seeds: int, is_named: bool) -> None:
    """In half of the run, every answer has some option beside it, and twelve there are wrong."""
    wrong = tuple(replace(one, beside=("n", "seed")) for one in differing(*[3.0] * 12))
    beside = {"seed": 12 + seeds, "n": 412}

    (finding,) = repeated_answer_findings(record(wrong, beside=beside, met=512))

    said = (
        "12 of 12 were answered while a request with seed was in flight, as were 150 of 500 right "
        "ones"
    )
    assert (said in finding.evidence) is is_named
    assert (finding.cause == "requests with seed change the answers to others") is is_named
    assert ("beside requests with seed" in finding.basis.advice(finding)) is is_named


def test_a_server_that_was_asked_nothing_again_has_no_note() -> None:
    assert list(repeated_answer_notes(healthy_record(RUN))) == []
    nothing = AnswersRepeated(so_far=Repeated(left_out={"no-cold-way": 7}), t_s=1.0)
    (note,) = repeated_answer_notes(with_events(healthy_record(RUN), nothing))
    assert note.startswith("no answer was asked for again; not compared: 7 because no way is known")
