"""Memory of a CUDA device as the worker reads it, from a stand-in for PyTorch's allocator."""

from __future__ import annotations

import pytest
import torch

from hybridbench.worker.metrics import device_memory, usable_device_bytes

TOTAL, OF_OTHERS = 80_000, 10_000


class StandIn:
    """Hands out blocks of segments of 1,000 bytes, and releases none of them."""

    def __init__(self) -> None:
        self.tensors: dict[str, int] = {}
        self.segments = 0

    def alloc(self, name: str, size: int) -> None:
        self.tensors[name] = size
        self.segments = max(self.segments, -(-sum(self.tensors.values()) // 1000))

    def memory_stats(self, device: str) -> dict[str, int]:
        assert device == "cuda:1"
        allocated, reserved = sum(self.tensors.values()), 1000 * self.segments
        return {
            "allocated_bytes.all.current": allocated,
            "reserved_bytes.all.current": reserved,
            "inactive_split_bytes.all.current": reserved - allocated,
        }

    def memory_reserved(self, device: str) -> int:
        return self.memory_stats(device)["reserved_bytes.all.current"]

    def mem_get_info(self, device: str) -> tuple[int, int]:
        return TOTAL - OF_OTHERS - self.memory_reserved(device), TOTAL


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    stand_in = StandIn()
    for name in ("memory_stats", "memory_reserved", "mem_get_info"):
        monkeypatch.setattr(torch.cuda, name, getattr(stand_in, name))
    return stand_in


def test_tensors_and_what_lies_free_between_them_are_told_apart(allocator: StandIn) -> None:
    allocator.alloc("weights", 2_500)
    allocator.alloc("step", 400)
    del allocator.tensors["step"]

    assert device_memory("cuda:1") == {
        "device_allocated_bytes": 2_500,
        "device_reserved_bytes": 3_000,
        "device_inactive_split_bytes": 500,
    }
    # What other processes hold is not to be had.
    assert usable_device_bytes("cuda:1") == TOTAL - OF_OTHERS


def test_a_processor_has_no_such_memory() -> None:
    assert device_memory("cpu") == {}
    assert usable_device_bytes("cpu") == 0
