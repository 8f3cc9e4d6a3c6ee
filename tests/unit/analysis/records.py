"""Hand-made run records: a serving process of 700 MB, healthy unless something is planted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from hybridbench.analysis.record import FloatArray, LatencySeries, RunRecord, Series
from hybridbench.foundation.latency import TTFT, LatencyHistogram
from hybridbench.records.events import (
    Checkpoint,
    Event,
    Phase,
    ProcessEnded,
    ProcessStarted,
    Steady,
)
from hybridbench.records.finding import Rate
from hybridbench.records.json_value import JsonValue
from hybridbench.records.load import LATE
from hybridbench.records.manifest import manifest_from_json, manifest_to_json
from hybridbench.records.verdict import MetricResult, Verdict
from tests.unit.analysis.traces import ar1

MB, GIB = 1e6, 2.0**30
BASE = 700 * MB


@dataclass(frozen=True)
class Run:
    """Length, start of the steady phase, and seed of a run."""

    duration_s: float = 600.0
    steady_s: float | None = 120.0
    seed: int = 0
    leak_bytes_per_h: float = 0.0
    settle_bytes: float = 15 * MB
    noise_bytes: float = 0.6 * MB
    teeth_bytes: float = 4 * MB
    requests_per_s: float = 12.0
    base_bytes: float = BASE
    limit: float | None = 2 * GIB
    probe_s: float = 4.0
    extra: Mapping[str, Series] = field(default_factory=dict)


def healthy_record(run: Run | None = None) -> RunRecord:
    """Return a run with a fill, a settling allocator, small sawteeth, and an optional leak."""
    run = run or Run()
    rng = np.random.default_rng(run.seed)
    t = sample_times(run)
    done = run.duration_s - 6.0
    fill = run.steady_s if run.steady_s is not None else run.duration_s / 3
    memory = (
        run.base_bytes
        + 120 * MB * np.minimum(t / fill, 1.0)
        + run.settle_bytes * (1 - np.exp(-t / (0.4 * fill)))
        + run.teeth_bytes * ((t / 11.0) % 1.0)
        + ar1(rng, t, run.noise_bytes, 6.0)
        + run.leak_bytes_per_h / 3600 * t
    )
    requests = np.cumsum(rng.poisson(run.requests_per_s, t.size)).astype(np.float64)
    running = np.clip(16 + ar1(rng, t, 3.0, 4.0), 0, 32).round()
    probes = np.arange(5.0, done, run.probe_s)
    columns = {
        "rss_anon_swap_bytes": memory,
        "swap_bytes": np.zeros_like(t),
        "sampler_late_s": np.abs(rng.normal(0, 0.01, t.size)),
        "gc_gen2_collections": np.floor(t / 47.0),
        "running_requests": running,
        "requests_without_client": np.zeros_like(t),
        "events.finishes": requests,
        "events.output_tokens": 16 * requests,
        "events.nodes_evicted": np.floor(9.0 * np.maximum(t - 40, 0)),
        "events.refusals": np.zeros_like(t),
        "events.retracts": np.floor(t / 20.0),
    }
    series = {name: Series(name, t, value) for name, value in columns.items()}
    garbage = 2e5 + 1e5 * rng.random(probes.size)
    series["gc_collectible_bytes"] = Series("gc_collectible_bytes", probes, garbage)
    for name in ("stray", "collectible", "retained"):
        full = f"instances.TreeNode.{name}"
        series[full] = Series(full, probes, np.zeros_like(probes))
    for pool in ("kv", "mamba"):
        for name in ("waiting_held", "residual"):
            full = f"pool.{pool}.{name}"
            series[full] = Series(full, t, np.zeros_like(t))
    series.update(run.extra)
    return RunRecord(manifest_from_json(manifest(run)), series, events(run, done))


def hourly(result: MetricResult) -> Rate:
    """Return the growth of a metric that had enough samples."""
    assert result.rate_per_hour is not None
    return result.rate_per_hour


def notes_with(verdict: Verdict, words: str) -> list[str]:
    """Return the verdict's notes that contain ``words``."""
    return [note for note in verdict.notes if words in note]


def sample_times(run: Run) -> FloatArray:
    return np.arange(1.0, run.duration_s)


def manifest(run: Run) -> dict[str, JsonValue]:
    limits: dict[str, JsonValue] = {}
    if run.limit is not None:
        limits = {"rss_anon_swap_bytes": run.limit}
    return {
        "planned_duration_s": run.duration_s,
        "profile": {"promise": limits, "assert_coverage": {"finishes": 100}},
        "limits": {"memory_bytes": 16 * GIB},
        "gc_mode": "default",
    }


def events(run: Run, done_s: float) -> list[Event]:
    found: list[Event] = [Phase(name="boot", t_s=0.0), Phase(name="warmup", t_s=2.0)]
    if run.steady_s is not None:
        found.append(Steady(t_s=run.steady_s))
        found.append(Phase(name="steady", t_s=run.steady_s))
    return [
        *found,
        Phase(name="drain", t_s=done_s),
        Phase(name="idle", t_s=done_s + 2),
        checkpoint(done_s + 3),
        Phase(name="done", t_s=done_s + 5),
    ]


