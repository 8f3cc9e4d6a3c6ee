from __future__ import annotations

from dataclasses import replace

import pytest
from pydantic import TypeAdapter

from hybridbench.foundation.engine_config import (
    CacheKind,
    EngineConfig,
    EngineConfigError,
    EngineSettings,
    NewTokenRatio,
    PoolSizes,
)
from hybridbench.foundation.errors import ConfigError

TRACKING = {"mamba_scheduler_strategy": "extra_buffer", "page_size": 16}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"max_running_requests": 0}, "max_running_requests"),
        ({"max_context_len": 1}, "max_context_len"),
        ({"mamba_slots": 0}, "mamba_slots"),
        ({"kv_tokens": 2}, "kv_tokens"),
        ({"page_size": 16, "kv_tokens": 32}, "kv_tokens"),
        ({"page_size": 16, "kv_tokens": 100}, "kv_tokens"),
        ({"max_prefill_tokens": 0}, "max_prefill_tokens"),
        ({"schedule_policy": "random"}, "schedule_policy"),
        ({"speculative_algorithm": "EAGLE"}, "speculative_algorithm"),
        ({"speculative_num_draft_tokens": 1}, "speculative_num_draft_tokens"),
        ({"mamba_scheduler_strategy": "lazy"}, "mamba_scheduler_strategy"),
        ({"mamba_track_interval": 1}, "mamba_track_interval"),
        ({**TRACKING, "mamba_track_interval": 40}, "mamba_track_interval"),
        ({**TRACKING, "mamba_cache_chunk_size": 72}, "mamba_cache_chunk_size"),
        ({"chunked_prefill_size": 0}, "chunked_prefill_size"),
        ({"page_size": 16, "chunked_prefill_size": 40}, "chunked_prefill_size"),
        ({"max_queued_requests": 0}, "max_queued_requests"),
        ({"req_waiting_timeout_s": 0.0}, "req_waiting_timeout_s"),
        (
            {"priority_scheduling_preemption_threshold": -1},
            "priority_scheduling_preemption_threshold",
        ),
        ({"new_token_ratio": NewTokenRatio(init=0.1, min=0.5)}, "new_token_ratio.min"),
        ({"new_token_ratio": NewTokenRatio(init=1.5)}, "new_token_ratio.init"),
        ({"new_token_ratio": NewTokenRatio(decay_steps=0)}, "new_token_ratio.decay_steps"),
    ],
)
def test_an_impossible_value_is_refused_by_its_name(changes: dict[str, object], field: str) -> None:
    with pytest.raises(EngineConfigError) as refused:
        replace(EngineConfig(), **changes)  # type: ignore[arg-type]

    assert ".".join(refused.value.path) == field


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"kv_tokens": 2}, "engine: kv_tokens is 2; it must be at least 3."),
        (
            {"chunked_prefill_size": 0},
            "engine: chunked_prefill_size is 0; it must be at least 1, or None.",
        ),
        (
            {"cache": "tree"},
            "engine: cache is 'tree'; it must be auto or radix or unified or chunk or swa or "
            "swa_chunk.",
        ),
        (
            {"page_size": 16, "kv_tokens": 100},
            "engine: kv_tokens 100 is not a multiple of page_size 16; 96 is.",
        ),
    ],
)
def test_a_refusal_says_what_would_be_right(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        replace(EngineConfig(), **changes)  # type: ignore[arg-type]

    assert str(refused.value) == sentence


def test_every_setting_of_a_profile_says_what_it_means() -> None:
    """A docstring below a field is not an attribute; only the schema shows whether it is there."""
    properties = TypeAdapter(EngineSettings).json_schema()["properties"]
    sizes = TypeAdapter(PoolSizes).json_schema()["properties"]

    assert not [key for key, value in {**properties, **sizes}.items() if not value["description"]]


def test_the_longest_request_fits_the_row_and_an_empty_kv_pool() -> None:
    assert EngineConfig(max_context_len=100, kv_tokens=1000).max_request_len == 100
    assert EngineConfig(max_context_len=1000, kv_tokens=100).max_request_len == 99


def test_the_ratio_reaches_its_minimum_in_the_steps_it_names() -> None:
    ratio = NewTokenRatio(init=0.8, min=0.2, decay_steps=60)

    assert ratio.decay == pytest.approx(0.01)


def test_the_size_of_a_track_buffer_follows_strategy_cache_and_overlap() -> None:
    plain = EngineConfig()
    tracking = replace(plain, mamba_scheduler_strategy="extra_buffer")

    assert plain.track_buffer_size == 0
    assert tracking.track_buffer_size == 1
    assert replace(tracking, enable_overlap_schedule=True).track_buffer_size == 2
    assert replace(tracking, cache="unified").track_buffer_size == 1
    assert replace(tracking, cache="chunk").track_buffer_size == 0


def test_a_page_larger_than_the_chunk_is_the_grid_of_prefills() -> None:
    assert EngineConfig(mamba_cache_chunk_size=64).cache_chunk_size == 64
    assert EngineConfig(page_size=128, kv_tokens=16384).cache_chunk_size == 128


@pytest.mark.parametrize(
    ("cache", "without", "with_sliding"),
    [
        ("auto", False, True),
        ("unified", False, True),
        ("radix", False, False),
        ("chunk", False, False),
        ("swa", True, True),
        ("swa_chunk", True, True),
    ],
)
def test_which_caches_keep_windows_only(
    cache: CacheKind, without: bool, with_sliding: bool
) -> None:
    config = EngineConfig(cache=cache)

    assert config.keeps_windows_only(sliding=False) is without
    assert config.keeps_windows_only(sliding=True) is with_sliding
