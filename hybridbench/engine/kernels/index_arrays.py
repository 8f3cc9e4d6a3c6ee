"""Move a step's index arrays from the host to the device."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """Return ``array`` as a tensor on ``device``; on a CPU it shares the array's memory.

    On a CUDA device the copy from pinned memory is queued behind earlier work, so the host does
    not wait.  PyTorch reuses the pinned memory when the copy is done.
    """
    tensor = torch.from_numpy(array)
    if device.type == "cuda" and array.size:
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
