"""Garbage is judged by what full collections leave, not by its peaks between them."""

from __future__ import annotations

import numpy as np
import pytest

from hybridbench.analysis.facts.window import Window
from hybridbench.analysis.judge import judge
from hybridbench.analysis.record import FloatArray, RunRecord, Series
from hybridbench.analysis.trend.sawtooth import Floors, floors_after_collections
from hybridbench.records.manifest import Manifest
from tests.unit.analysis.records import Run, healthy_record, with_series

MIB = float(2**20)
PERIOD_S = 45.0


def teeth(t: FloatArray, per_s: float, kept_per_tooth: float) -> FloatArray:
    """Garbage that grows by ``per_s``; each period's collection leaves ``kept_per_tooth``."""
    return per_s * (t % PERIOD_S) + kept_per_tooth * np.floor(t / PERIOD_S)


def seen(kept_per_tooth: float) -> Floors | None:
    heap_scans = np.arange(3.0, 600.0, 4.0)
    samples = np.arange(0.0, 600.0, 1.0)
    collections = Series("gc_gen2_collections", samples, np.floor(samples / PERIOD_S))
    record = RunRecord(Manifest(), {"gc_gen2_collections": collections}, ())
    garbage = teeth(heap_scans, 0.4 * MIB, kept_per_tooth)
    return floors_after_collections(record, Window(50.0, 600.0, True), heap_scans, garbage)


def test_a_sawtooth_that_falls_back_to_the_same_has_floors_that_do_not_rise() -> None:
    floors = seen(0.0)

    assert floors is not None
    assert len(floors) == 12
    assert floors.lower < 0 < floors.upper
    assert floors.upper * 3600 < 60 * MIB


def test_what_collections_leave_behind_is_the_slope_of_the_floors() -> None:
    floors = seen(8 * MIB)

    assert floors is not None
    assert floors.surely > 0
    assert floors.slope_per_s == pytest.approx(8 * MIB / PERIOD_S, rel=0.05)


def test_without_two_collections_there_are_no_floors() -> None:
    t = np.arange(0.0, 100.0, 4.0)
    once = Series("gc_gen2_collections", t, (t > 50).astype(float))
    record = RunRecord(Manifest(), {"gc_gen2_collections": once}, ())

    assert floors_after_collections(record, Window(0.0, 100.0, True), t, t) is None
    none = RunRecord(Manifest(), {}, ())
    assert floors_after_collections(none, Window(0.0, 100.0, True), t, t) is None


def test_the_range_of_two_floors_is_no_interval_of_95_percent() -> None:
    """With one degree of freedom, a 95% interval is about 13 times as wide as their distance."""
    t = np.arange(0.0, 100.0, 4.0)
    twice = Series(
        "gc_gen2_collections", t, np.where(t > 20, 1.0, 0.0) + np.where(t > 60, 1.0, 0.0)
    )
    record = RunRecord(Manifest(), {"gc_gen2_collections": twice}, ())

    floors = floors_after_collections(record, Window(0.0, 100.0, True), t, t * MIB)

    assert floors is not None
    assert len(floors) == 2
    assert floors.upper > 10 * floors.slope_per_s
    assert floors.lower < 0 > floors.surely


@pytest.mark.parametrize(("kept", "outcome"), [(0.0, "CLEAN"), (30 * MIB, "LEAK")])
def test_a_garbage_sawtooth_is_judged_by_its_troughs(kept: float, outcome: str) -> None:
    run = Run(duration_s=600.0, steady_s=60.0, limit=2 * 2.0**30)
    t = np.arange(5.0, 594.0, 4.0)
    samples = np.arange(0.0, 594.0, 1.0)
    record = with_series(
        healthy_record(run),
        Series("gc_collectible_bytes", t, teeth(t, 0.8 * MIB, kept)),
        Series("gc_gen2_collections", samples, np.floor(samples / PERIOD_S)),
    )

    (result,) = [m for m in judge(record).metrics if m.metric == "gc_collectible_bytes"]

    assert result.outcome == outcome
    assert "full collections" in result.model
