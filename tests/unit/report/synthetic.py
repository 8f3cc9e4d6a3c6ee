"""Made-up runs for the report's tests: a leaking one, a clean one, of any length."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from hybridbench.analysis.record import FloatArray, RunRecord, Series
from hybridbench.records.events import Checkpoint, Phase, Steady
from hybridbench.records.finding import Rate, VerdictKind
from hybridbench.records.json_value import JsonValue
from hybridbench.records.manifest import manifest_from_json
from hybridbench.records.verdict import Covered, MetricResult, ServingResult, Verdict
from hybridbench.report.build import build_document
from hybridbench.report.document import Document
from hybridbench.report.write import rendered, write_run
from tests.unit.made_findings import a_finding

MIB = float(2**20)
GIB = float(2**30)


def manifest(**changes: JsonValue) -> dict[str, JsonValue]:
    made: dict[str, JsonValue] = {
        "schema": "hybridbench.run/1",
        "run_id": "20261120-101500-qwen3-next-chat-churn-lru-reference-cycle",
        "started_wall_s": 1_795_169_700.0,
        "planned_duration_s": 300.0,
        "command": [
            "hybridbench",
            "soak",
            "--model",
            "qwen3-next",
            "--duration",
            "5m",
            "--defect",
            "lru-reference-cycle",
        ],
        "model": {
            "name": "qwen3-next",
            "preset": "tiny",
            "device": "cpu",
            "dtype": "float32",
            "source": "seeded random weights",
            "parameters": 1_234_567,
        },
        "profile": {
            "name": "chat-churn",
            "resolved": {
                "arrivals": {"kind": "closed", "clients": 16},
                "pools": {"kv_tokens": 16384, "state_slots": 96},
                "ballast_objects": 1_000_000,
                "promise": "200MiB/h",
            },
        },
        "seed": 20261,
        "defects": ["lru-reference-cycle"],
        "versions": {
            "hybridbench": "0.1.0",
            "python": "3.11.7",
            "torch": "2.13.0+cpu",
            "numpy": "2.4.6",
        },
        "git": {"commit": "3f9d2c81b7", "branch": "main", "dirty": False},
        "engine_hash": "sha256:9b1d54f0c7",
        "machine": {
            "cpu": "AMD EPYC 7B13",
            "cores": 2,
            "memory_bytes": 8_323_072_000,
            "kernel": "Linux 6.1",
            "swap_bytes": 0,
        },
        "gc": {"mode": "default", "thresholds": [700, 10, 10], "frozen_objects": 0},
        "malloc": {"arenas": 1, "mmap_threshold_bytes": 131072, "pinned": True},
        "target": {"name": "bundled", "traffic": ["submit", "abort", "flush"]},
    }
    made.update(changes)
    return made


def series_of_run(
    length_s: float, *, leaky: bool, interval_s: float = 5.0, seed: int = 3
) -> dict[str, Series]:
    """Return about sixty metrics; warm-up takes a fifth of the run, at most ten minutes."""
    rng = np.random.default_rng(seed)
    t = np.arange(interval_s, length_s, interval_s) + rng.uniform(
        0, 0.05, math.ceil(length_s / interval_s) - 1
    )
    warm = min(0.2 * length_s, 600.0)
    fill = 1.0 - np.exp(-t / (warm / 3))
    after = np.maximum(0.0, t - warm)
    noise = np.convolve(rng.normal(0, 1, t.size + 11), np.ones(12) / 3.5, "valid")
    grown = after * (1.6 * GIB / 3600 if leaky else 0.0)
    saw = (t % 600.0) / 600.0 * 4 * MIB
    evictions = np.floor(
        np.cumsum(rng.poisson(3.2 * interval_s, t.size)) * np.clip(fill - 0.3, 0, 1)
    )
    evictions = np.maximum.accumulate(evictions)
    requests = np.cumsum(rng.poisson(1.7 * interval_s, t.size))
    stray = np.floor(evictions * (0.93 if leaky else 0.0)) + (
        2.0 * (rng.random(t.size) < 0.02) if leaky else 0
    )
    kv_tree = np.minimum(11_800, 16_384 * fill * 0.8)
    in_flight = np.clip(900 + 260 * noise, 0, None)
    level = 512 * MIB + 61 * MIB * fill
    made: dict[str, NDArray[np.floating[Any]]] = {
        "rss_bytes": level + grown + 0.9 * MIB * noise + saw + 38 * MIB,
        "rss_anon_swap_bytes": level + grown + 0.9 * MIB * noise + saw,
        "swap_bytes": np.zeros_like(t),
        "threads": np.full_like(t, 5),
        "open_fds": 31 + np.round(np.abs(noise)),
        "malloc_in_use_bytes": 0.7 * (level + grown) + 0.5 * MIB * noise,
        "malloc_arena_bytes": 0.75 * (level + grown),
        "allocated_blocks": np.round(1_234_000 + 40_000 * fill + stray * 11 + 800 * noise),
        "gc_gen2_collections": np.floor(t / 171.0),
        "gc_collected_objects": np.floor(t / 171.0) * 812,
        "gc_pause_s": np.floor(t / 171.0) * 0.19,
        "gc_tracked_objects": np.round(1_050_000 + 9_000 * fill + 2 * stray),
        "running_requests": np.clip(np.round(12 + 2 * noise), 0, 16),
        "waiting_requests": np.clip(np.round(1 + noise), 0, None),
        "max_running_requests": np.maximum.accumulate(np.clip(np.round(12 + 2 * noise), 0, 16)),
        "throughput_tokens_per_s": 3100 * (0.7 + 0.3 * fill) + 90 * noise - grown / GIB * 120,
        "requests_per_s": 1.7 + 0.2 * noise,
        "ttft_ms_p50": 41 + 3 * noise,
        "ttft_ms_p99": 118 + 14 * np.abs(noise) + 300 * (rng.random(t.size) < 0.004),
        "itl_ms_p50": 11 + 0.4 * noise,
        "itl_ms_p99": 27 + 3 * np.abs(noise),
        "step_s": 0.93 * t,
        "probe_stop_s": 0.0031 * t,
        "probe_child_s": 0.04 * t,
        "sampler_late_s": np.abs(0.002 * noise),
        "sampler_cost_s": 0.004 + 0.001 * np.abs(noise),
        "harness_rss_bytes": 88 * MIB + 0.1 * MIB * noise,
        "container.rid_table.len": np.clip(np.round(13 + 2 * noise), 0, None),
    }
    made |= _instances(stray, evictions)
    for pool, size, held in (
        ("kv", 16_384.0, kv_tree),
        ("mamba", 96.0, 78 * fill),
        ("req", 48.0, 0 * fill),
    ):
        made |= _pool(pool, size, np.round(held), np.round(in_flight * size / 16_384))
    rates = {
        "admissions": 1.7,
        "finishes": 1.65,
        "hits": 1.2,
        "cow_copies": 0.9,
        "splits": 0.4,
        "tombstones": 0.3,
        "chunks": 2.8,
        "aborts_running": 0.05,
        "retracts": 0.01,
        "refusals": 0.2,
    }
    for name, per_s in rates.items():
        made[f"events.{name}"] = np.cumsum(rng.poisson(per_s * interval_s, t.size)).astype(float)
    made["events.nodes_evicted"] = evictions
    made["events.requests"] = requests.astype(float)
    found = {name: Series(name, t, np.asarray(value, np.float64)) for name, value in made.items()}
    slow = slice(None, None, max(1, int(20 / interval_s)))
    stray_bytes = 400 * KIB_PER_NODE * stray + 70_000 + 4_000 * np.abs(noise)
    found["gc_collectible_bytes"] = Series("gc_collectible_bytes", t[slow] + 0.4, stray_bytes[slow])
    found["gc_collectible_objects"] = Series(
        "gc_collectible_objects",
        t[slow] + 0.4,
        np.round(14 * stray + 210 + 30 * np.abs(noise))[slow],
    )
    found["pss_bytes"] = Series("pss_bytes", t[slow], found["rss_bytes"].value[slow] - 17 * MIB)
    return found


KIB_PER_NODE = 128.0


def _instances(stray: FloatArray, evictions: FloatArray) -> dict[str, FloatArray]:
    expected = np.clip(evictions, 0, 780)
    return {
        "instances.TreeNode.live": expected + stray,
        "instances.TreeNode.expected": expected,
        "instances.TreeNode.stray": stray,
        "instances.TreeNode.collectible": stray,
        "instances.TreeNode.retained": 0 * stray,
        "instances.Req.stray": 0 * stray,
        "instances.Req.collectible": 0 * stray,
    }


def _pool(pool: str, size: float, tree: FloatArray, in_flight: FloatArray) -> dict[str, FloatArray]:
    protected = np.minimum(tree, np.round(0.3 * in_flight))
    in_flight = np.minimum(in_flight, size - tree)
    return {
        f"pool.{pool}.total": np.full_like(tree, size),
        f"pool.{pool}.available": size - tree - in_flight,
        f"pool.{pool}.evictable": tree - protected,
        f"pool.{pool}.protected": protected,
        f"pool.{pool}.in_flight": in_flight,
        f"pool.{pool}.waiting_held": np.zeros_like(tree),
        f"pool.{pool}.residual": np.zeros_like(tree),
    }


def record_of(length_s: float = 300.0, *, leaky: bool = True, **changes: JsonValue) -> RunRecord:
    warm = min(0.2 * length_s, 600.0)
    events = [
        Phase(name="boot", t_s=0.0),
        Phase(name="prefill", t_s=0.02 * length_s),
        Phase(name="load", t_s=0.06 * length_s),
        Steady(reason="pools at their high-water mark and evicting", t_s=warm),
        *(
            Checkpoint(idle=True, t_s=moment)
            for moment in np.linspace(warm * 1.2, 0.95 * length_s, 5).tolist()
        ),
        Phase(name="drain", t_s=0.96 * length_s),
    ]
    if not leaky:
        command: JsonValue = ["hybridbench", "soak", "--model", "qwen3-next", "--duration", "5m"]
        plain: dict[str, JsonValue] = {"run_id": "20261120-101500-qwen3-next-chat-churn"}
        changes = {"defects": [], "command": command, **plain, **changes}
    return RunRecord(
        manifest_from_json(manifest(**changes)), series_of_run(length_s, leaky=leaky), tuple(events)
    )


def fitted(record: RunRecord, name: str, rate: Rate, outcome: str, reason: str) -> MetricResult:
    series = record.series[name]
    steady = record.last_event(Steady)
    assert steady is not None
    window = (steady.t_s, float(series.t_s[-1]))
    judged = series.between(*window)
    slope, level = np.polyfit(judged.t_s, judged.value, 1)
    times = np.linspace(*window, 60)
    fit = level + slope * times
    spread = 2.5 * float(np.std(judged.value - (level + slope * judged.t_s)))
    return MetricResult(
        metric=name,
        outcome=outcome,
        reason=reason,
        window_s=window,
        rate_per_hour=rate,
        rate_per_request=Rate(
            rate.value / 6120, rate.lower / 6120, rate.upper / 6120, "B", "request"
        ),
        floor_per_hour=0.5 * MIB,
        limit_per_hour=200 * MIB,
        model="level + time",
        fit_t_s=tuple(times),
        fit_value=tuple(fit),
        band_lower=tuple(fit - spread),
        band_upper=tuple(fit + spread),
    )


COVERAGE = {
    "nodes_evicted": Covered(1000, 7120.0, met=True),
    "cow_copies": Covered(50, 261, met=True),
    "retracts": Covered(0, 3, met=True),
}


SERVING = (
    ServingResult("requests_per_s", "1/s", 38.8, 9120),
    ServingResult("output_tokens_per_s", "1/s", 608.4, 9120),
    ServingResult("input_tokens_per_s", "1/s", 2493.0, 9120),
    ServingResult("ttft_ms", "ms", 43.11, 9120, 41.0, 63.0, 118.0),
    ServingResult("itl_ms", "ms", 11.2, 137_000, 11.0, 14.5, 27.0),
    ServingResult("e2e_ms", "ms", 208.0, 9120, 205.0, 260.0, 1431.0),
    ServingResult("errors", "count", 46, 9200),
    ServingResult("aborts", "count", 34, 9200),
    ServingResult("hit_rate", "ratio", 0.432, 9150),
)


def leak_verdict(record: RunRecord) -> Verdict:
    growth = Rate(1.61 * GIB, 1.55 * GIB, 1.67 * GIB, "B", "h")
    heap = Rate(1.52 * GIB, 1.50 * GIB, 1.54 * GIB, "B", "h")
    metrics = (
        fitted(record, "rss_anon_swap_bytes", growth, "LEAK", "lower bound passes the floor"),
        fitted(record, "gc_collectible_bytes", heap, "LEAK", "lower bound passes the floor"),
    )
    since = metrics[0].window_s[0]
    assert metrics[0].rate_per_request is not None
    cycle = a_finding(
        kind="instances-wait-for-collector",
        verdict=VerdictKind.LEAK,
        subject="TreeNode",
        title="662 tree nodes that left the tree wait for the collector, since 0:01:00",
        driver="events.nodes_evicted",
        rates=(
            Rate(0.93, 0.92, 0.94, "nodes", "evicted node"),
            Rate(9_300.0, 9_180.0, 9_420.0, "nodes", "h"),
        ),
        cause="Evicted nodes keep each other alive through prev/next: a reference cycle that only "
        "a full collection breaks; 0 of them survive one.",
        evidence=(
            "checkpoint 0:04:45: 1442 TreeNode live, 780 in the tree, 662 stray",
            "a forked collection frees 662 of 662, 41.4 MiB with what they hold (64.0 KiB each)",
            "strays rise with nodes_evicted (r = 0.999) and never fall between collections",
        ),
        since_s=since,
        data={"classes": {"TreeNode": 662, "dict": 1324, "Tensor": 662}, "survive_collection": 0},
    )
    rss = a_finding(
        kind="growth",
        verdict=VerdictKind.LEAK,
        subject="rss_anon_swap_bytes",
        title="Private memory grows by 1.61 GiB/h in the judged window",
        rates=(growth, metrics[0].rate_per_request),
        since_s=since,
        cause="Collectible objects explain 94% of it.",
        evidence=("80 blocks, AR(1) 0.31, no warm-up shape within dBIC 3.5",),
    )
    return Verdict(
        kind=VerdictKind.LEAK,
        headline="Evicted tree nodes wait for the collector: 0.93 nodes per evicted node, "
        "and memory grows by 1.61 GiB/h.",
        findings=(cycle, rss),
        metrics=metrics,
        window_s=metrics[0].window_s,
        can_rule_out="Private memory grows by 1.61 GiB/h (95% interval 1.55 to 1.67 GiB/h), judged "
        "over 3m55s.",
        coverage=COVERAGE,
        not_seen=("malloc arenas of other threads", "pss_bytes: sampled every 20 s only"),
        serving=SERVING,
        notes=("The sampler took 0.3% of the engine loop's time.",),
    )


def clean_verdict(record: RunRecord) -> Verdict:
    rss = Rate(3.1 * MIB, -21 * MIB, 27 * MIB, "B", "h")
    heap = Rate(-0.2 * MIB, -1.4 * MIB, 1.1 * MIB, "B", "h")
    reason = "upper bound stays under the limit"
    metrics = (
        fitted(record, "rss_anon_swap_bytes", rss, "CLEAN", reason),
        fitted(record, "gc_collectible_bytes", heap, "CLEAN", reason),
    )
    return Verdict(
        kind=VerdictKind.CLEAN,
        headline="No leak found; memory grows by at most 27.0 MiB/h.",
        findings=(),
        metrics=metrics,
        window_s=metrics[0].window_s,
        can_rule_out="Growth of private memory above 27.0 MiB/h is ruled out (95%, 3m55s judged); "
        "steady growth of about 60.0 MiB/h or more would be called a LEAK.",
        coverage=COVERAGE,
        not_seen=("malloc arenas of other threads",),
        serving=SERVING,
    )


def open_verdict(record: RunRecord) -> Verdict:
    clean = clean_verdict(record)
    rate = Rate(90 * MIB, -math.inf, math.inf, "B", "h")
    metrics = tuple(
        msgspec.structs.replace(
            m, outcome="INCONCLUSIVE", reason="too-short", rate_per_hour=rate, needed_s=2640.0
        )
        for m in clean.metrics
    )
    return replace(
        clean,
        kind=VerdictKind.INCONCLUSIVE,
        headline="Not decided yet: the run is too short.",
        metrics=metrics,
        can_rule_out="",
    )


def invalid_verdict(record: RunRecord) -> Verdict:
    coverage = {
        **COVERAGE,
        "retracts": Covered(5, 0, met=False),
    }
    return replace(
        clean_verdict(record),
        kind=VerdictKind.INVALID,
        coverage=coverage,
        headline="The run proves nothing: the path it should exercise was not reached.",
        can_rule_out="No growth is ruled out, because only exact counts hold in this run.",
    )


def crash_verdict(record: RunRecord) -> Verdict:
    crash = a_finding(
        kind="crash",
        verdict=VerdictKind.CRASHED,
        subject="worker",
        since_s=212.0,
        title="The engine worker was killed by SIGKILL 0:03:32 into the run",
        evidence=("last lines of stderr:\n  step 18211\n  alloc <failed> & gone",),
    )
    return replace(
        clean_verdict(record),
        kind=VerdictKind.CRASHED,
        findings=(crash,),
        metrics=(),
        window_s=None,
        headline="The engine worker was killed by SIGKILL after 3 minutes and 32 seconds.",
        can_rule_out="No memory samples were judged, so no growth is ruled out.",
    )


def write_reports(run_dir: Path, record: RunRecord, verdict: Verdict) -> Document:
    """Write all derived files of a run, as a soak and ``report`` do."""
    document = build_document(record, verdict)
    write_run(run_dir, record, verdict, rendered(document))
    return document
