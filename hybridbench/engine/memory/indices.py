"""What callers may pass as slots (int, list, array, tensor), brought into one form.

Bookkeeping is done on the host.  Tensors are accepted because the field's callers have them, and
refused, before anything changes, when they live on another device than the allocator declared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from hybridbench.engine.memory.owners import DeviceMismatchError

IntArray = NDArray[np.int64]
AnyIntArray = NDArray[np.int64] | NDArray[np.int32]
SlotInput = int | Sequence[int] | AnyIntArray | torch.Tensor


def as_index_array(slots: SlotInput, device: torch.device) -> IntArray:
    """``slots`` as a 1-D int64 array; no copy if it is one already.

    Raises:
        DeviceMismatchError: a tensor is not on ``device``.
        TypeError: the numbers are not integers.
    """
    if isinstance(slots, np.ndarray) and slots.dtype == np.int64 and slots.ndim == 1:
        return cast(IntArray, slots)
    if isinstance(slots, torch.Tensor):
        given = _tensor_to_array(slots, device)
    else:
        given = np.asarray(slots)
    if given.size and not np.issubdtype(given.dtype, np.integer):
        raise TypeError(f"slot indices must be integers, not {given.dtype}")
    return given.astype(np.int64).reshape(-1)


def as_index_list(slots: SlotInput, device: torch.device) -> list[int]:
    """``slots`` as a list of Python ints; the same list if it is one already.

    Raises:
        DeviceMismatchError: a tensor is not on ``device``.
        TypeError: the numbers are not integers.
    """
    if isinstance(slots, list):
        return slots
    if isinstance(slots, int):
        return [slots]
    converted: list[int] = as_index_array(slots, device).tolist()
    return converted


def _tensor_to_array(slots: torch.Tensor, device: torch.device) -> AnyIntArray:
    if not _same_device(slots.device, device):
        raise DeviceMismatchError(
            f"index tensor is on {slots.device}, the allocator keeps its account for {device}; "
            f"move the indices to {device} before giving them"
        )
    if slots.is_floating_point() or slots.is_complex() or slots.dtype == torch.bool:
        raise TypeError(f"slot indices must be integers, not {slots.dtype}")
    array: IntArray = slots.detach().cpu().to(torch.int64).numpy()
    return array


def _same_device(given: torch.device, declared: torch.device) -> bool:
    # "cuda" without a number means any of them, as it does in torch.
    declared_index: int | None = declared.index
    return given.type == declared.type and declared_index in (None, given.index)
