"""Find the pools in memory, so that forked children can exclude them."""

from __future__ import annotations

import gc
from types import FunctionType, MethodType, ModuleType

import numpy as np
import torch

from hybridbench.engine.memory.free_list import FreeList, SlicedFreeList
from hybridbench.engine.memory.ledger import OwnerLedger
from hybridbench.sampling.forked_child import MemoryRange

# Smaller buffers are not worth a mapping of their own.
_SIZE_BYTES_MIN = 256 * 1024
# A child needs the ownership records too: when it rehearses a flush, it frees slots there.
_BOOKS = (OwnerLedger, FreeList, SlicedFreeList)
_NOT_FOLLOWED = (type, ModuleType, FunctionType, MethodType, *_BOOKS)


def pool_ranges(pools: object) -> list[MemoryRange]:
    """Return the large host buffers of ``pools``: the tensors and tables that live as long as it.

    Call it while no request runs: then every large buffer found is permanent.
    """
    found: dict[int, MemoryRange] = {}
    seen: set[int] = set()
    stack: list[object] = [pools]
    while stack:
        holder = stack.pop()
        if id(holder) in seen or isinstance(holder, _NOT_FOLLOWED):
            continue
        seen.add(id(holder))
        part = _buffer(holder)
        if part is not None and part.size_bytes >= _SIZE_BYTES_MIN:
            found[part.address] = part
        stack += gc.get_referents(holder)
    return [found[address] for address in sorted(found)]


def _buffer(holder: object) -> MemoryRange | None:
    if isinstance(holder, torch.Tensor) and holder.device.type == "cpu":
        storage = holder.untyped_storage()
        return MemoryRange(storage.data_ptr(), storage.nbytes())
    if isinstance(holder, np.ndarray):
        while isinstance(holder.base, np.ndarray):
            holder = holder.base
        return MemoryRange(int(holder.ctypes.data), holder.nbytes)
    return None
