"""A leak of native memory: malloc through ctypes, at a constant rate by the clock.

Used as ``--defect tests/scenarios/planted/native_growth.py``.  No Python object is created per
event, so that only the memory of the process shows it.  ``PLANTED_GB_PER_H`` sets the rate; the
default, 3.7, is that of sglang#25770.
"""

from __future__ import annotations

import ctypes
import os
import time

from hybridbench.defects.defect import Defect, Patch, Signature, fingerprint_of
from hybridbench.engine.engine import Engine
from hybridbench.engine.events import EngineEvent

BYTES_PER_S = float(os.environ.get("PLANTED_GB_PER_H", "3.7")) * 1e9 / 3600
BLOCK_BYTES = 64 * 1024


class NativeGrowth:
    """Allocates and fills blocks of 64 KiB at the given rate and never frees them."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None)
        self._malloc = libc.malloc
        self._malloc.restype = ctypes.c_void_p
        self._malloc.argtypes = [ctypes.c_size_t]
        self._made = 0
        self._start_s = time.monotonic()

    def work(self) -> None:
        """Allocate the blocks due by now, and write to them so that they become resident."""
        due = (time.monotonic() - self._start_s) * BYTES_PER_S / BLOCK_BYTES
        while self._made < due:
            block = self._malloc(BLOCK_BYTES)
            ctypes.memset(block, 1, BLOCK_BYTES)
            self._made += 1


_healthy = Engine.step
_growth: list[NativeGrowth] = []


def _step(self: Engine) -> list[EngineEvent]:
    if not _growth:
        _growth.append(NativeGrowth())
    _growth[0].work()
    return _healthy(self)


DEFECT = Defect(
    slug="planted-native-growth",
    source="test#2",
    symptom="native memory grows with time",
    profile="chat-churn",
    signature=Signature(("LEAK",), ("growth",), "rss_anon_swap_bytes", "time", "3.7 GB/h"),
    patches=(Patch(Engine, "step", _step, fingerprint_of(_healthy)),),
)
