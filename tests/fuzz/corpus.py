"""Small valid inputs of every kind that hybridbench reads, and the commands that read them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import cast

import torch
import yaml

from hybridbench.analysis.record import RunRecord
from hybridbench.cli.results import read_result
from hybridbench.compare.store import ComparisonWriter
from hybridbench.engine.models.export import write_checkpoint
from hybridbench.engine.models.registry import read_hf_config
from hybridbench.engine.models.weights import CheckpointWeights, RandomWeights
from hybridbench.foundation.clock import SystemClock
from hybridbench.over_time.run import MergeOptions, merge_cells
from hybridbench.records.comparison import comparison_manifest_from_json
from hybridbench.records.json_value import JsonValue
from hybridbench.rundir.manifest import read_manifest
from hybridbench.rundir.writer import RunWriter
from hybridbench.runs.resume import plan_of_manifest, read_segment
from hybridbench.workload.catalog import list_plans, list_profiles, load_profile
from hybridbench.workload.synthetic_trace import write_synthetic_trace
from hybridbench.workload.trace import TraceFile
from tests.model_steps import NANO_MODEL
from tests.unit.over_time.planned_runs import GROWTH, NODES, attempt, finished, planned_run, store
from tests.unit.report.comparisons import comparison
from tests.unit.report.synthetic import record_of

_CPU = torch.device("cpu")
_LENGTH_S = 120.0
_ROWS = 120
DAMAGED = "damaged.dat"

# How a damaged input is read: by a command line, or by a call.
Action = Sequence[str] | Callable[[], None]


@dataclass(frozen=True)
class Kind:
    """One kind of input: how it is made in a folder, which files are damaged, what reads it.

    ``actions`` gets the folder and returns a random action.
    """

    name: str
    make: Callable[[Path], None]
    damaged: tuple[str, ...]
    actions: Callable[[Path, Random], Action]


def write_run(path: Path, record: RunRecord) -> None:
    """Write ``record`` as a run directory."""
    path.mkdir(parents=True)
    with RunWriter(path, record.manifest, SystemClock()) as writer:
        moments = sorted({float(t) for series in record.series.values() for t in series.t_s})
        for moment in moments:
            values = {
                name: float(series.value[index])
                for name, series in record.series.items()
                if (index := int(series.t_s.searchsorted(moment))) < series.t_s.size
                and series.t_s[index] == moment
            }
            writer.sample(moment, "load", values)
        for event in record.events:
            writer.event(event)


def _run(folder: Path) -> None:
    resolved = cast("JsonValue", load_profile("smoke").resolved())
    profile: dict[str, JsonValue] = {"name": "smoke", "source": "smoke", "resolved": resolved}
    trace: dict[str, JsonValue] = {"path": "/nowhere", "length_scale": "1/32", "speedup": 2.0}
    record = record_of(
        _LENGTH_S,
        profile=profile,
        planned_duration_s=300.0,
        engine_hash="ab" * 32,
        trace=trace,
        thresholds=["rss.slope<200MiB/h", "throughput.p50>900/s"],
        options={"watchdog_s": 30.0},
    )
    write_run(folder / "store" / "a-run", record)
    read_result(folder / "store" / "a-run").write()


def _comparison(folder: Path) -> None:
    path = folder / "store" / "a-comparison"
    made = comparison(leaks=True)
    for index, version in enumerate(made.versions):
        write_run(path / str(index), version.record)
    entries: list[JsonValue] = [
        {"name": v.name, "kind": v.kind, "run": str(i)} for i, v in enumerate(made.versions)
    ]
    facts: dict[str, JsonValue] = {
        "comparison_id": "a-comparison", "started_wall_s": 1.8e9, "command": ["hybridbench"],
        "interleaved": True, "model": "qwen3-next", "profile": "smoke", "looks": [6, 12],
        "margin": 0.03, "alpha": 0.05, "thresholds": ["throughput.ratio>0.95"],
        "allowed_mismatches": [], "versions": entries, "rounds": 12, "ended": "decided",
        "renew_every": 0, "exit_code": None,
    }  # fmt: skip
    with ComparisonWriter(path, comparison_manifest_from_json(facts)) as writer:
        for block in made.blocks:
            writer.block(block)
    read_result(path).write()


def _night(folder: Path) -> None:
    planned = planned_run(folder, _PLAN)
    out = folder / "store" / "a-night"
    store(finished(planned, "one", attempt("LEAK", GROWTH), attempt("LEAK", NODES)), out / "cells")
    store(finished(planned, "two", attempt()), out / "cells")
    merge_cells([out / "cells"], out, MergeOptions(planned.record))


def _model(folder: Path) -> None:
    write_checkpoint(NANO_MODEL, RandomWeights(NANO_MODEL, 0, _CPU), folder)
    names = dict.fromkeys(NANO_MODEL.tensors(), "model.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 2]}))


def _series(folder: Path) -> None:
    moments = [(i * 30.0, 1e9 + 1e5 * i, 50 + i % 7, 100 * i) for i in range(_ROWS)]
    rows = [f"{t},{rss},{fds},{done}" for t, rss, fds, done in moments]
    (folder / "a.csv").write_text("\n".join(["time_s,rss_bytes,fds,requests", *rows]) + "\n")
    (folder / "clock.csv").write_text(
        "\n".join(["time;rss", *(f"{i // 60:02}:{i % 60:02}:00;{i}MiB" for i in range(_ROWS))])
    )
    dates = (f"2026-01-01T{i // 60:02}:{i % 60:02}:00Z\t{i}" for i in range(_ROWS))
    (folder / "dates.tsv").write_text("\n".join(["when\trss", *dates]))
    (folder / "flat.jsonl").write_text(
        "".join(json.dumps({"t": t, "p": {"rss": rss}}) + "\n" for t, rss, _, _ in moments)
    )
    (folder / "samples.jsonl").write_text(
        "".join(json.dumps({"t": t, "m": {"rss_bytes": rss}}) + "\n" for t, rss, _, _ in moments)
    )
    values = [[1.8e9 + t, str(rss)] for t, rss, _, _ in moments]
    result = [{"metric": {"__name__": "rss", "pod": pod}, "values": values} for pod in "ab"]
    document = {"status": "success", "data": {"resultType": "matrix", "result": result}}
    (folder / "prometheus.json").write_text(json.dumps(document))
    (folder / "mprof.dat").write_text(
        "CMDLINE python x\n" + "".join(f"MEM {100 + i} {1.8e9 + i}\n" for i in range(_ROWS))
    )
    gpus = (
        f"2026/11/23 {i // 60:02}:{i % 60:02}:00.000, {gpu}, {100 + i} MiB, [N/A]\n"
        for i in range(_ROWS)
        for gpu in (0, 1)
    )
    heading = "timestamp, index, memory.used [MiB], power.draw [W]\n"
    (folder / "nvidia-smi.csv").write_text(heading + "".join(gpus))
    (folder / "ps.txt").write_text(
        "".join(f"{1_800_000_000 + 10 * i} {5000 + i}\n" for i in range(_ROWS))
    )


def _traces(folder: Path) -> None:
    write_synthetic_trace(folder / "mooncake.jsonl", rows=40)
    rows = [f"2023-11-16 18:{i // 60:02}:{i % 60:02}.1000000,{100 + i},{10 + i}" for i in range(60)]
    (folder / "azure.csv").write_text(
        "\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]) + "\n"
    )


def _profiles(folder: Path) -> None:
    for name, path in list_profiles().items():
        (folder / f"{name}.yaml").write_bytes(path.read_bytes())
        resolved = load_profile(name).resolved()
        (folder / f"{name}-resolved.yaml").write_text(json.dumps(resolved, indent=1))


def _plans(folder: Path) -> None:
    for name, path in list_plans().items():
        (folder / f"{name}.yaml").write_bytes(path.read_bytes())
    (folder / "plan.yaml").write_text(_PLAN)
    # Mutations of values need JSON, which is also valid YAML.
    (folder / "json.yaml").write_text(json.dumps(yaml.safe_load(_PLAN), indent=1, default=str))


def _of_store(folder: Path, rng: Random) -> Action:
    (directory,) = (folder / "store").iterdir()
    of_store = ["--store", str(folder / "store")]
    formats = ("console", "markdown", "json", "html", "junit", "github-summary",
               "github-annotations", "benchmark-json")  # fmt: skip
    return rng.choice(
        (
            ["report", str(directory)],
            ["report", str(directory), "--format", rng.choice(formats)],
            ["list", "runs", *of_store, "--format", rng.choice(("console", "json"))],
            ["history", *of_store, "--format", rng.choice(("console", "json", "markdown"))],
            ["prune", *of_store, "--keep", "1", "--dry-run"],
        )
    )


def _of_run(folder: Path, rng: Random) -> Action:
    run = folder / "store" / "a-run"
    return rng.choice(
        (
            _of_store(folder, rng),
            _of_store(folder, rng),
            ["diagnose", str(run)],
            ["judge", str(run)],
            ["judge", str(run / "samples.jsonl"), "--format", rng.choice(("json", "markdown"))],
            ["compare", str(run), str(run), "--store", str(folder / "compared")],
            lambda: _resumed(run),
        )
    )


def _resumed(run: Path) -> None:
    plan_of_manifest(read_manifest(run), run)
    read_segment(run, 2e9)


def _of_night(folder: Path, rng: Random) -> Action:
    cells = folder / "store" / "a-night" / "cells"
    merge = ["nightly", "merge", str(cells), "--out", str(folder / "merged")]
    return rng.choice(
        (_of_store(folder, rng), merge, [*merge, "--baseline", str(folder / "store")])
    )


def _of_series(folder: Path, rng: Random) -> Action:
    path = folder / DAMAGED
    words = ["judge", str(path), "--format", rng.choice(("console", "json", "markdown"))]
    more: tuple[list[str], ...] = ([], [], ["--never-restarted"], ["--steady-at", "10m"])
    return [*words, *rng.choice(more)]


def _of_trace(folder: Path, rng: Random) -> Action:
    del rng
    path = folder / DAMAGED

    def read() -> None:
        for _ in TraceFile(path).rows():
            pass

    return read


def _of_profile(folder: Path, rng: Random) -> Action:
    return ["profiles", rng.choice(("validate", "validate", "show")), str(folder / DAMAGED)]


def _of_plan(folder: Path, rng: Random) -> Action:
    formats = ("console", "json", "github")
    return ["nightly", "plan", str(folder / DAMAGED), "--format", rng.choice(formats)]


def _of_model(folder: Path, rng: Random) -> Action:
    del rng

    def read() -> None:
        config = read_hf_config(folder)
        source = CheckpointWeights(folder, config, _CPU)
        for name in config.tensors():
            source.take(name)

    return read


_PLAN = """\
name: test
duration: 10m
least_duration: 5m
policy: {extend: 10m}
waivers:
  - {kind: growth, subject: rss_anon_swap_bytes, max_rate: 1GiB/h, expires: 2030-01-01,
     link: 'https://example.org/1', reason: known}
cells:
  - {id: one, profile: smoke}
  - {id: two, profile: smoke, seed: 5}
"""

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("run", _run, ("store/a-run/*.json*",), _of_run),
        Kind("comparison", _comparison, ("store/*/*.json*", "store/*/*/*.json*"), _of_store),
        Kind("night", _night, ("store/a-night/*.json", "store/a-night/cells/*/*"), _of_night),
        Kind("series", _series, ("*",), _of_series),
        Kind("trace", _traces, ("*",), _of_trace),
        Kind("profile", _profiles, ("*",), _of_profile),
        Kind("plan", _plans, ("*",), _of_plan),
        Kind("model", _model, ("*",), _of_model),
    )
}
# For these kinds one file is chosen, damaged and read; for the others the whole folder.
SINGLE = frozenset({"series", "trace", "profile", "plan"})
