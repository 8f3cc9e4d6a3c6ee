from __future__ import annotations

import pytest

from hybridbench.records.heap import InstanceCount
from hybridbench.runs.status import RunStatus
from tests.unit.runs.fakes import scan_reply


def make_status() -> RunStatus:
    return RunStatus("model / profile", duration_s=200.0)


def test_progress_is_the_share_of_planned_traffic() -> None:
    status = make_status()
    status.traffic_s = 50.0
    assert (status.progress, status.remaining_s) == (0.25, 150.0)
    status.traffic_s = 500.0
    assert (status.progress, status.remaining_s) == (1.0, 0.0)


def test_a_sample_fills_memory_traffic_and_pools_and_history_stays_bounded() -> None:
    status = make_status()
    for number in range(1000):
        status.saw_sample(
            {
                "rss_anon_swap_bytes": number,
                "ttft_ms_p50": 9.0,
                "ttft_ms_p99": 90.0,
                "requests_per_s": 5.0,
                "running_requests": 3.0,
                "pool.kv.total": 100.0,
                "pool.kv.available": 40.0,
            }
        )

    assert status.private_bytes == 999
    assert len(status.private_history) == 64
    assert (status.pools["kv"].total, status.pools["kv"].available) == (100.0, 40.0)
    assert status.ttft_ms == (9.0, 90.0)
    assert status.so_far == "too early to say"


def test_growth_is_that_of_private_memory_since_the_warm_up() -> None:
    status = make_status()
    for second in range(200):
        status.phase = "warmup" if second < 50 else "steady"
        status.elapsed_s = float(second)
        status.saw_sample({"rss_anon_swap_bytes": 1e9 if second < 50 else 2e8 + second * 1000.0})

    slope = status.slope.fit()
    assert slope is not None
    assert slope.per_hour == pytest.approx(3.6e6)


def test_exact_findings_show_at_once() -> None:
    waiting = make_status()
    waiting.saw_sample({"pool.mamba.waiting_held": 2.0})
    strays = make_status()
    strays.saw_heap_scan(scan_reply(1, 0.0))
    assert strays.so_far == "nothing found so far"
    strays.saw_heap_scan(scan_reply(1, 0.0, instances={"TreeNode": InstanceCount(9, 4, 5, 0)}))

    assert waiting.so_far == "possible leak: waiting requests hold 2 slots of the mamba pool"
    assert strays.so_far.startswith("possible leak: 5 removed TreeNode")


def test_an_engine_that_serves_none_of_its_requests_is_said_to_stall() -> None:
    status = make_status()
    sample = {"waiting_requests": 8.0, "events.decode_steps": 5.0}
    for status.elapsed_s in (10.0, 69.0, 130.0):
        status.saw_sample(sample)
    stalled = status.so_far
    status.saw_sample({**sample, "events.decode_steps": 6.0})
    resumed = status.so_far
    status.elapsed_s = 300.0
    status.saw_sample({"waiting_requests": 0.0})

    assert stalled == "no request served for 2m, with 8 requests in the engine"
    assert resumed == status.so_far == "too early to say"
