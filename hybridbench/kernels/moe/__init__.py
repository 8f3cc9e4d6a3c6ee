"""Experts chosen per token, beside one shared expert; `reference.py` is plain PyTorch."""

from __future__ import annotations

from hybridbench.kernels.moe.reference import experts_dense, experts_sorted

__all__ = ["experts_dense", "experts_sorted"]
