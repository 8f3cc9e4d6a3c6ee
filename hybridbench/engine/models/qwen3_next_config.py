"""Qwen3-Next's configuration: its config.json, with older or newer keys, and its tensors.

Older files have ``rope_theta``, ``partial_rotary_factor`` and ``full_attention_interval`` at the
top level; newer ones have ``rope_parameters`` and ``layer_types``.  Defaults are the
architecture's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from hybridbench.engine.memory.mamba_pool import Mamba2CacheParams, Mamba2StateShape
from hybridbench.engine.models.config import LayerKind, ModelConfig, Shape
from hybridbench.engine.models.hf_config import ConfigFields
from hybridbench.engine.models.rope import LongRope, Rope, Yarn, read_rope


def layer_pattern(layers: int, full_attention_interval: int = 4) -> tuple[LayerKind, ...]:
    """Return layers where every ``full_attention_interval``-th is full attention, others linear."""
    return tuple(
        "full_attention" if (i + 1) % full_attention_interval == 0 else "linear_attention"
        for i in range(layers)
    )


@dataclass(frozen=True, kw_only=True)
class Qwen3NextConfig(ModelConfig):
    """Qwen3-Next's configuration: layers of gated DeltaNet or gated attention, with experts or a
    dense MLP.
    """

    model_type = "qwen3_next"
    architecture = "Qwen3NextForCausalLM"
    grouped_projections: ClassVar[bool] = True
    """Whether linear layers store projections by key head in two tensors, instead of four plain
    ones.
    """

    linear_num_key_heads: int
    linear_num_value_heads: int
    linear_key_head_dim: int
    linear_value_head_dim: int
    linear_conv_kernel_dim: int = 4
    num_experts: int
    moe_intermediate_size: int
    shared_expert_intermediate_size: int
    norm_topk_prob: bool = True
    dense_layers: frozenset[int] = frozenset()
    """Layers with one plain MLP: from ``mlp_only_layers`` and ``decoder_sparse_step``."""
    intermediate_size: int = 0
    """Width of those MLPs; unused without them."""
    rope: Rope = field(
        default_factory=lambda: Rope(rope_theta=10_000_000.0, partial_rotary_factor=0.25)
    )

    @classmethod
    def from_fields(cls, fields: ConfigFields) -> Qwen3NextConfig:
        """Read the model that a config.json describes.

        Raises:
            ConfigError: names the file, the key and the supported values in one sentence.
        """
        layers = fields.layers(48)
        layer_types = fields.layer_types(layers, "linear_attention", "full_attention")
        if layer_types is None:
            layer_types = layer_pattern(layers, fields.whole("full_attention_interval", 4))
        hidden_size = fields.whole("hidden_size", 2048)
        heads = fields.whole("num_attention_heads", 16)
        head_dim = fields.whole("head_dim", 256)
        longest = fields.whole("max_position_embeddings", 32_768)
        rope = read_rope(fields, head_dim, longest, partial=0.25)
        config = cls(
            vocab_size=fields.whole("vocab_size", 151_936),
            hidden_size=hidden_size,
            layer_types=layer_types,
            num_attention_heads=heads,
            num_key_value_heads=fields.whole("num_key_value_heads", 2),
            head_dim=head_dim,
            linear_num_key_heads=fields.whole("linear_num_key_heads", 16),
            linear_num_value_heads=fields.whole("linear_num_value_heads", 32),
            linear_key_head_dim=fields.whole("linear_key_head_dim", 128),
            linear_value_head_dim=fields.whole("linear_value_head_dim", 128),
            linear_conv_kernel_dim=fields.whole("linear_conv_kernel_dim", 4, least=2),
            num_experts=fields.whole("num_experts", 512, least=0),
            num_experts_per_tok=fields.whole("num_experts_per_tok", 10),
            moe_intermediate_size=fields.whole("moe_intermediate_size", 512),
            shared_expert_intermediate_size=fields.whole("shared_expert_intermediate_size", 512),
            norm_topk_prob=fields.flag("norm_topk_prob", True),
            dense_layers=_dense_layers(fields, len(layer_types)),
            intermediate_size=fields.whole("intermediate_size", 5632, least=0),
            rope=rope,
            rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
            attention_bias=fields.flag("attention_bias", False),
            tie_word_embeddings=fields.flag("tie_word_embeddings", False),
            eos_token_ids=fields.eos_token_ids(),
            max_position_embeddings=rope.longest_context(longest),
        )
        _check_ratios(fields, config)
        return config

    def tensors(self) -> dict[str, Shape]:
        """All tensors; each expert has its own."""
        schema: dict[str, Shape] = {
            "model.embed_tokens.weight": (self.vocab_size, self.hidden_size)
        }
        for layer, kind in enumerate(self.layer_types):
            prefix = f"model.layers.{layer}"
            schema[f"{prefix}.input_layernorm.weight"] = (self.hidden_size,)
            mixer = _linear_attn if kind == "linear_attention" else _self_attn
            for name, shape in mixer(self):
                schema[f"{prefix}.{name}"] = shape
            schema[f"{prefix}.post_attention_layernorm.weight"] = (self.hidden_size,)
            mlp = _dense_mlp if layer in self.dense_layers else _sparse_mlp
            for name, shape in mlp(self):
                schema[f"{prefix}.mlp.{name}"] = shape
        schema["model.norm.weight"] = (self.hidden_size,)
        if not self.tie_word_embeddings:
            schema["lm_head.weight"] = (self.vocab_size, self.hidden_size)
        return schema

    def hf_fields(self) -> dict[str, object]:
        return {
            **super().hf_fields(),
            "linear_num_key_heads": self.linear_num_key_heads,
            "linear_num_value_heads": self.linear_num_value_heads,
            "linear_key_head_dim": self.linear_key_head_dim,
            "linear_value_head_dim": self.linear_value_head_dim,
            "linear_conv_kernel_dim": self.linear_conv_kernel_dim,
            "num_experts": self.num_experts,
            "moe_intermediate_size": self.moe_intermediate_size,
            "shared_expert_intermediate_size": self.shared_expert_intermediate_size,
            "norm_topk_prob": self.norm_topk_prob,
            "mlp_only_layers": sorted(self.dense_layers),
            "decoder_sparse_step": 1,
            "intermediate_size": self.intermediate_size,
            "rope_parameters": self.rope.hf_fields(),
        }

    def random_values(self, name: str, noise: Tensor) -> Tensor:
        """Scale matrices by their fan-in, keep norms near identity and spread decays."""
        if name.endswith("linear_attn.norm.weight"):
            return noise.mul_(0.1).add_(1.0)
        if name.endswith("norm.weight"):
            # Zero-centred: the norm multiplies by one plus this.
            return noise.mul_(0.1)
        if name.endswith("A_log"):
            return noise.mul_(0.7)
        if name.endswith("dt_bias"):
            # Half-lives from a few to a few hundred tokens.
            return noise.sub_(3.0)
        if name.endswith("bias"):
            return noise.mul_(0.02)
        if name.endswith("embed_tokens.weight"):
            return noise
        fan_in = math.prod(noise.shape[1:])
        return noise.mul_(fan_in**-0.5)

    @property
    def key_dim(self) -> int:
        """Number of key channels in a linear layer, over all heads."""
        return self.linear_num_key_heads * self.linear_key_head_dim

    @property
    def value_dim(self) -> int:
        """Number of value channels in a linear layer, over all heads."""
        return self.linear_num_value_heads * self.linear_value_head_dim

    @property
    def conv_dim(self) -> int:
        """Number of channels in a linear layer's convolution: q, k and v."""
        return 2 * self.key_dim + self.value_dim

    @property
    def cache_params(self) -> Mamba2CacheParams:
        """The state pool's parameters."""
        shape = Mamba2StateShape.gated_delta_net(
            num_k_heads=self.linear_num_key_heads,
            num_v_heads=self.linear_num_value_heads,
            head_k_dim=self.linear_key_head_dim,
            head_v_dim=self.linear_value_head_dim,
            conv_kernel=self.linear_conv_kernel_dim,
        )
        return Mamba2CacheParams(shape=shape, layers=self.linear_layer_ids)


