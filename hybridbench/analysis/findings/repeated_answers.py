"""Answers that change if the same request is sent again, alone and without the server's cache.

Rounding may decide between two tokens of nearly equal probability.  Its effect on this server is
measured in the same run, by comparing the logprobs of equal answers that were computed in a batch,
alone, and with their own prefix in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from msgspec.structs import replace

from hybridbench.analysis.distributions import fisher
from hybridbench.analysis.findings.words import times
from hybridbench.analysis.findings.wrong_answers import left_out_words
from hybridbench.analysis.record import RunRecord
from hybridbench.records.events import AnswersRepeated
from hybridbench.records.finding import Basis, Finding, VerdictKind, Words
from hybridbench.records.load import Differing, Repeated

# Multiple of the largest margin that the measured logprob differences could reverse.
_BEYOND: Final = 10.0
# Share of the likeliest token's usual lead; a smaller margin may be rounding, despite measurements.
_LEAD: Final = 0.1
# Fewest places at which the effect of rounding must have been measured.
_FEWEST_MEASURED: Final = 500
_FEWEST: Final = 2
# A common trait of wrong answers is named if its p-value is below this.
_CHANCE_MOST: Final = 0.001
_EXAMPLES_MAX: Final = 4

_Table: TypeAlias = tuple[int, int, int, int]


class AnswersDiffer(Basis, frozen=True, kw_only=True):
    """Answers that differ from those that the same requests get alone and without the cache.

    Attributes:
        wrong: number of answers among ``compared`` whose first differing token was less likely by
            more than ``tolerance`` nats, or that rounding cannot explain at any margin.
        tolerance: the largest margin due to rounding; None if its effect was not measured.
        tokens: number of tokens in all compared answers.
        control: wrong ones among the answers computed together but without the cache.
        noise: the largest effect of rounding on a token's logprob, in nats, over ``noise_tokens``
            tokens.
        usual_gap: the median lead of the likeliest token, in nats.
        exact: whether the server was started in a mode in which batching changes no answer.
        examples: the first wrong answers.
        wrong_reused: wrong answers that had reused a prefix, of ``wrong_known`` for which that is
            known; ``right_reused`` and ``right_known`` are the same for right answers.
        left_out: finished requests that were not compared, by reason.
        beside: an option or fault of other requests that wrong answers had beside them more often
            than chance explains; empty if there is none.
        beside_table: (wrong answers with such a request beside them, wrong ones with any unusual
            request, right ones with such a request, right ones with any).
    """

    kind = "answers-differ"
    meaning = (
        "A server's answers differ from those that it gives to the same requests alone, without "
        "its cache."
    )
    leads_to = (
        f"CORRUPT; INCONCLUSIVE until rounding has been measured at {_FEWEST_MEASURED} tokens, and "
        "for a server without logprobs"
    )
    question = "the answers are those that the same requests have alone"
    names_mechanism = True
    decided_by_length = False

    wrong: int
    compared: int
    tokens: int
    tolerance: float | None
    control: int
    noise: float
    noise_tokens: int
    usual_gap: float
    exact: bool = False
    examples: tuple[Differing, ...] = ()
    wrong_reused: int = 0
    wrong_known: int = 0
    right_reused: int = 0
    right_known: int = 0
    left_out: Mapping[str, int] = {}
    beside: str = ""
    beside_table: _Table = (0, 0, 0, 0)

    def words(self, found: Finding) -> Words:
        reuse = (
            f"{self.wrong_reused:,} of {self.wrong_known:,} had reused a prefix, "
            f"{self.right_reused:,} of {self.right_known:,} right ones had"
        )
        undecided = self.left_out.get("undecided", 0)
        title = (
            f"{'At least ' if undecided else ''}{self.wrong or self.control:,} of "
            f"{self.compared + undecided:,} answers differ from those to the same requests alone, "
            "without cache"
        )
        return Words(
            title,
            cause=self._cause,
            evidence=(
                *([reuse] if self._is_of_reuse else []),
                *([self._company] if self.beside else []),
                *map(_example, self.examples[:_EXAMPLES_MAX]),
                "control: of as many answers computed together without the cache, "
                f"{_differ(self.control)} in the same way",
                self._rounding,
                *((f"not compared: {left_out_words(self.left_out)}",) if self.left_out else ()),
            ),
        )

    def advice(self, found: Finding) -> str:
        if self.needs_longer_run:
            return "Run longer, or give the comparison more time (--answers)."
        if self.is_open:
            return "Have the server report logprobs: they distinguish near-ties from wrong answers."
        if self._is_of_streams:
            return (
                "Answers that are not streamed are right: look at the code that streams them, and "
                "at what stands between the server and its clients."
            )
        if self._is_of_reuse:
            return "Look at the code that serves requests whose prefix is in the cache."
        if self.beside:
            return (
                f"Send plain requests beside requests with {self.beside}, and look at what the "
                "batch keeps of such a request when it ends or moves."
            )
        if self.control:
            return (
                "Answers without reuse are wrong as well: repeat the run with one request at a "
                "time, and look at what stands between the server and its clients."
            )
        return (
            "Repeat the run with the server's prefix cache off, and then with one request at a "
            "time: the change that removes the finding points to its cause."
        )

    @property
    def is_open(self) -> bool:
        """Whether rounding may still explain the differences."""
        if self.tolerance is None:
            return sum(bool(one.certain) for one in self.examples) < _FEWEST
        return self.noise_tokens < _FEWEST_MEASURED

    @property
    def needs_longer_run(self) -> bool:
        return self.is_open and any(one.margin is not None for one in self.examples)

    @property
    def _cause(self) -> str:
        if self.is_open and self.tolerance is None:
            return "rounding may be the cause, because its effect was not measured"
        if self.is_open:
            return (
                "this is more than rounding has caused so far, but its effect was measured at "
                f"fewer than {_FEWEST_MEASURED} tokens"
            )
        if self._is_of_streams:
            return "a part of each stream was lost or changed on the way to the client"
        if self.beside:
            return f"requests with {self.beside} change the answers to others"
        return (
            "the server computed them from the wrong state or KV, or gave them to the wrong request"
        )

    @property
    def _company(self) -> str:
        wrong_with, wrong, right_with, right = self.beside_table
        return (
            f"{wrong_with:,} of {wrong:,} were answered while a request with {self.beside} was in "
            f"flight, as were {right_with:,} of {right:,} right ones"
        )

    @property
    def _rounding(self) -> str:
        if self.tolerance is None:
            why = "it cannot cause these differences"
            if self.is_open:
                why = "time ran out" if self.needs_longer_run else "the answers have no logprobs"
            return f"the effect of rounding was not measured: {why}"
        if self.exact and not self.tolerance:
            return (
                "the server was started so that a batch changes no answer, and the logprobs of "
                f"{self.noise_tokens:,} tokens had the same bits each time, so rounding explains "
                "no margin"
            )
        return (
            f"margins up to {self.tolerance:.3g} nats count as rounding: it changed the "
            f"logprobs of {self.noise_tokens:,} tokens by {self.noise:.2g} at most, and the "
            f"likeliest token usually leads by {self.usual_gap:.3g}"
        )

    @property
    def _is_of_streams(self) -> bool:
        return bool(self.examples) and all(one.streamed for one in self.examples)

    @property
    def _is_of_reuse(self) -> bool:
        table = self.wrong_reused, self.wrong_known, self.right_reused, self.right_known
        return self.right_known > 0 and fisher(table) < _CHANCE_MOST


def repeated_answer_findings(record: RunRecord) -> list[Finding]:
    """Return one finding if the wrong answers are neither rounding nor chance.

    It is open if rounding was not measured, or at too few tokens to be sure of that.
    """
    found = record.last_event(AnswersRepeated)
    basis = None if found is None else _basis(found.so_far)
    if basis is None:
        return []
    verdict = VerdictKind.INCONCLUSIVE if basis.is_open else VerdictKind.CORRUPT
    return [Finding(basis, verdict, "answers")]


def repeated_answer_notes(record: RunRecord) -> Iterator[str]:
    """Yield how many answers were repeated and which were not, unless a finding reports it."""
    found = record.last_event(AnswersRepeated)
    if found is None or repeated_answer_findings(record):
        return
    seen = found.so_far
    left_out = left_out_words(seen.left_out)
    rest = f"; not compared: {left_out}" if left_out else ""
    if not seen.compared:
        yield f"no answer was asked for again{rest}"
        return
    answers = f"{times(seen.compared, 'answer')} ({times(seen.tokens, 'token')})"
    yield (
        f"{answers} {'was' if seen.compared == 1 else 'were'} asked for again at idle points, "
        f"without the server's cache: {_agreement(seen)}{rest}"
    )


def _agreement(seen: Repeated) -> str:
    if not seen.served_differ and not seen.control_differ:
        if seen.exact and seen.noise:
            return (
                "all agree, but logprobs differ by up to "
                f"{seen.noise:.2g} although the server was started so that a batch changes nothing"
            )
        return "all agree"
    said = f"{_differ(seen.served_differ)}, and {_differ(seen.control_differ)} without reuse"
    margins = [one.margin for one in (*seen.served, *seen.control)]
    known = [margin for margin in margins if margin is not None]
    if 0 < len(known) == len(margins) and max(known) <= _tolerance(seen):
        return f"{said}, all within rounding"
    return f"{said}, which does not decide"


def _differ(answers: int) -> str:
    return f"{answers:,} differ{'s' * (answers == 1)}"


def _basis(seen: Repeated) -> AnswersDiffer | None:
    is_measured = seen.usual_gap is not None and seen.noise_tokens > 0
    certain = _judged(seen, None)
    if is_measured and (certain is None or seen.noise_tokens >= _FEWEST_MEASURED):
        return _judged(seen, _tolerance(seen))
    return certain or _judged(seen, None, unexplained=True)


def _judged(
    seen: Repeated, tolerance: float | None, *, unexplained: bool = False
) -> AnswersDiffer | None:
    """Count the answers that are wrong beyond ``tolerance``; without one, only those certain, or
    all if ``unexplained``.
    """
    wrong, control = (
        [one for one in differing if unexplained or _is_wrong(one, tolerance)]
        for differing in (seen.served, seen.control)
    )
    if len(wrong) + len(control) < _FEWEST:
        return None
    known = [one.reused for one in wrong if one.reused is not None]
    beside, beside_table = _beside(seen, wrong)
    return AnswersDiffer(
        wrong=len(wrong),
        compared=seen.compared,
        tokens=seen.tokens,
        tolerance=tolerance,
        control=len(control),
        noise=seen.noise,
        noise_tokens=seen.noise_tokens,
        usual_gap=seen.usual_gap or 0.0,
        exact=seen.exact,
        examples=tuple(replace(one, beside=()) for one in (wrong + control)[:_EXAMPLES_MAX]),
        wrong_reused=sum(known),
        wrong_known=len(known),
        right_reused=seen.reused - sum(known),
        right_known=seen.known - len(known),
        left_out=dict(seen.left_out),
        beside=beside,
        beside_table=beside_table,
    )


def _beside(seen: Repeated, wrong: Sequence[Differing]) -> tuple[str, _Table]:
    """Return what wrong answers had beside them more often than right ones, with its counts.

    Only answers with any unusual request beside them are compared: in the other minutes of a run,
    its whole traffic may differ.
    """
    met = [one for one in wrong if one.beside]
    right = seen.met - sum(1 for one in seen.served if one.beside)
    tables: dict[str, _Table] = {
        name: (
            sum(name in one.beside for one in met),
            len(met),
            count - sum(name in one.beside for one in seen.served),
            right,
        )
        for name, count in seen.beside.items()
    }
    chances = {name: fisher(table) for name, table in tables.items()}
    name = min(chances, key=chances.__getitem__, default="")
    # As many traits were tried.
    if not name or len(chances) * chances[name] >= _CHANCE_MOST:
        return "", (0, 0, 0, 0)
    return name, tables[name]


def _is_wrong(one: Differing, tolerance: float | None) -> bool:
    if one.certain or one.margin is None or tolerance is None:
        return bool(one.certain)
    return one.margin > tolerance


def _tolerance(seen: Repeated) -> float:
    """Return the largest margin, in nats, that rounding may decide on this server.

    Both logprobs may be off.  It is 0 for a server that promises batch-invariant results and kept
    that promise.
    """
    if seen.exact and not seen.noise:
        return 0.0
    return max(2.0 * _BEYOND * seen.noise, _LEAD * (seen.usual_gap or 0.0))


def _example(one: Differing) -> str:
    of = f"a request of {one.prompt_tokens:,} prompt tokens"
    alone = f"alone{', not streamed' if one.streamed else ''}"
    if one.certain == "text":
        return f"{of}: its tokens are those that the server gives it {alone}, but not its text"
    both = f"{of}: its answer and the one that the server gives it {alone}, three times,"
    if one.certain == "length":
        at = f"output token {one.place + 1}"
        return f"{both} diverge at {at}, and the shorter one ends before the limit"
    if one.margin is None:
        return f"{both} diverge at position {one.place + 1}"
    return (
        f"{of}: output token {one.place + 1} was less likely by at least {one.margin:.3g} "
        f"nats than the one that the server gives it {alone}, three times"
    )
