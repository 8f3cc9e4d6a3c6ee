"""Recomputing a soak's answers: the share of a core, repeated suspects, what is left out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import pytest

from hybridbench.foundation.clock import FakeClock
from hybridbench.records import messages as m
from hybridbench.records.answers import MEASURED, ROUTING_GAP_LEAST, Trait, pack_tokens
from hybridbench.records.events import AnswersCompared
from hybridbench.runs.answer_check import WRONG_LEAST_S, AnswerCheck
from hybridbench.runs.answer_tally import Sizes, heirs
from hybridbench.targets.wire import WireClosedError
from tests.unit.runs.fakes import FakeTarget

TOLERANCE = MEASURED["qwen3_next"].distance
READY = m.ReferenceReady("qwen3_next", layers=4, hidden_size=128, sliding_window=0, cpu_s=5.0)


@dataclass
class FakeReference(FakeTarget):
    """A reference that takes ``cpu_s`` for each answer and replies with its ``distance``."""

    clock: FakeClock
    distance: Callable[[m.Recompute], float] = lambda asked: 0.0
    ready: m.ReferenceReady = READY
    routing_gap: float | None = None
    cpu_s: float = 0.5
    fails: str = ""
    asked: list[m.Recompute] = field(default_factory=list)
    ended: bool = False
    _used_s: float = 0.0
    _replies: list[m.FromWorker] = field(default_factory=list)

    def post(self, message: m.ToWorker) -> None:
        if isinstance(message, m.Start):
            assert message.is_reference
            self._used_s = self.ready.cpu_s
            self._replies.append(self.ready)
        elif isinstance(message, m.Recompute):
            self.asked.append(message)
            self._used_s += self.cpu_s
            self._replies.append(self._reply(message))

    def exchange(self, timeout_s: float) -> list[m.FromWorker]:
        if self.ended:
            raise WireClosedError
        self.clock.sleep(timeout_s)
        replies, self._replies = self._replies, []
        return replies

    def kill(self) -> bool:
        self.ended = True
        return True

    def _reply(self, asked: m.Recompute) -> m.Recomputed:
        distance = self.distance(asked)
        return m.Recomputed(
            probe_id=asked.probe_id,
            compared=3 if distance else 8,
            wrong_place=2 if distance else -1,
            distance=distance,
            emitted=1,
            best=2,
            cpu_s=self._used_s,
            routing_gap=self.routing_gap if asked.careful else None,
            error=self.fails,
        )


def answer(place: int, *, reused: bool = False, prompt: int = 14) -> m.FinishedAnswer:
    traits = [str(Trait.REUSED_TREE if reused else Trait.REUSED_NOTHING)]
    tokens = pack_tokens(range(prompt)), pack_tokens(range(8))
    return m.FinishedAnswer(f"r{place}", reused, place, *tokens, traits)


def check_of(reference: FakeReference) -> AnswerCheck:
    start = m.Start(engine={}, answers_kept=256)
    sizes = Sizes(page_size=16, track_interval=64)
    return AnswerCheck(start, sizes, reference.clock, lambda path: reference)


def compare(reference: FakeReference, *answers: m.FinishedAnswer) -> AnswersCompared:
    check = check_of(reference)
    for one in answers:
        check.take(one)
    return check.finish(60.0, lambda: False)


def test_answers_that_agree_are_right_with_their_traits() -> None:
    reference = FakeReference(FakeClock())

    found = compare(reference, answer(0), answer(0, reused=True), answer(1))

    assert (found.compared, found.tokens, found.wrong_answers) == (3, 24, 0)
    assert found.right_traits[Trait.REUSED_NOTHING] == 2
    assert found.right_traits[Trait.REUSED_TREE] == 1
    assert found.tolerance == TOLERANCE
    assert reference.ended


def test_rounding_is_no_difference_and_its_size_is_kept() -> None:
    reference = FakeReference(FakeClock(), distance=lambda asked: TOLERANCE)

    found = compare(reference, answer(0), answer(1))

    assert found.wrong_answers == 0
    assert found.largest == TOLERANCE
    assert len(reference.asked) == 2


def test_a_suspect_is_computed_twice_more_once_in_other_steps() -> None:
    reference = FakeReference(FakeClock(), distance=lambda asked: 0.3)

    found = compare(reference, answer(0, prompt=30))

    first, second, third = reference.asked
    assert not first.careful
    assert second.careful
    assert second.chunk > 0
    assert third.careful
    assert third.chunk == 0
    assert (found.wrong_answers, found.wrong_at_start) == (1, 0)
    assert (found.greedy, found.wrong_greedy) == (found.compared, 1)
    (wrong,) = found.wrong
    assert (wrong.rid, wrong.place, wrong.distance) == ("r0", 2, 0.3)
    # The first wrong token is the 33rd of the request: the first one of its third page.
    assert set(wrong.traits) == {Trait.REUSED_NOTHING, Trait.PAGE_START}


@pytest.mark.parametrize("agreeing", [1, 2])
def test_a_difference_that_does_not_come_again_does_not_count(agreeing: int) -> None:
    reference = FakeReference(FakeClock())
    reference.distance = lambda asked: 0.3 if len(reference.asked) <= agreeing else 0.0

    found = compare(reference, answer(0))

    assert found.wrong_answers == found.compared == 0
    assert found.left_out == {"not-repeated": 1}


def test_where_an_expert_was_chosen_by_a_near_tie_nothing_is_called_wrong() -> None:
    near = FakeReference(FakeClock(), lambda asked: 0.3, routing_gap=ROUTING_GAP_LEAST / 2)
    apart = FakeReference(FakeClock(), lambda asked: 0.3, routing_gap=ROUTING_GAP_LEAST * 2)

    assert compare(near, answer(0)).left_out == {"near-tie": 1}
    assert compare(apart, answer(0)).wrong_answers == 1


def test_an_answer_that_the_reference_fails_on_is_left_out() -> None:
    reference = FakeReference(FakeClock(), fails="ValueError: no room")

    found = compare(reference, answer(0), answer(1))

    assert (found.compared, found.left_out) == (0, {"reference-failed": 2})


def test_a_model_that_was_not_measured_is_not_compared() -> None:
    large = m.ReferenceReady("qwen3_next", 48, 2048, 0, 5.0)
    reference = FakeReference(FakeClock(), ready=large)

    found = compare(reference, answer(0), answer(1))

    assert (found.compared, found.left_out) == (0, {"not-measured": 2})
    assert reference.asked == []


def test_while_the_run_goes_on_the_reference_has_a_twentieth_of_a_core_with_its_start() -> None:
    clock = FakeClock()
    reference = FakeReference(clock)
    check = check_of(reference)
    for place in range(200):
        check.take(answer(place))

    shares = []
    for second in range(1, 1200):
        clock.sleep(1.0)
        check.pump()
        used_s = reference._used_s
        # One answer may be in progress when the share is used up.
        shares.append((used_s - reference.cpu_s) / second)

    check.finish(0.0, lambda: True)
    assert max(shares) <= 0.05
    assert shares[-1] > 0.045


def turn(
    rid: str, prompt: list[int], output: list[int], cached: int, trait: Trait
) -> m.FinishedAnswer:
    tokens = pack_tokens(prompt), pack_tokens(output)
    return m.FinishedAnswer(rid, cached > 0, 0, *tokens, [str(trait)], cached)


FIRST, SECOND = Trait.ENDED_ADMISSION, Trait.REUSED_TREE


@pytest.mark.parametrize(
    ("prompt", "cached", "inherits"),
    [
        # The wrong answer reused 2 tokens, so it computed the third one itself.
        ([1, 2, 3, 9], 3, True),
        ([1, 2, 3, 9], 2, False),
        ([1, 2, 8, 9], 3, False),
        ([1, 2, 3, 4, 5, 6, 9], 6, True),  # also of its output
        ([1, 2, 3, 9], 0, False),
    ],
)
def test_answers_that_reused_a_wrong_ones_tokens_are_not_evidence_of_the_cause(
    prompt: list[int], cached: int, inherits: bool
) -> None:
    wrong = turn("wrong", [1, 2, 3, 4], [5, 6], 2, FIRST)
    other = turn("other", prompt, [7, 7], cached, SECOND)

    assert heirs([wrong, other], [wrong]) == [False, inherits]
    assert heirs([wrong, other], []) == [False, False]


@pytest.mark.parametrize("other_is_wrong", [True, False])
def test_traits_are_counted_of_answers_that_inherit_nothing_wrong(other_is_wrong: bool) -> None:
    wrong = turn("wrong", [1, 2, 3, 4], [5, 6], 0, FIRST)
    heir = turn("heir", [1, 2, 9], [7, 7], 2, SECOND)
    apart = turn("apart", [4, 4], [7, 7], 0, SECOND)
    bad = {wrong.prompt, heir.prompt} if other_is_wrong else {wrong.prompt}
    reference = FakeReference(FakeClock(), lambda asked: 0.3 * (asked.prompt in bad))
    check = check_of(reference)
    for place, one in enumerate((heir, apart, wrong)):
        check.take(msgspec.structs.replace(one, place=place))

    found = check.finish(60.0, lambda: False)

    assert (found.wrong_answers, found.compared) == (len(bad), 3)
    assert (found.wrong_first, found.right_first) == (1, 1)
    assert found.wrong_traits[FIRST] == 1
    assert SECOND not in found.wrong_traits
    assert found.right_traits[SECOND] == 1


def test_whom_a_wrong_answer_goes_on_from_is_compared_soon_and_has_no_part_in_traits() -> None:
    maker = turn("maker", [1, 2, 3, 4], [5, 6], 0, FIRST)
    heir = turn("heir", [1, 2, 9], [7, 7], 2, SECOND)
    bad = {maker.prompt, heir.prompt}
    reference = FakeReference(FakeClock(), lambda asked: 0.3 * (asked.prompt in bad))
    check = check_of(reference)
    for place in range(200):
        other = turn(f"other{place}", [50 + place], [8, 8], 0, SECOND)
        check.take(msgspec.structs.replace(other, place=place))
    check.take(heir)
    check.take(msgspec.structs.replace(maker, place=200))

    found = check.finish(10.0, lambda: False)

    prompts = [asked.prompt for asked in reference.asked]
    # A wrong answer is computed three times, and a randomly drawn one may come between.
    assert prompts.index(maker.prompt) - prompts.index(heir.prompt) <= 4
    assert found.wrong_answers == 2
    assert found.wrong_first == 0
    assert found.right_first == found.compared - 2


def through(place: int, *traits: Trait, prompt: int = 14) -> m.FinishedAnswer:
    return msgspec.structs.replace(answer(place, prompt=prompt), traits=list(map(str, traits)))


def test_where_time_is_short_those_with_rare_traits_are_compared_first() -> None:
    reference = FakeReference(FakeClock())
    check = check_of(reference)
    for place in range(400):
        rare = {100: [Trait.LOADED_BACK], 300: [Trait.RETRACTED]}.get(place - place % 5, [])
        check.take(through(place, Trait.REUSED_NOTHING, *rare, prompt=14 + place))

    found = check.finish(4.0, lambda: False)

    places = [len(asked.prompt) // 4 - 14 for asked in reference.asked]
    # Half of those compared have a rare trait, until all ten are done; chance would pick about one.
    assert 18 < len(places) < 25
    assert sum(place // 5 in {20, 60} for place in places) == 10
    assert abs(found.right_for[Trait.RETRACTED] - found.right_for[Trait.LOADED_BACK]) <= 1
    assert sum(found.right_for.values()) + (found.right_first or 0) == found.compared


def test_an_answer_that_was_chosen_for_a_rare_trait_tells_of_that_trait_alone() -> None:
    other = Trait.BESIDE_OTHERS
    reference = FakeReference(FakeClock(), lambda asked: 0.3 * (len(asked.prompt) == 4 * 99))
    check = check_of(reference)
    for place in range(200):
        check.take(through(place, Trait.REUSED_NOTHING, *[other] * (place % 2)))
    check.take(through(200, Trait.REUSED_NOTHING, other, Trait.RETRACTED, prompt=99))

    found = check.finish(4.0, lambda: False)

    assert found.wrong_answers == 1
    assert found.wrong_for == {Trait.RETRACTED: 1}
    assert (found.wrong_first, found.wrong_traits) == (0, {})
    (chosen,) = (one for one in found.lineages if one.chosen_for)
    assert (chosen.chosen_for, chosen.wrong_traits) == (Trait.RETRACTED, {Trait.RETRACTED: 1})


def test_a_trait_that_many_have_is_not_rare() -> None:
    reference = FakeReference(FakeClock())
    check = check_of(reference)
    for place in range(200):
        check.take(through(place, Trait.SEVERAL_CHUNKS if place % 5 else Trait.RETRACTED))

    found = check.finish(10.0, lambda: False)

    assert not found.right_for
    assert found.right_first == found.compared


def test_where_time_is_short_late_answers_are_compared_as_often_as_early_ones() -> None:
    reference = FakeReference(FakeClock())
    check = check_of(reference)
    for place in range(400):
        check.take(answer(place, prompt=14 + place))

    check.finish(20.0, lambda: False)

    lengths = [len(asked.prompt) // 4 - 14 for asked in reference.asked]
    assert 90 <= len(lengths) < 110
    assert min(lengths) < 40
    assert max(lengths) > 360


def test_where_an_answer_is_wrong_there_is_more_time_to_find_what_wrong_ones_share() -> None:
    clock = FakeClock()
    reference = FakeReference(clock, lambda asked: 0.3 * (len(reference.asked) <= 3))
    check = check_of(reference)
    for place in range(2000):
        check.take(answer(place))

    found = check.finish(10.0, lambda: False)

    assert found.wrong_answers == 1
    assert WRONG_LEAST_S <= clock.monotonic_s() < WRONG_LEAST_S + 2.0


def test_after_a_crash_no_time_is_spent_although_an_answer_was_wrong() -> None:
    clock = FakeClock()
    check = check_of(FakeReference(clock, lambda asked: 0.3))
    for place in range(200):
        check.take(answer(place))
    for _ in range(400):
        clock.sleep(1.0)
        check.pump()
    ended_s = clock.monotonic_s()

    found = check.finish(0.0, lambda: False)

    assert found.wrong_answers > 0
    assert clock.monotonic_s() == ended_s


@pytest.mark.parametrize(
    ("drawn_from", "not_wanted"),
    [("comparable", "filtered"), ("greedy", "sampled")],
    ids=["this-version", "older-worker"],
)
def test_what_is_left_afterwards_is_computed_for_a_limited_time(
    drawn_from: str, not_wanted: str
) -> None:
    clock = FakeClock()
    reference = FakeReference(clock)
    check = check_of(reference)
    for place in range(500):
        check.take(answer(place))
    check.take(m.AnswerTotals({drawn_from: 700, not_wanted: 40, "payload": 3}))

    found = check.finish(10.0, lambda: False)

    assert 10.0 <= clock.monotonic_s() - 0.0 < 12.0
    assert 0 < found.compared < 500
    assert found.left_out == {
        not_wanted: 40,
        "payload": 3,
        "time": 500 - found.compared,
        "not-drawn": 200,
    }


def test_an_interruption_ends_it_at_once() -> None:
    reference = FakeReference(FakeClock())
    check = check_of(reference)
    check.take(answer(0))

    found = check.finish(60.0, lambda: True)

    assert (found.compared, found.left_out) == (0, {"time": 1})
    assert reference.asked == []


def test_both_halves_are_compared_alike() -> None:
    reference = FakeReference(FakeClock(), cpu_s=0.0)
    check = check_of(reference)
    for place in range(200):
        check.take(answer(place))
        if place < 50:
            check.take(answer(place, reused=True))

    found = check.finish(16.0, lambda: False)

    of_tree = found.right_traits[Trait.REUSED_TREE]
    assert abs(of_tree - found.right_traits[Trait.REUSED_NOTHING]) <= 1
