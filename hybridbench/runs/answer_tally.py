"""What came of the answers that were compared, and what wrong and right ones have been through."""

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
"""Why an answer was compared: a wrong one goes on from it."""


@dataclass(frozen=True)
class Sizes:
    """Lengths at which an engine does something that may go wrong, in tokens."""

    page_size: int
    track_interval: int
    sliding_window: int = 0

    def traits_at(self, prompt_tokens: int, place: int) -> Iterator[Trait]:
        """What is special of the token of an answer at ``place``."""
        position = prompt_tokens + place
        if self.page_size > 1 and position % self.page_size == 0:
            yield Trait.PAGE_START
        if position % self.track_interval == 0:
            yield Trait.TRACK_LENGTH
        if 0 < self.sliding_window <= position:
            yield Trait.BEYOND_WINDOW


class Kind(NamedTuple):
    """Whether an answer goes on from a wrong one, and what it was chosen for."""

    heir: bool
    chosen: str = ""


_DRAWN: Final = Kind(heir=False)


@dataclass
class Tally:
    """What came of the answers that were compared."""

    sizes: Sizes
    tokens: int = 0
    largest: float = 0.0
    right: list[FinishedAnswer] = field(default_factory=list)
    wrong: list[tuple[FinishedAnswer, Recomputed]] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    # Of those that were not drawn, by rid: FOR_WRONG, or the rare trait that they were chosen for.
    chosen: dict[str, str] = field(default_factory=dict)
    with_trait: Counter[str] = field(default_factory=Counter)  # compared answers

    @property
    def compared(self) -> int:
        return len(self.right) + len(self.wrong)

    def add_right(self, answer: FinishedAnswer, found: Recomputed) -> None:
        """It agrees, or differs by no more than rounding explains."""
        self.tokens += found.compared
        self.with_trait.update(answer.traits)
        self.largest = max(self.largest, found.distance)
        self.right.append(answer)

    def add_wrong(self, answer: FinishedAnswer, found: Recomputed) -> None:
        """It differs by more."""
        self.tokens += found.compared
        self.with_trait.update(answer.traits)
        self.wrong.append((answer, found))

    def recorded(self, tolerance: float) -> AnswersCompared:
        """All of it, but for what was left out.

        Who goes on from a wrong state is wrong, too, whatever it has been through: traits of its
        own are counted of those that reused nothing of a wrong one.  Right ones are taken by the
        same rule, so that it favours no trait, and none that was chosen for a wrong one.  Those
        chosen for a rare trait are counted apart: they tell of that trait alone.
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
        """Answers that go on from no wrong one: those drawn, with their places, and the number of
        those that were chosen for a rare trait, by the trait.
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
    """Of each of ``answers``, whether it reused a token that one of ``wrong`` had computed."""
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
    """How many answers have a trait, or go on from a request that has it, by strata.

    More ancestors have more traits between them, and more that may go wrong; and so it is with
    those that go on from a wrong answer, or were compared for its sake.  Hence they are apart.
    Those that were chosen for a rare trait are apart as well, and count for that trait alone.
    Wrong answers whose nearest request with a trait is the same one count once for it, as they may
    all be wrong for one event; the right ones all count.
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
    """Each trait with the number of the nearest request that has it: the answer's own, or one that
    it goes on from.
    """
    for trait in INHERITED:
        having = (number for number, has in answer.ancestors if has_trait(has, trait))
        source = answer.arrival if trait in answer.traits else next(having, None)
        if source is not None:
            yield trait, source


def _some_place(answer: FinishedAnswer) -> int:
    """For comparison with the places of first wrong tokens: any, but always the same."""
    return random.Random(answer.rid).randrange(max(1, len(answer.output) // 4))