def _dense_layers(fields: ConfigFields, layers: int) -> frozenset[int]:
    named = set(fields.integers("mlp_only_layers"))
    step = fields.whole("decoder_sparse_step", 1)
    if fields.whole("num_experts", 512, least=0) == 0:
        return frozenset(range(layers))
    return frozenset(i for i in range(layers) if i in named or (i + 1) % step)


def _linear_attn(config: Qwen3NextConfig) -> Iterator[tuple[str, Shape]]:
    hidden, heads = config.hidden_size, config.linear_num_value_heads
    if config.grouped_projections:
        yield "linear_attn.in_proj_qkvz.weight", (config.conv_dim + config.value_dim, hidden)
        yield "linear_attn.in_proj_ba.weight", (2 * heads, hidden)
    else:
        yield "linear_attn.in_proj_qkv.weight", (config.conv_dim, hidden)
        yield "linear_attn.in_proj_z.weight", (config.value_dim, hidden)
        yield "linear_attn.in_proj_b.weight", (heads, hidden)
        yield "linear_attn.in_proj_a.weight", (heads, hidden)
    yield "linear_attn.conv1d.weight", (config.conv_dim, 1, config.linear_conv_kernel_dim)
    yield "linear_attn.A_log", (heads,)
    yield "linear_attn.dt_bias", (heads,)
    yield "linear_attn.norm.weight", (config.linear_value_head_dim,)
    yield "linear_attn.out_proj.weight", (hidden, config.value_dim)


