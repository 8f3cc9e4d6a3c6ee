"""A Mamba2 layer: a short convolution and a selective state space, both kept by slot."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from hybridbench.engine.memory.kv_pool import HybridLinearKVPool
from hybridbench.engine.memory.mamba_pool import MambaState
from hybridbench.engine.models.config import state_dtype
from hybridbench.engine.models.layers import Loader, Norm
from hybridbench.engine.models.step import (
    DecodeStep,
    ExtendStep,
    StateRows,
    VerifyStep,
    chain_places,
)


@dataclass(frozen=True)
class Mamba2Sizes:
    """Heads that share B and C by groups, and the size of each head's state."""

    heads: int
    head_dim: int
    groups: int
    state: int

    @property
    def width(self) -> int:
        """Channels of all heads."""
        return self.heads * self.head_dim

    @property
    def conv_dim(self) -> int:
        """Channels that the convolution mixes: x, B and C."""
        return self.width + 2 * self.groups * self.state


class Mamba2Mixer:
    """One layer of Mamba2, with a norm of each group after its gate.

    Rows of the input projection: [z | x | B | C | dt].  States and steps are float32 (float64 in a
    float64 model) whatever the weights are.
    """

    def __init__(  # noqa: PLR0913 - one layer's sizes, as its config names them
        self,
        loader: Loader,
        layer_id: int,
        prefix: str,
        sizes: Mamba2Sizes,
        eps: float,
        time_step_min: float,
        *,
        conv_bias: bool,
        projection_bias: bool,
    ) -> None:
        self._layer_id = layer_id
        self._kernels = loader.kernels
        self._sizes = sizes
        self._time_step_min = time_step_min
        self._precise = state_dtype(loader.dtype)
        self._in = loader.matrix(f"{prefix}.in_proj.weight")
        self._out = loader.matrix(f"{prefix}.out_proj.weight")
        self._in_bias = loader.matrix(f"{prefix}.in_proj.bias") if projection_bias else None
        self._out_bias = loader.matrix(f"{prefix}.out_proj.bias") if projection_bias else None
        # [K, D]: the newest input's taps are the last row.
        self._conv = loader.matrix(f"{prefix}.conv1d.weight").squeeze(1).t().contiguous()
        self._conv_bias = loader.matrix(f"{prefix}.conv1d.bias") if conv_bias else None
        self._a = -loader.precise(f"{prefix}.A_log").exp()
        self._dt_bias = loader.precise(f"{prefix}.dt_bias")
        self._d = loader.precise(f"{prefix}.D")[:, None]
        scale = loader.precise(f"{prefix}.norm.weight").view(sizes.groups, -1)
        self._norm = Norm.rms(scale, eps)

    def __call__(
        self, x: Tensor, step: ExtendStep | DecodeStep | VerifyStep, kv_pool: HybridLinearKVPool
    ) -> Tensor:
        """[T, h] -> [T, h]; advances the states of the step's slots, or those of its drafts."""
        assert kv_pool.mamba_pool is not None, "a hybrid model needs a state pool"
        state = kv_pool.mamba_pool.mamba2_layer_cache(self._layer_id)
        sizes = self._sizes
        projected = functional.linear(x, self._in, self._in_bias)
        z, xbc, dt = torch.split(projected, [sizes.width, sizes.conv_dim, sizes.heads], dim=1)
        dt = functional.softplus(dt.to(self._precise) + self._dt_bias)
        # The released implementation bounds steps in a prefill; here in every step, so that a
        # prefix computes the same whichever way.
        dt = dt.clamp_(min=self._time_step_min)
        if isinstance(step, ExtendStep):
            mixed = self._extend(xbc, dt, state, step)
        elif isinstance(step, DecodeStep):
            live = StateRows(state.conv[0], state.temporal, step.slots)
            mixed = self._decode(xbc, dt, live, live)
        else:
            drafts = kv_pool.mamba_pool.mamba2_draft_cache(self._layer_id)
            mixed = dt.new_empty(x.shape[0], sizes.heads, sizes.head_dim)
            for tokens, source, target in chain_places(step, state, drafts):
                own = xbc.index_select(0, tokens), dt.index_select(0, tokens)
                mixed[tokens] = self._decode(*own, source, target)
        gated = mixed.view(x.shape[0], -1).mul_(functional.silu(z.to(self._precise)))
        normed = self._norm.precise(gated.view(x.shape[0], sizes.groups, -1))
        return functional.linear(normed.view(gated.shape).to(x.dtype), self._out, self._out_bias)

    def _decode(self, xbc: Tensor, dt: Tensor, source: StateRows, target: StateRows) -> Tensor:
        """[B, conv_dim] -> [B, H, P]; from the states in ``source`` to those in ``target``."""
        into = target.conv, target.rows
        mixed = self._kernels.causal_conv1d_update(
            xbc, self._conv, source.conv, source.rows, into, self._conv_bias
        )
        x, bc = self._split(mixed.to(self._precise))
        output = self._kernels.mamba2_state_update(
            x, dt, self._a, bc, source.temporal, source.rows, (target.temporal, target.rows)
        )
        return output.addcmul_(x, self._d)

    def _extend(self, xbc: Tensor, dt: Tensor, state: MambaState, step: ExtendStep) -> Tensor:
        """[T, conv_dim] -> [T, H, P]."""
        plan, sizes = step.chunks, self._sizes
        mixed = self._kernels.causal_conv1d_varlen(
            xbc,
            self._conv,
            state.conv[0],
            step.slots,
            step.conv,
            step.track_slots,
            self._conv_bias,
        )
        x, bc = self._split(mixed.index_select(0, plan.conv_rows).to(self._precise))
        # One row of zeros behind the tokens serves all padding.
        steps = functional.pad(dt, (0, 0, 0, 1)).index_select(0, plan.gate_rows)
        places = (-1, plan.chunk_size)
        initial = state.temporal.index_select(0, step.sorted_slots)
        snapshots = None
        if step.track_slots is not None:
            snapshots = initial.new_empty(plan.snapshot_count, *initial.shape[1:])
        output = self._kernels.mamba2_chunk_scan(
            x.view(*places, sizes.heads, sizes.head_dim),
            steps.view(*places, sizes.heads),
            self._a,
            bc.view(*places, 2, sizes.groups, sizes.state),
            initial,
            plan,
            snapshots,
        )
        state.temporal.index_copy_(0, step.sorted_slots, initial)
        if snapshots is not None and step.track_slots is not None:
            state.temporal.index_copy_(0, step.track_slots, snapshots)
        output = output.reshape(-1, sizes.heads, sizes.head_dim).addcmul_(x, self._d)
        return output.index_select(0, plan.output_rows)

    def _split(self, mixed: Tensor) -> tuple[Tensor, Tensor]:
        """[T, conv_dim] -> x [T, H, P] and B above C [T, 2, G, N]."""
        sizes = self._sizes
        x, bc = mixed[:, : sizes.width], mixed[:, sizes.width :]
        return (
            x.reshape(-1, sizes.heads, sizes.head_dim),
            bc.reshape(-1, 2, sizes.groups, sizes.state),
        )
