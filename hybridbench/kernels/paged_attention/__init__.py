"""Attention whose keys and values lie scattered in a pool; `reference.py` is plain PyTorch."""

from __future__ import annotations

from hybridbench.kernels.paged_attention.reference import (
    DecodePlan,
    ExtendPlan,
    attention_reference,
    decode_attention,
    extend_attention,
)

__all__ = [
    "DecodePlan",
    "ExtendPlan",
    "attention_reference",
    "decode_attention",
    "extend_attention",
]
