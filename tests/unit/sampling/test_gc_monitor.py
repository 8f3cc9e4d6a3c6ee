from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from hybridbench.sampling.gc_monitor import (
    GcMonitor,
    gc_settings,
    set_gc_after_warmup,
)


@pytest.fixture(autouse=True)
def settings_come_back() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)


def test_full_collections_their_yield_and_their_pauses_add_up() -> None:
    ticks = iter(range(100))
    monitor = GcMonitor(now_s=lambda: next(ticks))
    gc.disable()
    try:
        for _ in range(40):
            cycle: list[object] = []
            cycle.append(cycle)
        del cycle
        gc.collect(0)
        gc.collect()
    finally:
        gc.enable()
        monitor.close()

    assert monitor.full_collections == 1
    assert monitor.collected_objects >= 40
    assert monitor.pause_s == 2.0


def test_a_closed_monitor_hears_nothing() -> None:
    monitor = GcMonitor()
    monitor.close()
    gc.collect()

    assert monitor.full_collections == 0


def test_thresholds_and_freezing_are_set_and_told() -> None:
    kept: list[object] = [[] for _ in range(1000)]
    gc.set_threshold(900, 11, 12)
    before = gc_settings("freeze-after-warmup")
    set_gc_after_warmup("freeze-after-warmup")
    after = gc_settings("freeze-after-warmup")

    assert (before["threshold_0"], before["threshold_1"], before["threshold_2"]) == (900, 11, 12)
    counts = before["frozen_objects"], after["frozen_objects"]
    assert isinstance(counts[0], int)
    assert isinstance(counts[1], int)
    assert counts[1] - counts[0] > len(kept)


def test_the_default_mode_changes_nothing() -> None:
    before = gc_settings("default")
    set_gc_after_warmup("default")

    assert gc_settings("default") == before
