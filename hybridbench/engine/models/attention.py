"""Full attention, plain or with an output gate, over keys and values in the KV pool."""

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
    """Grouped-query attention that rotates all channels of a head or none."""

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
        """Yield names, relative to the layer's prefix in a checkpoint, and shapes."""
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
        # [H + Hkv, hd].  One norm serves queries and keys, which differ only in their scales.
        scale = torch.cat(
            (
                loader.precise(f"{prefix}.q_norm.weight").expand(self._heads, -1),
                loader.precise(f"{prefix}.k_norm.weight").expand(self._key_heads, -1),
            )
        ).add(1.0)
        self._qk_norm = Norm.rms(scale, config.rms_norm_eps)
        self._key_norm = Norm.rms(scale[self._heads :], config.rms_norm_eps)

    def __call__(self, x: Tensor, step: Step, kv_pool: HybridLinearKVPool) -> Tensor:
        """[T, h] -> [T, h]; stores the new keys and values in the pool first."""
        qk, v, gate = self._projected(x)
        step.rotation.apply_(qk)
        q, k = qk[:, : self._heads], qk[:, self._heads :]
        kv_pool.set_kv_buffer(self._layer_id, step.out_cache_loc, k, v)
        keys, values = kv_pool.get_kv_buffer(self._layer_id)
        if isinstance(step, ExtendStep):
            mixed = self._kernels.extend_attention(q, keys, values, step.attention, None)
        else:
            mixed = self._kernels.decode_attention(q, keys, values, step.attention, None)
        return self._gated(mixed, gate)

    def of_last_rows(self, x: Tensor, step: ExtendStep, kv_pool: HybridLinearKVPool) -> Tensor:
        """[T, h] -> [B, h]: compute the output of only the last new token of each request.

        Keys and values of all tokens are stored; the model's last layer needs nothing else of the
        other tokens.
        """
        head_dim, key_width = self._head_dim, self._key_heads * self._head_dim
        begin = self._heads * head_dim
        rows = slice(begin, begin + 2 * key_width)
        bias = None if self._in_bias is None else self._in_bias[rows]
        keys_values = functional.linear(x, self._in[rows], bias)
        k, v = keys_values.view(x.shape[0], 2, self._key_heads, head_dim).unbind(1)
        k = self._key_norm(k)
        step.rotation.apply_(k)
        kv_pool.set_kv_buffer(self._layer_id, step.out_cache_loc, k, v)
        last = x.index_select(0, step.last_rows)
        qk, _, gate = self._projected(last)
        step.last_rotation.apply_(qk)
        keys, values = kv_pool.get_kv_buffer(self._layer_id)
        q = qk[:, : self._heads]
        mixed = self._kernels.decode_attention(q, keys, values, step.last_attention, None)
        return self._gated(mixed, gate)

    def _projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return normalised q and k [T, H + Hkv, hd], v [T, Hkv, hd] and gates [T, H*hd]."""
        head_dim, both_heads = self._head_dim, self._heads + self._key_heads
        widths = [both_heads * head_dim, self._key_heads * head_dim, self._heads * head_dim]
        qk, v, gate = torch.split(functional.linear(x, self._in, self._in_bias), widths, dim=1)
        qk = self._qk_norm(qk.view(-1, both_heads, head_dim))
        return qk, v.view(-1, self._key_heads, head_dim), gate

    def _gated(self, mixed: Tensor, gate: Tensor) -> Tensor:
        gated = mixed.view(gate.shape).mul_(gate.sigmoid())
        return functional.linear(gated, self._out, self._out_bias)

    def _gates_last(self, parts: list[Tensor]) -> Tensor:
        """Move all gates after the values; query rows are stored as [query | gate] per head."""
        query_gate = parts[0].view(self._heads, 2, self._head_dim, -1)
        query = query_gate[:, 0].reshape(self._heads * self._head_dim, -1)
        gate = query_gate[:, 1].reshape(self._heads * self._head_dim, -1)
        columns = query.shape[1]
        others = [part.view(-1, columns) for part in parts[1:]]
        stacked = torch.cat((query, *others, gate))
        return stacked if parts[0].dim() == 2 else stacked.view(-1)
