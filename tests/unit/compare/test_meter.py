"""Values of a block: ratios of what was served, absent if there is nothing to divide by."""

from __future__ import annotations

import pytest

from hybridbench.compare.meter import Edges, RememberingSink, Tally, block_values
from hybridbench.records.messages import Ended


def ended(outputs: int, ttft_s: float | None = 0.1, cached: int = 0) -> Ended:
    return Ended("r", [1] * outputs, "length", 10, cached, ttft_s, 0.02 if outputs > 1 else None)


def edges(**changes: object) -> Edges:
    values: dict[str, object] = {
        "lasted_s": 10.0,
        "own_share": 1.0,
        "before": {"step_s": 1.0, "worker_cpu_s": 2.0},
        "after": {"step_s": 1.5, "worker_cpu_s": 2.8},
        "peak_rss_bytes": 5e6,
        "rest_bytes": 4e6,
    }
    return Edges(**{**values, **changes})  # type: ignore[arg-type]


def test_speed_and_cost_are_per_token_served_whether_computed_or_found_in_the_cache() -> None:
    tally = Tally()
    for _ in range(10):
        tally.add(ended(outputs=10, cached=5), 110.0)

    values = block_values(tally, edges())

    assert values["tokens"] == 200
    assert values["throughput_tokens_per_s"] == pytest.approx(20.0)
    assert values["requests_per_s"] == pytest.approx(1.0)
    assert values["step_ms_per_token"] == pytest.approx(2.5)
    assert values["cpu_ms_per_token"] == pytest.approx(4.0)
    assert values["hit_rate"] == pytest.approx(0.5)
    assert values["ttft_ms_p99"] == pytest.approx(100.0)
    assert values["itl_ms_p50"] == pytest.approx(20.0)
    assert values["rest_anon_swap_bytes"] == 4e6


def test_the_prompt_of_a_request_without_a_first_token_is_not_called_served() -> None:
    tally = Tally()
    tally.add(ended(outputs=0, ttft_s=None), 101.0)

    values = block_values(tally, edges())

    assert tally.tokens == 0
    assert "throughput_tokens_per_s" not in values
    assert "ttft_ms_p50" not in values
    assert values["peak_rss_bytes"] == 5e6


def test_a_worker_that_does_not_tell_its_step_time_has_none_and_keeps_the_rest() -> None:
    tally = Tally()
    tally.add(ended(outputs=2), 101.0)

    values = block_values(tally, edges(lasted_s=1.0, before={}, after={}))

    assert "step_ms_per_token" not in values
    assert values["throughput_tokens_per_s"] == pytest.approx(12.0)


def test_what_the_clock_counted_while_another_version_had_its_turn_is_taken_out() -> None:
    tally = Tally()
    for _ in range(10):
        tally.add(ended(outputs=10), 120.0)

    whole = block_values(tally, edges())
    sliced = block_values(tally, edges(own_share=0.5))

    assert sliced["ttft_ms_p50"] == pytest.approx(0.5 * whole["ttft_ms_p50"])
    assert sliced["itl_ms_p99"] == pytest.approx(0.5 * whole["itl_ms_p99"])
    assert sliced["step_ms_per_token"] == pytest.approx(0.5 * whole["step_ms_per_token"])
    # CPU time stops while the process is frozen.
    assert sliced["cpu_ms_per_token"] == whole["cpu_ms_per_token"]
    assert sliced["throughput_tokens_per_s"] == whole["throughput_tokens_per_s"]


class Nowhere:
    def sample(self, *_: object) -> None: ...
    def event(self, *_: object) -> None: ...


def test_the_sink_keeps_the_last_counters_and_the_peak_since_it_was_reset() -> None:
    sink = RememberingSink(Nowhere())

    sink.sample(1.0, "steady", {"step_s": 1.0, "rss_bytes": 9.0})
    sink.peak_rss_bytes = 0.0
    sink.sample(2.0, "steady", {"step_s": 2.0, "rss_bytes": 5.0})
    sink.sample(3.0, "idle", {"rest_anon_swap_bytes": 4.0})
    sink.sample(4.0, "steady", {"rss_bytes": 6.0})

    assert sink.counters["step_s"] == 2.0
    assert sink.samples == 2
    assert sink.peak_rss_bytes == 6.0
    assert sink.rest_bytes == 4.0
