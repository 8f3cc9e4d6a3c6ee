"""How the cost of work changes over a run, in itself and relative to the machine's speed.

Each time is judged twice: in itself, and relative to the other times of the same run.  If something
else slows the machine, all times grow by the same factor; if a part of the engine decays, its time
grows more than those of the other parts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hybridbench.analysis.distributions import t_quantile
from hybridbench.analysis.facts.window import Window
from hybridbench.analysis.reading import mapping, number
from hybridbench.analysis.record import FloatArray, RunRecord
from hybridbench.analysis.trend.work_cost import (
    DERIVED_METRICS,
    DerivedMetric,
    WorkBlocks,
    work_blocks,
)
from hybridbench.analysis.trend.worsening import LEAST_BLOCKS, Worsening, worsening

# Steady traffic needed for a trend or a step: the first minute of a full tree is not typical.
LEAST_WINDOW_S = 90.0

_LEAST_OTHERS = 2  # other times to compare with
# A busy neighbour slows different parts by different amounts: a difference of this share of the
# others' slowdown, as a logarithm, is not a sign of decay.
_UNLIKE = 0.5
_WHOLE, _MODEL = "token_ms", "forward_ms"

_CONFIDENCE = 0.999
_MAX_PHI = 0.9

# Levels that the cost of work may grow with; the finding names one that explains more than time.
_LEVELS = {"container.tree_nodes.len": "tree_nodes"}
_GC_LEVELS = {"gc_tracked_objects": "gc_tracked_objects"}
_CLEARLY_BETTER = 0.8  # a level must leave less than this share of time's squared error
_MOVES = 0.05  # a level that varies less, as a logarithm, explains nothing


@dataclass(frozen=True)
class Change:
    """How a quantity changed, in itself and relative to the machine's speed."""

    raw: Worsening | None = None
    relative: Worsening | None = None

    def is_decay(self, derived: DerivedMetric) -> bool:
        if not derived.judged or self.raw is None or self.relative is None:
            return False
        # A part that takes no longer than before is not worse, however much faster the rest became.
        return self.relative.worse and self.raw.change > 0

    def is_machine(self, derived: DerivedMetric) -> bool:
        """Whether the quantity got worse, but no more than everything else did."""
        worse = self.raw is not None and self.raw.worse
        return worse and derived.timed and derived.judged and not self.is_decay(derived)


def can_judge(derived: DerivedMetric, blocks: WorkBlocks, window: Window) -> bool:
    """Whether there is enough work to judge a change."""
    long_enough = window.steady and window.duration_s >= LEAST_WINDOW_S
    return long_enough and len(blocks) >= LEAST_BLOCKS and blocks.total >= derived.least_value


def traffic_start(record: RunRecord, window: Window) -> float:
    """Return when the profile's warm-up requests had finished; never after ``steady``."""
    warmup = mapping(record.manifest.profile.resolved, "warmup")
    wanted = number(warmup, "requests", 500.0)
    finishes = record.series.get("events.finishes")
    if finishes is None or not len(finishes):
        return window.start_s
    at = int(np.searchsorted(finishes.value, wanted))
    if at >= len(finishes):
        return window.start_s
    return min(float(finishes.t_s[at]), window.start_s)


def change_of(
    record: RunRecord, derived: DerivedMetric, blocks: WorkBlocks, span_s: tuple[float, float]
) -> Change:
    """Return how ``derived`` changed, from its ``blocks`` in ``span_s``."""
    least = float(np.log1p(derived.least_change))
    z = _log(derived, blocks)
    raw = worsening(z, blocks.index, blocks.loads, least)
    if not derived.timed:
        return Change(raw, raw)
    slowness = _slowness(record, derived, blocks, span_s)
    if slowness is None:
        return Change(raw)
    known = np.isfinite(slowness)
    if int(known.sum()) < LEAST_BLOCKS:
        return Change(raw)
    less = z[known] - slowness[known]
    index, loads = blocks.index[known], blocks.loads[known]
    slower = worsening(slowness[known], index, loads[:, :0], least)
    least += _UNLIKE * max(0.0, slower.change)
    found = worsening(less, index, loads, least)
    if found.step_at is not None:
        # Positions in the finding refer to all blocks.
        found = replace(found, step_at=int(np.flatnonzero(known)[found.step_at]))
    return Change(raw, found)


