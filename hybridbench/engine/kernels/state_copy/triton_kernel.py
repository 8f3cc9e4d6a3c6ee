"""Copy the states of all layers between rows: each program copies part of one slot."""

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024


def copy_states(
    targets: Sequence[Tensor], target_rows: Tensor, sources: Sequence[Tensor], source_rows: Tensor
) -> None:
    """See the reference."""
    if len(target_rows) == 0:
        return
    for target, source in zip(targets, sources, strict=True):
        assert target.is_contiguous()
        assert source.is_contiguous()
        width = target[0].numel()
        _copy[(len(target_rows), triton.cdiv(width, _BLOCK))](
            target, target_rows, source, source_rows, WIDTH=width, BLOCK=_BLOCK
        )


@triton.jit
def _copy(target, target_rows, source, source_rows, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    index = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    read = tl.load(source_rows + index).to(tl.int64)
    written = tl.load(target_rows + index).to(tl.int64)
    values = tl.load(source + read * WIDTH + column, mask=inside)
    tl.store(target + written * WIDTH + column, values, mask=inside)
