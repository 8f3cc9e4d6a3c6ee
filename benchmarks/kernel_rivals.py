"""Public kernels that do the same work, on the arguments of an engine's step.

Inputs that a rival needs in another layout, such as keys without gaps, are prepared before timing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from hybridbench.engine.kernels.gated_delta_rule.chunked import ChunkPlan
from hybridbench.engine.kernels.paged_attention.reference import DecodePlan, ExtendPlan

SDPA: Final = "scaled_dot_product_attention"
GROUPED_MM: Final = "torch._grouped_mm"
FLA: Final = "flash-linear-attention"

RivalTimes: TypeAlias = dict[str, tuple[str, float | str]]
"""For each operation its rival, and the rival's time for all calls or why it has none."""


@dataclass(frozen=True)
class Rival:
    """Another implementation; ``prepare`` makes it ready to call and raises if that fails."""

    name: str
    prepare: Callable[..., Callable[[], Tensor]]


def rival_of(operation: str, arguments: tuple[Any, ...]) -> Rival | None:
    """Return the public implementation of an operation; None if none takes these arguments."""
    # PyTorch's attention does not support sinks, and windows only with a mask of all positions.
    if operation == "decode_attention" and arguments[4] is not None:
        return None
    if operation == "extend_attention" and (arguments[3].window, arguments[4]) != (None, None):
        return None
    if operation == "experts_sorted" and arguments[5] is not None:
        return None
    return _RIVALS.get(operation)


def _decode(
    q: Tensor, keys: Tensor, values: Tensor, plan: DecodePlan, _: None
) -> Callable[[], Tensor]:
    places = torch.arange(int(plan.lens.max()), device=q.device)
    inside = torch.minimum(places, plan.lens[:, None] - 1)
    slots = plan.slots[plan.starts[:, None] + inside]
    k, v = (buffer[slots].transpose(1, 2).contiguous() for buffer in (keys, values))
    whole = bool((plan.lens == len(places)).all())
    mask = None if whole else (places < plan.lens[:, None])[:, None, None]

    def call() -> Tensor:
        query = q.unsqueeze(2)
        return functional.scaled_dot_product_attention(
            query, k, v, attn_mask=mask, enable_gqa=True
        ).squeeze(2)

    return call


def _extend(
    q: Tensor, keys: Tensor, values: Tensor, plan: ExtendPlan, _: None
) -> Callable[[], Tensor]:
    # Imported here, because it loads torch._dynamo, which takes seconds.
    from torch.nn.attention.bias import causal_lower_right

    requests = []
    for first, count, prefix, start in plan.spans:
        slots = torch.from_numpy(plan.kv_indices[start : start + prefix + count]).to(q.device)
        k, v = (buffer[slots].transpose(0, 1)[None].contiguous() for buffer in (keys, values))
        query = q[first : first + count].transpose(0, 1)[None]
        requests.append((query, k, v, causal_lower_right(count, prefix + count)))

    def call() -> Tensor:
        each = [
            functional.scaled_dot_product_attention(query, k, v, attn_mask=mask, enable_gqa=True)
            for query, k, v, mask in requests
        ]
        return torch.cat([output[0].transpose(0, 1) for output in each])

    return call


def _experts(
    x: Tensor,
    weights: Tensor,
    chosen: Tensor,
    gate_up: Tensor,
    down: Tensor,
    _: None,
    unit: Callable[[Tensor], Tensor],
) -> Callable[[], Tensor]:
    experts = torch.arange(len(gate_up), device=x.device)

    def call() -> Tensor:
        owners, order = chosen.reshape(-1).sort(stable=True)
        ends = torch.searchsorted(owners, experts, right=True).int()
        rows = order // chosen.shape[1]
        both = torch._grouped_mm(x.index_select(0, rows), gate_up.transpose(1, 2), offs=ends)
        hidden = unit(both).mul_(weights.reshape(-1).index_select(0, order).unsqueeze(1))
        products = torch._grouped_mm(hidden, down, offs=ends)
        return torch.zeros_like(x).index_add_(0, rows, products)

    return call


def _delta_rule(
    qk: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    pool: Tensor,
    slots: Tensor,
    plan: ChunkPlan,
    _: Tensor | None,
) -> Callable[[], Tensor]:
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    places = plan.conv_rows[plan.output_rows]
    # A gap in the rows separates two requests.
    breaks = torch.nonzero(places.diff() != 1).flatten() + 1
    ends = torch.tensor([len(places)], device=v.device)
    cu_seqlens = torch.cat((ends.new_zeros(1), breaks, ends))
    # It accepts queries and keys only in the model's dtype.
    q, k, new = (part[places][None].to(v.dtype) for part in (qk[:, 0], qk[:, 1], v))
    states = pool[slots[plan.order.argsort()]]

    def call() -> Tensor:
        output: Tensor = chunk_gated_delta_rule(
            q, k, new, g[None], beta[None].to(v.dtype), scale=1.0, initial_state=states,
            output_final_state=True, cu_seqlens=cu_seqlens,
        )[0]  # fmt: skip
        return output[0]

    return call


def timed(
    calls: Iterable[tuple[str, tuple[Any, ...]]], seconds: Callable[[Callable[[], object]], float]
) -> RivalTimes:
    """Prepare and time the rivals of ``calls``, which are operations with their arguments."""
    found: RivalTimes = {}
    for operation, arguments in calls:
        rival = rival_of(operation, arguments)
        so_far = found.get(operation, ("", 0.0))[1]
        if rival is None or isinstance(so_far, str):
            continue
        try:
            found[operation] = rival.name, so_far + seconds(rival.prepare(*arguments))
        except Exception as error:
            # A failure of foreign code must not end the benchmark.
            found[operation] = rival.name, f"{type(error).__name__}: {error}".splitlines()[0][:80]
    return found


_RIVALS: Final[Mapping[str, Rival]] = {
    "decode_attention": Rival(SDPA, _decode),
    "extend_attention": Rival(SDPA, _extend),
    "experts_sorted": Rival(GROUPED_MM, _experts),
    "chunk_gated_delta_rule": Rival(FLA, _delta_rule),
}
