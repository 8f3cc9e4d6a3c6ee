"""What a run served: rates during its traffic, percentiles over all its requests."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hybridbench.analysis.facts.facts import Facts
from hybridbench.analysis.record import LatencySeries, RunRecord, Series
from hybridbench.analysis.serving import serving_results
from hybridbench.foundation.latency import LatencyHistogram
from hybridbench.records.events import Phase, Segment, Steady
from hybridbench.records.manifest import Manifest
from hybridbench.records.verdict import ServingResult

# Ten requests a second; 100 s of warm-up and a 20 s pause must be left out.
T_S = np.arange(0.0, 401.0)
EVENTS = (
    Steady(t_s=100.0),
    *(
        Phase(name=name, t_s=t_s)
        for t_s, name in ((0, "warmup"), (100, "steady"), (200, "drain"), (220, "resume"))
    ),
)


def record(**per_second: float) -> RunRecord:
    rates = {"finishes": 10.0, "output_tokens": 160.0, "prompt_tokens": 40.0, **per_second}
    series = {f"events.{name}": Series(f"events.{name}", T_S, n * T_S) for name, n in rates.items()}
    return RunRecord(Manifest(), series, EVENTS)


def with_latencies(run: RunRecord, name: str, *durations: tuple[float, float]) -> RunRecord:
    """Add ``durations``: pairs of a time in the run and a latency, both in seconds."""
    rows = []
    for t_s, duration_s in durations:
        histogram = LatencyHistogram()
        histogram.add(duration_s)
        rows += [(t_s, bucket, count) for bucket, count in histogram.counts().items()]
    t, bucket, count = (np.array(column) for column in zip(*rows, strict=True))
    return replace(run, latencies={**run.latencies, name: LatencySeries(t, bucket, count)})


def served(run: RunRecord) -> dict[str, ServingResult]:
    facts = Facts.of(run)
    windows = [part.window for part in facts.segments if part.window is not None]
    judged = replace(windows[0], end_s=windows[-1].end_s) if windows else None
    return {result.name: result for result in serving_results(facts, judged)}


def test_rates_are_those_of_the_traffic_in_the_judged_window() -> None:
    idle = record()
    stopped = idle.series["events.finishes"].value.copy()
    stopped[201:220] = stopped[200]
    stopped[220:] = stopped[200] + 10.0 * (T_S[220:] - 220)
    finishes = Series("events.finishes", T_S, stopped)
    results = served(replace(idle, series={**idle.series, "events.finishes": finishes}))

    assert results["requests_per_s"].value == pytest.approx(10.0)
    assert results["requests_per_s"].count == 2800
    assert results["output_tokens_per_s"].value == pytest.approx(160.0)


def test_rates_and_latencies_are_of_the_same_requests() -> None:
    """Between sparse samples, an interval across the end of the traffic counts for neither."""
    t_s = np.arange(3.0, 400.0, 7.0)
    finishes = {"events.finishes": Series("events.finishes", t_s, 10.0 * t_s)}
    run = RunRecord(Manifest(), finishes, EVENTS)
    ended = [(t, 0.2) for t in np.repeat(t_s, 70)]

    results = served(with_latencies(run, "e2e", *ended))

    # From 101 s to 199 s, and from 220 s to 395 s.
    assert results["requests_per_s"].count == results["e2e_ms"].count == 980 + 1750
    assert results["requests_per_s"].value == pytest.approx(10.0)


def test_input_tokens_are_those_computed_and_those_found_in_the_cache_or_a_session() -> None:
    results = served(record(prefix_hit_tokens=60.0, session_restored_tokens=5.0, admissions=11.0))

    assert results["input_tokens_per_s"].value == pytest.approx(105.0)
    assert results["hit_rate"].value == pytest.approx(0.6)
    assert results["hit_rate"].count == 11 * 280


def test_percentiles_are_of_all_requests_outside_of_warm_up_and_pauses() -> None:
    inside = [(float(t_s), 0.001 * (t_s - 100)) for t_s in range(101, 200)]
    run = with_latencies(record(), "ttft", (50.0, 9.0), *inside, (210.0, 9.0))
    ttft = served(run)["ttft_ms"]

    assert ttft.count == 99
    told = (ttft.value, ttft.p50, ttft.p90, ttft.p99)
    assert told == pytest.approx((50.0, 50.0, 90.0, 99.0), rel=0.01)


def test_what_the_engine_gave_up_is_an_error_and_what_clients_left_an_abort() -> None:
    run = record(requests_rejected=0.5, abort_queued=0.3, abort_decode=0.2, queue_timeouts=0.1)
    results = served(run)

    assert (results["errors"].value, results["aborts"].value) == (168, 112)
    assert results["errors"].count == results["aborts"].count == 2800 + 140 + 140


def test_a_run_without_latencies_has_the_rows_that_its_counters_support() -> None:
    assert list(served(record())) == [
        "requests_per_s",
        "output_tokens_per_s",
        "input_tokens_per_s",
    ]
    assert served(RunRecord(Manifest(), {}, EVENTS)) == {}


def test_a_segment_before_the_judged_window_was_served_to_nobody() -> None:
    events = (*EVENTS, Segment(t_s=250.0), Steady(t_s=300.0))
    facts = Facts.of(replace(record(), events=events))
    last = facts.segments[-1].window

    (requests, *_) = serving_results(facts, last)

    assert requests.count == 1000
    assert requests.value == pytest.approx(10.0)
    assert serving_results(facts, None) == ()


def test_segments_of_a_resumed_run_add_up() -> None:
    whole = record()
    half = T_S >= 250
    again = {
        name: Series(name, one.t_s, np.where(half, one.value - one.value[250], one.value))
        for name, one in whole.series.items()
    }
    events = (*EVENTS, Segment(t_s=250.0), Steady(t_s=300.0))
    results = served(replace(whole, series=again, events=events))

    # From 100 s to 200 s, from 220 s to 249 s before the cut, and from 300 s to 400 s after it.
    assert results["requests_per_s"].value == pytest.approx(10.0)
    assert results["requests_per_s"].count == 2290
