"""The garbage collector of this process: its mode, how often and how long it ran, what it freed."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_FULL_GENERATION = 2


class GcMonitor:
    """Listens to the collector's own callbacks.  Call ``close`` to stop listening.

    The callbacks run inside each collection and only add numbers: about a microsecond.
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
    """What ``mode`` asks for once the engine is built and touched, as serving engines do it."""
    if mode == "freeze-after-warmup":
        # Without this collection, start-up garbage would be frozen in and never be freed.
        gc.collect()
        gc.freeze()


def gc_settings(mode: str) -> dict[str, bool | int | str]:
    """How the collector is set now, for the manifest."""
    young, middle, old = gc.get_threshold()
    return {
        "mode": mode,
        "enabled": gc.isenabled(),
        "threshold_0": young,
        "threshold_1": middle,
        "threshold_2": old,
        "frozen_objects": gc.get_freeze_count(),
    }
