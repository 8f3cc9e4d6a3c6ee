"""Depthwise causal convolution with a carried window; `reference.py` is plain PyTorch."""

from __future__ import annotations

from hybridbench.kernels.causal_conv1d.reference import (
    ConvPlan,
    causal_conv1d_reference,
    causal_conv1d_update,
    causal_conv1d_varlen,
)

__all__ = [
    "ConvPlan",
    "causal_conv1d_reference",
    "causal_conv1d_update",
    "causal_conv1d_varlen",
]
