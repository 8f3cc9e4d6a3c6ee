"""A Mamba2 layer: a short convolution and a selective state space, both stored by slot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from hybridbench.engine.memory.kv_pool import HybridLinearKVPool
from hybridbench.engine.memory.mamba_pool import Mamba2StateShape, MambaState
from hybridbench.engine.models.config import Shape, state_dtype
from hybridbench.engine.models.layers import Loader, Norm
from hybridbench.engine.models.step import DecodeStep, ExtendStep, StateRows, Step, chain_places


@dataclass(frozen=True, kw_only=True)
class Mamba2Config:
    """The configuration of one layer; heads of a group share B and C."""

    hidden_size: int
    heads: int
    head_dim: int
    groups: int
    state: int
    conv_kernel: int
    conv_bias: bool
    in_bias: bool
    out_bias: bool
    time_steps: tuple[float, float]
    """The shortest and the longest step."""
    norm: Literal["after_gate", "before_gate"] | None
    """Position of the norm over each group; None for no norm."""
    rms_norm_eps: float

    @property
    def width(self) -> int:
        """Number of channels over all heads."""
        return self.heads * self.head_dim

    @property
    def conv_dim(self) -> int:
        """Number of channels in the convolution: x, B and C."""
        return self.width + 2 * self.groups * self.state

    @property
    def state_shape(self) -> Mamba2StateShape:
        """The shape of the layer's state in a slot."""
        return Mamba2StateShape.create(
            intermediate_size=self.width,
            n_groups=self.groups,
            num_heads=self.heads,
            head_dim=self.head_dim,
            state_size=self.state,
            conv_kernel=self.conv_kernel,
        )

    def tensors(self) -> Iterator[tuple[str, Shape]]:
        """Yield names, relative to the layer's prefix in a checkpoint, and shapes."""
        rows = self.width + self.conv_dim + self.heads
        yield "in_proj.weight", (rows, self.hidden_size)
        if self.in_bias:
            yield "in_proj.bias", (rows,)
        yield "conv1d.weight", (self.conv_dim, 1, self.conv_kernel)
        if self.conv_bias:
            yield "conv1d.bias", (self.conv_dim,)
        for name in ("A_log", "dt_bias", "D"):
            yield name, (self.heads,)
        if self.norm is not None:
            yield "norm.weight", (self.width,)
        yield "out_proj.weight", (self.hidden_size, self.width)
        if self.out_bias:
            yield "out_proj.bias", (self.hidden_size,)


