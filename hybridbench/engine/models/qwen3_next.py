"""The Qwen3-Next model: embedding, layers of a mixer and an MLP each, head."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from hybridbench.engine.kernels.dispatch import Kernels, kernels_for
from hybridbench.engine.memory.kv_pool import HybridLinearKVPool
from hybridbench.engine.models.attention import GatedAttention
from hybridbench.engine.models.causal_lm import HybridLM
from hybridbench.engine.models.gated_delta_net import GatedDeltaNet
from hybridbench.engine.models.layers import DenseMLP, Loader, Norm
from hybridbench.engine.models.moe import SparseMLP
from hybridbench.engine.models.qwen3_next_config import Qwen3NextConfig
from hybridbench.engine.models.step import ExtendStep, Step, rows_of_logits
from hybridbench.engine.models.weights import WeightSource


@dataclass(frozen=True)
class _Layer:
    input_norm: Norm
    mixer: GatedDeltaNet | GatedAttention
    post_norm: Norm
    mlp: SparseMLP | DenseMLP


class Qwen3Next(HybridLM):
    """The Qwen3-Next and Qwen3.5 model."""

    def __init__(
        self,
        config: Qwen3NextConfig,
        source: WeightSource,
        dtype: torch.dtype,
        device: torch.device,
        kernels: Kernels | None = None,
    ) -> None:
        self.config = config
        self.dtype = dtype
        self.device = device
        self._conv_kernel = config.linear_conv_kernel_dim
        loader = Loader(source, dtype, device, kernels or kernels_for(device))
        self._embedding = loader.matrix("model.embed_tokens.weight")
        self._layers = [_build_layer(loader, i, config) for i in range(config.num_hidden_layers)]
        self._norm = Norm.zero_centred(loader, "model.norm.weight", config.rms_norm_eps)
        tied = config.tie_word_embeddings
        self._head = self._embedding if tied else loader.matrix("lm_head.weight")
        self._frequencies = config.rope.frequencies(config.head_dim, dtype, device)

    def _logits(self, input_ids: Tensor, step: Step, kv_pool: HybridLinearKVPool) -> Tensor:
        x = functional.embedding(input_ids, self._embedding)
        *below, top = self._layers
        for layer in below:
            x = x.add_(layer.mixer(layer.input_norm(x), step, kv_pool))
            x = x.add_(layer.mlp(layer.post_norm(x)))
        x = _mixed_last(top, x, step, kv_pool)
        x = x.add_(top.mlp(top.post_norm(x)))
        return functional.linear(self._norm(x), self._head)


def _mixed_last(top: _Layer, x: Tensor, step: Step, kv_pool: HybridLinearKVPool) -> Tensor:
    """Add the last mixer's output to ``x`` and return only the rows that need logits."""
    normed = top.input_norm(x)
    if isinstance(step, ExtendStep) and isinstance(top.mixer, GatedAttention):
        return rows_of_logits(x, step).add_(top.mixer.of_last_rows(normed, step, kv_pool))
    return rows_of_logits(x.add_(top.mixer(normed, step, kv_pool)), step)


def _build_layer(loader: Loader, layer_id: int, config: Qwen3NextConfig) -> _Layer:
    prefix = f"model.layers.{layer_id}"
    linear = config.layer_types[layer_id] == "linear_attention"
    dense = layer_id in config.dense_layers
    eps = config.rms_norm_eps
    return _Layer(
        input_norm=Norm.zero_centred(loader, f"{prefix}.input_layernorm.weight", eps),
        mixer=(GatedDeltaNet if linear else GatedAttention)(loader, layer_id, config),
        post_norm=Norm.zero_centred(loader, f"{prefix}.post_attention_layernorm.weight", eps),
        mlp=(
            DenseMLP(loader, f"{prefix}.mlp")
            if dense
            else SparseMLP(loader, f"{prefix}.mlp", config)
        ),
    )
