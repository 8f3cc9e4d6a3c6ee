"""The selective state space of Mamba2: one token, whole chunks, and what both mean."""

from __future__ import annotations

from hybridbench.kernels.mamba2.chunked import mamba2_chunk_scan
from hybridbench.kernels.mamba2.reference import mamba2_reference, mamba2_state_update

__all__ = ["mamba2_chunk_scan", "mamba2_reference", "mamba2_state_update"]
