"""Bytes as tokens, and tokens as characters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridbench.serve.tokens import chat_prompt, decode, encode

VOCAB = 4096


@given(st.lists(st.integers(0, VOCAB - 1)))
def test_an_answer_that_comes_back_has_the_tokens_that_were_emitted(ids: list[int]) -> None:
    text = decode(ids)

    assert encode(text, VOCAB) == ids
    assert len(text) == len(ids)


@given(st.text())
def test_every_text_has_tokens_of_the_vocabulary(text: str) -> None:
    ids = encode(text, VOCAB)

    assert all(0 <= id_ < VOCAB for id_ in ids)
    assert len(ids) <= len(text.encode())


def test_text_is_its_bytes() -> None:
    assert encode("hi", VOCAB) == [104, 105]
    assert encode("ö", VOCAB) == list("ö".encode())
    with pytest.raises(UnicodeEncodeError):
        encode("\ud800", VOCAB)


def test_a_conversation_begins_with_its_earlier_turns() -> None:
    before = chat_prompt([("user", "hi")])

    after = chat_prompt([("user", "hi"), ("assistant", "yes"), ("user", "why")])

    assert after.startswith(f"{before}yes")