def checkpoint(t_s: float, **pools: Mapping[str, float]) -> Checkpoint:
    """Return a checkpoint that is clean except for what is given: ``mamba={"residual": 3}``."""
    empty = {"total": 64.0, "in_flight": 0.0, "session_held": 0.0, "waiting_held": 0.0}
    shown: dict[str, dict[str, float]] = {
        pool: {**empty, "residual": 0.0, **pools.get(pool, {})} for pool in ("kv", "mamba")
    }
    return Checkpoint(
        index=0, pools=shown, running=0, waiting=0, locks={"full": 0, "mamba": 0}, t_s=t_s
    )


def with_events(record: RunRecord, *added: Event) -> RunRecord:
    merged = sorted([*record.events, *added], key=lambda event: event.t_s)
    return replace(record, events=merged)


def with_checkpoints(record: RunRecord, checkpoints: Sequence[Event]) -> RunRecord:
    """Return the record with other checkpoints."""
    kept = [event for event in record.events if not isinstance(event, Checkpoint)]
    return with_events(replace(record, events=kept), *checkpoints)


def with_manifest(record: RunRecord, **keys: JsonValue) -> RunRecord:
    return replace(
        record, manifest=manifest_from_json({**manifest_to_json(record.manifest), **keys})
    )


def with_series(record: RunRecord, *added: Series) -> RunRecord:
    return replace(record, series={**record.series, **{s.name: s for s in added}})


RESTART: Final = (
    ProcessStarted("api", 7, t_s=1.0),
    ProcessEnded("api", 7, signal=9, t_s=100.0),
    ProcessStarted("api", 9, t_s=104.0),
)


def restarted(run: Run, *, failed: float = 7.0, usual_per_min: float = 0.0) -> RunRecord:
    """Return a server whose counters restart from 0 at 102 s.

    ``failed`` requests lose their connection then, and ``usual_per_min`` at any time.
    """
    record = healthy_record(run)
    t = record.series["events.finishes"].t_s
    served = np.where(t < 102.0, 50.0 * t, 50.0 * (t - 102.0))
    lost = failed * (t >= 101.0) + np.floor(usual_per_min * t / 60.0)
    counts = {
        "scraped.requests_total": served,
        "events.requests_submitted": 50.0 * t,
        "events.requests_failed.disconnected": lost,
    }
    record = with_series(record, *(Series(name, t, value) for name, value in counts.items()))
    observed = {"kind": "observed", "capabilities": ["process_memory"]}
    return with_manifest(record, target=observed, workload={"url": "http://127.0.0.1:8000"})


def reference_cycles(record: RunRecord, mode: str, share: float = 0.97) -> RunRecord:
    """Return the record with evicted nodes of 30 KB that only the collector frees.

    ``ballast``: there is no full collection; ``bare``: one every 50 s; ``freeze``: none, and some
    of the nodes are reachable from a live one.
    """
    evicted = record.series["events.nodes_evicted"]
    memory = record.series["rss_anon_swap_bytes"]
    probes = record.series["gc_collectible_bytes"].t_s
    collections = np.floor(evicted.t_s / 50.0) if mode == "bare" else np.zeros_like(evicted.t_s)
    rng = np.random.default_rng(3)
    steps = rng.binomial(np.diff(evicted.value, prepend=0).astype(np.int64), share)
    made = np.cumsum(steps).astype(np.float64)
    first = np.searchsorted(collections, collections, side="left")
    waiting = made - np.where(collections > 0, made[first], 0.0)
    held = waiting * (0.1 if mode == "freeze" else 0.0)
    at = np.searchsorted(evicted.t_s, probes)
    return with_series(
        record,
        Series(memory.name, memory.t_s, memory.value + 30e3 * waiting),
        Series("gc_gen2_collections", evicted.t_s, collections),
        Series("instances.TreeNode.stray", probes, waiting[at]),
        Series("instances.TreeNode.collectible", probes, (waiting - held)[at]),
        Series("instances.TreeNode.retained", probes, held[at]),
        Series("gc_collectible_bytes", probes, 30e3 * (waiting - held)[at] + 2e5),
    )


def refused_and_holding(record: RunRecord) -> RunRecord:
    """Add bursts of refusals in which refused requests keep the state slot from their match."""
    t = record.series["events.finishes"].t_s
    rng = np.random.default_rng(5)
    burst = (t > 60) & (rng.random(t.size) < 0.15)
    refusals = np.where(burst, rng.integers(1, 4, t.size), 0).astype(np.float64)
    held = np.zeros_like(t)
    now = 0.0
    for i, taken in enumerate(np.minimum(refusals, 2).tolist()):
        now = max(0.0, now - float(rng.integers(0, 2))) + taken
        held[i] = now
    return with_series(
        record,
        Series("events.refusals", t, np.cumsum(refusals)),
        Series("pool.mamba.waiting_held", t, held),
    )


def late_client(record: RunRecord, late_s: float, cpu_share: float) -> RunRecord:
    """Return ``record`` with a load client of this lateness and CPU share, and a TTFT of 0.5 s."""
    t_s = record.series["rss_anon_swap_bytes"].t_s
    share = Series("client_cpu_share", t_s, np.full(len(t_s), cpu_share))
    latencies = {TTFT: _always(0.5, t_s), LATE: _always(late_s, t_s)}
    return replace(with_series(record, share), latencies=latencies)


def _always(duration_s: float, t_s: FloatArray) -> LatencySeries:
    """Return a latency of ``duration_s`` in every interval."""
    histogram = LatencyHistogram()
    histogram.add(duration_s)
    (bucket,) = histogram.counts()
    return LatencySeries(t_s, np.full(len(t_s), bucket), np.ones(len(t_s), np.int64))
