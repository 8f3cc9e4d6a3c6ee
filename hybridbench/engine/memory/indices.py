"""Convert slot arguments (int, list, array or tensor) to one form.

Bookkeeping is done on the host.  Tensors are accepted because callers in other engines pass them;
a tensor that is not on the allocator's device is refused before anything changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from hybridbench.engine.kernels.index_arrays import to_device
from hybridbench.engine.memory.owners import DeviceMismatchError

IntArray = NDArray[np.int64]
AnyIntArray = NDArray[np.int64] | NDArray[np.int32]
_INT64 = np.dtype(np.int64)
SlotInput = int | np.int64 | np.int32 | Sequence[int] | AnyIntArray | torch.Tensor


def as_index_array(slots: SlotInput, device: torch.device) -> IntArray:
    """``slots`` as a 1-D int64 array, without a copy if it already is one.

    Raises:
        DeviceMismatchError: a tensor is not on ``device``.
        TypeError: the numbers are not integers.
    """
    # By identity: comparing a dtype with a type creates a dtype each time.
    if isinstance(slots, np.ndarray) and slots.dtype is _INT64 and slots.ndim == 1:
        return cast(IntArray, slots)
    if isinstance(slots, torch.Tensor):
        given = _tensor_to_array(slots, device)
    else:
        given = np.asarray(slots)
    if given.size and not np.issubdtype(given.dtype, np.integer):
        raise TypeError(f"slot indices must be integers, not {given.dtype}")
    return given.astype(np.int64).reshape(-1)


def as_index_list(slots: SlotInput, device: torch.device) -> list[int]:
    """``slots`` as a list of Python ints; a list of a single int is returned as it is.

    Raises:
        DeviceMismatchError: a tensor is not on ``device``.
        TypeError: the numbers are not integers.
    """
    if isinstance(slots, list):
        if len(slots) == 1 and type(slots[0]) is int:
            return slots
        # Its members may be numpy integers or 0-dimensional tensors, which must not get into
        # the free list: they would keep their whole array or tensor alive.
        return list(map(index, slots))
    if isinstance(slots, int):
        return [slots]
    converted: list[int] = as_index_array(slots, device).tolist()
    return converted


def as_single_index(slot: SlotInput, device: torch.device) -> int:
    """``slot`` as an int, if it is one or the only entry of a list, array or tensor.

    Raises:
        DeviceMismatchError: a tensor is not on ``device``.
        TypeError: the number is not an integer.
        ValueError: there is not exactly one entry.
    """
    if isinstance(slot, int):
        return slot
    listed = as_index_list(slot, device)
    if len(listed) != 1:
        raise ValueError(f"expected one slot, got {len(listed)}")
    return listed[0]


def as_index_tensor(slots: SlotInput, device: torch.device) -> torch.Tensor:
    """``slots`` as a 1-D int64 tensor on ``device``, to index a pool's rows."""
    if isinstance(slots, torch.Tensor):
        return slots.to(device, torch.int64).reshape(-1)
    # Copy, because on a CPU the tensor would share the array's memory.
    return to_device(np.array(slots, dtype=np.int64).reshape(-1), device)


def _tensor_to_array(slots: torch.Tensor, device: torch.device) -> AnyIntArray:
    if not _same_device(slots.device, device):
        raise DeviceMismatchError(
            f"index tensor is on {slots.device}, but the allocator expects {device}; "
            f"move the indices to {device} first"
        )
    if slots.is_floating_point() or slots.is_complex() or slots.dtype == torch.bool:
        raise TypeError(f"slot indices must be integers, not {slots.dtype}")
    array: IntArray = slots.detach().cpu().to(torch.int64).numpy()
    return array


def _same_device(given: torch.device, declared: torch.device) -> bool:
    # "cuda" without a number means any CUDA device, as in torch.
    declared_index: int | None = declared.index
    return given.type == declared.type and declared_index in (None, given.index)
