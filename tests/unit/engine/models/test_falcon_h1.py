"""The spellings of Falcon-H1's config.json, and one error sentence for each fault."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from hybridbench.engine.models.export import write_checkpoint
from hybridbench.engine.models.falcon_h1 import FalconH1Config, Multipliers, hybrid_layers
from hybridbench.engine.models.presets import PRESETS
from hybridbench.engine.models.registry import load_model, read_hf_config
from hybridbench.engine.models.weights import RandomWeights
from hybridbench.foundation.errors import ConfigError
from tests.model_steps import make_pools

TINY = cast("FalconH1Config", PRESETS["falcon-h1-tiny"])


def read(
    directory: Path,
    remove: tuple[str, ...] = (),
    config: FalconH1Config = TINY,
    **changes: Any,
) -> FalconH1Config:
    fields = {**config.hf_fields(), **changes}
    for key in remove:
        del fields[key]
    (directory / "config.json").write_text(json.dumps(fields))
    return cast("FalconH1Config", read_hf_config(directory))


@pytest.mark.parametrize(
    "config",
    [
        TINY,
        replace(
            TINY,
            time_step_limit=(0.01, 2.0),
            multipliers=Multipliers(lm_head=0.02, ssm=(1.0, 2.0, 3.0, -4.0, 0.5), mlp=(0.5, 0.0)),
        ),
    ],
    ids=["tiny", "with multipliers"],
)
def test_what_is_written_is_read_back(tmp_path: Path, config: FalconH1Config) -> None:
    assert read(tmp_path, config=config) == config


def test_older_files_have_their_keys_at_the_top_level(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        remove=("rope_parameters", "time_step_limit", "head_dim"),
        rope_theta=TINY.rope.rope_theta,
        rope_scaling=None,
        mamba_d_head="auto",
    )

    assert config == TINY


def test_a_null_width_follows_from_the_model_and_an_absent_one_does_not(tmp_path: Path) -> None:
    null = read(tmp_path, mamba_d_ssm=None, mamba_d_head=None, num_key_value_heads=None)
    absent = read(tmp_path, remove=("mamba_d_ssm", "mamba_d_head"))

    assert null.mamba2.width == 2 * TINY.hidden_size
    assert null.num_key_value_heads == TINY.num_attention_heads
    assert absent.mamba2.width == 1024


def test_a_checkpoint_of_random_weights_is_read_back(tmp_path: Path) -> None:
    config = replace(TINY, layer_types=hybrid_layers(1), tie_word_embeddings=True, mlp_bias=True)
    write_checkpoint(config, RandomWeights(config, 3, torch.device("cpu")), tmp_path)

    model = load_model(tmp_path, torch.float32, "cpu")

    assert model.config == config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": ["hybrid"]}, "layer_types must list one kind for each of the 4 layers"),
        ({"layer_types": ["mlp"] * 4}, "layer_types contains 'mlp'; supported are hybrid"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; supported are silu and swish"),
        ({"mamba_n_groups": 3}, "mamba_n_heads is 4; it must be a multiple of mamba_n_groups 3"),
        ({"mamba_n_heads": 5}, "mamba_n_heads is 5; it must divide the 128 channels"),
        ({"mamba_d_head": 16}, "mamba_d_head is 16; 128 channels make 4 heads of 32"),
        ({"num_key_value_heads": 3}, "num_attention_heads is 4; it must be a multiple of"),
        ({"head_dim": 7}, "head_dim is 7; it must be even"),
        ({"mlp_multipliers": [1.0]}, "mlp_multipliers is [1.0]; it must be 2 numbers"),
        ({"key_multiplier": "1"}, "key_multiplier is '1'; it must be a number"),
        ({"time_step_limit": [1.0, 0.1]}, "time_step_limit is [1.0, 0.1]; it must hold the"),
        ({"time_step_limit": 0.1}, "time_step_limit is 0.1; it must hold the shortest step"),
        (
            {"rope_parameters": {"rope_type": "proportional"}},
            "rope_parameters has rope_type 'proportional'; supported are default, linear, ",
        ),
        ({"quantization_config": {}}, "quantization_config is set"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_cannot_be_is_one_sentence_with_file_and_key(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, **changes)

    assert str(caught.value).startswith(f"{tmp_path / 'config.json'}: {message}")


def test_every_layer_has_kv_and_a_state() -> None:
    pools = make_pools(TINY, torch.float32)
    assert pools.mamba_pool is not None
    states = [*pools.mamba_pool.mamba_cache.conv, pools.mamba_pool.mamba_cache.temporal]

    per_slot = sum(tensor.nbytes for tensor in states) // (pools.mamba_pool.size + 1)

    assert TINY.state_bytes_per_slot(torch.float32) == per_slot
    assert TINY.kv_layer_ids == TINY.linear_layer_ids == (0, 1, 2, 3)
