"""Memory from rest to rest: drained, the cache flushed, private memory read, and load again.

Only where a profile flushes at every checkpoint (``checkpoint.flush``) is each rest like the last:
otherwise a rest holds whatever the cache happened to keep.  Memory has no exact value to compare
with, so the rests are a series, judged as any other gated metric is.
"""

from __future__ import annotations

from dataclasses import replace

from hybridbench.analysis.reading import mapping
from hybridbench.analysis.record import FloatArray, RunRecord, Series
from hybridbench.analysis.window import Window

AT_REST = "rest_anon_swap_bytes"


def rests_are_alike(record: RunRecord) -> bool:
    """Whether the cache was flushed before memory was read at each rest."""
    resolved = mapping(mapping(record.manifest, "profile"), "resolved")
    return mapping(resolved, "checkpoint").get("flush") is True


def judged_samples(window: Window, series: Series) -> tuple[FloatArray, FloatArray]:
    """Times and values of ``series`` in the window; rests lie where others are left out."""
    if series.name == AT_REST:
        window = replace(window, pauses=())
    return window.samples(series)
