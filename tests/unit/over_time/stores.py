"""Stores of made-up runs: a manifest, a verdict, and few samples."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from hybridbench.over_time.stored import write_record
from hybridbench.records.json_value import JsonValue
from hybridbench.records.nightly import NightlyRun, PlanRecord

DAY_S = 86400.0
MIB = 2.0**20


def manifest(run_id: str, started_s: float, **changes: JsonValue) -> dict[str, JsonValue]:
    made: dict[str, JsonValue] = {
        "schema": "hybridbench.run/1",
        "run_id": run_id,
        "started_wall_s": started_s,
        "model": {"name": "qwen3-next", "preset": "tiny", "device": "cpu", "dtype": "float32"},
        "profile": {"name": "smoke", "resolved": {"arrival": {"concurrency": 8}}},
        "machine": {"cpu": "Some CPU", "cpus_usable": 4, "memory_total_kib": "16777216"},
        "interpreter": {"implementation": "cpython", "version": "3.11.7"},
        "engine_hash": "a" * 64,
        "seed": 1,
        "defects": [],
        "versions": {"hybridbench": "0.1.0", "torch": "2.8.0"},
    }
    return {**made, **changes}


def verdict(slope: float = MIB, throughput: float = 1000.0, kind: str = "CLEAN") -> JsonValue:
    rate = {"value": slope, "lower": slope - 1e5, "upper": slope + 1e5}
    level = {"metric": "throughput_tokens_per_s", "stat": "mean", "unit": "1/s"}
    return {
        "verdict": kind,
        "headline": f"{kind}: as made up",
        "exit_code": 0 if kind == "CLEAN" else 10,
        "metrics": [{"metric": "rss_anon_swap_bytes", "rate_per_hour": rate}],
        "decay": [{"name": "hit_rate", "value": 0.5}],
        "levels": [{**level, "value": throughput, "lower": None, "upper": None}],
    }


def add_run(
    store: Path,
    run_id: str,
    started_s: float,
    stored: JsonValue = None,
    changes: Mapping[str, JsonValue] | None = None,
) -> Path:
    """Add a run directory; without ``stored``, the run has no verdict."""
    path = store / run_id
    path.mkdir(parents=True)
    text = json.dumps(manifest(run_id, started_s, **(changes or {})))
    (path / "manifest.json").write_text(text)
    (path / "samples.jsonl").write_text('{"t":1.0,"m":{"rss_bytes":5}}\n')
    if stored is not None:
        (path / "verdict.json").write_text(json.dumps(stored))
    return path


def add_comparison(store: Path, name: str, started_s: float, answer: str, code: int = 0) -> Path:
    path = store / name
    add_run(path, "a-tree", started_s, verdict())
    facts = {
        "schema": "hybridbench.comparison-plan/1",
        "comparison_id": name,
        "started_wall_s": started_s,
        "versions": [{"name": "."}, {"name": "git:HEAD~1"}],
    }
    (path / "comparison.json").write_text(json.dumps(facts))
    (path / "verdict.json").write_text(
        json.dumps({"word": answer, "headline": "as made up", "exit_code": code})
    )
    return path


def add_night(
    store: Path, name: str, started_s: float, word: str, rehearsed: tuple[str, ...] = ()
) -> Path:
    path = store / name
    add_run(path / "cells" / "smoke" / "attempt-1", f"{name}-smoke", started_s, verdict())
    night = NightlyRun(
        plan=PlanRecord(name="every night", hash="0", cells=("smoke",)),
        started_wall_s=started_s,
        ended_wall_s=started_s + 60.0,
        green=word == "PASS" and not rehearsed,
        exit_code=0 if word == "PASS" else 11,
        word=word,
        headline="as made up",
        rehearsed=rehearsed,
    )
    write_record(path / "night.json", night)
    return path
