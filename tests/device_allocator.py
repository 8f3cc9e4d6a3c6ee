"""A fake of PyTorch's CUDA allocators that counts live memory on any machine."""

from __future__ import annotations

import weakref
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import Tensor

TOTAL, OF_OTHERS = 2**33, 10_000
_SEGMENT = 1000


class Graph:
    """A recorded graph, which owns a memory pool."""


class DeviceAllocator:
    """Allocates blocks from segments of 1,000 bytes, and never releases a segment.

    A tensor counts until its storage is freed; a graph's pool counts until the graph is freed.
    """

    def __init__(self) -> None:
        self._numbers = count()
        self._tensors: dict[int, int] = {}
        self._pinned: dict[int, int] = {}
        self._pools: dict[int, int] = {}
        self._segments = 0

    def tensor(self, size: int) -> Tensor:
        """Allocate ``size`` bytes of device memory."""
        made = self._counted(self._tensors, size)
        self._segments = max(self._segments, -(-sum(self._tensors.values()) // _SEGMENT))
        return made

    def pinned(self, size: int) -> Tensor:
        """Allocate ``size`` bytes of pinned host memory."""
        return self._counted(self._pinned, size)

    def graph(self, size: int) -> Graph:
        """Allocate a graph whose pool has ``size`` bytes and no tensor."""
        graph, number = Graph(), next(self._numbers)
        self._pools[number] = size
        weakref.finalize(graph, self._pools.pop, number)
        return graph

    def _counted(self, alive: dict[int, int], size: int) -> Tensor:
        # The tensor's storage owns the array.
        array, number = np.zeros(size, dtype=np.uint8), next(self._numbers)
        alive[number] = size
        weakref.finalize(array, alive.pop, number)
        return torch.from_numpy(array)

    # The following replace PyTorch's functions of the same purpose.

    def host_memory_stats(self) -> dict[str, int]:
        pinned = sum(self._pinned.values())
        return {
            "active_bytes.current": pinned,
            "allocated_bytes.current": -(-pinned // _SEGMENT) * _SEGMENT,
        }

    def memory_stats(self, device: str) -> dict[str, int]:
        assert device == "cuda:1"
        allocated, reserved = sum(self._tensors.values()), _SEGMENT * self._segments
        return {
            "allocated_bytes.all.current": allocated,
            "reserved_bytes.all.current": reserved + sum(self._pools.values()),
            "inactive_split_bytes.all.current": reserved - allocated,
        }

    def memory_snapshot(self) -> list[dict[str, Any]]:
        shared = [{"total_size": _SEGMENT * self._segments, "segment_pool_id": (0, 0)}]
        return shared + [
            {"total_size": size, "segment_pool_id": (0, number + 1)}
            for number, size in self._pools.items()
        ]

    def memory_reserved(self, device: str) -> int:
        return self.memory_stats(device)["reserved_bytes.all.current"]

    def mem_get_info(self, device: str) -> tuple[int, int]:
        return TOTAL - OF_OTHERS - self.memory_reserved(device), TOTAL
