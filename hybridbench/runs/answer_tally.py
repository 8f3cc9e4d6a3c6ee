"""Tally the compared answers, and the traits of wrong and right ones."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final, NamedTuple

from hybridbench.records.answers import INHERITED, Trait, has_trait
from hybridbench.records.events import AnswersCompared, Lineages, WrongAnswer
from hybridbench.records.messages import FinishedAnswer, Recomputed

_WRONG_STORED: Final = 100
FOR_WRONG: Final = "wrong"
"""Reason for comparing an answer: a wrong one reuses its tokens."""


@dataclass(frozen=True)
class Sizes:
    """Lengths, in tokens, at which an engine takes special, error-prone steps."""

    page_size: int
    track_interval: int
    sliding_window: int = 0

    def traits_at(self, prompt_tokens: int, place: int) -> Iterator[Trait]:
        """The traits of an answer's token at ``place``."""
        position = prompt_tokens + place
        if self.page_size > 1 and position % self.page_size == 0:
            yield Trait.PAGE_START
        if position % self.track_interval == 0:
            yield Trait.TRACK_LENGTH
        if 0 < self.sliding_window <= position:
            yield Trait.BEYOND_WINDOW


class Kind(NamedTuple):
    """Whether an answer reuses a wrong one, and why it was chosen (empty: at random)."""

    heir: bool
    chosen: str = ""


_DRAWN: Final = Kind(heir=False)


