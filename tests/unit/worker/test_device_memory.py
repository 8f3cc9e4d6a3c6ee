"""Memory of a CUDA device from allocation to finding, with fake PyTorch allocators."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from hybridbench.analysis.findings.growth import Growth
from hybridbench.analysis.judge import judge
from hybridbench.analysis.record import RunRecord, Series
from hybridbench.defects.defect import Defect
from hybridbench.defects.inject import injected
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.foundation.latency import E2E, ITL, TTFT, LatencyHistogram
from hybridbench.records.finding import VerdictKind
from hybridbench.records.messages import CountersReply
from hybridbench.sampling.device_memory import DeviceMemory
from hybridbench.serve.metrics_page import ServerCounts, render_page
from hybridbench.worker.metrics import (
    device_memory,
    graph_memory,
    pinned_memory,
    usable_device_bytes,
)
from tests.builders import NANO_ENGINE, make_engine
from tests.device_allocator import OF_OTHERS, TOTAL, DeviceAllocator
from tests.scenarios.planted import event_leak, graph_pool_leak, pinned_leak, view_leak
from tests.unit.analysis.records import Run, healthy_record, with_manifest, with_series
from tests.unit.sampling.test_device_memory import FakeNvml, OnDevice

ON_DEVICE = replace(NANO_ENGINE, device="cuda:1", cuda_graph_max_bs=4)


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> DeviceAllocator:
    stand_in = DeviceAllocator()
    for name in ("memory_stats", "memory_snapshot", "memory_reserved", "mem_get_info"):
        monkeypatch.setattr(torch.cuda, name, getattr(stand_in, name))
    monkeypatch.setattr(torch.cuda, "host_memory_stats", stand_in.host_memory_stats, raising=False)
    return stand_in


def test_tensors_free_gaps_and_graphs_are_counted_separately(
    allocator: DeviceAllocator,
) -> None:
    weights, step = allocator.tensor(2_500), allocator.tensor(400)
    graph = allocator.graph(7_000)
    del step

    assert device_memory("cuda:1") == {
        "device_allocated_bytes": len(weights),
        "device_reserved_bytes": 3_000 + 7_000,
        "device_inactive_split_bytes": 500,
    }
    assert graph_memory(ON_DEVICE) == {"device_graph_bytes": 7_000}
    # Memory held by other processes is not usable.
    assert usable_device_bytes("cuda:1") == TOTAL - OF_OTHERS

    del graph

    assert graph_memory(ON_DEVICE) == {"device_graph_bytes": 0}


def test_what_the_driver_holds_beside_the_allocator_is_read_where_it_counts_this_process(
    allocator: DeviceAllocator,
) -> None:
    weights = allocator.tensor(2_500)
    ours = FakeNvml([OnDevice(os.getpid(), 3_000 + 700), OnDevice(1, 9_000)], [])

    beside = device_memory("cuda:1", DeviceMemory(lambda: ours))["device_driver_bytes"]
    elsewhere = device_memory("cuda:1", DeviceMemory(lambda: FakeNvml([OnDevice(1, 9_000)], [])))

    assert len(weights) == 2_500
    assert beside == 700
    assert "device_driver_bytes" not in elsewhere


def test_an_engine_without_graphs_reads_no_segments(
    allocator: DeviceAllocator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(torch.cuda, "memory_snapshot")

    without = graph_memory(replace(ON_DEVICE, cuda_graph_max_bs=0))

    assert without == {"device_graph_bytes": 0}


def test_a_processor_has_no_such_memory() -> None:
    assert device_memory("cpu") == {}
    assert pinned_memory("cpu") == {}
    assert graph_memory(replace(ON_DEVICE, device="cpu")) == {}
    assert usable_device_bytes("cpu") == 0


def test_pinned_buffers_kept_by_finished_requests_are_on_the_metrics_page(
    allocator: DeviceAllocator,
) -> None:
    engine, params = make_engine(), SamplingParams(max_new_tokens=2)
    engine.generate([[1, 2, 3]] * 2, params)
    healthy = pinned_memory("cuda")

    with injected(pinned_leak.planted(allocator.pinned)):
        engine.generate([[1, 2, 3]] * 3, params)
        values = pinned_memory("cuda")
    latencies = {name: LatencyHistogram() for name in (TTFT, ITL, E2E)}
    reply = CountersReply(1, 0.0, True, False, 0.0, 1, dict(values))
    page = render_page(reply, latencies, ServerCounts(), is_steady=False)

    kept = 3 * pinned_leak.BYTES_PER_REQUEST
    assert healthy == {"pinned_allocated_bytes": 0, "pinned_reserved_bytes": 0}
    assert values["pinned_allocated_bytes"] == kept
    assert f"hybridbench_pinned_allocated_bytes {kept}" in page


def soaked(allocator: DeviceAllocator, *defects: Defect) -> RunRecord:
    """Serve requests on the device and read its memory; return the record of the run."""
    record = with_manifest(
        healthy_record(Run(360.0, 60.0, requests_per_s=2.0)),
        model={"name": "m", "device": "cuda"},
        limits={"device_bytes": TOTAL},
    )
    finishes = record.series["events.finishes"]
    engine, params = make_engine(check_level="off"), SamplingParams(max_new_tokens=1)
    weights, samples = allocator.tensor(2**20), []
    with injected(*defects):
        for due in finishes.value:
            engine.generate([[1, 2, 3]] * int(due - engine.counters.finishes), params)
            values = device_memory("cuda:1") | pinned_memory("cuda:1") | graph_memory(ON_DEVICE)
            samples.append(values)
    assert len(weights)
    return with_series(
        record,
        *(
            Series(name, finishes.t_s, np.array([float(each[name]) for each in samples]))
            for name in samples[0]
        ),
    )


def test_healthy_requests_leave_nothing_on_the_device(allocator: DeviceAllocator) -> None:
    record = soaked(allocator, view_leak.planted(allocator.tensor, copies=True))

    assert judge(record).kind is VerdictKind.CLEAN


@pytest.mark.parametrize(
    ("plant", "kind", "metric", "per_request"),
    [
        (view_leak.planted, "tensor", "device_allocated_bytes", view_leak.STORAGE_BYTES),
        (pinned_leak.planted, "pinned", "pinned_allocated_bytes", pinned_leak.BYTES_PER_REQUEST),
        (
            graph_pool_leak.planted,
            "graph",
            "device_graph_bytes",
            graph_pool_leak.BYTES_PER_GRAPH / graph_pool_leak.REQUESTS_PER_GRAPH,
        ),
    ],
)
def test_what_requests_leave_on_a_device_is_a_leak_per_request(
    plant: Callable[..., Defect],
    kind: str,
    metric: str,
    per_request: float,
    allocator: DeviceAllocator,
) -> None:
    record = soaked(allocator, plant(getattr(allocator, kind)))

    [finding] = judge(record).findings

    assert (finding.verdict, finding.subject) == (VerdictKind.LEAK, metric)
    assert finding.driver == "finishes"
    per_finish = next(rate for rate in finding.rates if rate.per != "h")
    assert per_finish.value == pytest.approx(per_request, rel=0.1)
    assert isinstance(finding.basis, Growth)
    # Pinned buffers are in main memory, so they do not exhaust the device.
    assert (finding.basis.exhaustion is None) == (kind == "pinned")


def test_events_kept_in_each_step_are_a_list_that_grows_by_one_a_step() -> None:
    record = healthy_record(Run(360.0, 60.0, requests_per_s=2.0))
    t, finishes = record.series["events.finishes"].t_s, record.series["events.finishes"].value
    engine, params = make_engine(check_level="off"), SamplingParams(max_new_tokens=1)
    steps, lengths = [], []
    with injected(event_leak.planted(object)):
        for due in finishes:
            engine.generate([[1, 2, 3]] * int(due - engine.counters.finishes), params)
            steps.append(float(engine.counters.steps))
            lengths.append(float(engine.containers().get("Engine._copy_done", np.nan)))

    [finding] = judge(
        with_series(
            record,
            Series("events.steps", t, np.array(steps)),
            Series("container.Engine._copy_done.len", t, np.array(lengths)),
        )
    ).findings

    assert (finding.verdict, finding.kind) == (VerdictKind.LEAK, "container-grows")
    assert finding.driver == "steps"
    assert finding.rates[0].value == pytest.approx(1.0, abs=0.02)


def test_a_pytorch_that_does_not_count_pinned_memory_yields_no_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(torch.cuda, "host_memory_stats", raising=False)

    assert pinned_memory("cuda") == {}
