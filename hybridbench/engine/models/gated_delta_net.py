"""The gated delta net: a short convolution and a recurrent state, both stored by slot."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from hybridbench.engine.memory.kv_pool import HybridLinearKVPool
from hybridbench.engine.memory.mamba_pool import MambaState, SpeculativeState
from hybridbench.engine.models.config import state_dtype
from hybridbench.engine.models.layers import Loader, Norm
from hybridbench.engine.models.qwen3_next_config import Qwen3NextConfig
from hybridbench.engine.models.step import (
    DecodeStep,
    ExtendStep,
    StateRows,
    Step,
    VerifyStep,
    chain_places,
)

_L2_EPS = 1e-6
# Qwen3.5's projections, in the row order of the stacked input projection.
_PARTS = ("qkv", "z", "b", "a")


class GatedDeltaNet:
    """One linear-attention layer.

    Rows of the input projection: [q | k | v | z | b | a]; the convolution covers q, k and v.
    States and gates are float32 (float64 in a float64 model), regardless of the weights' dtype.
    """

    def __init__(self, loader: Loader, layer_id: int, config: Qwen3NextConfig) -> None:
        prefix = f"model.layers.{layer_id}.linear_attn"
        self._layer_id = layer_id
        self._kernels = loader.kernels
        self._key_heads, self._heads = config.linear_num_key_heads, config.linear_num_value_heads
        self._key_dim, self._value_dim = config.linear_key_head_dim, config.linear_value_head_dim
        self._conv_dim = config.conv_dim
        self._precise = state_dtype(loader.dtype)
        if config.grouped_projections:
            self._in = self._ungrouped(
                loader.matrix(f"{prefix}.in_proj_qkvz.weight"),
                loader.matrix(f"{prefix}.in_proj_ba.weight"),
            )
        else:
            self._in = loader.matrix(*(f"{prefix}.in_proj_{part}.weight" for part in _PARTS))
        # [K, D]: the last row multiplies the newest input.
        self._conv = loader.matrix(f"{prefix}.conv1d.weight").squeeze(1).t().contiguous()
        self._decay = -loader.precise(f"{prefix}.A_log").exp()
        self._dt_bias = loader.precise(f"{prefix}.dt_bias")
        self._norm = Norm.rms(loader.precise(f"{prefix}.norm.weight"), config.rms_norm_eps)
        self._out = loader.matrix(f"{prefix}.out_proj.weight")
        # Queries and keys are normalised to unit length; queries are also scaled by K^-1/2.
        scale = torch.tensor([self._key_dim**-0.5, 1.0], dtype=self._precise, device=loader.device)
        self._qk_norm = Norm(scale.view(2, 1, 1), _L2_EPS**0.5)

    def __call__(self, x: Tensor, step: Step, kv_pool: HybridLinearKVPool) -> Tensor:
        """[T, h] -> [T, h]; advances the states of the step's slots, or the draft buffers."""
        assert kv_pool.mamba_pool is not None, "a hybrid model needs a state pool"
        state = kv_pool.mamba_pool.mamba2_layer_cache(self._layer_id)
        value_width = self._heads * self._value_dim
        qkv, z, b, a = torch.split(
            functional.linear(x, self._in),
            [self._conv_dim, value_width, self._heads, self._heads],
            dim=1,
        )
        g, beta = self._kernels.gdn_gating(a, b, self._decay, self._dt_bias)
        if isinstance(step, ExtendStep):
            mixed = self._extend(qkv, g, beta, state, step)
        elif isinstance(step, DecodeStep):
            live = StateRows(state.conv[0], state.temporal, step.slots)
            mixed = self._decode(qkv, g, beta, live, live)
        else:
            drafts = kv_pool.mamba_pool.mamba2_draft_cache(self._layer_id)
            mixed = self._verify(qkv, g, beta, state, drafts, step)
        gated = self._norm.precise(mixed)
        gate = functional.silu(z.to(self._precise)).view(gated.shape)
        return functional.linear(gated.mul_(gate).to(x.dtype).view(-1, value_width), self._out)

    def _decode(
        self, qkv: Tensor, g: Tensor, beta: Tensor, source: StateRows, target: StateRows
    ) -> Tensor:
        """[B, conv_dim] -> [B, HV, V]; read states from ``source``, write them to ``target``."""
        batch = qkv.shape[0]
        mixed = self._kernels.causal_conv1d_update(
            qkv, self._conv, source.conv, source.rows, (target.conv, target.rows), None
        )
        qk, v = self._split(mixed.to(self._precise))
        repeats = self._heads // self._key_heads
        # [B, 2, H, K] -> [B, HV, 2, K]: repeat each key head for the value heads that share it.
        qk = qk.permute(0, 2, 1, 3).unsqueeze(2).expand(-1, -1, repeats, -1, -1)
        qk = qk.reshape(batch, self._heads, 2, self._key_dim)
        return self._kernels.gated_delta_rule_update(
            qk, v, g, beta, source.temporal, source.rows, (target.temporal, target.rows)
        )

    def _verify(
        self,
        qkv: Tensor,
        g: Tensor,
        beta: Tensor,
        state: MambaState,
        drafts: SpeculativeState,
        step: VerifyStep,
    ) -> Tensor:
        """[T, conv_dim] -> [T, HV, V]; all chains advance one position at a time."""
        output = g.new_empty(qkv.shape[0], self._heads, self._value_dim)
        for tokens, source, target in chain_places(step, state, drafts):
            output[tokens] = self._decode(
                qkv.index_select(0, tokens),
                g.index_select(0, tokens),
                beta.index_select(0, tokens),
                source,
                target,
            )
        return output

    def _extend(
        self, qkv: Tensor, g: Tensor, beta: Tensor, state: MambaState, step: ExtendStep
    ) -> Tensor:
        """[T, conv_dim] -> [T, HV, V]."""
        mixed = self._kernels.causal_conv1d_varlen(
            qkv, self._conv, state.conv[0], step.slots, step.conv, step.track_slots, None
        )
        return self._kernels.chunk_gated_delta_rule(
            *(*self._split(mixed), g, beta, state.temporal, step.sorted_slots),
            step.chunks,
            step.track_slots,
        )

    def _split(self, mixed: Tensor) -> tuple[Tensor, Tensor]:
        """[T, conv_dim] -> q and k [T, 2, H, K], normalised and scaled, and v [T, HV, V] as is."""
        keys = 2 * self._key_heads * self._key_dim
        qk = mixed[:, :keys].view(-1, 2, self._key_heads, self._key_dim)
        qk = self._qk_norm.precise(qk)
        return qk, mixed[:, keys:].view(-1, self._heads, self._value_dim)

    def _ungrouped(self, qkvz: Tensor, ba: Tensor) -> Tensor:
        """Reorder rows, stored by key head, to [q | k | v | z | b | a]."""
        repeats = self._heads // self._key_heads
        value = repeats * self._value_dim
        hidden = qkvz.shape[1]
        grouped = qkvz.view(self._key_heads, -1, hidden)
        parts = list(torch.split(grouped, [self._key_dim, self._key_dim, value, value], dim=1))
        parts += torch.split(ba.view(self._key_heads, -1, hidden), [repeats, repeats], dim=1)
        return torch.cat([part.reshape(-1, hidden) for part in parts])
