"""Answers of a server that it does not give when it is asked again, alone and without its cache.

Rounding may decide between two tokens that are nearly as likely as each other.  What it does on
this server is seen in answers that several requests got at once without the cache: these and the
served ones were computed beside others, and only the served ones could reuse anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Final

from hybridbench.analysis.distributions import fisher
from hybridbench.analysis.findings.wrong_answers import left_out_words
from hybridbench.analysis.record import RunRecord
from hybridbench.records.events import AnswersRepeated
from hybridbench.records.finding import Basis, Words
from hybridbench.records.load import Differing, Repeated
from hybridbench.records.verdict import Finding, VerdictKind

# Times the largest margin that rounding was seen to decide.
_BEYOND: Final = 10.0
# That the served answers differ so much more often than the others by chance.
_CHANCE_MOST: Final = 0.001
_FEWEST: Final = 2
_TOLD: Final = 4


class AnswersDiffer(Basis, frozen=True, kw_only=True):
    """Answers that differ from those which the same requests have alone and without the cache.

    Attributes:
        wrong: of ``compared``, those whose first other token was less likely by more than
            ``tolerance`` nats.
        tokens: of all compared answers.
        control: of the answers that were computed together without the cache, those that differ by
            more than ``usual_gap``.
        control_largest: the largest margin among these; None where none differs.
        usual_gap: the median by which the likeliest token leads, in nats.
        chance: that served answers differ so much more often than those.
        examples: the first wrong ones.
        wrong_reused, right_reused: those that had reused something, of ``wrong_known`` and
            ``right_known``; told where that is no chance.
        left_out: finished requests that were not compared, by the reason.
    """

    kind: ClassVar[str] = "answers-differ"
    meaning: ClassVar[str] = (
        "A server's answers differ from those that it gives to the same requests alone, without "
        "its cache."
    )
    leads_to: ClassVar[str] = "CORRUPT"
    question: ClassVar[str] = "the answers are those that the same requests have alone"
    names_mechanism: ClassVar[bool] = True
    decided_by_length: ClassVar[bool] = False

    wrong: int
    compared: int
    tokens: int
    tolerance: float
    control: int
    control_largest: float | None
    usual_gap: float
    chance: float
    examples: tuple[Differing, ...] = ()
    wrong_reused: int = 0
    wrong_known: int = 0
    right_reused: int = 0
    right_known: int = 0
    left_out: Mapping[str, int] = {}

    def words(self, found: Finding) -> Words:
        del found
        reuse = (
            f"{self.wrong_reused:,} of {self.wrong_known:,} had reused a prefix, "
            f"{self.right_reused:,} of {self.right_known:,} right ones had"
        )
        title = (
            f"{self.wrong:,} of {self.compared:,} answers differ from those to the same requests "
            "alone, without cache"
        )
        return Words(
            title,
            cause="the server computed them from a state or KV that was not theirs, or gave them "
            "to the wrong request",
            evidence=(
                *([reuse] if self._is_of_reuse else []),
                *map(_example, self.examples[:_TOLD]),
                f"margins up to {self.tolerance:.3g} nats count as rounding: the likeliest token "
                f"usually leads by {self.usual_gap:.3g}, and of the same requests computed "
                f"together, without the cache, {self._of_control()}",
                *((f"not compared: {left_out_words(self.left_out)}",) if self.left_out else ()),
            ),
        )

    def advice(self, found: Finding) -> str:
        del found
        if self._is_of_reuse:
            return "Look at the code that serves requests whose prefix is in the cache."
        return (
            "Repeat the run with the server's prefix cache off, and then with one request at a "
            "time: where the finding goes, its cause is."
        )

    @property
    def _is_of_reuse(self) -> bool:
        table = self.wrong_reused, self.wrong_known, self.right_reused, self.right_known
        return self.right_known > 0 and fisher(table) < _CHANCE_MOST

    def _of_control(self) -> str:
        if self.control_largest is None:
            return "none differs"
        return f"the largest was {self.control_largest:.3g}, {self.control:,} beyond that lead"


def repeated_answer_findings(record: RunRecord) -> list[Finding]:
    """One finding if wrong answers are neither rounding nor chance."""
    found = record.last_event(AnswersRepeated)
    if found is None:
        return []
    basis = _judged(found.so_far)
    return [] if basis is None else [Finding(basis, VerdictKind.CORRUPT, "answers")]


def repeated_answer_notes(record: RunRecord) -> Iterator[str]:
    """How many answers were asked for again, and which were not, where no finding says so."""
    found = record.last_event(AnswersRepeated)
    if found is None or repeated_answer_findings(record):
        return
    seen = found.so_far
    left_out = left_out_words(seen.left_out)
    rest = f"; not compared: {left_out}" if left_out else ""
    if not seen.compared:
        yield f"no answer was asked for again{rest}"
        return
    yield (
        f"{seen.compared:,} answers ({seen.tokens:,} tokens) were asked for again at idle points, "
        f"without the server's cache: {_agreement(seen)}{rest}"
    )


def _agreement(seen: Repeated) -> str:
    if not seen.served_differ:
        return "all agree"
    known = [one.margin for one in seen.served if one.margin is not None]
    said = f"{seen.served_differ:,} differ, {seen.control_differ:,} do without reuse"
    if not known:
        return f"{said}, and the server does not say by how much"
    if len(known) == len(seen.served) == seen.served_differ and max(known) <= _tolerance(seen):
        return f"{said}, all by what rounding decides"
    return f"{said}, which does not decide"


def _judged(seen: Repeated) -> AnswersDiffer | None:
    if seen.usual_gap is None:
        return None
    tolerance, control = _tolerance(seen), _margins(seen.control)
    wrong = [one for one in seen.served if one.margin is not None and one.margin > tolerance]
    beyond = [sum(margin > seen.usual_gap for margin in _margins(seen.served))]
    beyond.append(sum(margin > seen.usual_gap for margin in control))
    chance = _at_least(beyond[0], sum(beyond))
    if len(wrong) < _FEWEST or chance >= _CHANCE_MOST:
        return None
    known = [one.reused for one in wrong if one.reused is not None]
    return AnswersDiffer(
        wrong=len(wrong),
        compared=seen.compared,
        tokens=seen.tokens,
        tolerance=tolerance,
        control=beyond[1],
        control_largest=max(control, default=None),
        usual_gap=seen.usual_gap,
        chance=chance,
        examples=tuple(wrong[:_TOLD]),
        wrong_reused=sum(known),
        wrong_known=len(known),
        right_reused=seen.reused - sum(known),
        right_known=seen.known - len(known),
        left_out=dict(seen.left_out),
    )


def _tolerance(seen: Repeated) -> float:
    """The largest margin in nats that rounding may decide on this server."""
    largest = max(_margins(seen.control), default=0.0)
    return max(_BEYOND * largest, seen.usual_gap or 0.0)


def _margins(differing: Sequence[Differing]) -> list[float]:
    return [one.margin for one in differing if one.margin is not None]


def _at_least(successes: int, trials: int) -> float:
    """The probability of so many, or more, of ``trials`` that go one way as often as the other."""
    ways = sum(math.comb(trials, k) for k in range(successes, trials + 1))
    return float(ways / 2**trials)


def _example(one: Differing) -> str:
    return (
        f"a request of {one.prompt_tokens:,} prompt tokens: output token {one.place + 1} was less "
        f"likely by {one.margin or 0.0:.3g} nats than the one that the server gives it alone, "
        "three times"
    )
