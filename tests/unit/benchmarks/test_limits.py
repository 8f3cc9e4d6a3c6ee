"""The measured limits of short runs: which recordings count, and what the tables say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from benchmarks.limits import (
    GROWTH_GB_PER_H,
    LENGTHS_S,
    GrowthRow,
    LimitRow,
    Recording,
    beginning,
    growth_rows,
    growth_table,
    limit_rows,
    limit_table,
    missed_limits,
    recordings,
    wanted,
    with_growth,
)
from hybridbench.analysis.record import Series
from hybridbench.foundation.clock import FakeClock
from hybridbench.foundation.metrics import MEMORY
from hybridbench.records.events import Phase
from hybridbench.records.finding import VerdictKind
from hybridbench.records.json_value import JsonValue
from hybridbench.records.manifest import ResolvedProfile, manifest_from_json
from hybridbench.rundir.writer import RunWriter
from hybridbench.workload.catalog import load_profile
from tests.unit.analysis.records import Run, healthy_record

MIB = 2.0**20


def recorded(profile: str = "chat-churn", seed: int = 101) -> Recording:
    run = Run(1230.0, 30.0, seed, settle_bytes=2e6, base_bytes=4e8, teeth_bytes=1e6)
    record = healthy_record(run)
    resolved = ResolvedProfile(name=profile)
    manifest = structs.replace(
        record.manifest, profile=resolved, planned_duration_s=1200.0, seed=seed
    )
    t = record.series[MEMORY].t_s
    counters = {f"events.{counter}" for counter in load_profile(profile).assert_coverage}
    busy = {n: Series(n, t, 100.0 * t) for n in counters if n not in record.series}
    return Recording(
        profile, seed, replace(record, manifest=manifest, series={**record.series, **busy})
    )


def test_the_first_minutes_are_a_run_of_that_length_under_the_given_limits() -> None:
    limits = ({"from_s": 0.0, MEMORY: 1e9},)

    first = beginning(recorded().record, 300.0, limits)

    # The first request came two seconds into the run.
    assert max(float(s.t_s[-1]) for s in first.series.values()) == pytest.approx(302.0, abs=5.0)
    assert first.manifest.planned_duration_s == 300.0
    assert first.manifest.profile.limits == limits
    assert first.manifest.profile.assert_coverage["finishes"] == 3000


def test_growth_is_added_to_the_private_memory_and_to_nothing_else() -> None:
    record = recorded().record

    grown = with_growth(record, 3.7)

    added = grown.series[MEMORY].value - record.series[MEMORY].value
    hours = (record.series[MEMORY].t_s[-1] - record.series[MEMORY].t_s[0]) / 3600.0
    assert added[-1] == pytest.approx(3.7e9 * hours)
    assert all(grown.series[name] is s for name, s in record.series.items() if name != MEMORY)


def row(upper_mib: float, settles_mib: float = 100.0) -> LimitRow:
    return LimitRow("chat-churn", 300.0, 5, 0, upper_mib * MIB, settles_mib * MIB)


def test_a_limit_is_the_worst_bound_with_room_and_no_less_than_what_may_settle() -> None:
    assert row(10.0, 107.0).limit == 110 * MIB
    assert row(200.0).limit == 300 * MIB
    assert row(10.0, 53.0).limit == 55 * MIB


def test_a_length_whose_limit_would_let_a_gigabyte_an_hour_pass_has_none() -> None:
    assert row(600.0).limit is None
    assert limit_table([row(600.0)])[-1].endswith("| none |")


def test_the_rows_of_a_profile_come_from_its_own_recordings() -> None:
    rows = list(limit_rows([recorded(seed=101), recorded(seed=102)]))

    assert [r.length_s for r in rows] == list(LENGTHS_S)
    assert {(r.profile, r.runs) for r in rows} == {("chat-churn", 2)}
    assert rows[-1].settles < rows[0].settles
    assert len(limit_table(rows)) == 2 + len(LENGTHS_S)


@pytest.mark.slow
def test_growth_like_that_of_the_report_is_found_and_never_clean() -> None:
    rows = {(r.length_s, r.gb_per_h): r for r in growth_rows([recorded()])}

    assert rows[300.0, 0.0].verdicts == (VerdictKind.CLEAN,)
    assert rows[300.0, 3.7].verdicts == (VerdictKind.LEAK,)
    assert not any(r.count(VerdictKind.CLEAN) for r in rows.values() if r.gb_per_h >= 1.0)


def test_the_table_of_growth_counts_verdicts() -> None:
    verdicts = (VerdictKind.LEAK, VerdictKind.LEAK, VerdictKind.CLEAN, VerdictKind.DEGRADED)
    rows = [GrowthRow(length, g, verdicts) for length in LENGTHS_S for g in GROWTH_GB_PER_H]

    assert "2 / 0 / 1, 1 DEGRADED" in growth_table(rows)[2]


LEAK, CLEAN, OPEN = VerdictKind.LEAK, VerdictKind.CLEAN, VerdictKind.INCONCLUSIVE


@pytest.mark.parametrize(
    ("length_s", "gb_per_h", "verdicts", "said"),
    [
        (120.0, 0.0, 19 * [OPEN] + [LEAK], "2 min, 0 GB/h: 1 of 20 healthy runs are LEAK"),
        (240.0, 0.0, 20 * [OPEN], ""),
        (300.0, 0.0, 17 * [CLEAN] + 3 * [OPEN], "5 min, 0 GB/h: only 17 of 20 healthy runs"),
        (300.0, 0.0, 18 * [CLEAN] + 2 * [OPEN], ""),
        (600.0, 0.2, 20 * [CLEAN], ""),
        (120.0, 1.0, 19 * [OPEN] + [CLEAN], "2 min, 1 GB/h: 1 of 20 growing runs are CLEAN"),
        (240.0, 3.7, 20 * [OPEN], ""),
        (300.0, 3.7, 17 * [LEAK] + 3 * [OPEN], "5 min, 3.7 GB/h: only 17 of 20 growing runs"),
        (1200.0, 10.0, 18 * [LEAK] + 2 * [OPEN], ""),
    ],
)
def test_what_the_table_of_growth_must_hold_is_checked(
    length_s: float, gb_per_h: float, verdicts: list[VerdictKind], said: str
) -> None:
    broken = list(missed_limits([GrowthRow(length_s, gb_per_h, tuple(verdicts))]))

    assert len(broken) == bool(said)
    assert all(sentence.startswith(said) for sentence in broken)


def test_only_finished_healthy_runs_of_twenty_minutes_count(tmp_path: Path) -> None:
    keys: dict[str, JsonValue] = {
        "run_id": "r",
        "started_wall_s": 1.0,
        "model": {"name": "qwen3-next"},
        "profile": {"name": "chat-churn"},
        "seed": 101,
        "defects": [],
        "versions": {},
        "planned_duration_s": 1200.0,
    }
    kinds: dict[str, dict[str, JsonValue]] = {
        "good": {},
        "short": {"planned_duration_s": 300.0},
        "defect": {"defects": ["lru-reference-cycle"]},
        "other": {"profile": {"name": "smoke"}},
        "cut": {},
    }
    for name, changes in kinds.items():
        (tmp_path / name).mkdir()
        with RunWriter(
            tmp_path / name, manifest_from_json({**keys, **changes}), FakeClock()
        ) as writer:
            writer.sample(1.0, "steady", {MEMORY: 1.0})
            phase = "steady" if name == "cut" else "done"
            writer.event(Phase(name=phase, phase=phase, t_s=2.0))

    found = recordings(tmp_path)

    assert [(r.profile, r.seed) for r in found] == [("chat-churn", 101)]
    assert ("chat-churn", 101) in wanted(1)
