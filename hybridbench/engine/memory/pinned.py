"""Copies between a CUDA device and pinned host memory, which the device can access directly."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def to_host(gathered: Sequence[Tensor]) -> list[Tensor]:
    """Copy ``gathered`` to main memory, and wait for it; tensors already there are not copied."""
    if not gathered or gathered[0].device.type != "cuda":
        return list(gathered)
    copies = [torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True) for rows in gathered]
    for copy, rows in zip(copies, gathered, strict=True):
        copy.copy_(rows, non_blocking=True)
    torch.cuda.current_stream(gathered[0].device).synchronize()
    return copies


def to_device(saved: Tensor, device: torch.device) -> Tensor:
    """``saved`` on ``device``, valid for later work on the current stream."""
    if device.type != "cuda":
        return saved
    return saved.pin_memory().to(device, non_blocking=True)