def _slowness(
    record: RunRecord, derived: DerivedMetric, blocks: WorkBlocks, span_s: tuple[float, float]
) -> FloatArray | None:
    """Return the relative slowdown of the other times, as a logarithm at the same blocks.

    It is NaN where too few of them are known, and None if there are too few others.
    """
    others = []
    for other in DERIVED_METRICS:
        if not _is_reference(derived, other):
            continue
        seen = work_blocks(record, other, *span_s)
        if seen is None or len(seen) < LEAST_BLOCKS:
            continue
        z = _without_loads(_log(other, seen), seen.loads)
        row = np.full(blocks.index.size, np.nan)
        _, here, there = np.intersect1d(blocks.index, seen.index, return_indices=True)
        row[here] = z[there] - np.median(z)
        others.append(row)
    needed = 1 if derived.name == _WHOLE else _LEAST_OTHERS
    if len(others) < needed:
        return None
    rows = np.stack(others)
    slowness = np.full(blocks.index.size, np.nan)
    enough = np.isfinite(rows).sum(axis=0) >= needed
    slowness[enough] = np.nanmedian(rows[:, enough], axis=0)
    return slowness


def _is_reference(derived: DerivedMetric, other: DerivedMetric) -> bool:
    """Whether ``other`` is a reference for ``derived``.

    A whole step is compared with the model's part of it, and a part with the other parts.
    """
    if derived.name == _WHOLE:
        return other.name == _MODEL
    return other.timed and other.judged and other.name not in (_WHOLE, derived.name)


def _log(derived: DerivedMetric, blocks: WorkBlocks) -> FloatArray:
    """Return the logarithm of the quantity, signed so that more is worse."""
    log: FloatArray = np.log(blocks.value)
    return log if derived.higher_is_worse else -log


def _without_loads(z: FloatArray, loads: FloatArray) -> FloatArray:
    design = np.column_stack([np.ones(z.size), loads])
    explained = loads @ np.linalg.lstsq(design, z, rcond=None)[0][1:]
    left: FloatArray = z - explained
    return left


def half_width(blocks: WorkBlocks, confidence: float = _CONFIDENCE) -> float:
    """Return the half-width of the interval of ``blocks.total``, under AR(1) noise."""
    count = len(blocks)
    residual = (blocks.over - blocks.total * blocks.under) / float(blocks.under.mean())
    energy = float(residual @ residual)
    if energy <= 0:
        return 0.0
    phi = float(np.clip(residual[1:] @ residual[:-1] / energy + 1.0 / count, 0.0, _MAX_PHI))
    se = np.sqrt(energy / (count - 1) / count * (1.0 + phi) / (1.0 - phi))
    return t_quantile(0.5 + confidence / 2, count - 1) * float(se)


def level_followed(record: RunRecord, derived: DerivedMetric, blocks: WorkBlocks) -> str | None:
    """Return the level that explains clearly more of the quantity than time does."""
    z = np.log(blocks.value)
    best, name = _CLEARLY_BETTER * _unexplained(z, blocks.t_s, blocks.loads), None
    levels = _GC_LEVELS if derived.name.startswith("gc_") else _LEVELS
    for series_name, label in levels.items():
        series = record.series.get(series_name)
        if series is None or len(series) < 2 or float(series.value.min()) < 0:
            continue
        level = np.log(np.maximum(np.interp(blocks.t_s, series.t_s, series.value), 1.0))
        if float(np.ptp(level)) < _MOVES:
            continue
        left = _unexplained(z, level, blocks.loads)
        if left < best:
            best, name = left, label
    return name


def _unexplained(z: FloatArray, column: FloatArray, loads: FloatArray) -> float:
    design = np.column_stack([np.ones(z.size), column - column.mean(), loads])
    residual = z - design @ np.linalg.lstsq(design, z, rcond=None)[0]
    return float(residual @ residual)
