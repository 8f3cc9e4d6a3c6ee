"""Index arrays of a step, from the host to its device."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """``array`` on ``device``, for work that is launched later; on a CPU not a copy.

    A CUDA device copies it from pinned memory after the work that it has, and nobody waits.
    PyTorch reuses the pinned memory when that copy is done.
    """
    tensor = torch.from_numpy(array)
    if device.type == "cuda" and array.size:
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
