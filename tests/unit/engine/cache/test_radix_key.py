"""Keys: slicing, comparing in whole pages, namespaces."""

from __future__ import annotations

from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridbench.engine.cache.radix_key import RadixKey, common_tokens


@pytest.mark.parametrize(
    "ids", [[1, 2, 3], array("q", [1, 2, 3]), np.array([1, 2, 3], dtype=np.int32)]
)
def test_a_key_is_made_from_any_sequence_of_ids(ids: list[int]) -> None:
    key = RadixKey(ids)

    assert list(key) == [1, 2, 3]
    assert len(key) == 3
    assert key.token_ids == [1, 2, 3]


def test_slices_are_keys_of_the_same_namespace() -> None:
    key = RadixKey([1, 2, 3, 4, 5], "tenant")

    assert list(key[1:4]) == [2, 3, 4]
    assert key[1:4].extra_key == "tenant"
    assert list(key[-2:]) == [4, 5]
    assert list(key[3:1]) == []
    assert list(key[::2]) == [1, 3, 5]
    assert list(key[-1]) == [5]
    with pytest.raises(IndexError):
        _ = key[9]


@given(st.lists(st.integers(0, 3)), st.lists(st.integers(0, 3)), st.sampled_from([1, 2, 4]))
def test_match_counts_common_whole_pages(left: list[int], right: list[int], page: int) -> None:
    common = 0
    while common < min(len(left), len(right)) and left[common] == right[common]:
        common += 1

    assert RadixKey(left).match(RadixKey(right), page) == common // page * page


def test_common_tokens_starts_at_a_byte_offset() -> None:
    assert common_tokens(RadixKey([9, 1, 2, 3]).raw, 8, RadixKey([1, 2, 5]).raw, 1) == 2


def test_keys_of_two_namespaces_do_not_compare() -> None:
    with pytest.raises(ValueError, match="extra_key 'a' and None"):
        RadixKey([1], "a").match(RadixKey([1]))
    assert RadixKey([1], "a") != RadixKey([1])
    assert RadixKey([1], "a").child_key() != RadixKey([1]).child_key()


def test_equal_keys_are_equal_and_hash_alike() -> None:
    assert RadixKey([1, 2]) == RadixKey([1, 2])
    assert hash(RadixKey([1, 2])) == hash(RadixKey([1, 2]))
    assert RadixKey([1, 2]) != [1, 2]


def test_a_page_aligned_key_loses_its_tail() -> None:
    assert list(RadixKey([1, 2, 3, 4, 5]).page_aligned(4)) == [1, 2, 3, 4]
    assert list(RadixKey([1, 2, 3]).page_aligned(4)) == []
    key = RadixKey([1, 2])
    assert key.page_aligned(2) is key


def test_long_keys_are_shown_in_short() -> None:
    assert repr(RadixKey([1, 2], "t")) == "RadixKey(extra_key='t', token_ids=[1, 2])"
    assert repr(RadixKey(range(11))).endswith("9]...)")
