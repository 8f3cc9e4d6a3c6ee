"""Runs as points of a history, from whatever a store holds."""

from __future__ import annotations

import os
from pathlib import Path

from hybridbench.over_time.comparer import Value
from hybridbench.over_time.points import read_points
from hybridbench.records.json_value import JsonValue
from tests.unit.over_time.stores import add_comparison, add_night, add_run, verdict


def test_runs_of_a_store_and_of_its_nights_come_oldest_first(tmp_path: Path) -> None:
    add_run(tmp_path, "late", 300.0, verdict(throughput=900.0))
    add_night(tmp_path, "night", 200.0, "PASS")
    add_run(tmp_path, "early", 100.0, verdict())

    points, _ = read_points(tmp_path)

    assert [point.run_id for point in points] == ["early", "night-smoke", "late"]
    late = points[-1].values
    assert late["throughput.mean"].value == 900.0
    assert (late["rss.slope"].lower, late["hit_rate.mean"].value) == (2**20 - 1e5, 0.5)


def test_the_sides_of_a_comparison_are_no_runs(tmp_path: Path) -> None:
    add_comparison(tmp_path, "compared", 100.0, "SAME")

    assert read_points(tmp_path)[0] == []


def test_a_damaged_run_is_told_and_stops_nothing(tmp_path: Path) -> None:
    add_run(tmp_path, "good", 100.0, verdict())
    bad = add_run(tmp_path, "bad", 200.0, verdict())
    (bad / "manifest.json").write_text('{"schema": "hybridbench.run/9"}')
    torn = add_run(tmp_path, "torn", 300.0, verdict())
    (torn / "verdict.json").write_text('{"verdict": "CLE')

    points, (unread,) = read_points(tmp_path)

    assert [point.run_id for point in points] == ["good", "torn"]
    assert points[1].values == {}
    assert "hybridbench.run/9" in unread.problem


def test_a_run_that_is_being_written_is_not_yet_a_point(tmp_path: Path) -> None:
    going = add_run(tmp_path, "going", 100.0)
    (going / "run.lock").write_text(f"{os.getpid()}\n")

    points, (unread,) = read_points(tmp_path)

    assert points == []
    assert "being written" in unread.problem


def test_links_are_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    add_run(elsewhere, "run", 100.0, verdict())
    store = tmp_path / "store"
    store.mkdir()
    (store / "link").symlink_to(elsewhere / "run")

    assert read_points(store)[0] == []


def test_a_growth_of_too_few_samples_is_no_point(tmp_path: Path) -> None:
    stored = verdict()
    assert isinstance(stored, dict)
    few: JsonValue = {"metric": "rss_anon_swap_bytes", "rate_per_hour": None}
    add_run(tmp_path, "few", 100.0, {**stored, "metrics": [few]})

    (point,), _ = read_points(tmp_path)

    assert "rss.slope" not in point.values


def test_the_growth_of_a_watched_program_is_that_of_all_its_processes(tmp_path: Path) -> None:
    stored = verdict()
    assert isinstance(stored, dict)
    each: list[JsonValue] = [
        {
            "metric": f'rss_anon_swap_bytes{{role="{role}"}}',
            "rate_per_hour": {"value": value, "lower": value - 1.0, "upper": None},
        }
        for role, value in (("api", 3.0), ("worker", 4.0))
    ]
    add_run(tmp_path, "watched", 100.0, {**stored, "metrics": each})

    (point,), _ = read_points(tmp_path)

    assert point.values["rss.slope"] == Value(7.0, 5.0, None)
