"""Sampling parameters are checked once; each error is one sentence."""

from __future__ import annotations

import math
from typing import Any

import pytest

from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.foundation.errors import UsageError


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens is 0; it must be at least 1"),
        ({"temperature": -0.1}, "temperature is -0.1; it must be a finite number"),
        ({"temperature": math.inf}, "temperature is inf"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"top_k": 0}, "top_k is 0; it must be at least 1, or -1"),
        ({"top_k": -2}, "top_k is -2"),
        ({"top_p": 0.0}, "top_p is 0.0; it must be above 0 and at most 1"),
        ({"top_p": 1.01}, "top_p is 1.01"),
        ({"top_p": math.nan}, "top_p is nan"),
        ({"stop_token_ids": (3, -4)}, "stop_token_ids contains -4"),
        ({"logprobs": -1}, "logprobs is -1; it must be 0 or more, or None"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_in_one_sentence(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        SamplingParams(**fields)


@pytest.mark.parametrize(
    ("fields", "greedy"),
    [({}, True), ({"temperature": 1.0, "top_k": 1}, True), ({"temperature": 0.5}, False)],
    ids=str,
)
def test_zero_temperature_or_a_single_candidate_is_greedy(
    fields: dict[str, Any], greedy: bool
) -> None:
    assert SamplingParams(**fields).is_greedy is greedy
