"""Choose the implementation of each operation: Triton on a CUDA device, else the references."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import TypeAlias

import torch
from torch import Tensor

from hybridbench.engine.kernels.causal_conv1d import reference as causal_conv1d
from hybridbench.engine.kernels.causal_conv1d.reference import ConvPlan
from hybridbench.engine.kernels.gated_delta_rule import chunked as gated_delta_rule_chunked
from hybridbench.engine.kernels.gated_delta_rule import reference as gated_delta_rule
from hybridbench.engine.kernels.gated_delta_rule.chunked import ChunkPlan
from hybridbench.engine.kernels.kv_store import reference as kv_store
from hybridbench.engine.kernels.mamba2 import chunked as mamba2_chunked
from hybridbench.engine.kernels.mamba2 import reference as mamba2
from hybridbench.engine.kernels.moe import reference as moe
from hybridbench.engine.kernels.paged_attention import reference as paged_attention
from hybridbench.engine.kernels.paged_attention.reference import DecodePlan, ExtendPlan
from hybridbench.engine.kernels.state_copy import reference as state_copy

DEVICE_TYPES = ("cpu", "cuda")
"""The devices that the engine supports."""
HOST_OPERATIONS = ("alloc_extend", "alloc_decode")
"""Operations of the allocators, whose indices stay on the host: the reference on every device."""

_T: TypeAlias = Tensor
_Maybe: TypeAlias = Tensor | None
_Rows: TypeAlias = tuple[Tensor, Tensor] | None
_States: TypeAlias = Sequence[Tensor]


@dataclass(frozen=True)
class Kernels:
    """One implementation of every operation; see the references for the arguments."""

    store_kv: Callable[[_T, _T, _T, _T, _T], None]
    decode_attention: Callable[[_T, _T, _T, DecodePlan, _Maybe], _T]
    extend_attention: Callable[[_T, _T, _T, ExtendPlan, _Maybe], _T]
    gdn_gating: Callable[[_T, _T, _T, _T], tuple[_T, _T]]
    gated_delta_rule_update: Callable[[_T, _T, _T, _T, _T, _T, _Rows], _T]
    chunk_gated_delta_rule: Callable[[_T, _T, _T, _T, _T, _T, ChunkPlan, _Maybe], _T]
    causal_conv1d_update: Callable[[_T, _T, _T, _T, _Rows, _Maybe], _T]
    causal_conv1d_varlen: Callable[[_T, _T, _T, _T, ConvPlan, _Maybe, _Maybe], _T]
    copy_states: Callable[[_States, _T, _States, _T], None]
    mamba2_state_update: Callable[[_T, _T, _T, _T, _T, _T, _Rows], _T]
    mamba2_chunk_scan: Callable[[_T, _T, _T, _T, _T, _T, _T, ChunkPlan, _Maybe], _T]
    route: Callable[[_T, int, bool], tuple[_T, _T]]
    experts_sorted: Callable[[_T, _T, _T, _T, _T, _Rows, Callable[[_T], _T]], _T]

    def implementations(self) -> Mapping[str, str]:
        """Return "reference" or "triton" for each operation."""
        return {
            name: "triton" if kernel.__module__.endswith(".triton_kernel") else "reference"
            for name, kernel in vars(self).items()
        }


REFERENCE = Kernels(
    store_kv=kv_store.store_kv,
    decode_attention=paged_attention.decode_attention,
    extend_attention=paged_attention.extend_attention,
    gdn_gating=gated_delta_rule.gdn_gating,
    gated_delta_rule_update=gated_delta_rule.gated_delta_rule_update,
    chunk_gated_delta_rule=gated_delta_rule_chunked.chunk_gated_delta_rule,
    causal_conv1d_update=causal_conv1d.causal_conv1d_update,
    causal_conv1d_varlen=causal_conv1d.causal_conv1d_varlen,
    copy_states=state_copy.copy_states,
    mamba2_state_update=mamba2.mamba2_state_update,
    mamba2_chunk_scan=mamba2_chunked.mamba2_chunk_scan,
    route=moe.route,
    experts_sorted=moe.experts_sorted,
)


@cache
def triton_kernels() -> Kernels:
    """Import triton and return the Triton implementations.

    Raises:
        ImportError: triton is not installed.
    """
    from hybridbench.engine.kernels.causal_conv1d import triton_kernel as triton_conv1d
    from hybridbench.engine.kernels.gated_delta_rule import triton_kernel as triton_delta_rule
    from hybridbench.engine.kernels.kv_store import triton_kernel as triton_kv_store
    from hybridbench.engine.kernels.mamba2 import triton_kernel as triton_mamba2
    from hybridbench.engine.kernels.moe import triton_kernel as triton_moe
    from hybridbench.engine.kernels.paged_attention import triton_kernel as triton_attention
    from hybridbench.engine.kernels.state_copy import triton_kernel as triton_state_copy

    return Kernels(
        store_kv=triton_kv_store.store_kv,
        decode_attention=triton_attention.decode_attention,
        extend_attention=triton_attention.extend_attention,
        gdn_gating=triton_delta_rule.gdn_gating,
        gated_delta_rule_update=triton_delta_rule.gated_delta_rule_update,
        chunk_gated_delta_rule=triton_delta_rule.chunk_gated_delta_rule,
        causal_conv1d_update=triton_conv1d.causal_conv1d_update,
        causal_conv1d_varlen=triton_conv1d.causal_conv1d_varlen,
        copy_states=triton_state_copy.copy_states,
        mamba2_state_update=triton_mamba2.mamba2_state_update,
        mamba2_chunk_scan=triton_mamba2.mamba2_chunk_scan,
        route=triton_moe.route,
        experts_sorted=triton_moe.experts_sorted,
    )


def kernels_for(device: str | torch.device) -> Kernels:
    """Return the kernels for ``device``.  Triton is imported only for a CUDA device."""
    if torch.device(device).type == "cuda" and find_spec("triton") is not None:
        return triton_kernels()
    return REFERENCE
