"""Writes a model's weights as a Hugging Face checkpoint, for tools that read only that."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from hybridbench.engine.models.config import ModelConfig
from hybridbench.engine.models.hf_config import ARCHITECTURE, MODEL_TYPE
from hybridbench.engine.models.schema import checkpoint_schema
from hybridbench.engine.models.weights import WeightSource


def write_checkpoint(
    config: ModelConfig, source: WeightSource, directory: Path, dtype: torch.dtype = torch.float32
) -> None:
    """config.json in the newer spelling and model.safetensors, in a directory that exists."""
    tensors = {
        name: source.take(name).to("cpu", dtype).contiguous() for name in checkpoint_schema(config)
    }
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    fields = json.dumps(hf_config_fields(config), indent=2)
    (directory / "config.json").write_text(fields + "\n", encoding="utf-8")


def hf_config_fields(config: ModelConfig) -> dict[str, object]:
    """The content of config.json."""
    return {
        "architectures": [ARCHITECTURE],
        "model_type": MODEL_TYPE,
        "hidden_act": "silu",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_hidden_layers,
        "layer_types": list(config.layer_types),
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "linear_num_key_heads": config.linear_num_key_heads,
        "linear_num_value_heads": config.linear_num_value_heads,
        "linear_key_head_dim": config.linear_key_head_dim,
        "linear_value_head_dim": config.linear_value_head_dim,
        "linear_conv_kernel_dim": config.linear_conv_kernel_dim,
        "num_experts": config.num_experts,
        "num_experts_per_tok": config.num_experts_per_tok,
        "moe_intermediate_size": config.moe_intermediate_size,
        "shared_expert_intermediate_size": config.shared_expert_intermediate_size,
        "norm_topk_prob": config.norm_topk_prob,
        "mlp_only_layers": sorted(config.dense_layers),
        "decoder_sparse_step": 1,
        "intermediate_size": config.intermediate_size,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": config.rope_theta,
            "partial_rotary_factor": config.partial_rotary_factor,
        },
        "rms_norm_eps": config.rms_norm_eps,
        "attention_bias": config.attention_bias,
        "tie_word_embeddings": config.tie_word_embeddings,
        "eos_token_id": list(config.eos_token_ids) or None,
        "max_position_embeddings": config.max_position_embeddings,
    }
