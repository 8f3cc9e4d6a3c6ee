"""Conversations as text."""

from __future__ import annotations

from hybridbench.load.texts import answer_ids, as_messages, as_text
from hybridbench.records.load import TEXT_WORDS


def test_the_next_prompt_begins_with_the_last_one_and_its_answer() -> None:
    asked = [0, 5, 127]
    answer = "  né\n!"

    again = [*asked, *answer_ids(answer), 7]

    assert as_text(again).startswith(as_text(asked) + answer)
    assert len(as_text(again).split()) > len(as_text(asked).split())


def test_messages_are_those_of_user_and_assistant_in_turn() -> None:
    ids = [1, 2, *answer_ids("yes"), 3, *answer_ids("no"), 4]

    roles = [message["role"] for message in as_messages(ids)]

    assert roles == ["user", "assistant", "user", "assistant", "user"]
    assert [m["content"] for m in as_messages(ids)][1::2] == ["yes", "no"]


def test_each_word_is_another() -> None:
    words = as_text(range(TEXT_WORDS)).split()

    assert len(set(words)) == TEXT_WORDS


def test_an_answer_that_was_cut_in_a_character_is_still_text() -> None:
    assert as_text(answer_ids("é")[:1]) == "�"
