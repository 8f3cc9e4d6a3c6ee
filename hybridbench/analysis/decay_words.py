"""A decay as a finding: before and after, since when, what it follows, why it is no accident."""

from __future__ import annotations

import numpy as np

from hybridbench.analysis.derived import Derived, WorkBlocks
from hybridbench.analysis.findings import Finding, VerdictKind
from hybridbench.analysis.record import FloatArray, RunRecord
from hybridbench.analysis.worsening import Worsening

# Levels that work may grow with; the finding names one that explains more than time does.
_LEVELS = {"container.tree_nodes.len": "tree_nodes"}
_GC_LEVELS = {"gc_tracked_objects": "gc_tracked_objects"}
_CLEARLY_BETTER = 0.8  # of the squared error that time leaves, a level must leave less
_MOVES = 0.05  # a level that varies less, as a logarithm, explains nothing


def decay_finding(
    record: RunRecord, derived: Derived, blocks: WorkBlocks, change: Worsening
) -> Finding:
    """The finding that ``change`` makes."""
    before, after, since_s = _before_after(blocks, change)
    factor = float(np.exp(change.change))
    least = float(np.expm1(change.sure))
    driver = _level_followed(record, derived, blocks)
    return Finding(
        kind="decay",
        verdict=VerdictKind.DEGRADED,
        subject=derived.name,
        title=f"the {derived.label} {'rose' if derived.higher_is_worse else 'fell'} "
        f"{'in one step' if change.shape == 'step' else 'steadily'} "
        f"from {quantity(before, derived)} to {quantity(after, derived)}",
        driver=driver,
        evidence=tuple(_evidence(derived, least, driver)),
        since_s=since_s,
        data={
            "shape": change.shape,
            "unit": derived.unit,
            "before": before,
            "after": after,
            "factor": factor,
            "factor_lower": float(np.exp(change.lower)),
            "factor_upper": float(np.exp(change.upper)),
            "least_change": derived.least_change,
        },
    )


def quantity(value: float, derived: Derived) -> str:
    """A value in words: ``0.112 ms``, ``74.2 %``."""
    if derived.unit == "ratio":
        return f"{100 * value:.3g} %"
    return f"{value:.3g} {derived.unit}"


def _evidence(derived: Derived, least: float, driver: str | None) -> list[str]:
    said = [
        f"worse by at least {least:.0%} beyond doubt (99.9 %); {derived.least_change:.0%} counts",
    ]
    if derived.loads:
        said.append("what batches and prompts explain of it is taken out")
    if derived.timed:
        said.append("the other times of the run did not rise with it, so it is not the machine")
    if driver is not None:
        said.append(f"it follows {driver} better than it follows time")
    return said


def _before_after(blocks: WorkBlocks, change: Worsening) -> tuple[float, float, float]:
    """Quotients of the two sides of a step, or of the first and last third; and since when."""
    count = len(blocks)
    third = count // 3
    since = 0 if change.step_at is None else change.step_at
    ends = third if change.step_at is None else since
    begins = count - third if change.step_at is None else since
    before, after = _quotient(blocks, 0, ends), _quotient(blocks, begins, count)
    return before, after, float(blocks.t_s[since])


def _quotient(blocks: WorkBlocks, first: int, end: int) -> float:
    return float(blocks.over[first:end].sum() / blocks.under[first:end].sum())


def _level_followed(record: RunRecord, derived: Derived, blocks: WorkBlocks) -> str | None:
    """The level that leaves clearly less of the quantity unexplained than time does."""
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
