"""The shape of a Qwen3-Next model, whatever file or preset it came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch

from hybridbench.engine.memory.mamba_pool import Mamba2CacheParams, Mamba2StateShape

LayerKind: TypeAlias = Literal["linear_attention", "full_attention"]


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Field names are those of the released config.json, except where a comment says otherwise."""

    vocab_size: int
    hidden_size: int
    layer_types: tuple[LayerKind, ...]
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    linear_num_key_heads: int
    linear_num_value_heads: int
    linear_key_head_dim: int
    linear_value_head_dim: int
    linear_conv_kernel_dim: int = 4
    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    shared_expert_intermediate_size: int
    norm_topk_prob: bool = True
    dense_layers: frozenset[int] = frozenset()
    """Layers with one plain MLP: from ``mlp_only_layers`` and ``decoder_sparse_step``."""
    intermediate_size: int = 0
    """Width of those MLPs; unused without them."""
    rope_theta: float = 10_000_000.0
    partial_rotary_factor: float = 0.25
    rms_norm_eps: float = 1e-6
    attention_bias: bool = False
    tie_word_embeddings: bool = False
    eos_token_ids: tuple[int, ...] = ()
    """Tokens that end a text; from config.json and generation_config.json."""
    max_position_embeddings: int = 262_144

    @property
    def num_hidden_layers(self) -> int:
        return len(self.layer_types)

    @property
    def full_attention_layer_ids(self) -> tuple[int, ...]:
        """Layers that keep KV per token."""
        return tuple(i for i, kind in enumerate(self.layer_types) if kind == "full_attention")

    @property
    def linear_layer_ids(self) -> tuple[int, ...]:
        """Layers that keep one recurrent state per request."""
        return tuple(i for i, kind in enumerate(self.layer_types) if kind == "linear_attention")

    @property
    def key_dim(self) -> int:
        """Channels of all keys of a linear layer."""
        return self.linear_num_key_heads * self.linear_key_head_dim

    @property
    def value_dim(self) -> int:
        """Channels of all values of a linear layer."""
        return self.linear_num_value_heads * self.linear_value_head_dim

    @property
    def conv_dim(self) -> int:
        """Channels that the convolution of a linear layer mixes: q, k and v."""
        return 2 * self.key_dim + self.value_dim

    @property
    def rotary_dim(self) -> int:
        """Leading channels of each attention head that are rotated."""
        return int(self.head_dim * self.partial_rotary_factor)

    @property
    def cache_params(self) -> Mamba2CacheParams:
        """What the state pool must know."""
        shape = Mamba2StateShape.gated_delta_net(
            num_k_heads=self.linear_num_key_heads,
            num_v_heads=self.linear_num_value_heads,
            head_k_dim=self.linear_key_head_dim,
            head_v_dim=self.linear_value_head_dim,
            conv_kernel=self.linear_conv_kernel_dim,
        )
        return Mamba2CacheParams(shape=shape, layers=self.linear_layer_ids)

    def kv_bytes_per_token(self, dtype: torch.dtype) -> int:
        """Bytes of keys and values that one token position takes over all layers."""
        width = 2 * self.num_key_value_heads * self.head_dim
        return len(self.full_attention_layer_ids) * width * dtype.itemsize

    def state_bytes_per_slot(self, dtype: torch.dtype) -> int:
        """Bytes of one request's recurrent state over all layers."""
        temporal = self.linear_num_value_heads * self.linear_key_head_dim
        temporal *= self.linear_value_head_dim * state_dtype(dtype).itemsize
        conv = self.conv_dim * (self.linear_conv_kernel_dim - 1) * dtype.itemsize
        return len(self.linear_layer_ids) * (temporal + conv)


def state_dtype(dtype: torch.dtype) -> torch.dtype:
    """What recurrent states, gates, norms and the router are computed in: at least float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def layer_pattern(layers: int, full_attention_interval: int = 4) -> tuple[LayerKind, ...]:
    """Every ``full_attention_interval``-th layer is full attention, the others are linear."""
    return tuple(
        "full_attention" if (i + 1) % full_attention_interval == 0 else "linear_attention"
        for i in range(layers)
    )
