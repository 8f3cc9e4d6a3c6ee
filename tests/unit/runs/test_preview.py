"""What a dry run prints, built from the messages of a worker that never ran."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from hybridbench.foundation.errors import ConfigError, ErrorCode, RunDirectoryError
from hybridbench.records.codec import to_json
from hybridbench.records.messages import HeapScanReply, Ready
from hybridbench.rundir.layout import make_run_dir
from hybridbench.runs.plan import SoakPlan
from hybridbench.runs.preview import Preview, Resolution, build_preview, preview_soak
from hybridbench.workload.catalog import list_profiles, load_profile
from hybridbench.workload.trace_replay import TraceOptions
from tests.unit.runs.soaks import make_plan

MIB = 2**20


def ready(capabilities: tuple[str, ...] = ("traffic", "gc_census")) -> Ready:
    return Ready(
        pid=1,
        capabilities=list(capabilities),
        metrics=["rss_bytes", "events.*"],
        heap_scan="fork",
        engine_files_sha256="",
        engine_files=1,
        model="qwen3-next-tiny",
        model_note="tiny",
        pools={},
        versions={},
        gc={},
        malloc={},
        max_prompt_tokens=1,
        vocab_size=1,
        boot_s=1.0,
    )


def heap_scan(stop_s: float) -> HeapScanReply:
    return HeapScanReply(probe_id=1, t_s=0.0, method="fork", error="", stop_s=stop_s, child_s=1.0)


def preview(plan: SoakPlan, stop_s: float = 0.05, memory_bytes: int = 400 * MIB) -> Preview:
    return build_preview(plan, ready(), memory_bytes, heap_scan(stop_s))


def test_a_longer_run_resolves_less_and_writes_more(tmp_path: Path) -> None:
    short = preview(replace(make_plan(1200.0), store=tmp_path / "not" / "there"))
    long = preview(replace(make_plan(12_000.0), store=tmp_path))

    assert long.disk_needed_bytes > short.disk_needed_bytes
    for early, late in zip(short.resolutions, long.resolutions, strict=True):
        assert late.smallest_per_h < early.smallest_per_h
    assert short.judged_s < short.duration_s


def test_what_a_target_cannot_show_is_said() -> None:
    said = preview(make_plan()).not_seen

    assert any("pool" in text for text in said)
    assert not any("uncollected garbage" in text for text in said)


@pytest.mark.parametrize(("budget", "left_out"), [("20", True), ("100", False), ("null", False)])
def test_a_heap_scan_above_its_budget_is_announced_as_left_out(budget: str, left_out: bool) -> None:
    plan = make_plan(settings={"probe.max_stall_ms": budget})

    told = preview(plan, stop_s=0.05)

    assert told.stall is not None
    assert told.stall.left_out is left_out
    assert any("max_stall_ms" in text for text in told.warnings) is left_out


def test_a_run_too_short_for_its_limit_is_warned_of() -> None:
    warnings = preview(make_plan(120.0), memory_bytes=80_000 * MIB).warnings

    assert any("only exact findings count" in text for text in warnings)
    assert any("too short for its limit" in text for text in warnings)


def test_a_run_too_short_to_have_a_limit_is_warned_of() -> None:
    warnings = preview(make_plan(60.0)).warnings

    assert sum("has no limit for" in text for text in warnings) == 2


@pytest.mark.parametrize("name", sorted(list_profiles()))
def test_no_shipped_profile_is_said_to_make_no_aborts(name: str) -> None:
    profile = load_profile(name)
    plan = replace(make_plan(profile.duration_s), profile=profile)

    assert not [line for line in preview(plan).warnings if "makes none" in line]


def test_aborts_that_must_happen_and_cannot_are_warned_of() -> None:
    profile = load_profile("queue-abort").with_overrides({"aborts.queue_timeout": "null"})

    found = preview(replace(make_plan(1800.0), profile=profile)).warnings

    assert "abort_queued must reach 20, and the profile makes none" in found


def test_a_python_that_collects_incrementally_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybridbench.runs.preview._INCREMENTAL_GC", ((3, 0, 0), (4, 0, 0)))

    assert any(
        text.endswith("generation 2 is not a full collection")
        for text in preview(make_plan()).warnings
    )


def test_a_heap_scan_that_does_not_work_is_warned_of() -> None:
    told = build_preview(make_plan(), ready(), 400 * MIB, None)

    assert told.stall is None
    assert any("no heap scan worked" in text for text in told.warnings)


class StartedError(Exception):
    """Everything up to the start of the worker was accepted."""


@pytest.fixture
def no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*_: object) -> NoReturn:
        raise StartedError

    monkeypatch.setattr("hybridbench.runs.preview.BundledTarget", started)


@pytest.mark.usefixtures("no_worker")
@pytest.mark.parametrize("below", ["", "not/yet/there"])
def test_where_results_can_be_written_the_worker_starts_and_nothing_stays(
    tmp_path: Path, below: str
) -> None:
    with pytest.raises(StartedError):
        preview_soak(replace(make_plan(), store=tmp_path / below))

    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("no_worker")
@pytest.mark.parametrize("store", ["file", "file/below", "link", "link/below", "x" * 300])
def test_a_store_that_the_run_could_not_write_is_refused(tmp_path: Path, store: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "absent")
    plan = replace(make_plan(), store=tmp_path / store)

    with pytest.raises(RunDirectoryError) as previewed:
        preview_soak(plan)
    with pytest.raises(RunDirectoryError) as run:
        make_run_dir(plan.store, "run")

    assert previewed.value.code is run.value.code is ErrorCode.NOT_WRITABLE
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "link"]


@pytest.mark.usefixtures("no_worker")
def test_a_name_that_no_directory_can_have_is_refused(tmp_path: Path) -> None:
    long = replace(make_plan(), store=tmp_path, defects=tuple(f"defect-{i}" for i in range(40)))

    with pytest.raises(RunDirectoryError) as caught:
        preview_soak(long)

    assert caught.value.code is ErrorCode.NOT_WRITABLE


@pytest.mark.usefixtures("no_worker")
def test_a_trace_that_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    for path in (tmp_path, tmp_path / "pipe", tmp_path / "absent"):
        with pytest.raises(ConfigError):
            preview_soak(replace(make_plan(), store=tmp_path, trace=TraceOptions(path)))


@pytest.mark.slow
def test_a_real_worker_is_measured_and_leaves_nothing_behind(tmp_path: Path) -> None:
    plan = make_plan(settings={"ballast.objects": "1000"})
    told = preview_soak(replace(plan, model="qwen3-next-tiny", store=tmp_path))

    assert told.stall is not None
    assert told.stall.stop_s > 0
    assert told.memory_now_bytes > 50 * MIB
    assert told.not_seen == ()
    assert list(tmp_path.iterdir()) == []


def test_the_limit_of_a_metric_keeps_its_stored_name() -> None:
    assert to_json(Resolution("rss_anon_swap_bytes", 1.0, 2.0)) == {
        "metric": "rss_anon_swap_bytes",
        "smallest_per_h": 1.0,
        "limit_per_h": 2.0,
    }
