"""The gated delta rule: recurrent meaning, decode step by slot, ragged chunked prefill."""

from __future__ import annotations

from hybridbench.kernels.gated_delta_rule.chunked import (
    CHUNK_SIZE,
    ChunkPlan,
    chunk_gated_delta_rule,
)
from hybridbench.kernels.gated_delta_rule.reference import (
    gated_delta_rule_reference,
    gated_delta_rule_update,
)

__all__ = [
    "CHUNK_SIZE",
    "ChunkPlan",
    "chunk_gated_delta_rule",
    "gated_delta_rule_reference",
    "gated_delta_rule_update",
]
