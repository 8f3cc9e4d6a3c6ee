"""Both spellings of config.json, and one error sentence for each fault."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from hybridbench.engine.models.hf_config import ConfigFields
from hybridbench.engine.models.presets import PRESETS
from hybridbench.engine.models.qwen3_5_config import Qwen35Config, Qwen35MoeConfig
from hybridbench.engine.models.qwen3_next_config import Qwen3NextConfig, layer_pattern
from hybridbench.engine.models.registry import read_hf_config
from hybridbench.foundation.errors import ConfigError

TINY = cast("Qwen3NextConfig", PRESETS["qwen3-next-tiny"])


def write(directory: Path, remove: tuple[str, ...] = (), **changes: Any) -> Path:
    fields = {**TINY.hf_fields(), **changes}
    for key in remove:
        del fields[key]
    (directory / "config.json").write_text(json.dumps(fields))
    return directory


def read(directory: Path, remove: tuple[str, ...] = (), **changes: Any) -> Qwen3NextConfig:
    config = read_hf_config(write(directory, remove, **changes))
    assert isinstance(config, Qwen3NextConfig)
    return config


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    assert read(tmp_path) == TINY


@pytest.mark.parametrize("dense", [True, False])
def test_the_text_model_of_a_multimodal_config_is_read(tmp_path: Path, dense: bool) -> None:
    family = Qwen35Config if dense else Qwen35MoeConfig
    text = family.from_fields(
        ConfigFields(tmp_path, {"num_hidden_layers": 4, "hidden_size": 64, "num_experts": 16})
    )
    kind = family.model_type.removesuffix("_text")
    fields = {
        "architectures": [family.architecture.replace("CausalLM", "ConditionalGeneration")],
        "model_type": kind,
        "tie_word_embeddings": True,
        "text_config": {**text.hf_fields(), "architectures": None},
        "vision_config": {"depth": 1},
    }
    (tmp_path / "config.json").write_text(json.dumps(fields))

    assert read_hf_config(tmp_path) == replace(text, tie_word_embeddings=True)
    assert len(text.dense_layers) == (4 if dense else 0)


def test_old_spelling_means_the_same(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        remove=("rope_parameters", "layer_types"),
        rope_theta=TINY.rope.rope_theta,
        partial_rotary_factor=0.25,
        full_attention_interval=4,
        rope_scaling=None,
    )
    assert config == TINY


def test_old_spelling_takes_another_interval(tmp_path: Path) -> None:
    config = read(tmp_path, remove=("layer_types",), full_attention_interval=2)
    assert config.layer_types == layer_pattern(4, 2)


def test_dense_layers_come_from_both_keys(tmp_path: Path) -> None:
    config = read(tmp_path, mlp_only_layers=[1], decoder_sparse_step=2, intermediate_size=8)
    assert config.dense_layers == {0, 1, 2}


@pytest.mark.parametrize(("value", "tokens"), [(7, (7,)), ([7, 9], (7, 9)), (None, ())])
def test_stop_tokens_come_from_the_config(tmp_path: Path, value: object, tokens: object) -> None:
    assert read(tmp_path, eos_token_id=value).eos_token_ids == tokens


def test_generation_config_names_the_stop_tokens_where_it_does(tmp_path: Path) -> None:
    write(tmp_path, eos_token_id=7)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [3, 4]}')
    assert read_hf_config(tmp_path).eos_token_ids == (3, 4)
    (tmp_path / "generation_config.json").write_text("{}")
    assert read_hf_config(tmp_path).eos_token_ids == (7,)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "llama"}, "model_type is 'llama'; supported are qwen3_next, qwen3_5_text"),
        ({"model_type": ["qwen3_5"]}, "model_type is ['qwen3_5']; supported are qwen3_next, "),
        (
            {"model_type": "qwen3_5"},
            "text_config is missing; qwen3_5 describes its text model there",
        ),
        (
            {"architectures": ["LlamaForCausalLM"]},
            "architectures names 'LlamaForCausalLM'; supported are Qwen3NextForCausalLM, ",
        ),
        (
            {"architectures": ["GptOssForCausalLM"]},
            "architectures names 'GptOssForCausalLM'; qwen3_next goes with Qwen3NextForCausalLM",
        ),
        (
            {"quantization_config": {"quant_method": "mxfp4"}},
            "quantization_config is set; quantised weights are not read",
        ),
        (
            {"quantization": {"group_size": 64, "bits": 4}},
            "quantization is set; quantised weights are not read",
        ),
        (
            {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 4.0}},
            "rope_theta is given as 500000.0 and 10000000.0; keep one of them",
        ),
        (
            {
                "rope_scaling": {
                    "type": "yarn",
                    "factor": 4.0,
                    "original_max_position_embeddings": 32,
                }
            },
            "rope_scaling and rope_parameters describe different rotations; keep one of them",
        ),
        (
            {"rope_scaling": {"mrope_section": [1, 1, 2]}, "rope_parameters": {"rope_theta": 77.0}},
            "rope_scaling and rope_parameters describe different rotations; keep one of them",
        ),
        (
            {"rope_scaling": {"factor": 4.0}},
            "rope_scaling has a factor, but no rope_type that uses it",
        ),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
            "rope_parameters differs between kinds of layers; only one for all is supported",
        ),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping is 30.0; no model family"),
        ({"use_sliding_window": True}, "use_sliding_window is True; no model family here"),
        ({"is_causal": False}, "is_causal is False; no model family here"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; supported are silu and swish"),
        ({"hidden_size": "big"}, "hidden_size is 'big'; it must be a whole number, 1 or more"),
        ({"num_experts": True}, "num_experts is True; it must be a whole number"),
        ({"rms_norm_eps": 0}, "rms_norm_eps is 0; it must be a number above 0"),
        ({"norm_topk_prob": 1}, "norm_topk_prob is 1; it must be true or false"),
        ({"eos_token_id": "end"}, "eos_token_id is 'end'; it must hold whole numbers"),
        ({"layer_types": ["full_attention"]}, "layer_types must list one kind for each of the 4"),
        ({"layer_types": ["mlp"] * 4}, "layer_types contains 'mlp'; supported are"),
        ({"num_key_value_heads": 3}, "num_attention_heads is 4; it must be a multiple"),
        ({"linear_num_key_heads": 3}, "linear_num_value_heads is 4; it must be a multiple"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok is 9; there are only 8 experts"),
        (
            {"rope_parameters": {"rope_type": ["yarn"], "rope_theta": 1e4}},
            "rope_parameters has rope_type ['yarn']; supported are default, linear, dynamic, "
            "yarn, longrope, llama3",
        ),
        ({"rope_scaling": {"type": "linear"}}, "factor is missing among the keys of its rope_type"),
        (
            {"rope_scaling": {"type": "longrope", "long_factor": [2.0] * 4, "short_factor": [1.0]}},
            "short_factor is [1.0]; it must be 4 numbers",
        ),
        (
            {
                "rope_parameters": {
                    "rope_type": "llama3",
                    "factor": 8.0,
                    "low_freq_factor": 4.0,
                    "high_freq_factor": 4.0,
                }
            },
            "high_freq_factor is 4; it must exceed low_freq_factor 4",
        ),
        (
            {"rope_parameters": {"partial_rotary_factor": 1.5}},
            "partial_rotary_factor is 1.5; it must be at most 1",
        ),
        (
            {
                "rope_parameters": {
                    "rope_type": "yarn",
                    "factor": 2.0,
                    "partial_rotary_factor": 0.1,
                }
            },
            "partial_rotary_factor rotates 3 of 32 channels; an even number is needed",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_cannot_be_is_one_sentence_with_file_and_key(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, **changes)
    text = str(caught.value)
    assert text.startswith(f"{tmp_path / 'config.json'}: {message}")
    assert text.count("\n") == 0


def test_keys_that_turn_foreign_parts_off_are_accepted(tmp_path: Path) -> None:
    off: dict[str, Any] = {
        "final_logit_softcapping": None,
        "use_sliding_window": False,
        "is_causal": True,
        "logit_scale": 1.0,
    }
    same = {"rope_theta": TINY.rope.rope_theta, "factor": 1.0}
    assert read(tmp_path, **off, rope_scaling={"rope_type": "default", **same}) == TINY


def test_a_null_flag_is_false(tmp_path: Path) -> None:
    assert not read(tmp_path, norm_topk_prob=None).norm_topk_prob
    assert read(tmp_path, remove=("norm_topk_prob",)).norm_topk_prob


def test_an_unknown_family_is_named_before_its_quantisation(tmp_path: Path) -> None:
    llama: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "quantization_config": {"quant_method": "awq"},
    }
    with pytest.raises(
        ConfigError, match=r"names 'LlamaForCausalLM'.*; soak a preset such as qwen"
    ):
        read(tmp_path, **llama)


def test_quantisation_of_the_text_model_is_refused(tmp_path: Path) -> None:
    text = {"model_type": "qwen3_5_text", "quantization_config": {"quant_method": "fp8"}}
    fields = {"model_type": "qwen3_5", "text_config": text}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(ConfigError, match="quantization_config is set; quantised weights are not"):
        read_hf_config(tmp_path)


def test_an_adapter_is_refused_even_beside_its_base_model(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ConfigError, match="belongs to an adapter"):
        read_hf_config(tmp_path)
    with pytest.raises(ConfigError, match="belongs to an adapter"):
        read(tmp_path)


def test_missing_and_broken_files_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no config\.json; give a Hugging Face"):
        read_hf_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json: cannot be read as JSON"):
        read_hf_config(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ConfigError, match="is not a JSON object"):
        read_hf_config(tmp_path)
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").symlink_to("../blobs/gone")
    with pytest.raises(ConfigError, match=r"config\.json: links to a file that is not there; down"):
        read_hf_config(tmp_path)
