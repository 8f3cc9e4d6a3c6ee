"""Memory of a CUDA device as the worker reads it, from a stand-in for PyTorch's allocators."""

from __future__ import annotations

import pytest
import torch

from hybridbench.defects.inject import injected
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.foundation.latency import E2E, ITL, TTFT, LatencyHistogram
from hybridbench.records.messages import CountersReply
from hybridbench.serve.metrics_page import ServerCounts, render_page
from hybridbench.worker.metrics import device_memory, pinned_memory, usable_device_bytes
from tests.builders import make_engine
from tests.scenarios.planted.pinned_leak import BYTES_PER_REQUEST, planted

TOTAL, OF_OTHERS = 80_000, 10_000


class StandIn:
    """Hands out blocks of segments of 1,000 bytes, and releases none of them."""

    def __init__(self) -> None:
        self.tensors: dict[str, int] = {}
        self.segments = 0
        self.pinned_bytes = 0

    def alloc(self, name: str, size: int) -> None:
        self.tensors[name] = size
        self.segments = max(self.segments, -(-sum(self.tensors.values()) // 1000))

    def pin(self, size: int) -> None:
        self.pinned_bytes += size

    def host_memory_stats(self) -> dict[str, int]:
        pinned = self.pinned_bytes
        return {
            "active_bytes.current": pinned,
            "allocated_bytes.current": -(-pinned // 1000) * 1000,
        }

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
    for name in ("memory_stats", "memory_reserved", "mem_get_info", "host_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, getattr(stand_in, name), raising=False)
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
    assert pinned_memory("cpu") == {}
    assert usable_device_bytes("cpu") == 0


def test_pinned_buffers_kept_by_finished_requests_are_on_the_metrics_page(
    allocator: StandIn,
) -> None:
    engine, params = make_engine(), SamplingParams(max_new_tokens=2)
    engine.generate([[1, 2, 3]] * 2, params)
    healthy = pinned_memory("cuda")

    with injected(planted(allocator.pin)):
        engine.generate([[1, 2, 3]] * 3, params)
    values = pinned_memory("cuda")
    latencies = {name: LatencyHistogram() for name in (TTFT, ITL, E2E)}
    reply = CountersReply(1, 0.0, True, False, 0.0, 1, dict(values))
    page = render_page(reply, latencies, ServerCounts())

    assert healthy == {"pinned_allocated_bytes": 0, "pinned_reserved_bytes": 0}
    assert values["pinned_allocated_bytes"] == 3 * BYTES_PER_REQUEST
    assert f"hybridbench_pinned_allocated_bytes {3 * BYTES_PER_REQUEST}" in page


def test_a_pytorch_that_does_not_count_pinned_memory_yields_no_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(torch.cuda, "host_memory_stats", raising=False)

    assert pinned_memory("cuda") == {}
