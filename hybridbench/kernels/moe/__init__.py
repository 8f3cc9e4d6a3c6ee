"""Experts chosen per token, beside one shared expert; `reference.py` is plain PyTorch."""

from __future__ import annotations

from hybridbench.kernels.moe.reference import clamped_swiglu, experts_dense, experts_sorted

__all__ = ["clamped_swiglu", "experts_dense", "experts_sorted"]
