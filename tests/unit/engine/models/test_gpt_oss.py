"""The spellings of gpt-oss's config.json, and one error sentence for each fault."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from hybridbench.engine.models.gpt_oss import GptOssConfig, alternating
from hybridbench.engine.models.presets import PRESETS
from hybridbench.engine.models.registry import Model, build_model, read_hf_config, resolve_model
from hybridbench.engine.models.rope import Yarn
from hybridbench.foundation.errors import ConfigError

TINY = cast("GptOssConfig", PRESETS["gpt-oss-tiny"])
# The windows are much shorter than the prompts, so that most positions lie outside them.
NANO = replace(
    TINY,
    vocab_size=48,
    hidden_size=16,
    layer_types=alternating(3),
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    sliding_window=5,
    num_local_experts=4,
    intermediate_size=8,
)


def write(directory: Path, remove: tuple[str, ...] = (), **changes: Any) -> Path:
    fields = {**TINY.hf_fields(), **changes}
    for key in remove:
        del fields[key]
    (directory / "config.json").write_text(json.dumps(fields))
    return directory


def read(directory: Path, remove: tuple[str, ...] = (), **changes: Any) -> GptOssConfig:
    return cast("GptOssConfig", read_hf_config(write(directory, remove, **changes)))


def model() -> Model:
    return build_model(NANO, torch.float64, "cpu", seed=4)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    assert read(tmp_path) == TINY


def test_the_older_spelling_means_the_same(tmp_path: Path) -> None:
    scaling = cast("dict[str, object]", TINY.hf_fields()["rope_parameters"])
    theta = scaling.pop("rope_theta")

    config = read(
        tmp_path,
        remove=("rope_parameters", "layer_types", "swiglu_alpha", "swiglu_limit"),
        rope_scaling=scaling,
        rope_theta=theta,
    )

    assert config == TINY


def test_a_file_without_rope_keys_has_the_rotation_of_the_released_models(tmp_path: Path) -> None:
    assert read(tmp_path, remove=("rope_parameters",)).rope.scaling == Yarn()


def test_without_a_factor_the_context_is_stretched_to_its_length(tmp_path: Path) -> None:
    rope = {"rope_type": "yarn", "original_max_position_embeddings": 1024}

    config = read(tmp_path, rope_parameters=rope, max_position_embeddings=8192)

    assert isinstance(config.rope.scaling, Yarn)
    assert config.rope.scaling.factor == 8.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": ["linear_attention"] * 4}, "layer_types contains 'linear_attention'"),
        ({"num_key_value_heads": 3}, "num_attention_heads is 8; it must be a multiple of"),
        ({"head_dim": 7}, "head_dim is 7; it must be even"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok is 9; there are only 8 experts"),
        ({"sliding_window": None}, "sliding_window is null, but some layers are sliding_attention"),
        ({"sliding_window": 0}, "sliding_window is 0; it must be a whole number, 1 or more"),
        ({"rope_parameters": {"rope_type": "llama3"}}, "low_freq_factor is missing among the keys"),
        ({"rope_parameters": [1]}, "rope_parameters must be an object"),
        (
            {"rope_parameters": {"rope_type": "yarn", "partial_rotary_factor": 0.5}},
            "rope_parameters rotates a part of each head",
        ),
        ({"quantization_config": {"quant_method": "mxfp4"}}, "quantization_config is set"),
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
    resolved = resolve_model("gpt-oss", "cpu")

    assert resolved.config == TINY
    assert "gpt-oss on a CPU means gpt-oss-tiny" in resolved.note
