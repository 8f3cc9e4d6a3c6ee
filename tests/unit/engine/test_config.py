from __future__ import annotations

from dataclasses import replace

import pytest

from hybridbench.engine.config import EngineConfig, NewTokenRatio
from hybridbench.errors import ConfigError


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"max_running_requests": 0}, "max_running_requests is 0; it must be at least 1"),
        ({"max_context_len": 1}, "max_context_len is 1; it must be at least 2"),
        ({"mamba_slots": 0}, "mamba_slots is 0; it must be at least 1"),
        ({"kv_tokens": 2}, "kv_tokens is 2; it must be at least 3"),
        ({"page_size": 16, "kv_tokens": 32}, "kv_tokens is 32; it must be at least 33"),
        ({"page_size": 16, "kv_tokens": 100}, "a multiple of the page size 16, such as 96"),
        ({"max_prefill_tokens": 0}, "max_prefill_tokens is 0"),
        ({"schedule_policy": "random"}, "schedule_policy is 'random'; it must be fcfs or lpm"),
        ({"cache": "tree"}, "cache is 'tree'; it must be radix or chunk"),
        ({"check_level": "always"}, "check_level is 'always'; it must be off or idle or busy"),
        ({"state_refresh": "none"}, "state_refresh is 'none'; it must be path or used"),
        (
            {"speculative_algorithm": "EAGLE"},
            "speculative_algorithm is 'EAGLE'; it must be None or NGRAM",
        ),
        (
            {"speculative_num_draft_tokens": 1},
            "speculative_num_draft_tokens is 1; it must be at least 2",
        ),
        ({"mamba_scheduler_strategy": "lazy"}, "it must be no_buffer or extra_buffer or extra_bu"),
        ({"mamba_track_interval": 1}, "mamba_track_interval is 1; it must be at least 2"),
        (
            {
                "mamba_scheduler_strategy": "extra_buffer",
                "mamba_track_interval": 40,
                "page_size": 16,
            },
            "mamba_track_interval is 40; it must be a multiple of the page size 16",
        ),
        (
            {
                "mamba_scheduler_strategy": "extra_buffer",
                "mamba_cache_chunk_size": 72,
                "page_size": 16,
            },
            "mamba_cache_chunk_size is 72; it must be a multiple of the page size 16",
        ),
        ({"chunked_prefill_size": 0}, "chunked_prefill_size is 0"),
        ({"page_size": 16, "chunked_prefill_size": 40}, "a positive multiple of the page size 16"),
        ({"max_queued_requests": 0}, "max_queued_requests is 0; it must be at least 1, or None"),
        ({"req_waiting_timeout_s": 0.0}, "req_waiting_timeout_s is 0.0; it must be more than 0"),
        ({"priority_scheduling_preemption_threshold": -1}, "threshold is -1; it must be at least"),
        ({"new_token_ratio": NewTokenRatio(init=0.1, min=0.5)}, "falls from 0.1 to 0.5"),
        ({"new_token_ratio": NewTokenRatio(decay_steps=0)}, "in 0 steps"),
    ],
)
def test_an_impossible_value_is_refused_with_one_sentence(
    changes: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=r"^engine: ") as refused:
        replace(EngineConfig(), **changes)  # type: ignore[arg-type]

    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


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
    assert replace(tracking, cache="chunk").track_buffer_size == 0


def test_a_page_larger_than_the_chunk_is_the_grid_of_prefills() -> None:
    assert EngineConfig(mamba_cache_chunk_size=64).cache_chunk_size == 64
    assert EngineConfig(page_size=128, kv_tokens=16384).cache_chunk_size == 128
