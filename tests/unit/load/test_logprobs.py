"""Token logprobs that servers return, and the first difference between two answers."""

from __future__ import annotations

import json

import pytest

from hybridbench.load.logprobs import (
    Difference,
    Token,
    first_difference,
    generated_tokens,
    tokens_in,
)

LEGACY = {
    "tokens": [" a", " b"],
    "token_logprobs": [-0.5, -1.0],
    "top_logprobs": [{" a": -0.5, " c": -2.0}, {" b": -1.0, " d": -1.25}],
    "text_offset": [0, 2],
}
OF_CHAT = {
    "content": [
        {
            "token": " a",
            "logprob": -0.5,
            "bytes": [32, 97],
            "top_logprobs": [{"token": " a", "logprob": -0.5}, {"token": " c", "logprob": -2.0}],
        },
        {
            "token": " b",
            "logprob": -1.0,
            "top_logprobs": [{"token": " b", "logprob": -1.0}, {"token": " d", "logprob": -1.25}],
        },
    ]
}
TOKENS = [
    Token(" a", -0.5, {" a": -0.5, " c": -2.0}),
    Token(" b", -1.0, {" b": -1.0, " d": -1.25}),
]
BY_ID = [
    Token("token_id:7", -0.5, {"token_id:7": -0.5, "token_id:9": -2.0}),
    Token("token_id:8", -1.0, {"token_id:8": -1.0, "token_id:3": -1.25}),
]


@pytest.mark.parametrize("said", [LEGACY, OF_CHAT])
def test_both_forms_say_the_same(said: object) -> None:
    tokens = tokens_in(json.dumps(said).encode())

    assert tokens == TOKENS
    assert [token.gap for token in tokens] == [1.5, 0.25]


def test_sglang_says_it_by_ids() -> None:
    chosen = b"[[-0.5, 7, null], [-1.0, 8, null]]"
    likeliest = b'[[[-0.5, 7, null], [-2.0, 9, " c"]], [[-1.0, 8, null], [-1.25, 3, null]]]'

    assert generated_tokens(chosen, likeliest) == BY_ID
    assert generated_tokens(chosen, b"[]") == generated_tokens(b"null", likeliest) == []


@pytest.mark.parametrize(
    "said",
    [None, 3, {}, {"tokens": [" a"]}, {"content": None}, {"tokens": "a"}, {**LEGACY, "tokens": []}],
)
def test_another_form_says_nothing(said: object) -> None:
    assert tokens_in(json.dumps(said).encode()) == []


@pytest.mark.parametrize(
    ("answer", "place", "margin"),
    [
        (" a d e", 1, 0.25),
        (" c b", 0, 1.5),
        # Not among the likeliest, so it was no likelier than the last of these.
        (" x b", 0, 1.5),
        # Its end is missing; whatever ended it was no likelier than the next best token.
        (" a", 1, 0.25),
        # It is longer; no token of the other answer shows how likely that is.
        (" a b c", 4, None),
    ],
)
def test_the_margin_is_that_of_the_first_token_that_differs(
    answer: str, place: int, margin: float | None
) -> None:
    assert first_difference(answer, " a b", TOKENS) == Difference(place, margin)


@pytest.mark.parametrize(
    ("answer", "place", "margin"),
    [
        # "a", "bR" or "ab", "R": the answers may have parted at the first token, or at the second.
        ("abR", 1, 0.25),
        # "d", "C" or "dC", of which the first was the likelier.
        ("dCc", 0, 0.5),
        # No other token listed for the first place is the beginning of this text.
        ("abx", 1, 0.25),
    ],
)
def test_a_text_with_several_readings_has_the_smallest_of_their_margins(
    answer: str, place: int, margin: float
) -> None:
    tokens = [
        Token("ab", -0.5, {"ab": -0.5, "a": -0.75, "d": -1.0, "dC": -3.0}),
        Token("c", -0.5, {"c": -0.5, "R": -2.0, "x": -4.0}),
    ]

    assert first_difference(answer, "abc", tokens) == Difference(place, margin)


def test_an_answer_may_end_with_any_of_the_tokens_that_have_no_text() -> None:
    likeliest = [("c", -0.5), ("", -0.75), ("", -3.0), ("d", -2.0)]
    candidates = [{"token": text, "logprob": logprob} for text, logprob in likeliest]
    said = {"content": [{"token": "c", "logprob": -0.5, "top_logprobs": candidates}]}

    tokens = tokens_in(json.dumps(said).encode())

    assert first_difference("", "c", tokens) == Difference(0, 0.25)


def test_ids_are_compared_one_by_one() -> None:
    assert first_difference([7, 3], [7, 8], BY_ID) == Difference(1, 0.25)
    assert first_difference([5, 8], [7, 8], BY_ID) == Difference(0, 1.5)
    assert first_difference([7], [7, 8], BY_ID) == Difference(1, 0.25)
    assert first_difference([7, 8, 9], [7, 8], BY_ID) == Difference(2, None)
    # Logprobs by text do not apply to ids.
    assert first_difference([7, 3], [7, 8], TOKENS) == Difference(1, None)


@pytest.mark.parametrize("answer", [" a\ufffd", " aé"])
def test_tokens_that_share_a_text_have_no_margin(answer: str) -> None:
    """Two tokens may have this text, and the logprobs by text keep only one of them."""
    likeliest = {" b": -0.5, "\ufffd": -2.5, " c": -3.0}
    tokens = [TOKENS[0], Token(" b", -0.5, likeliest)]

    assert first_difference(answer, " a b", tokens) == Difference(1, None)
    assert first_difference(" a", " a b", tokens) == Difference(1, None)
    assert first_difference(" a c", " a b", tokens) == Difference(1, 1.5)


def test_a_character_of_several_tokens_has_no_margin() -> None:
    tokens = [Token("\ufffd", -0.5, {}), Token("\ufffd", -0.5, {}), Token(" b", -1.0, {" d": -2.0})]

    assert first_difference("é d", "é b", tokens) == Difference(2, None)
