"""Full attention, plain or with an output gate: keys and values live in the KV pool."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from hybridbench.engine.memory.kv_pool import HybridLinearKVPool
from hybridbench.engine.models.config import ModelConfig, Shape
from hybridbench.engine.models.layers import Loader, Norm
from hybridbench.engine.models.qwen3_next_config import Qwen3NextConfig
from hybridbench.engine.models.step import ExtendStep, Step


class Attention:
    """Grouped-query attention, with all channels of a head rotated or none."""

    def __init__(
        self, loader: Loader, layer_id: int, prefix: str, config: ModelConfig, *, rotated: bool
    ) -> None:
        self._layer_id = layer_id
        self._kernels = loader.kernels
        self._heads = config.num_attention_heads, config.num_key_value_heads
        self._head_dim = config.head_dim
        self._rotated = rotated
        parts = [f"{prefix}.{part}_proj" for part in "qkv"]
        self._in = loader.matrix(*(f"{part}.weight" for part in parts))
        self._out = loader.matrix(f"{prefix}.o_proj.weight")
        self._in_bias: Tensor | None = None
        self._out_bias: Tensor | None = None
        if config.attention_bias:
            self._in_bias = loader.matrix(*(f"{part}.bias" for part in parts))
            self._out_bias = loader.matrix(f"{prefix}.o_proj.bias")

    @staticmethod
    def tensors(config: ModelConfig) -> Iterator[tuple[str, Shape]]:
        """Names and shapes, as checkpoints spell them below the layer's prefix."""
        hidden = config.hidden_size
        query, key = (
            heads * config.head_dim
            for heads in (config.num_attention_heads, config.num_key_value_heads)
        )
        for name, rows, columns in (
            ("q_proj", query, hidden),
            ("k_proj", key, hidden),
            ("v_proj", key, hidden),
            ("o_proj", hidden, query),
        ):
            yield f"{name}.weight", (rows, columns)
            if config.attention_bias:
                yield f"{name}.bias", (rows,)

    def __call__(self, x: Tensor, step: Step, kv_pool: HybridLinearKVPool) -> Tensor:
        """[T, h] -> [T, h]; stores the new keys and values in the pool first."""
        heads, key_heads = self._heads
        qkv = functional.linear(x, self._in, self._in_bias).view(x.shape[0], -1, self._head_dim)
        if self._rotated:
            step.rotation.apply_(qkv[:, : heads + key_heads])
        q, k, v = torch.split(qkv, [heads, key_heads, key_heads], dim=1)
        kv_pool.set_kv_buffer(self._layer_id, step.out_cache_loc, k, v)
        keys, values = kv_pool.get_kv_buffer(self._layer_id)
        if isinstance(step, ExtendStep):
            mixed = self._kernels.extend_attention(q, keys, values, step.attention, None)
        else:
            mixed = self._kernels.decode_attention(q, keys, values, step.attention, None)
        return functional.linear(mixed.reshape(x.shape[0], -1), self._out, self._out_bias)


class GatedAttention:
    """Grouped-query attention with norms per head, partial rotation and a sigmoid gate.

    Rows of the input projection: [queries H*hd | keys Hkv*hd | values Hkv*hd | gates H*hd].
    """

    def __init__(self, loader: Loader, layer_id: int, config: Qwen3NextConfig) -> None:
        prefix = f"model.layers.{layer_id}.self_attn"
        self._layer_id = layer_id
        self._kernels = loader.kernels
        self._heads, self._key_heads = config.num_attention_heads, config.num_key_value_heads
        self._head_dim = config.head_dim
        parts = ("q_proj", "k_proj", "v_proj")
        self._in = self._gates_last([loader.matrix(f"{prefix}.{p}.weight") for p in parts])
        self._in_bias: Tensor | None = None
        self._out_bias: Tensor | None = None
        if config.attention_bias:
            self._in_bias = self._gates_last([loader.matrix(f"{prefix}.{p}.bias") for p in parts])
            self._out_bias = loader.matrix(f"{prefix}.o_proj.bias")
        self._out = loader.matrix(f"{prefix}.o_proj.weight")
        # One norm serves queries and keys; only the scales differ.  [H + Hkv, hd].
        scale = torch.cat(
            (
                loader.precise(f"{prefix}.q_norm.weight").expand(self._heads, -1),
                loader.precise(f"{prefix}.k_norm.weight").expand(self._key_heads, -1),
            )
        ).add(1.0)
        self._qk_norm = Norm.rms(scale, config.rms_norm_eps)

    def __call__(self, x: Tensor, step: Step, kv_pool: HybridLinearKVPool) -> Tensor:
        """[T, h] -> [T, h]; stores the new keys and values in the pool first."""
        tokens = x.shape[0]
        head_dim, both_heads = self._head_dim, self._heads + self._key_heads
        projected = functional.linear(x, self._in, self._in_bias)
        qk, v, gate = torch.split(
            projected,
            [both_heads * head_dim, self._key_heads * head_dim, self._heads * head_dim],
            dim=1,
        )
        qk = self._qk_norm(qk.view(tokens, both_heads, head_dim))
        step.rotation.apply_(qk)
        q, k = qk[:, : self._heads], qk[:, self._heads :]
        v = v.view(tokens, self._key_heads, head_dim)
        kv_pool.set_kv_buffer(self._layer_id, step.out_cache_loc, k, v)
        keys, values = kv_pool.get_kv_buffer(self._layer_id)
        if isinstance(step, ExtendStep):
            mixed = self._kernels.extend_attention(q, keys, values, step.attention, None)
        else:
            mixed = self._kernels.decode_attention(q, keys, values, step.attention, None)
        gated = mixed.view(tokens, -1).mul_(gate.sigmoid())
        return functional.linear(gated, self._out, self._out_bias)

    def _gates_last(self, parts: list[Tensor]) -> Tensor:
        """Stored query rows are [query | gate] per head; move all gates behind the values."""
        query_gate = parts[0].view(self._heads, 2, self._head_dim, -1)
        query = query_gate[:, 0].reshape(self._heads * self._head_dim, -1)
        gate = query_gate[:, 1].reshape(self._heads * self._head_dim, -1)
        columns = query.shape[1]
        others = [part.view(-1, columns) for part in parts[1:]]
        stacked = torch.cat((query, *others, gate))
        return stacked if parts[0].dim() == 2 else stacked.view(-1)
