"""Counts of answers and of those that they continue."""

from __future__ import annotations

from collections.abc import Sequence

from hybridbench.records.answers import Trait, pack_tokens, pack_traits
from hybridbench.records.events import Lineages
from hybridbench.records.messages import FinishedAnswer
from hybridbench.runs import answer_tally
from hybridbench.runs.answer_tally import FOR_WRONG, Kind

NONE: tuple[Trait, ...] = ()
HIT, CUT = Trait.ENDED_AFTER_HIT, Trait.SEVERAL_CHUNKS


def answer(
    number: int, own: Sequence[Trait] = NONE, *ancestors: tuple[int, Sequence[Trait]]
) -> FinishedAnswer:
    tokens = pack_tokens([number]), pack_tokens([1, 2])
    return FinishedAnswer(
        f"r{number}",
        bool(ancestors),
        number,
        *tokens,
        [str(Trait.REUSED_TREE), *map(str, own)],
        arrival=number,
        ancestors=[(before, pack_traits(traits)) for before, traits in ancestors],
    )


def lineages(wrong: Sequence[FinishedAnswer], right: Sequence[FinishedAnswer]) -> list[Lineages]:
    """Return the lineages of answers that are neither heirs nor chosen for a trait."""
    first = Kind(heir=False)
    found = answer_tally.lineages([(a, first) for a in wrong], [(a, first) for a in right])
    return list(found)


def test_a_trait_counts_if_any_request_on_the_way_has_it() -> None:
    own = answer(10, [HIT], (1, NONE))
    inherited = answer(11, NONE, (2, [HIT]))
    neither = answer(12, [CUT], (3, NONE))

    [found] = lineages([own, inherited, neither], [answer(13, NONE, (4, [CUT]))])

    assert (found.ancestors, found.wrong, found.right) == (1, 3, 1)
    assert found.wrong_traits == {HIT: 2, CUT: 1}
    assert found.right_traits == {CUT: 1}


def test_what_was_reused_is_no_matter_of_lineage() -> None:
    [found] = lineages([answer(10, NONE, (1, NONE))], [])

    assert found.wrong_traits == {}


def test_answers_are_apart_by_the_number_of_their_ancestors() -> None:
    lone, heir = answer(10, [HIT]), answer(11, [HIT], (1, NONE), (2, NONE))

    short, long = lineages([lone], [heir])

    assert (short.ancestors, short.wrong, short.right) == (0, 1, 0)
    assert (long.ancestors, long.wrong, long.right) == (2, 0, 1)


def test_wrong_answers_that_have_a_trait_from_one_request_are_one_piece_of_evidence() -> None:
    wrong = [answer(n, NONE, (n - 5, NONE), (1, [HIT])) for n in range(10, 15)]
    right = [answer(n, NONE, (n - 5, NONE), (1, [HIT])) for n in range(20, 24)]

    [found] = lineages(wrong, right)

    assert (found.wrong, found.wrong_traits, found.repeated) == (5, {HIT: 1}, {HIT: 4})
    assert (found.right, found.right_traits) == (4, {HIT: 4})


def test_one_that_has_the_trait_itself_does_not_have_it_from_the_request_above() -> None:
    wrong = [answer(10, NONE, (1, [HIT])), answer(11, [HIT], (1, [HIT]))]

    [found] = lineages(wrong, [])

    assert found.wrong_traits == {HIT: 2}


def test_heirs_and_chosen_answers_are_counted_separately() -> None:
    heir, chosen, plain = answer(10, [HIT]), answer(11, [HIT]), answer(12, [HIT])

    found = answer_tally.lineages(
        [(heir, Kind(heir=True)), (chosen, Kind(heir=False, chosen=FOR_WRONG))],
        [(plain, Kind(heir=False))],
    )

    kinds = {(one.heirs, one.chosen): (one.wrong, one.right) for one in found}
    assert kinds == {(True, False): (1, 0), (False, True): (1, 0), (False, False): (0, 1)}
