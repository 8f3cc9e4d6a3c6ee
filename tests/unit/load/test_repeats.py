"""Answers that are requested again, from servers with known faults."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from hybridbench.load.interfaces import Answer
from hybridbench.load.logprobs import Token
from hybridbench.load.repeats import Ask, Repeats
from hybridbench.records.load import Repeated
from hybridbench.records.messages import Sampling, Submit

RIGHT, OTHER, NEAR = " a b", " a d", " a c"
TOKENS = [
    Token(" a", -0.1, {" a": -0.1, " x": -3.1}),
    Token(" b", -0.7, {" b": -0.7, " c": -0.71, " d": -4.7}),
]


def request(number: int, temperature: float = 0.0) -> Submit:
    return Submit(f"r{number}", [number] * 8, Sampling(2, temperature=temperature))


def answer(text: str, cached_tokens: int | None = None) -> Answer:
    logprobs = list(TOKENS)
    return Answer(
        [text], output_tokens=2, cached_tokens=cached_tokens, logprobs=logprobs, reason="length"
    )


def compared(
    served: list[Answer], ask: Ask, *, budget_s: float = 5.0, both_ways: bool = False
) -> Repeated:
    async def run() -> Repeated:
        repeats = Repeats(1, both_ways=both_ways)
        for number, one in enumerate(served):
            repeats.saw(request(number), one)
        await repeats.compare(ask, budget_s)
        return repeats.so_far()

    return asyncio.run(run())


def server(
    together: Callable[[int], str] = lambda _: RIGHT, alone: Callable[[int], str] = lambda _: RIGHT
) -> Ask:
    """A server that answers by number: first as ``together``, afterwards as ``alone``."""
    asked: set[int] = set()

    async def ask(again: Submit, key: str, whole: bool) -> Answer | None:
        del key, whole
        number = again.input_ids[0]
        text = (alone if number in asked else together)(number)
        asked.add(number)
        return answer(text) if text else None

    return ask


def test_answers_that_come_again_agree() -> None:
    found = compared([answer(RIGHT, 4), answer(RIGHT, 0), answer(RIGHT)], server())

    assert (found.compared, found.tokens, found.known, found.reused) == (3, 6, 2, 1)
    assert (found.served, found.control, found.left_out) == ((), (), {})


def test_a_served_answer_that_no_request_gets_again_is_named_with_its_margin() -> None:
    found = compared([answer(RIGHT), answer(OTHER, 4), answer(RIGHT)], server())

    (one,) = found.served
    # The second token led by 4.0, the first by 3.0: they may have parted there unseen.
    assert (one.place, one.prompt_tokens, one.margin, one.reused) == (1, 8, 3.0, True)
    assert (found.compared, found.served_differ, found.control_differ) == (3, 1, 0)
    assert found.control == ()


@pytest.mark.parametrize(("longer", "measured"), [(1, 20), (50, 12)])
def test_what_rounding_does_is_measured_in_answers_that_agree(longer: int, measured: int) -> None:
    """Twelve answers are enough, unless they are short."""
    calls: list[tuple[int, str]] = []

    async def ask(again: Submit, key: str, whole: bool) -> Answer | None:
        calls.append((again.input_ids[0], key))
        moved = 0.02 * sum(number == again.input_ids[0] for number, _ in calls)
        tokens = [
            Token(one.name, one.logprob + moved, {n: v + moved for n, v in one.others.items()})
            for one in TOKENS * longer
        ]
        return Answer([RIGHT], output_tokens=2, logprobs=tokens)

    found = compared([answer(RIGHT)] * 20, ask)

    # Each one runs alone, and again with its own prefix in the cache.
    assert found.noise_tokens == measured * 2 * 2 * longer
    assert abs(found.noise - 0.04) < 1e-9
    # The gap is 3.0 for " a" and 0.01 for " b".
    assert found.usual_gap is not None
    assert abs(found.usual_gap - 1.505) < 1e-9
    keys = {number: [key for one, key in calls if one == number] for number, _ in calls}
    assert len(keys) == 20
    assert sorted(map(len, keys.values())) == [1] * (20 - measured) + [3] * measured
    for together, *alone in keys.values():
        assert together not in alone
        assert len(set(alone)) <= 1


def test_the_time_that_no_difference_needs_goes_into_measuring_rounding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 0.0
    monkeypatch.setattr("hybridbench.load.repeats._now_s", lambda: now_s)

    async def ask(again: Submit, key: str, whole: bool) -> Answer | None:
        nonlocal now_s
        del again, key, whole
        now_s += 0.05
        return answer(RIGHT)

    found = compared([answer(RIGHT)] * 20, ask, budget_s=1.0)

    # Ten answers of two tokens, alone and again, take a second; half of it would do for five.
    assert 10 * 2 * 2 <= found.noise_tokens <= 11 * 2 * 2


@pytest.mark.parametrize(
    ("served", "reason", "output_tokens", "certain"),
    [
        # There was room for another token.
        (" a", "length", 1, "length"),
        (" a", "", 1, "length"),
        # The server chose to end, or counts a token whose text is missing.
        (" a", "stop", 1, ""),
        (" a", "length", 2, ""),
        # Only chunks were counted.
        (" a", "length", None, ""),
    ],
)
def test_an_answer_that_ends_before_its_limit_is_certainly_wrong(
    served: str, reason: str, output_tokens: int | None, certain: str
) -> None:
    cut = Answer([served], chunks=1, output_tokens=output_tokens, reason=reason)

    (one,) = compared([cut], server()).served

    assert one.certain == certain
    # At best, the token that ended it was the next best one.
    assert one.place == 1
    assert one.margin == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("text", "differs"),
    [("abd", True), ("a b c ", False), ("ab\ufffd", False)],
)
def test_equal_tokens_with_another_text_are_certainly_wrong(text: str, *, differs: bool) -> None:
    """Only spaces and partial characters depend on how a stream is split."""

    async def ask(again: Submit, key: str, whole: bool) -> Answer | None:
        del again, key, whole
        return Answer(["ab", "c"], [1, 2], reason="length")

    found = compared([Answer([text], [1, 2], reason="length")], ask)

    assert (found.compared, found.served_differ) == (1, int(differs))
    assert [one.certain for one in found.served] == ["text"] * differs


def in_both_ways(streamed: Answer, whole: Answer) -> Repeated:
    async def ask(again: Submit, key: str, is_whole: bool) -> Answer | None:
        del again, key
        return whole if is_whole else streamed

    return compared([streamed] * 3, ask, both_ways=True)


@pytest.mark.parametrize(
    ("text", "ids", "reason"),
    [
        ("a b", [1, 2], "length"),
        (" a b\ufffd", [1, 2], "length"),
        # With the token that ends it.
        (" a b", [1, 2, 9], "stop"),
        (" a b", [1], "stop"),
        (" a b", [], "stop"),
    ],
)
def test_a_whole_answer_may_be_cut_otherwise_than_a_stream(
    text: str, ids: list[int], reason: str
) -> None:
    found = in_both_ways(Answer([RIGHT], [1, 2], reason=reason), Answer([text], ids, reason=reason))

    assert (found.compared, found.served_differ, found.control_differ) == (3, 0, 0)


def test_a_streamed_answer_that_differs_from_the_whole_one_is_compared_once() -> None:
    found = in_both_ways(answer(OTHER), answer(RIGHT))

    assert (found.compared, found.served_differ, found.control_differ) == (3, 3, 3)
    assert {(one.margin, one.streamed) for one in found.served} == {(3.0, True)}


def test_near_ties_that_fall_otherwise_in_a_whole_answer_have_no_margin_to_speak_of() -> None:
    found = in_both_ways(answer(NEAR), answer(RIGHT))

    assert [one.margin for one in found.served] == [pytest.approx(0.01)] * 3


def test_what_is_computed_beside_others_shows_what_rounding_does() -> None:
    found = compared([answer(RIGHT)] * 2, server(lambda number: NEAR if number else RIGHT))

    assert (found.served_differ, found.control_differ) == (0, 1)
    (one,) = found.control
    assert one.margin is not None
    assert abs(one.margin - 0.01) < 1e-9


def test_a_server_that_does_not_agree_with_itself_is_not_compared() -> None:
    asked = []

    def alone(number: int) -> str:
        asked.append(number)
        return RIGHT if len(asked) % 2 else NEAR

    found = compared([answer(OTHER)], server(alone=alone))

    assert (found.compared, found.served_differ, found.left_out) == (0, 0, {"unsteady": 1})


def test_no_answer_decides_nothing() -> None:
    refused = compared([answer(RIGHT)], server(lambda _: ""))
    lost = compared([answer(OTHER)], server(alone=lambda _: ""))

    assert refused.left_out == lost.left_out == {"failed": 1}
    assert refused.compared == lost.compared == 0


def test_what_the_time_is_too_short_for_is_said() -> None:
    assert compared([answer(RIGHT)] * 3, server(), budget_s=0.0).left_out == {"time": 3}


def test_a_difference_that_time_leaves_undecided_is_the_first_of_the_next_idle_point(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 0.0
    monkeypatch.setattr("hybridbench.load.repeats._now_s", lambda: now_s)
    right = server()

    async def ask(again: Submit, key: str, whole: bool) -> Answer | None:
        nonlocal now_s
        now_s += 1.0
        return await right(again, key, whole)

    async def run() -> list[Repeated]:
        repeats = Repeats(1)
        for number in range(3):
            repeats.saw(request(number), answer(OTHER))
        found = []
        for _ in range(2):
            await repeats.compare(ask, 4.0)
            found.append(repeats.so_far())
        return found

    first, second = asyncio.run(run())

    # Each takes three seconds alone.
    assert (first.served_differ, first.left_out) == (2, {"undecided": 1})
    assert (second.served_differ, second.left_out) == (3, {})


def test_sampled_answers_and_turns_of_sessions_are_left_out() -> None:
    repeats = Repeats(1)
    repeats.saw(request(1, temperature=0.5), answer(RIGHT))
    repeats.saw(Submit("r2", [1], Sampling(2), session_id="s"), answer(RIGHT))

    assert repeats.so_far().left_out == {"sampled": 1, "session": 1}


def test_of_a_server_that_cannot_leave_its_cache_out_nothing_is_kept() -> None:
    repeats = Repeats(1, "no-cold-way")
    repeats.saw(request(1), answer(RIGHT))

    assert repeats.so_far().left_out == {"no-cold-way": 1}


def test_the_sample_is_drawn_from_all_and_bounded() -> None:
    numbers: list[int] = []

    async def ask(again: Submit, key: str, whole: bool) -> Answer | None:
        numbers.append(again.input_ids[0])
        return answer(RIGHT)

    found = compared([answer(RIGHT)] * 3000, ask)

    assert len(set(numbers)) == found.compared == 256
    assert found.left_out == {"not-drawn": 3000 - 256}
    assert sum(number >= 1500 for number in set(numbers)) > 90
