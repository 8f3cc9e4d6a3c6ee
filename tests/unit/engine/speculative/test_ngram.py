"""Prompt lookup: what is proposed, and how little of a text is searched."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridbench.engine.speculative.drafter import DRAFTERS
from hybridbench.engine.speculative.ngram import SEARCH_TOKENS, NgramDrafter

TOKENS = st.integers(0, 3)


def test_what_followed_the_last_tokens_before_is_proposed() -> None:
    drafter = NgramDrafter()

    assert drafter.propose([1, 2, 3, 4, 5], [9, 1, 2], 3) == [3, 4, 5]
    assert drafter.propose([1, 2, 3, 4, 5], [9, 1, 2], 1) == [3]


def test_a_longer_match_is_believed_before_a_later_one() -> None:
    text = [1, 2, 3, 40, 7, 2, 3, 50, 1, 2, 3]

    assert NgramDrafter().propose(text, [], 1) == [40]
    assert NgramDrafter(longest=2).propose(text, [], 1) == [50]


def test_a_repetition_is_taken_to_go_on() -> None:
    assert NgramDrafter().propose([5], [1, 2, 3, 1, 2, 3], 7) == [1, 2, 3, 1, 2, 3, 1]
    assert NgramDrafter().propose([6, 6, 6], [], 4) == [6, 6, 6, 6]


def test_a_text_without_repetition_yields_no_proposal() -> None:
    assert NgramDrafter().propose([1, 2, 3], [4, 5], 4) == []
    assert NgramDrafter().propose([1], [], 4) == []
    # By default, one matching token is enough.
    assert NgramDrafter().propose([1, 2, 1], [], 1) == [2]
    assert NgramDrafter(shortest=2).propose([1, 2, 1], [], 1) == []


def test_only_the_end_of_a_long_text_is_searched() -> None:
    old = [1, 2, 3]
    text = old + list(range(10, 10 + SEARCH_TOKENS))

    assert NgramDrafter().propose([*text, 1, 2], [], 1) == []
    assert NgramDrafter().propose([*text[:100], 1, 2], [], 1) == [3]


@given(prompt=st.lists(TOKENS, min_size=1, max_size=20), output=st.lists(TOKENS, max_size=20))
def test_proposals_are_those_of_a_plain_search(prompt: list[int], output: list[int]) -> None:
    text = prompt + output

    proposed = NgramDrafter(longest=3, shortest=2).propose(prompt, output, 4)

    assert proposed == _plain_search(text, 3, 2, 4)


def _plain_search(text: list[int], longest: int, shortest: int, most: int) -> list[int]:
    for length in range(longest, shortest - 1, -1):
        for start in range(len(text) - length - 1, -1, -1):
            if text[start : start + length] == text[len(text) - length :]:
                told = list(text)
                while len(told) < len(text) + most:
                    told.append(told[start + length + len(told) - len(text)])
                return told[len(text) :]
    return []


@pytest.mark.parametrize(("longest", "shortest"), [(1, 2), (3, 0)])
def test_lengths_that_cannot_be_are_refused(longest: int, shortest: int) -> None:
    with pytest.raises(ValueError, match="1 <= shortest <= longest"):
        NgramDrafter(longest, shortest)


def test_every_drafter_can_be_built_by_its_name() -> None:
    for build in DRAFTERS.values():
        assert build().propose([1, 2, 1, 2], [], 2) == [1, 2]