@dataclass
class Tally:
    """Results of the compared answers."""

    sizes: Sizes
    tokens: int = 0
    largest: float = 0.0
    right: list[FinishedAnswer] = field(default_factory=list)
    wrong: list[tuple[FinishedAnswer, Recomputed]] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    # For answers not drawn at random, by rid: FOR_WRONG, or the rare trait that caused the choice.
    chosen: dict[str, str] = field(default_factory=dict)
    with_trait: Counter[str] = field(default_factory=Counter)  # compared answers

    @property
    def compared(self) -> int:
        return len(self.right) + len(self.wrong)

    def add_right(self, answer: FinishedAnswer, found: Recomputed) -> None:
        """Add an answer that agrees, or differs by no more than rounding explains."""
        self.tokens += found.compared
        self.with_trait.update(answer.traits)
        self.largest = max(self.largest, found.distance)
        self.right.append(answer)

    def add_wrong(self, answer: FinishedAnswer, found: Recomputed) -> None:
        """Add an answer that differs by more than rounding explains."""
        self.tokens += found.compared
        self.with_trait.update(answer.traits)
        self.wrong.append((answer, found))

    def recorded(self, tolerance: float) -> AnswersCompared:
        """Return the record of all results, without the counts of answers left out.

        An answer that reuses a wrong state is wrong regardless of its own traits, so traits are
        counted only for answers that reused nothing from a wrong one.  The same rule applies to
        right answers, so that it favours no trait.  Answers chosen due to a wrong one are excluded;
        those chosen for a rare trait are counted separately, as evidence on that trait only.
        """
        answers = [*(answer for answer, _ in self.wrong), *self.right]
        wrong = answers[: len(self.wrong)]
        kinds = [
            Kind(heir, self.chosen.get(answer.rid, ""))
            for answer, heir in zip(answers, heirs(answers, wrong), strict=True)
        ]
        places = [*(found.wrong_place for _, found in self.wrong), *map(_some_place, self.right)]
        known = list(zip(answers, places, kinds, strict=True))
        wrong_first, wrong_for = self._first(known[: len(wrong)])
        right_first, right_for = self._first(known[len(wrong) :])
        return AnswersCompared(
            compared=self.compared,
            tokens=self.tokens,
            tolerance=tolerance,
            largest=self.largest,
            wrong=tuple(self._example(*one) for one in self.wrong[:_WRONG_STORED]),
            wrong_answers=len(self.wrong),
            wrong_at_start=sum(found.wrong_place == 0 for _, found in self.wrong),
            greedy=sum(answer.temperature == 0 for answer in answers),
            wrong_greedy=sum(answer.temperature == 0 for answer in wrong),
            wrong_first=len(wrong_first),
            right_first=len(right_first),
            wrong_traits=self._with_traits(wrong_first),
            right_traits=self._with_traits(right_first),
            wrong_for=wrong_for,
            right_for=right_for,
            lineages=lineages(
                list(zip(wrong, kinds[: len(wrong)], strict=True)),
                list(zip(self.right, kinds[len(wrong) :], strict=True)),
            ),
        )

    def _first(
        self, known: Iterable[tuple[FinishedAnswer, int, Kind]]
    ) -> tuple[list[tuple[FinishedAnswer, int]], dict[str, int]]:
        """Among the answers that reuse no wrong one, return those drawn at random, with their
        places, and the number chosen for each rare trait.
        """
        drawn, chosen = [], Counter[str]()
        for answer, place, kind in known:
            if kind == _DRAWN:
                drawn.append((answer, place))
            elif not kind.heir and kind.chosen != FOR_WRONG:
                chosen[kind.chosen] += 1
        return drawn, dict(chosen)

    def _example(self, answer: FinishedAnswer, found: Recomputed) -> WrongAnswer:
        return WrongAnswer(
            rid=answer.rid,
            prompt_tokens=len(answer.prompt) // 4,
            place=found.wrong_place,
            distance=found.distance,
            emitted=found.emitted,
            best=found.best,
            traits=tuple(self._traits(answer, found.wrong_place)),
        )

    def _with_traits(self, answers: Sequence[tuple[FinishedAnswer, int]]) -> dict[str, int]:
        return dict(Counter(trait for one in answers for trait in self._traits(*one)))

    def _traits(self, answer: FinishedAnswer, place: int) -> list[str]:
        at = self.sizes.traits_at(len(answer.prompt) // 4, place)
        return [*answer.traits, *map(str, at)]


def heirs(answers: Sequence[FinishedAnswer], wrong: Iterable[FinishedAnswer]) -> list[bool]:
    """For each of ``answers``, whether it reused a token that one of ``wrong`` had computed."""
    computed: dict[int, set[bytes]] = {}
    for one in wrong:
        own = one.cached_tokens + 1  # up to the first token that was not reused itself
        computed.setdefault(own, set()).add((one.prompt + one.output)[: 4 * own])
    return [
        any(
            own <= answer.cached_tokens and answer.prompt[: 4 * own] in beginnings
            for own, beginnings in computed.items()
        )
        for answer in answers
    ]


def lineages(
    wrong: Sequence[tuple[FinishedAnswer, Kind]], right: Sequence[tuple[FinishedAnswer, Kind]]
) -> tuple[Lineages, ...]:
    """Count, by stratum, the answers that have a trait or reuse a request that has it.

    Answers with more ancestors have more traits and more chances to be wrong.  So do answers that
    reuse a wrong one or were compared because of one; hence the strata.  Answers chosen for a rare
    trait form a stratum of their own and count for that trait only.  Wrong answers that share the
    nearest request with a trait count once for it, as one event may have caused them all; right
    answers all count.
    """
    strata: dict[tuple[int, Kind], tuple[list[FinishedAnswer], list[FinishedAnswer]]] = {}
    for half, answers in enumerate((wrong, right)):
        for answer, kind in answers:
            stratum = strata.setdefault((len(answer.ancestors), kind), ([], []))
            stratum[half].append(answer)
    seen: set[tuple[Trait, int]] = set()
    found = []
    for (length, kind), (wrong_here, right_here) in sorted(strata.items(), key=itemgetter(0)):
        having, repeated = Counter[str](), Counter[str]()
        is_rare = kind.chosen not in {"", FOR_WRONG}
        for answer in wrong_here:
            for trait, source in _sources(answer):
                if is_rare and trait != kind.chosen:
                    continue
                (repeated if (trait, source) in seen else having)[trait] += 1
                seen.add((trait, source))
        others = Counter(str(trait) for answer in right_here for trait, _ in _sources(answer))
        found.append(
            Lineages(
                ancestors=length,
                heirs=kind.heir,
                chosen=kind.chosen == FOR_WRONG,
                chosen_for=kind.chosen if is_rare else "",
                wrong=len(wrong_here),
                right=len(right_here),
                wrong_traits=dict(having),
                right_traits=dict(others),
                repeated=dict(repeated),
            )
        )
    return tuple(found)


def _sources(answer: FinishedAnswer) -> Iterator[tuple[Trait, int]]:
    """Each inherited trait with the number of the nearest request that has it: the answer's own
    request or an ancestor.
    """
    for trait in INHERITED:
        having = (number for number, has in answer.ancestors if has_trait(has, trait))
        source = answer.arrival if trait in answer.traits else next(having, None)
        if source is not None:
            yield trait, source


def _some_place(answer: FinishedAnswer) -> int:
    """A random but reproducible place, to compare with the places of first wrong tokens."""
    return random.Random(answer.rid).randrange(max(1, len(answer.output) // 4))
