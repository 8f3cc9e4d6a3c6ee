"""The healthy twin of ``state-row-view``: the same batches, but the row that is kept is copied."""

from __future__ import annotations

from hybridbench.defects.mlxlm1701_state_row_view import BatchedStates
from hybridbench.defects.paced import gives_back

DEFECT = gives_back(
    "state-row-copy",
    "mlx-lm#1701",
    "Batches of recurrent states, 512 KiB each and 4 GiB per hour, are allocated and freed; memory "
    "is flat.",
    BatchedStates(copies=True).next_batch,
)
