"""This process's garbage collector: its settings, and its runs, pauses and freed objects."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_FULL_GENERATION = 2


class GcMonitor:
    """Counts collections through the collector's callbacks, until ``close``.

    The callbacks run inside each collection and only add numbers, which takes about a microsecond.
    """

    def __init__(self, now_s: Callable[[], float] = time.perf_counter) -> None:
        self._now_s = now_s
        self._started_s = 0.0
        self.full_collections = 0
        self.collected_objects = 0
        self.pause_s = 0.0
        gc.callbacks.append(self._on_collection)

    def close(self) -> None:
        """Stop listening."""
        gc.callbacks.remove(self._on_collection)

    def _on_collection(self, phase: str, info: Mapping[str, int]) -> None:
        if phase == "start":
            self._started_s = self._now_s()
            return
        self.pause_s += self._now_s() - self._started_s
        self.collected_objects += info["collected"]
        if info["generation"] == _FULL_GENERATION:
            self.full_collections += 1


def set_gc_after_warmup(mode: str) -> None:
    """Apply ``mode`` once the engine is built and warmed up, as serving engines do."""
    if mode == "freeze-after-warmup":
        # Without this collection, start-up garbage would be frozen and never freed.
        gc.collect()
        gc.freeze()


def gc_settings(mode: str) -> dict[str, bool | int | str]:
    """Return the collector's current settings, for the manifest."""
    young, middle, old = gc.get_threshold()
    return {
        "mode": mode,
        "enabled": gc.isenabled(),
        "threshold_0": young,
        "threshold_1": middle,
        "threshold_2": old,
        "frozen_objects": gc.get_freeze_count(),
    }