class Mamba2Mixer:
    """One Mamba2 layer.

    Rows of the input projection: [z | x | B | C | dt].  States and steps are float32 (float64 in a
    float64 model), regardless of the weights' dtype.
    """

    def __init__(self, loader: Loader, layer_id: int, prefix: str, config: Mamba2Config) -> None:
        self._layer_id = layer_id
        self._kernels = loader.kernels
        self._config = config
        self._precise = state_dtype(loader.dtype)
        self._in = loader.matrix(f"{prefix}.in_proj.weight")
        self._out = loader.matrix(f"{prefix}.out_proj.weight")
        self._in_bias = loader.matrix(f"{prefix}.in_proj.bias") if config.in_bias else None
        self._out_bias = loader.matrix(f"{prefix}.out_proj.bias") if config.out_bias else None
        # [K, D]: the last row multiplies the newest input.
        self._conv = loader.matrix(f"{prefix}.conv1d.weight").squeeze(1).t().contiguous()
        self._conv_bias = loader.matrix(f"{prefix}.conv1d.bias") if config.conv_bias else None
        self._a = -loader.precise(f"{prefix}.A_log").exp()
        self._dt_bias = loader.precise(f"{prefix}.dt_bias")
        self._d = loader.precise(f"{prefix}.D")
        self._norm: Norm | None = None
        if config.norm is not None:
            scale = loader.precise(f"{prefix}.norm.weight").view(config.groups, -1)
            self._norm = Norm.rms(scale, config.rms_norm_eps)

    def __call__(self, x: Tensor, step: Step, kv_pool: HybridLinearKVPool) -> Tensor:
        """[T, h] -> [T, h]; advances the states of the step's slots, or the draft buffers."""
        assert kv_pool.mamba_pool is not None, "a hybrid model needs a state pool"
        state = kv_pool.mamba_pool.mamba2_layer_cache(self._layer_id)
        config = self._config
        projected = functional.linear(x, self._in, self._in_bias)
        z, xbc, dt = torch.split(projected, [config.width, config.conv_dim, config.heads], dim=1)
        dt = functional.softplus(dt.to(self._precise) + self._dt_bias)
        # The released implementation bounds steps only in a prefill.  Here they are bounded
        # everywhere, so that a prefix gives the same result however it is computed.
        shortest, longest = config.time_steps
        dt = dt.clamp_(min=shortest, max=longest)
        if isinstance(step, ExtendStep):
            mixed = self._extend(xbc, dt, state, step)
        elif isinstance(step, DecodeStep):
            live = StateRows(state.conv[0], state.temporal, step.slots)
            mixed = self._decode(xbc, dt, live, live)
        else:
            drafts = kv_pool.mamba_pool.mamba2_draft_cache(self._layer_id)
            mixed = dt.new_empty(x.shape[0], config.heads, config.head_dim)
            for tokens, source, target in chain_places(step, state, drafts):
                own = xbc.index_select(0, tokens), dt.index_select(0, tokens)
                mixed[tokens] = self._decode(*own, source, target)
        gated = self._gated(mixed.view(x.shape[0], -1), functional.silu(z.to(self._precise)))
        return functional.linear(gated.to(x.dtype), self._out, self._out_bias)

    def _gated(self, mixed: Tensor, gate: Tensor) -> Tensor:
        """[T, width] -> [T, width]; apply the gate and, before or after it, the norm if any."""
        if self._norm is None:
            return mixed.mul_(gate)
        if self._config.norm == "after_gate":
            mixed = mixed.mul_(gate)
        normed = self._norm.precise(mixed.view(mixed.shape[0], self._config.groups, -1))
        normed = normed.view(mixed.shape)
        return normed if self._config.norm == "after_gate" else normed.mul_(gate)

    def _decode(self, xbc: Tensor, dt: Tensor, source: StateRows, target: StateRows) -> Tensor:
        """[B, conv_dim] -> [B, H, P]; read states from ``source``, write new ones to ``target``."""
        into = target.conv, target.rows
        mixed = self._kernels.causal_conv1d_update(
            xbc, self._conv, source.conv, source.rows, into, self._conv_bias
        )
        x, bc = self._split(mixed.to(self._precise))
        output = self._kernels.mamba2_state_update(
            x, dt, self._a, bc, source.temporal, source.rows, (target.temporal, target.rows)
        )
        return output.addcmul_(x, self._d[:, None])

    def _extend(self, xbc: Tensor, dt: Tensor, state: MambaState, step: ExtendStep) -> Tensor:
        """[T, conv_dim] -> [T, H, P]."""
        mixed = self._kernels.causal_conv1d_varlen(
            xbc,
            self._conv,
            state.conv[0],
            step.slots,
            step.conv,
            step.track_slots,
            self._conv_bias,
        )
        x, bc = self._split(mixed)
        return self._kernels.mamba2_chunk_scan(
            *(x, dt, self._a, self._d, bc, state.temporal, step.sorted_slots),
            step.chunks,
            step.track_slots,
        )

    def _split(self, mixed: Tensor) -> tuple[Tensor, Tensor]:
        """[T, conv_dim] -> x [T, H, P], and [T, 2, G, N] with B above C."""
        config = self._config
        x, bc = mixed[:, : config.width], mixed[:, config.width :]
        return (
            x.view(-1, config.heads, config.head_dim),
            bc.view(-1, 2, config.groups, config.state),
        )
