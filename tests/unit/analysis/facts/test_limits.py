"""Certain growth is never CLEAN, and the limits for a run are those of the length it reached."""

from __future__ import annotations

import pytest

from hybridbench.analysis.facts.limits import growth_limits, run_length_s
from hybridbench.analysis.judge import judge
from hybridbench.analysis.record import RunRecord
from hybridbench.foundation.metrics import MEMORY
from hybridbench.records.events import Extended, ExtensionEnded
from hybridbench.records.finding import VerdictKind
from hybridbench.records.json_value import JsonValue
from hybridbench.records.verdict import MetricResult
from tests.unit.analysis.records import (
    GIB,
    Run,
    healthy_record,
    notes_with,
    with_events,
    with_manifest,
)

GB, MIB = 1e9, 2.0**20
SCHEDULE: JsonValue = [
    {"from_s": 180.0, "rss_anon_swap_bytes": 800 * MIB, "gc_collectible_bytes": 400 * MIB},
    {"from_s": 600.0, "rss_anon_swap_bytes": 400 * MIB, "gc_collectible_bytes": 200 * MIB},
]


def memory(run: Run, schedule: JsonValue = SCHEDULE) -> tuple[VerdictKind, MetricResult]:
    record = healthy_record(run)
    profile: JsonValue = {"limits": schedule, "assert_coverage": {}}
    verdict = judge(with_manifest(record, profile=profile))
    return verdict.kind, next(m for m in verdict.metrics if m.metric == MEMORY)


@pytest.mark.parametrize("duration_s", [120.0, 150.0, 180.0, 240.0])
@pytest.mark.parametrize("rate", [1 * GB, 3.7 * GB, 10 * GB])
@pytest.mark.parametrize("seed", range(3))
def test_growth_above_what_settles_is_never_clean_under_any_limit(
    duration_s: float, rate: float, seed: int
) -> None:
    run = Run(duration_s, 20.0, seed, leak_bytes_per_h=rate, settle_bytes=0.0, limit=20 * GIB)

    verdict = judge(healthy_record(run))
    result = next(m for m in verdict.metrics if m.metric == MEMORY)

    assert result.rate_per_hour is not None
    assert result.rate_per_hour.upper < 20 * GIB
    assert verdict.kind is VerdictKind.INCONCLUSIVE
    assert result.why is not None
    assert result.why.code == "growing"
    assert verdict.findings[0].data["needed_s"] is not None


def test_a_run_shorter_than_every_limit_stays_open_even_if_it_is_flat() -> None:
    kind, result = memory(Run(120.0, 20.0, settle_bytes=0.0))

    assert kind is VerdictKind.INCONCLUSIVE
    assert result.why is not None
    assert result.why.code == "limit-not-measured"
    assert result.needed_s is not None
    # One more minute of traffic reaches the first limit.
    assert result.needed_s - (result.window_s[1] - result.window_s[0]) == pytest.approx(60.0, abs=3)


def test_a_profile_that_never_limits_memory_does_not_ask_for_more_time() -> None:
    kind, result = memory(Run(120.0, 20.0, settle_bytes=0.0), [{"from_s": 0.0, "hit_rate": 0.5}])

    assert kind is VerdictKind.INCONCLUSIVE
    assert result.why is not None
    assert result.why.code == "no-limit"
    assert result.needed_s is None


def test_the_limit_is_that_of_the_length_reached() -> None:
    record = healthy_record(Run(700.0, 20.0))
    extended = with_manifest(
        record, planned_duration_s=200.0, profile={"limits": SCHEDULE, "assert_coverage": {}}
    )

    limits = growth_limits(extended)

    assert run_length_s(extended) > 600.0
    assert limits is not None
    assert limits[MEMORY] == 400 * MIB


def test_an_early_stop_does_not_loosen_the_limit() -> None:
    record = healthy_record(Run(240.0, 20.0))
    stopped = with_manifest(
        record, planned_duration_s=7200.0, profile={"limits": SCHEDULE, "assert_coverage": {}}
    )

    limits = growth_limits(stopped)

    assert limits is not None
    assert limits[MEMORY] == 400 * MIB


def test_a_flat_run_that_has_a_limit_is_clean_with_its_bound() -> None:
    kind, result = memory(Run(280.0, 20.0, settle_bytes=0.0))

    assert kind is VerdictKind.CLEAN
    assert result.limit_per_hour == 800 * MIB
    assert result.why is not None
    assert result.why.code == "bounded"
    assert (result.why.data["source"], result.why.data["bound"]) == ("profile", 800 * MIB)


def extended(*, settled: bool) -> RunRecord:
    record = with_events(
        healthy_record(Run(600.0, 20.0)),
        Extended(limit_s=600.0, text="private memory: growing", t_s=301.0),
        ExtensionEnded(settled, t_s=590.0),
    )
    return with_manifest(record, planned_duration_s=300.0)


def test_an_extension_that_was_settled_is_clean_and_says_how_long_it_took() -> None:
    verdict = judge(extended(settled=True))

    assert verdict.kind is VerdictKind.CLEAN
    assert notes_with(verdict, "extended") == [
        "extended by 4m49s (at most 10m) beyond the planned 5m, because the verdict was undecided: "
        "private memory: growing"
    ]


def test_one_clean_look_at_the_end_of_an_extension_is_not_clean() -> None:
    verdict = judge(extended(settled=False))

    assert verdict.kind is VerdictKind.INCONCLUSIVE
    assert verdict.findings[0].data["open"] == "extension"