def _self_attn(config: Qwen3NextConfig) -> Iterator[tuple[str, Shape]]:
    hidden, head_dim = config.hidden_size, config.head_dim
    query, key = config.num_attention_heads * head_dim, config.num_key_value_heads * head_dim
    # The query projection also yields the output gate: per head, query rows then gate rows.
    for name, rows, columns in (
        ("q_proj", 2 * query, hidden),
        ("k_proj", key, hidden),
        ("v_proj", key, hidden),
        ("o_proj", hidden, query),
    ):
        yield f"self_attn.{name}.weight", (rows, columns)
        if config.attention_bias:
            yield f"self_attn.{name}.bias", (rows,)
    yield "self_attn.q_norm.weight", (head_dim,)
    yield "self_attn.k_norm.weight", (head_dim,)


def _sparse_mlp(config: Qwen3NextConfig) -> Iterator[tuple[str, Shape]]:
    hidden = config.hidden_size
    yield "gate.weight", (config.num_experts, hidden)
    for expert in range(config.num_experts):
        for name, shape in _gated_unit(hidden, config.moe_intermediate_size):
            yield f"experts.{expert}.{name}", shape
    for name, shape in _gated_unit(hidden, config.shared_expert_intermediate_size):
        yield f"shared_expert.{name}", shape
    yield "shared_expert_gate.weight", (1, hidden)


def _dense_mlp(config: Qwen3NextConfig) -> Iterator[tuple[str, Shape]]:
    return _gated_unit(config.hidden_size, config.intermediate_size)


def _gated_unit(hidden: int, width: int) -> Iterator[tuple[str, Shape]]:
    yield "gate_proj.weight", (width, hidden)
    yield "up_proj.weight", (width, hidden)
    yield "down_proj.weight", (hidden, width)


def _check_ratios(fields: ConfigFields, config: Qwen3NextConfig) -> None:
    heads = config.num_attention_heads, config.num_key_value_heads
    fields.require_multiple("num_attention_heads", "num_key_value_heads", heads)
    heads = config.linear_num_value_heads, config.linear_num_key_heads
    fields.require_multiple("linear_num_value_heads", "linear_num_key_heads", heads)
    # With an odd number, one more channel is rotated.  That fails if the head has no other channel,
    # or if the scaling depends on how many are rotated.
    rotated = config.rope.rotary_dim(config.head_dim)
    if rotated % 2 and (
        rotated == config.head_dim or isinstance(config.rope.scaling, Yarn | LongRope)
    ):
        raise fields.error(
            "partial_rotary_factor",
            f"rotates {rotated} of {config.head_dim} channels; an even number is needed",
        )
    if len(config.dense_layers) < len(config.layer_types) and (
        config.num_experts_per_tok > config.num_experts
    ):
        raise fields.error(
            "num_experts_per_tok",
            f"is {config.num_experts_per_tok}; there are only {config.num_experts} experts",
        )
