"""Answers that differ from a reference, and what the wrong ones have in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from hybridbench.analysis.distributions import fisher, holm
from hybridbench.analysis.findings.words import times
from hybridbench.analysis.record import RunRecord
from hybridbench.records.answers import FAR_BEYOND, INHERITED, TRAIT_WORDS, Trait
from hybridbench.records.events import AnswersCompared, Lineages, WrongAnswer
from hybridbench.records.finding import Basis, Finding, VerdictKind, Words

# Common traits of wrong answers are named if their p-value, after Holm, is below this.
_CHANCE_MOST: Final = 0.001
_EXAMPLES_MAX: Final = 4
# Share of right answers up to which nearly all answers count as wrong.
_FEW_RIGHT: Final = 0.05
# Fewer wrong answers are not counted by position: the examples say where each differs.
_FEWEST_COUNTED: Final = 5
# Why a finished answer was not compared; unknown reasons are printed unchanged.
_LEFT_OUT: Final[Mapping[str, str]] = {
    "sampled": "sampled at a temperature",  # of older runs, and of other servers
    "filtered": "sampled with top_k or top_p",
    "aborted": "aborted",
    "payload": "with a payload",
    "not-drawn": "not drawn for the sample",
    "time": "drawn, but time ran out",
    "undecided": "that differ, but time ran out before their requests were sent alone",
    "near-tie": "where an expert was chosen by a near-tie",
    "not-repeated": "whose difference was not reproduced",
    "reference-failed": "on which the reference failed",
    "not-measured": "of a data type, device or size whose rounding is not measured",
    "memory": "for lack of memory for a reference",
    "session": "of a session",
    "options": "with options that change answers",
    "failed": "that got no second answer",
    "unsteady": "to which the server gave several answers, alone",
    "no-cold-way": "because no way is known to bypass this server's cache",
    "interface": "as this interface has no logprobs",
}


class Common(msgspec.Struct, frozen=True, kw_only=True):
    """A trait that ``wrong`` wrong answers and ``right`` right answers share.

    ``p_value`` is the probability of at least as many wrong ones by chance, after Holm's correction
    for all examined traits.  If ``of_wrong`` and ``of_right`` are set, answers that continue from a
    request with the trait also count.  The two are then the totals: all answers except wrong ones
    that inherit the trait from a request already counted.
    """

    trait: str
    wrong: int
    right: int
    p_value: float
    of_wrong: int | None = None
    of_right: int | None = None
    wrong_for: int = 0
    right_for: int = 0

    def words(self, wrong: int, right: int, *, are_all: bool = True) -> str:
        """Return a clause about the trait, given the numbers of drawn wrong and right answers.

        ``are_all`` is False if ``wrong`` excludes answers that reused results of another wrong one.
        """
        wrong, right = wrong + self.wrong_for, right + self.right_for
        said = TRAIT_WORDS[Trait(self.trait)]
        verb, _, rest = said.partition(" ")
        if self.of_wrong is not None and self.of_right is not None:
            inherited = (
                f"{self.wrong:,} of {self.of_wrong:,} {said}, or continue from a request that"
            )
            return f"{inherited} {verb}, {self.right:,} of {self.of_right:,} right ones do"
        others = f"{self.right:,} of {right:,} right ones {verb}"
        if verb != "had":
            others = f"a randomly drawn token is there in {self.right:,} of {right:,} right ones"
        which = "" if are_all else " that do not continue from another wrong one"
        return f"{self.wrong:,} of {wrong:,}{which} {verb} {rest}, {others}"


class WrongAnswers(Basis, frozen=True, kw_only=True):
    """Answers that differ from a reference's by more than rounding can explain.

    Attributes:
        wrong: number of wrong answers among the ``compared``.
        at_start: how many of them differ at their first token; None if that is not known.
        tokens: number of tokens compared, up to the first difference of each answer.
        tolerance: the largest distance that counts as rounding, in standard deviations of the
            logits.
        largest: the largest distance of a wrong answer.
        greedy: number of greedy answers among the ``compared``; None if that is not known.
        wrong_greedy: how many of them are wrong.
        wrong_first: wrong answers that reused nothing computed by another wrong one, without those
            chosen for a rare trait; None means all.
        right_first: the same for right answers.
        wrong_for: further wrong answers, which were chosen for a rare trait.
        common: traits that the wrong answers share, most significant first.
        examples: the first of the wrong answers.
        left_out: finished requests that were not compared, by reason.
    """

    kind = "wrong-answers"
    meaning = (
        "Answers differ from those of a reference without reuse by more than rounding can explain."
    )
    leads_to = "CORRUPT"
    question = "the answers are those of a reference without reuse"
    names_mechanism = True
    decided_by_length = False

    wrong: int
    compared: int
    tokens: int
    tolerance: float
    largest: float
    at_start: int | None = None
    greedy: int | None = None
    wrong_greedy: int = 0
    wrong_first: int | None = None
    right_first: int | None = None
    wrong_for: int = 0
    common: tuple[Common, ...] = ()
    examples: tuple[WrongAnswer, ...] = ()
    left_out: Mapping[str, int] = {}

    def words(self, found: Finding) -> Words:
        wrong, right = self.wrong_first, self.right_first
        if wrong is None or right is None:
            wrong, right = self.wrong, self.compared - self.wrong
        are_all = wrong + self.wrong_for == self.wrong
        shared = [one.words(wrong, right, are_all=are_all) for one in self.common]
        verb = "is" if self.wrong == 1 else "are"
        title = f"{self.wrong:,} of {self.compared:,} answers {verb} wrong"
        drawn = self._only_sampled_ones()
        lines = [*drawn, *shared, *self._from_the_start(), *self._hardly_a_right_one()]
        # Lead with a trait that sets the wrong answers apart, or with what nearly all have.
        leads = lines[:1] if drawn or shared or self._nearly_all else []
        cause = (
            "these requests computed from another request's state or KV, or from one of the wrong "
            "length"
        )
        if drawn:
            cause = (
                "their tokens were drawn with another seed, temperature or position, or from "
                "slightly wrong logits, which change a sampled token before a greedy one"
            )
        return Words(
            "; ".join([title, *leads]),
            cause=cause,
            evidence=(
                *lines[len(leads) :][:_EXAMPLES_MAX],
                *map(_example, self.examples[:_EXAMPLES_MAX]),
                f"the largest distance is {self.largest:.3g} standard deviations of the logits; "
                f"up to {self.tolerance:.2g} counts as rounding",
                *((f"not compared: {left_out_words(self.left_out)}",) if self.left_out else ()),
            ),
        )

    def advice(self, found: Finding) -> str:
        if self._only_sampled_ones() and not self.common:
            return (
                "Look at the seed, the temperature and the position with which the tokens of these "
                "requests are drawn, and at what may exchange them between requests."
            )
        if self.common:
            said = TRAIT_WORDS[Trait(self.common[0].trait)]
            return f"Look at the code that serves requests that {said}."
        if self._nearly_all and self.at_start == 0:
            return (
                "Look at the decode steps, which every request takes: prefill computes the first "
                "token, which is right."
            )
        if self._nearly_all:
            return (
                "Look at what every request needs before its first token, such as an empty state "
                "slot: compute one of the requests in the evidence as the first of a new engine, "
                "then again after others."
            )
        return (
            "Compute one of the requests in the evidence alone, then beside others, and see with "
            "which neighbour or prefix its answer changes."
        )

    @property
    def _nearly_all(self) -> bool:
        right = self.compared - self.wrong
        return self.wrong >= _FEWEST_COUNTED and right <= _FEW_RIGHT * self.compared

    def _only_sampled_ones(self) -> list[str]:
        """Return a line if no greedy answer is wrong and that is hardly chance."""
        if self.greedy is None or self.wrong_greedy:
            return []
        right = self.compared - self.wrong
        if fisher((self.wrong, self.wrong, right - self.greedy, right)) > _CHANCE_MOST:
            return []
        return [
            f"all of them were sampled at a temperature, and none of {self.greedy:,} greedy ones "
            "is wrong"
        ]

    def _from_the_start(self) -> Iterator[str]:
        """Yield how many of the wrong answers differ at their first token, if that is known."""
        if self.at_start is None or self.wrong < _FEWEST_COUNTED:
            return
        if self.at_start in {0, self.wrong}:
            yield f"{'all' if self.at_start else 'none'} of them differ at their first token"
        else:
            yield f"{self.at_start:,} of them differ at their first token"

    def _hardly_a_right_one(self) -> Iterator[str]:
        if self._nearly_all and not self.common:
            right = self.compared - self.wrong
            agree = "agrees" if right == 1 else "agree"
            yield f"{right:,} {agree}, too few to show what only the wrong ones have in common"


def wrong_answer_findings(record: RunRecord) -> list[Finding]:
    """Return one finding if two answers are wrong, or one by far more than the tolerance."""
    events = record.all_events(AnswersCompared)
    wrong = sum(event.wrong_answers for event in events)
    examples = tuple(answer for event in events for answer in event.wrong)
    far = any(
        answer.distance >= FAR_BEYOND * event.tolerance
        for event in events
        for answer in event.wrong
    )
    if wrong < 2 and not far:
        return []
    compared = sum(event.compared for event in events)
    wrong_first = sum(_or(event.wrong_first, event.wrong_answers) for event in events)
    right_first = sum(
        _or(event.right_first, event.compared - event.wrong_answers) for event in events
    )
    basis = WrongAnswers(
        wrong=wrong,
        compared=compared,
        at_start=_total(e.wrong_at_start for e in events if e.wrong_answers),
        greedy=_total(e.greedy for e in events if e.compared),
        wrong_greedy=sum(event.wrong_greedy for event in events),
        tokens=sum(event.tokens for event in events),
        tolerance=max(event.tolerance for event in events),
        largest=max(answer.distance for answer in examples),
        wrong_first=wrong_first,
        right_first=right_first,
        wrong_for=sum(sum(event.wrong_for.values()) for event in events),
        common=tuple(_in_common(events, wrong_first, right_first)),
        examples=examples[:_EXAMPLES_MAX],
        left_out=_summed([event.left_out for event in events]),
    )
    return [Finding(basis, VerdictKind.CORRUPT, "answers")]


def answer_notes(record: RunRecord) -> Iterator[str]:
    """Yield how many answers were compared and which were not, unless a finding reports it."""
    events = record.all_events(AnswersCompared)
    if not events or wrong_answer_findings(record):
        return
    compared = sum(event.compared for event in events)
    wrong = [answer for event in events for answer in event.wrong]
    left_out = left_out_words(_summed([event.left_out for event in events]))
    rest = f"; not compared: {left_out}" if left_out else ""
    if not compared:
        yield f"no answer was recomputed by a reference{rest}"
        return
    tokens = sum(event.tokens for event in events)
    answers = f"{times(compared, 'answer')} ({times(tokens, 'token')})"
    were, said = "were", "all but one agree" if wrong else "all agree"
    if compared == 1:
        were, said = "was", "it differs" if wrong else "it agrees"
    yield f"{answers} {were} recomputed by a reference: {said}{rest}"
    for answer in wrong:
        yield f"one different answer alone does not decide; {_example(answer)}"


def left_out_words(left_out: Mapping[str, int]) -> str:
    """List the finished requests that were not compared, by reason, most frequent first."""
    ordered = sorted(left_out.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count:,} {_LEFT_OUT.get(name, name)}" for name, count in ordered)


def _in_common(events: Sequence[AnswersCompared], wrong: int, right: int) -> list[Common]:
    """Return the significant traits, most significant first, then in the order of ``Trait``.

    An answer may have a trait itself or inherit it from a request that it continues; the more
    significant form is reported.  The test of a trait may include answers that were chosen for
    having it: the number with the trait is then fixed, and the question is how many of them are
    wrong.  Answers chosen for another trait are excluded, because they would make the two traits
    look like opposites.
    """
    wrong_traits = _summed([event.wrong_traits for event in events])
    right_traits = _summed([event.right_traits for event in events])
    wrong_for = _summed([event.wrong_for for event in events])
    right_for = _summed([event.right_for for event in events])
    tried: list[tuple[Common, float]] = []
    for trait in Trait:
        wrong_too, right_too = wrong_for.get(trait, 0), right_for.get(trait, 0)
        having = wrong_traits.get(trait, 0) + wrong_too
        others = right_traits.get(trait, 0) + right_too
        if having or others:
            own = Common(
                trait=trait,
                wrong=having,
                right=others,
                p_value=1.0,
                wrong_for=wrong_too,
                right_for=right_too,
            )
            tried.append((own, fisher((having, wrong + wrong_too, others, right + right_too))))
    lineages = [one for event in events for one in event.lineages]
    for trait in INHERITED:
        tables = list(_by_stratum(lineages, trait))
        having, trials, others, all_right = (
            map(sum, zip(*tables, strict=True)) if tables else (0,) * 4
        )
        if having or others:
            joined = Common(
                trait=trait,
                wrong=having,
                right=others,
                p_value=1.0,
                of_wrong=trials,
                of_right=all_right,
            )
            tried.append((joined, fisher(*tables)))
    adjusted = holm([chance for _, chance in tried])
    surest: dict[str, Common] = {}
    for (one, _), p_value in zip(tried, adjusted, strict=True):
        if p_value < _CHANCE_MOST and (
            one.trait not in surest or p_value < surest[one.trait].p_value
        ):
            surest[one.trait] = msgspec.structs.replace(one, p_value=p_value)
    return sorted(surest.values(), key=lambda one: one.p_value)


def _by_stratum(lineages: Sequence[Lineages], trait: Trait) -> Iterator[tuple[int, int, int, int]]:
    """Yield one table for ``fisher`` per stratum, for ``trait``.

    Answers chosen for the trait, all of which have it, are added to the drawn ones of their
    stratum.
    """
    strata: dict[tuple[int, bool, bool], list[tuple[int, int, int, int]]] = {}
    for one in lineages:
        if one.chosen_for in {"", trait}:
            counts = (
                one.wrong_traits.get(trait, 0),
                one.wrong - one.repeated.get(trait, 0),
                one.right_traits.get(trait, 0),
                one.right,
            )
            strata.setdefault((one.ancestors, one.heirs, one.chosen), []).append(counts)
    for tables in strata.values():
        having, wrong, others, right = map(sum, zip(*tables, strict=True))
        yield having, wrong, others, right


def _total(counts: Iterable[int | None]) -> int | None:
    """Return the sum of the counts of all runs; None if one of them did not count."""
    given = list(counts)
    known = [count for count in given if count is not None]
    return sum(known) if len(known) == len(given) else None


def _or(known: int | None, otherwise: int) -> int:
    return otherwise if known is None else known


def _summed(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for one in counts:
        total.update(one)
    return dict(total)


def _example(answer: WrongAnswer) -> str:
    return (
        f"request {answer.rid}, {answer.prompt_tokens:,} prompt tokens: output token "
        f"{answer.place + 1} is {answer.emitted}, the reference computes {answer.best} "
        f"(distance {answer.distance:.3g})"
    )
