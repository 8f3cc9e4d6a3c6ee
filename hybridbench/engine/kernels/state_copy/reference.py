"""Copy the states of all layers between rows of tensors: plain PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from hybridbench.engine.kernels.rows import store_rows


def copy_states(
    targets: Sequence[Tensor], target_rows: Tensor, sources: Sequence[Tensor], source_rows: Tensor
) -> None:
    """Overwrite row ``target_rows[i]`` of each target with row ``source_rows[i]`` of its source.

    Args:
        targets: each [S, ...] contiguous, slot by slot: all layers of a slot are adjacent.
        target_rows: [n] int64, distinct; none may be a source row.
        sources: each like its target except for the number of rows.
        source_rows: [n] int64.
    """
    for target, source in zip(targets, sources, strict=True):
        store_rows(target, target_rows, source.index_select(0, source_rows))
