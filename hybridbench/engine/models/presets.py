"""Presets that need no download: released architectures at several sizes, with random weights."""

from __future__ import annotations

from dataclasses import replace

from hybridbench.engine.models.config import ModelConfig
from hybridbench.engine.models.falcon_h1 import FalconH1Config, hybrid_layers
from hybridbench.engine.models.gpt_oss import GptOssConfig, alternating
from hybridbench.engine.models.nemotron_h import NemotronHConfig, pattern
from hybridbench.engine.models.qwen3_5_config import Qwen35MoeConfig
from hybridbench.engine.models.qwen3_next_config import Qwen3NextConfig, layer_pattern
from hybridbench.engine.models.rope import Rope, Yarn

_TINY = Qwen3NextConfig(
    vocab_size=4096,
    hidden_size=128,
    layer_types=layer_pattern(4),
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=32,
    linear_value_head_dim=32,
    num_experts=8,
    num_experts_per_tok=2,
    moe_intermediate_size=32,
    shared_expert_intermediate_size=32,
)

_SMALL = Qwen3NextConfig(
    vocab_size=8192,
    hidden_size=256,
    layer_types=layer_pattern(8),
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=64,
    linear_num_key_heads=4,
    linear_num_value_heads=8,
    linear_key_head_dim=64,
    linear_value_head_dim=64,
    num_experts=16,
    num_experts_per_tok=4,
    moe_intermediate_size=64,
    shared_expert_intermediate_size=64,
)

# One layer of each kind, so that nearly all the work is in the engine around the model.
_NANO = replace(
    _TINY,
    vocab_size=2048,
    hidden_size=32,
    layer_types=("linear_attention", "full_attention"),
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=16,
    linear_num_key_heads=1,
    linear_num_value_heads=2,
    linear_key_head_dim=16,
    linear_value_head_dim=16,
    num_experts=2,
    num_experts_per_tok=1,
    moe_intermediate_size=16,
    shared_expert_intermediate_size=16,
)

# No recurrent layers, hence no state slots: a tree of tens of thousands of leaves fits in memory.
_ATTENTION = replace(_NANO, layer_types=("full_attention",))

# Each layer has the released model's shape, so state slots and KV rows have their real sizes.
_FULL = Qwen3NextConfig(
    vocab_size=151_936,
    hidden_size=2048,
    layer_types=layer_pattern(48),
    num_attention_heads=16,
    num_key_value_heads=2,
    head_dim=256,
    linear_num_key_heads=16,
    linear_num_value_heads=32,
    linear_key_head_dim=128,
    linear_value_head_dim=128,
    num_experts=512,
    num_experts_per_tok=10,
    moe_intermediate_size=512,
    shared_expert_intermediate_size=512,
)

# Qwen3.5-35B-A3B: Qwen3-Next with fewer layers and experts.
_QWEN3_5 = Qwen35MoeConfig(
    **vars(
        replace(
            _FULL,
            vocab_size=248_320,
            layer_types=layer_pattern(40),
            num_experts=256,
            num_experts_per_tok=8,
        )
    )
)

# gpt-oss-20b: half of the layers see a window of 128 tokens.
_GPT_OSS = GptOssConfig(
    vocab_size=201_088,
    hidden_size=2880,
    layer_types=alternating(24),
    num_attention_heads=64,
    num_key_value_heads=8,
    head_dim=64,
    num_local_experts=32,
    num_experts_per_tok=4,
    intermediate_size=2880,
    rms_norm_eps=1e-5,
    attention_bias=True,
    rope=Rope(rope_theta=150_000.0, scaling=Yarn()),
    max_position_embeddings=131_072,
)

# Nemotron-H-8B: 24 Mamba2 layers, 24 MLPs, 4 attention layers.
_NEMOTRON_H = NemotronHConfig(
    vocab_size=131_072,
    hidden_size=4096,
    layer_types=pattern("M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"),
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    mamba_num_heads=128,
    mamba_head_dim=64,
    n_groups=8,
    ssm_state_size=128,
    intermediate_size=21_504,
    num_experts_per_tok=2,
    rms_norm_eps=1e-5,
    max_position_embeddings=8192,
)

# Falcon-H1-7B: each of the 44 layers has KV and a state.
_FALCON_H1 = FalconH1Config(
    vocab_size=130_048,
    hidden_size=3072,
    layer_types=hybrid_layers(44),
    num_attention_heads=12,
    num_key_value_heads=2,
    head_dim=128,
    intermediate_size=12_288,
    mamba_n_heads=24,
    mamba_d_head=128,
    mamba_n_groups=1,
    mamba_d_state=256,
    rope=Rope(rope_theta=1e11),
    rms_norm_eps=1e-5,
    max_position_embeddings=262_144,
)

PRESETS: dict[str, ModelConfig] = {
    "qwen3-next-nano": _NANO,
    "qwen3-next-tiny": _TINY,
    # The same layers without recurrence: no state slots, and KV in pages of any size.
    "attention-tiny": replace(_TINY, layer_types=("full_attention",) * 4),
    "attention-nano": _ATTENTION,
    "qwen3-next-mini": replace(_TINY, layer_types=layer_pattern(8)),
    "qwen3-next-small": _SMALL,
    "qwen3-next-1b": replace(
        _FULL,
        vocab_size=32_768,
        layer_types=layer_pattern(8),
        num_experts=16,
        num_experts_per_tok=4,
    ),
    "qwen3-next-2b": replace(
        _FULL, layer_types=layer_pattern(12), num_experts=32, num_experts_per_tok=4
    ),
    "qwen3-next-4b": replace(
        _FULL, layer_types=layer_pattern(24), num_experts=32, num_experts_per_tok=8
    ),
    "qwen3-next": _FULL,
    "qwen3.5-tiny": Qwen35MoeConfig(**vars(_TINY)),
    "qwen3.5": _QWEN3_5,
    "gpt-oss-tiny": replace(
        _GPT_OSS,
        vocab_size=4096,
        hidden_size=128,
        layer_types=alternating(4),
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=32,
        num_local_experts=8,
        num_experts_per_tok=2,
        intermediate_size=32,
    ),
    "gpt-oss-1b": replace(
        _GPT_OSS, vocab_size=32_768, layer_types=alternating(6), num_local_experts=4
    ),
    "gpt-oss": _GPT_OSS,
    # Has all four kinds of layers, with experts as in Nemotron 3.
    "nemotron-h-tiny": replace(
        _NEMOTRON_H,
        vocab_size=4096,
        hidden_size=128,
        layer_types=pattern("M-M*ME"),
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        mamba_num_heads=8,
        mamba_head_dim=32,
        n_groups=2,
        ssm_state_size=32,
        intermediate_size=256,
        n_routed_experts=8,
        moe_intermediate_size=64,
        moe_shared_expert_intermediate_size=128,
    ),
    "nemotron-h-1b": replace(
        _NEMOTRON_H,
        vocab_size=32_768,
        layer_types=pattern("M-M-M*M-M-M"),
        intermediate_size=4096,
    ),
    "nemotron-h": _NEMOTRON_H,
    "falcon-h1-tiny": replace(
        _FALCON_H1,
        vocab_size=4096,
        hidden_size=128,
        layer_types=hybrid_layers(4),
        num_attention_heads=4,
        head_dim=32,
        intermediate_size=256,
        mamba_n_heads=4,
        mamba_d_head=32,
        mamba_d_state=32,
    ),
    "falcon-h1-1b": replace(
        _FALCON_H1, vocab_size=32_768, layer_types=hybrid_layers(10), intermediate_size=3072
    ),
    "falcon-h1": _FALCON_H1,
}
