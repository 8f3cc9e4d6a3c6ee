"""What a dry run says before anything runs, worked out from a worker that only pretends."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hybridbench.records.messages import CensusReply, Ready
from hybridbench.runs.plan import SoakPlan
from hybridbench.runs.preview import Preview, build_preview, preview_soak
from tests.unit.runs.soaks import make_plan

MIB = 2**20


def ready(capabilities: tuple[str, ...] = ("traffic", "gc_census")) -> Ready:
    return Ready(
        pid=1,
        capabilities=list(capabilities),
        metrics=["rss_bytes", "events.*"],
        census="fork",
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


def census(stop_s: float) -> CensusReply:
    return CensusReply(probe_id=1, t_s=0.0, method="fork", error="", stop_s=stop_s, child_s=1.0)


def preview(plan: SoakPlan, stop_s: float = 0.05, memory_bytes: int = 400 * MIB) -> Preview:
    return build_preview(plan, ready(), memory_bytes, census(stop_s))


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
def test_a_census_above_its_budget_is_announced_as_left_out(budget: str, left_out: bool) -> None:
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

    assert sum("no limit is measured" in text for text in warnings) == 2


def test_a_census_that_does_not_work_is_warned_of() -> None:
    told = build_preview(make_plan(), ready(), 400 * MIB, None)

    assert told.stall is None
    assert any("no heap scan worked" in text for text in told.warnings)


@pytest.mark.slow
def test_a_real_worker_is_measured_and_leaves_nothing_behind(tmp_path: Path) -> None:
    plan = make_plan(settings={"ballast.objects": "1000"})
    told = preview_soak(replace(plan, model="qwen3-next-tiny", store=tmp_path))

    assert told.stall is not None
    assert told.stall.stop_s > 0
    assert told.memory_now_bytes > 50 * MIB
    assert told.not_seen == ()
    assert list(tmp_path.iterdir()) == []
