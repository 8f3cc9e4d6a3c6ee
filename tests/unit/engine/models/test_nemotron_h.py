"""The spellings of Nemotron-H's config.json, and one error sentence for each fault."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from hybridbench.engine.models.export import write_checkpoint
from hybridbench.engine.models.nemotron_h import NemotronHConfig, pattern
from hybridbench.engine.models.presets import PRESETS
from hybridbench.engine.models.registry import load_model, read_hf_config, resolve_model
from hybridbench.engine.models.weights import RandomWeights
from hybridbench.foundation.errors import ConfigError
from tests.model_steps import make_pools

TINY = cast("NemotronHConfig", PRESETS["nemotron-h-tiny"])


def write(directory: Path, remove: tuple[str, ...] = (), **changes: Any) -> Path:
    fields = {**TINY.hf_fields(), **changes}
    for key in remove:
        del fields[key]
    (directory / "config.json").write_text(json.dumps(fields))
    return directory


def read(directory: Path, remove: tuple[str, ...] = (), **changes: Any) -> NemotronHConfig:
    return cast("NemotronHConfig", read_hf_config(write(directory, remove, **changes)))


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    assert read(tmp_path) == TINY


def test_layers_are_letters_in_released_files(tmp_path: Path) -> None:
    config = read(tmp_path, remove=("layers_block_type",), hybrid_override_pattern="M-M*ME")

    assert config == TINY


def test_older_names_of_layers_mean_the_same(tmp_path: Path) -> None:
    names = ["mamba", "mlp", "mamba", "attention", "mamba", "moe"]

    assert read(tmp_path, layers_block_type=names) == TINY


def test_older_names_of_keys_mean_the_same(tmp_path: Path) -> None:
    older = {
        "n_groups": "mamba_n_groups",
        "conv_kernel": "mamba_d_conv",
        "head_dim": "attention_head_dim",
    }
    values = TINY.hf_fields()

    config = read(tmp_path, remove=tuple(older), **{old: values[new] for new, old in older.items()})

    assert config == TINY


def test_without_layers_there_is_one_of_each_kind(tmp_path: Path) -> None:
    assert read(tmp_path, remove=("layers_block_type",)).layer_types == pattern("ME*-")


def test_as_many_key_heads_as_queries_where_none_are_given(tmp_path: Path) -> None:
    config = read(tmp_path, num_key_value_heads=None)

    assert config.num_key_value_heads == TINY.num_attention_heads


def test_a_checkpoint_of_random_weights_is_read_back(tmp_path: Path) -> None:
    config = replace(TINY, layer_types=pattern("M*E"), moe_latent_size=24, use_bias=True)
    write_checkpoint(config, RandomWeights(config, 3, torch.device("cpu")), tmp_path)

    model = load_model(tmp_path, torch.float32, "cpu")

    assert model.config == config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers_block_type": ["sliding_attention"]}, "layers_block_type contains 'sliding_"),
        ({"layers_block_type": []}, "layers_block_type must list one kind for each layer"),
        (
            {"layers_block_type": None, "hybrid_override_pattern": "M?*"},
            "hybrid_override_pattern is 'M?*'; write a letter of M * - E for each layer",
        ),
        ({"mlp_hidden_act": "tanh"}, "mlp_hidden_act is 'tanh'; supported are relu2, relu, silu"),
        ({"mamba_hidden_act": "gelu"}, "mamba_hidden_act is 'gelu'; supported are silu and swish"),
        ({"n_groups": 3}, "mamba_num_heads is 8; it must be a multiple of n_groups 3"),
        ({"num_key_value_heads": 3}, "num_attention_heads is 4; it must be a multiple of"),
        ({"n_group": 3}, "n_routed_experts is 8; it must be a multiple of n_group 3"),
        ({"n_group": 2, "topk_group": 3}, "topk_group is 3; there are only 2 groups"),
        (
            {"n_group": 4, "topk_group": 1, "num_experts_per_tok": 3},
            "num_experts_per_tok is 3; topk_group leaves only 2 experts",
        ),
        ({"n_group": 8, "topk_group": 2}, "n_group is 8; a group needs at least 2 of 8 experts"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_cannot_be_is_one_sentence_with_file_and_key(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, **changes)

    assert str(caught.value).startswith(f"{tmp_path / 'config.json'}: {message}")


def test_the_full_model_on_a_cpu_is_the_tiny_one_and_says_so() -> None:
    resolved = resolve_model("nemotron-h", "cpu")

    assert resolved.config == TINY
    assert "nemotron-h on a CPU means nemotron-h-tiny" in resolved.note


def test_sizes_are_those_of_the_pools() -> None:
    pools = make_pools(TINY, torch.float32)
    assert pools.mamba_pool is not None
    states = [*pools.mamba_pool.mamba_cache.conv, pools.mamba_pool.mamba_cache.temporal]

    per_slot = sum(tensor.nbytes for tensor in states) // (pools.mamba_pool.size + 1)

    assert TINY.state_bytes_per_slot(torch.float32) == per_slot
    assert TINY.kv_layer_ids == (3,)
    assert TINY.linear_layer_ids == (0, 2, 4)
