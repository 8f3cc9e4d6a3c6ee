"""Pools are reduced to fit beside the weights in free memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hybridbench.engine.models.presets import PRESETS
from hybridbench.engine.models.qwen3_5_config import Qwen35Config
from hybridbench.engine.models.sizes import (
    MEMORY_SHARE,
    ModelSizes,
    described,
    fit_to_memory,
    pools_that_fit,
)
from hybridbench.foundation.engine_config import EngineConfig
from hybridbench.foundation.errors import ConfigError

GIB = 2**30
CONFIG = EngineConfig(model="qwen3-next-1b")
SIZES = ModelSizes.of(PRESETS["qwen3-next-1b"], torch.bfloat16)


def weighed(config: EngineConfig, sizes: ModelSizes) -> int:
    """Return the bytes of the weights and both pools."""
    states = (config.mamba_slots + 1) * sizes.state_bytes_per_slot
    return sizes.weight_bytes + states + config.kv_tokens * sizes.kv_bytes_per_token


@pytest.mark.parametrize("whole", ["qwen3-next", "nemotron-h", "falcon-h1", "gpt-oss"])
def test_presets_of_a_few_billion_have_the_states_and_kv_of_the_released_layers(
    whole: str,
) -> None:
    released = PRESETS[whole]
    parts = [p for name, p in PRESETS.items() if name.startswith(whole) and name.endswith("b")]

    assert parts
    for part in parts:
        assert part.num_key_value_heads * part.head_dim == (
            released.num_key_value_heads * released.head_dim
        )
        if released.linear_layer_ids:
            assert part.cache_params.shape == released.cache_params.shape


def test_pools_stay_as_they_are_where_there_is_room() -> None:
    assert pools_that_fit(CONFIG, SIZES, 8 * GIB) is CONFIG


@pytest.mark.parametrize("free_gib", [2.5, 3, 3.5, 4])
def test_pools_fill_the_room_beside_the_weights_and_no_more(free_gib: float) -> None:
    free_bytes = int(free_gib * GIB)

    fitting = pools_that_fit(CONFIG, SIZES, free_bytes)

    assert fitting is not None
    assert CONFIG.least_mamba_slots <= fitting.mamba_slots < CONFIG.mamba_slots
    assert CONFIG.max_context_len < fitting.kv_tokens < CONFIG.kv_tokens
    unused = MEMORY_SHARE * free_bytes - weighed(fitting, SIZES)
    assert 0 <= unused <= 2 * SIZES.state_bytes_per_slot
    assert fitting.max_request_len == CONFIG.max_request_len


def test_kv_is_reduced_by_whole_pages() -> None:
    paged = replace(CONFIG, page_size=64, mamba_scheduler_strategy="extra_buffer")

    # A configuration with a partial page would be refused.
    fitting = pools_that_fit(paged, SIZES, 3 * GIB)

    assert fitting is not None
    assert fitting.kv_tokens < paged.kv_tokens


def test_states_of_overlapped_steps_take_room_as_well() -> None:
    overlapped = replace(CONFIG, enable_overlap_schedule=True)

    plain, fitting = (pools_that_fit(c, SIZES, 3 * GIB) for c in (CONFIG, overlapped))

    assert plain is not None
    assert fitting is not None
    assert plain.mamba_slots - fitting.mamba_slots == pytest.approx(32, abs=2)


def test_a_model_without_states_has_all_the_room_for_kv() -> None:
    config = replace(CONFIG, model="gpt-oss-1b", kv_tokens=2**20, cache="radix")
    sizes = ModelSizes.of(PRESETS["gpt-oss-1b"], torch.bfloat16)

    fitting = pools_that_fit(config, sizes, 4 * GIB)

    assert fitting is not None
    room = sizes.room_beside_weights(4 * GIB) // sizes.kv_bytes_per_token
    assert room - 1 <= fitting.kv_tokens <= room
    assert fitting.mamba_slots == config.mamba_slots


def test_sliding_layers_take_room_for_their_share_of_the_tokens() -> None:
    config = replace(CONFIG, model="gpt-oss-1b", kv_tokens=2**20, swa_full_tokens_ratio=0.25)
    sizes = ModelSizes.of(PRESETS["gpt-oss-1b"], torch.bfloat16)
    whole = pools_that_fit(replace(config, cache="radix"), sizes, 4 * GIB)

    fitting = pools_that_fit(config, sizes, 4 * GIB)

    assert whole is not None
    assert fitting is not None
    # Every second layer slides and keeps a quarter of its KV, which leaves 5/8 of the total.
    assert sizes.swa_bytes_per_token == sizes.kv_bytes_per_token // 2
    assert fitting.kv_tokens / whole.kv_tokens == pytest.approx(8 / 5, rel=1e-3)


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("ratio", [0.1, 0.3, 0.8])
def test_reduced_pools_still_serve_one_request_with_windows(ratio: float, page_size: int) -> None:
    """With any amount of free memory, either nothing fits, or the reduced pools are accepted."""
    model = PRESETS["gpt-oss-1b"]
    sizes = ModelSizes.of(model, torch.bfloat16)
    config = replace(
        CONFIG,
        model="gpt-oss-1b",
        cache="swa",
        page_size=page_size,
        kv_tokens=2**20,
        swa_full_tokens_ratio=ratio,
    )
    least = sizes.weight_bytes / MEMORY_SHARE
    fitting = [
        pools_that_fit(config, sizes, int(least + step * 2**20)) for step in range(0, 600, 5)
    ]

    served = [one for one in fitting if one is not None]
    assert None in fitting
    assert served
    assert all(one.swa_tokens >= one.least_swa_tokens(model.sliding_window) for one in served)


@pytest.mark.parametrize(
    ("name", "free_gib", "fits"),
    [
        ("qwen3-next", 16, "qwen3-next-4b"),
        ("qwen3-next-4b", 8, "qwen3-next-2b"),
        ("qwen3-next-1b", 0.25, "qwen3-next-small"),
        # Across all families, the largest that fits would be nemotron-h.
        ("qwen3-next", 100, "qwen3-next-4b"),
        ("gpt-oss", 0.1, "gpt-oss-tiny"),
        ("falcon-h1", 0.0, "no preset"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_largest_preset_that_would(
    name: str, free_gib: float, fits: str
) -> None:
    config = replace(CONFIG, model=name)

    with pytest.raises(ConfigError, match=f"{name} does not fit: .*; {fits} would fit"):
        fit_to_memory(config, PRESETS[name], torch.bfloat16, int(free_gib * GIB))


@pytest.mark.parametrize(("dtype", "free_gib"), [(torch.float32, 11), (torch.bfloat16, 5)])
def test_a_model_that_would_fit_in_bfloat16_is_told_so(dtype: torch.dtype, free_gib: int) -> None:
    with pytest.raises(ConfigError, match="does not fit") as refused:
        fit_to_memory(CONFIG, PRESETS["qwen3-next-4b"], dtype, free_gib * GIB)

    said = str(refused.value).endswith(", and so would this model with --dtype bfloat16.")
    assert said == (dtype == torch.float32)


def test_a_model_without_experts_is_offered_a_preset_of_its_family_that_has_some() -> None:
    model = Qwen35Config(**{**vars(PRESETS["qwen3.5"]), "num_experts": 0})

    with pytest.raises(ConfigError, match=r"; qwen3\.5-tiny would fit"):
        fit_to_memory(CONFIG, model, torch.bfloat16, GIB)


def test_a_model_without_states_is_refused_without_a_word_on_state_slots() -> None:
    with pytest.raises(ConfigError) as refused:
        fit_to_memory(CONFIG, PRESETS["gpt-oss"], torch.bfloat16, GIB)

    assert "state slot" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "qwen3-next",
            "qwen3_next, 79.7 G parameters, 36 linear_attention, 12 full_attention, "
            "73.7 MiB a state slot, 24.0 KiB of KV a token",
        ),
        (
            "gpt-oss",
            "gpt_oss, 20.9 G parameters, 12 sliding_attention (128 tokens), 12 full_attention, "
            "48.0 KiB of KV a token",
        ),
    ],
)
def test_a_description_names_layers_windows_states_and_kv(name: str, said: str) -> None:
    assert described(PRESETS[name], torch.bfloat16) == said
