"""Which runs are comparable, in which run a quantity changed, and which rate grew."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hybridbench.over_time.comparer import (
    Series,
    environment,
    grew,
    machine,
    series_facts,
    series_of,
)
from hybridbench.over_time.history_report import history_document, history_json, series_title
from hybridbench.over_time.points import read_points
from hybridbench.records.finding import Rate
from hybridbench.records.json_value import JsonValue
from hybridbench.records.manifest import manifest_from_json
from hybridbench.report.document import GateState, Tone
from hybridbench.report.formats import FORMATS
from tests.unit.over_time.stores import DAY_S, MIB, add_run, manifest, verdict

STORED = manifest("here", 0.0)
HERE = manifest_from_json(STORED)


def nights(store: Path, throughput: list[float], slope: list[float] | None = None) -> None:
    for day, speed in enumerate(throughput):
        engine: dict[str, JsonValue] = {"engine_hash": ("b" if day >= 12 else "a") * 64}
        grows = MIB if slope is None else slope[day]
        add_run(store, f"run-{day:02d}", DAY_S * day, verdict(grows, speed), engine)


def only(store: Path) -> Series:
    (series,) = series_of(read_points(store)[0])
    return series


def steady(count: int, level: float = 1000.0, seed: int = 4) -> list[float]:
    noise = np.random.default_rng(seed).normal(0.0, 10.0, count)
    return [level + float(one) for one in noise]


def test_two_models_under_one_server_are_two_series_wherever_it_is_installed(
    tmp_path: Path,
) -> None:
    ours = ["hybridbench", "watch", "--load", "burst -n 4"]
    commands = [
        [*ours, "--", "/opt/vllm-1/bin/vllm", "serve", "llama"],
        [*ours, "--", "/opt/vllm-2/bin/vllm", "serve", "llama"],
        [*ours, "--", "/opt/vllm-2/bin/vllm", "serve", "qwen"],
        [*ours[:2], "--", "/opt/vllm-2/bin/vllm", "serve", "qwen"],
    ]
    for day, command in enumerate(commands):
        model = {"name": "vllm", "device": "", "dtype": ""}
        changes: dict[str, JsonValue] = {"model": {**model}, "command": [*command]}
        add_run(tmp_path, f"run-{day}", DAY_S * day, verdict(), changes)

    series = series_of(read_points(tmp_path)[0])

    assert [len(one.points) for one in series] == [1, 1, 2]
    assert "command vllm serve qwen, load burst -n 4" in series_title(series[1], series)


def test_a_store_of_damaged_runs_is_not_called_empty(tmp_path: Path) -> None:
    (add_run(tmp_path, "run", 0.0, verdict()) / "manifest.json").write_text("{")

    document = history_document([], read_points(tmp_path)[1], "store")

    assert document.headline == "No run here can be read; 1 run left out."


def test_a_lasting_loss_is_told_with_its_first_run_and_the_versions(tmp_path: Path) -> None:
    nights(tmp_path, [*steady(12), *steady(6, 900.0)])

    series = only(tmp_path)
    document = history_document([series], [], "store")

    (trend,) = [one for one in series.trends if one.quantity.name == "throughput.mean"]
    (change,) = trend.changes
    assert trend.points[change.at].run_id == "run-12"
    assert trend.is_worse(change)
    assert document.badge.tone is Tone.BAD
    assert "since run-12, engine aaaaaaaaaa → bbbbbbbbbb" in str(document.headline)
    gates = {gate.name: gate.state for gate in document.gates}
    assert gates["throughput.mean"] is GateState.FAILED
    assert gates["rss.slope"] is GateState.PASSED


def test_a_series_without_a_profile_is_named_by_its_program(tmp_path: Path) -> None:
    nights(tmp_path, steady(2))
    series = replace(only(tmp_path), profile="")

    assert series_title(series, [series]) == series.model


def test_one_bad_run_is_told_at_once(tmp_path: Path) -> None:
    nights(tmp_path, steady(8), [MIB] * 7 + [3.7e9])

    document = history_document([only(tmp_path)], [], "store")

    assert "rss.slope WORSE: +1.00 MiB/h → +3.45 GiB/h since run-07" in str(document.headline)


def test_a_gain_is_told_and_fails_no_gate(tmp_path: Path) -> None:
    nights(tmp_path, [*steady(12), *steady(6, 1200.0)])

    document = history_document([only(tmp_path)], [], "store")

    assert document.badge.word == "STEADY"
    rows = [row for table in document.tables for row in table.rows if row[0] == "throughput.mean"]
    assert str(rows[0][3]).startswith("BETTER: ")


def test_few_runs_are_not_called_steady(tmp_path: Path) -> None:
    nights(tmp_path, steady(4))

    document = history_document([only(tmp_path)], [], "store")

    assert document.badge.tone is Tone.OPEN
    assert {gate.state for gate in document.gates} == {GateState.SKIPPED}


def test_another_machine_begins_another_series(tmp_path: Path) -> None:
    nights(tmp_path, steady(3))
    machine: JsonValue = {"cpu": "Other CPU", "cpus_usable": 4, "memory_total_kib": "16777216"}
    add_run(tmp_path, "elsewhere", 9 * DAY_S, verdict(), {"machine": machine})

    newest, older = series_of(read_points(tmp_path)[0])

    assert [len(newest.points), len(older.points)] == [1, 3]
    assert newest.differs_in == {"machine.cpu": "Other CPU"}


def test_a_newer_torch_stays_in_the_series_and_is_told_at_the_change(tmp_path: Path) -> None:
    nights(tmp_path, steady(7))
    versions: JsonValue = {"hybridbench": "0.1.0", "torch": "9.9.0"}
    slow = verdict(throughput=500.0)
    add_run(tmp_path, "upgraded", 9 * DAY_S, slow, {"versions": versions})

    document = history_document([only(tmp_path)], [], "store")

    assert "torch 9.9.0" in str(document.headline)


def test_an_invalid_run_is_shown_and_moves_no_trend(tmp_path: Path) -> None:
    nights(tmp_path, steady(7))
    add_run(tmp_path, "void", 9 * DAY_S, verdict(throughput=1.0, kind="INVALID"))

    series = only(tmp_path)

    assert len(series.points) == 8
    assert all(not trend.changes for trend in series.trends)


def test_every_format_tells_the_first_bad_run(tmp_path: Path) -> None:
    nights(tmp_path, [*steady(12), *steady(6, 900.0)])
    series = only(tmp_path)
    document = history_document([series], [], "store")

    for name in ("console", "markdown", "html", "junit", "github-summary"):
        assert "run-12" in FORMATS[name](document), name
    stored = json.loads(history_json([series], []))
    assert stored["series"][0]["changes"][0]["first_run"] == "run-12"


@pytest.mark.parametrize(
    "changes",
    [
        {"machine": {"cpu": "Some CPU", "cpus_usable": 8, "memory_total_kib": "16777216"}},
        {"interpreter": {"implementation": "cpython", "version": "3.12.1"}},
        {"model": {"name": "qwen3-next", "preset": "tiny", "device": "cuda:0"}},
    ],
    ids=["processors", "Python", "device"],
)
def test_another_machine_python_or_device_is_another_class(changes: dict[str, JsonValue]) -> None:
    assert machine(manifest_from_json({**STORED, **changes})) != machine(HERE)


def test_a_patch_release_of_python_is_the_same_class_of_machine() -> None:
    python: JsonValue = {"implementation": "cpython", "version": "3.11.9"}
    patched = manifest_from_json(manifest("there", 0.0, interpreter=python))

    assert machine(patched) == machine(HERE)


def test_a_newer_torch_is_another_environment_in_the_same_series() -> None:
    versions: JsonValue = {"hybridbench": "0.1.0", "torch": "2.9.0"}
    newer = manifest_from_json(manifest("there", 0.0, versions=versions))

    assert series_facts(newer) == series_facts(HERE)
    assert environment(newer) != environment(HERE)


def test_a_rate_grew_only_if_its_whole_interval_is_above() -> None:
    before = Rate(1.0, 0.9, 1.1, "B", "h")

    assert grew(Rate(1.3, 1.2, 1.4, "B", "h"), before)
    assert not grew(Rate(1.3, 1.05, 1.5, "B", "h"), before)
    assert not grew(Rate(1.3, -math.inf, math.inf, "B", "h"), before)
    assert not grew(Rate(1.3, 1.2, 1.4, "B", "h"), Rate(1.0, -math.inf, math.inf, "B", "h"))
