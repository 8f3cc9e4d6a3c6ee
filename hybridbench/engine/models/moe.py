"""The sparse MLP: routed experts, and one shared expert with its own gate."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from hybridbench.engine.kernels.moe.reference import experts_dense, swiglu
from hybridbench.engine.models.config import state_dtype
from hybridbench.engine.models.layers import Loader
from hybridbench.engine.models.qwen3_next_config import Qwen3NextConfig

# Overhead of one small product, as the number of multiply-adds that take the same time.
_CALL_MACS = 250_000
# Above this many weights, the experts no longer stay in a core's cache between steps, and reading
# the unchosen ones costs more than the calls.
_DENSE_WEIGHTS = 2**18


class SparseMLP:
    """Router, shared expert and routed experts, with their first matrices stacked into one.

    Rows of the stack: [router E | shared gate 1 | shared gate_up 2*Is | expert 0 gate, up | ...];
    rows of the down stack: [expert 0 I | expert 1 I | ... | shared Is].
    """

    def __init__(self, loader: Loader, prefix: str, config: Qwen3NextConfig) -> None:
        self._kernels = loader.kernels
        self._experts = config.num_experts
        self._top_k = config.num_experts_per_tok
        self._normalise = config.norm_topk_prob
        self._width = config.moe_intermediate_size
        self._shared_width = config.shared_expert_intermediate_size
        self._precise = state_dtype(loader.dtype)
        experts = [f"{prefix}.experts.{expert}" for expert in range(self._experts)]
        shared = f"{prefix}.shared_expert"
        self._first = loader.matrix(
            f"{prefix}.gate.weight",
            f"{prefix}.shared_expert_gate.weight",
            f"{shared}.gate_proj.weight",
            f"{shared}.up_proj.weight",
            *(f"{expert}.{unit}.weight" for expert in experts for unit in ("gate_proj", "up_proj")),
        )
        self._down = _stacked_down(loader, [*experts, shared])
        self._head_rows = self._experts + 1 + 2 * self._shared_width
        self._dense_tokens = self._dense_limit(config.hidden_size)
        hidden = config.hidden_size
        self._expert_first = self._first[self._head_rows :].view(self._experts, -1, hidden)
        split = self._experts * self._width
        self._expert_down = self._down[:split].view(self._experts, self._width, hidden)
        self._shared_down = self._down[split:]

    def __call__(self, x: Tensor) -> Tensor:
        """[T, h] -> [T, h]."""
        if x.shape[0] <= self._dense_tokens:
            return self._dense(x)
        head = functional.linear(x, self._first[: self._head_rows])
        weights, chosen = self._route(head)
        shared = torch.mm(self._shared_hidden(head), self._shared_down)
        routed = self._kernels.experts_sorted(
            x, weights, chosen, self._expert_first, self._expert_down, None, swiglu
        )
        return shared.add_(routed)

    def _dense(self, x: Tensor) -> Tensor:
        """[T, h] -> [T, h] for few tokens: two products in all cost less than two per expert."""
        tokens = x.shape[0]
        both = functional.linear(x, self._first)
        weights, chosen = self._route(both)
        split = self._experts * self._width
        hidden = x.new_empty(tokens, split + self._shared_width)
        gate_up = both[:, self._head_rows :].view(tokens, self._experts, 2, self._width)
        routed = hidden[:, :split].view(tokens, self._experts, self._width)
        experts_dense(gate_up, weights, chosen, routed)
        hidden[:, split:] = self._shared_hidden(both)
        return torch.mm(hidden, self._down)

    def _route(self, head: Tensor) -> tuple[Tensor, Tensor]:
        """Return routing weights [T, k] and the chosen experts [T, k]."""
        scores = head[:, : self._experts].to(self._precise)
        weights, chosen = self._kernels.route(scores, self._top_k, self._normalise)
        return weights.to(head.dtype), chosen

    def _shared_hidden(self, head: Tensor) -> Tensor:
        start, width = self._experts + 1, self._shared_width
        hidden = functional.silu(head[:, start : start + width])
        hidden.mul_(head[:, start + width : start + 2 * width])
        return hidden.mul_(head[:, self._experts : start].sigmoid())

    def _dense_limit(self, hidden: int) -> int:
        """Return the largest T for which computing unchosen experts is cheaper than the calls."""
        per_expert = 3 * self._width * hidden
        if self._experts * per_expert > _DENSE_WEIGHTS:
            return 0
        wasted_macs = (self._experts - self._top_k) * per_expert
        saved_macs = 2 * self._experts * _CALL_MACS
        return saved_macs // max(wasted_macs, 1)


def _stacked_down(loader: Loader, units: list[str]) -> Tensor:
    """Return the down matrices of ``units``, transposed so that their rows are hidden channels."""
    parts = [loader.matrix(f"{unit}.down_proj.weight").t() for unit in units]
    return torch.cat(parts).contiguous()
