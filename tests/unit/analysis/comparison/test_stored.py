"""Stored runs: windows of each run's steady part, and how little two runs can decide."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hybridbench.analysis.comparison.compare import compare
from hybridbench.analysis.comparison.records import (
    Call,
    Comparison,
    ComparisonTerms,
    MetricComparison,
    Version,
)
from hybridbench.analysis.comparison.stored import (
    BETWEEN_RUNS,
    MOST_WINDOWS,
    not_alone,
    stored_blocks,
    unpaired_mean,
)
from hybridbench.analysis.record import RunRecord, Series
from hybridbench.records.events import Phase, Steady
from hybridbench.records.manifest import OBSERVED, Manifest, TargetFacts
from tests.unit.analysis.comparisons import verdict


def _run(speed: float = 1000.0, waits: float = 0.0, pause: bool = False) -> RunRecord:
    """Ten minutes of steady traffic at ``speed`` tokens/s after two minutes of warm-up."""
    t = np.arange(0.0, 721.0, 2.0)
    active = t.copy()
    if pause:
        active -= np.clip(t - 400.0, 0.0, 60.0)
    columns = {
        "events.output_tokens": 0.2 * speed * active,
        "events.prompt_tokens": 0.3 * speed * active,
        "events.prefix_hit_tokens": 0.5 * speed * active,
        "events.finishes": 0.02 * speed * active,
        "step_s": 0.8 * active,
        "worker_cpu_s": 0.9 * active,
        "worker_cpu_wait_s": waits * t,
        "ttft_ms_p50": np.full(t.size, 40.0),
        "rss_bytes": np.full(t.size, 3e8),
    }
    series = {name: Series(name, t, value) for name, value in columns.items()}
    rest = np.arange(150.0, 720.0, 30.0)
    series["rest_anon_swap_bytes"] = Series("rest", rest, np.full(rest.size, 2e8))
    events = [Phase(name="steady", t_s=120.0), Steady(t_s=120.0)]
    if pause:
        events += [
            Phase(name="drain", t_s=400.0),
            Phase(name="resume", t_s=460.0),
        ]
    return RunRecord(Manifest(), series, tuple(events))


def _compared(base: RunRecord, other: RunRecord) -> dict[str, MetricComparison]:
    records = (base, other)
    versions = tuple(
        Version(f"run{i}", "run", Manifest(), r, verdict()) for i, r in enumerate(records)
    )
    blocks = tuple(b for i, r in enumerate(records) for b in stored_blocks(r, i))
    found = compare(Comparison(versions, blocks, False), ComparisonTerms())
    return {metric.metric: metric for metric in found.sides[0].metrics}


def test_windows_are_of_the_steady_part_and_count_served_tokens() -> None:
    blocks = stored_blocks(_run(), 1)

    assert len(blocks) == MOST_WINDOWS
    assert blocks[0].started_s == pytest.approx(120.0)
    assert {b.version for b in blocks} == {1}
    values = blocks[5].values
    assert values["throughput_tokens_per_s"] == pytest.approx(1000.0)
    assert values["requests_per_s"] == pytest.approx(20.0)
    assert values["step_ms_per_token"] == pytest.approx(0.8)
    assert values["cpu_ms_per_token"] == pytest.approx(0.9)
    assert values["hit_rate"] == pytest.approx(0.625)
    assert values["ttft_ms_p50"] == 40.0
    assert values["peak_rss_bytes"] == 3e8


def test_a_pause_for_a_checkpoint_is_not_time_of_the_engine() -> None:
    values = [
        b.values["throughput_tokens_per_s"]
        for b in stored_blocks(_run(pause=True), 0)
        if "throughput_tokens_per_s" in b.values
    ]

    # Windows inside the pause have no speed; windows that overlap it keep their usual speed.
    assert MOST_WINDOWS > len(values) >= MOST_WINDOWS - 3
    assert values == pytest.approx([1000.0] * len(values), rel=0.05)


def test_memory_at_rest_is_what_was_measured_at_rest() -> None:
    blocks = stored_blocks(_run(), 0)

    known = [b.values["rest_anon_swap_bytes"] for b in blocks if "rest_anon_swap_bytes" in b.values]
    assert known
    assert set(known) == {2e8}


def test_a_run_that_never_got_steady_has_no_windows() -> None:
    empty = RunRecord(Manifest(), {}, ())

    assert stored_blocks(empty, 0) == ()


def test_two_equal_runs_are_never_called_the_same_speed() -> None:
    found = _compared(_run(), _run())["throughput_tokens_per_s"]

    assert found.call is Call.INCONCLUSIVE
    assert found.ratio == pytest.approx(1.0)
    # Nothing varies within these runs; what remains is the allowance for variation between runs.
    assert found.upper > 1.0 + BETWEEN_RUNS


def test_a_difference_that_no_machine_makes_between_two_runs_is_called() -> None:
    found = _compared(_run(1000.0), _run(600.0))["throughput_tokens_per_s"]

    assert found.word == "SLOWER"


def test_no_speed_is_called_when_others_had_the_processors() -> None:
    found = _compared(_run(1000.0), _run(600.0, waits=0.4))

    throughput = found["throughput_tokens_per_s"]
    assert throughput.call is Call.INCONCLUSIVE
    assert throughput.why is not None
    assert throughput.why.code == "not-alone"
    assert throughput.why.data["shares"] == pytest.approx([0.0, 0.4])
    assert found["hit_rate"].call is Call.SAME


def watched(others: float | None) -> RunRecord:
    """The same run of an observed server; other programs use ``others`` CPU seconds a second."""
    run = _run()
    series = {name: one for name, one in run.series.items() if name != "worker_cpu_wait_s"}
    t = run.series["step_s"].t_s
    if others is not None:
        series["others_cpu_s"] = Series("others_cpu_s", t, others * t)
    return RunRecord(Manifest(target=TargetFacts(kind=OBSERVED)), series, run.events)


def test_what_runs_beside_a_watched_server_leaves_its_speed_open() -> None:
    why = not_alone([watched(0.01), watched(0.3)])

    assert why is not None
    assert why.text == "other programs had the processors for 1% and 30% of the time"
    assert not_alone([watched(0.01), watched(0.02)]) is None


def test_a_watched_server_of_which_that_is_not_known_has_no_speed_beside_another() -> None:
    why = not_alone([watched(0.01), watched(None)])

    assert why is not None
    assert why.code == "load-unknown"


def test_a_machine_of_ones_own_leaves_no_reason() -> None:
    assert not_alone([_run(), _run(waits=0.01)]) is None


def test_correlated_windows_widen_the_interval() -> None:
    rng = np.random.default_rng(8)
    white = 0.02 * rng.normal(size=24)
    walk = np.cumsum(0.02 * rng.normal(size=24))
    walk *= white.std() / walk.std()

    loose, tight = (unpaired_mean(np.zeros(24), v, between=0.0) for v in (walk, white))

    assert loose is not None
    assert tight is not None
    assert loose.se > 2.0 * tight.se


def test_what_lies_between_runs_is_added_once_for_each() -> None:
    flat = np.zeros(10)

    found = unpaired_mean(flat, flat, between=0.03)

    assert found is not None
    assert found.se == pytest.approx(2**0.5 * 0.03)


def test_a_run_of_which_a_counter_is_missing_gives_what_it_can() -> None:
    record = _run()
    series = {name: s for name, s in record.series.items() if name != "step_s"}

    blocks = stored_blocks(replace(record, series=series), 0)

    assert "step_ms_per_token" not in blocks[0].values
    assert "throughput_tokens_per_s" in blocks[0].values
