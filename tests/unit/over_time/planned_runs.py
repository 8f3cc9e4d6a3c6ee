"""Plans, runs of cells and stored cells for tests of nightly runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

from hybridbench.over_time.cells import find_cell
from hybridbench.over_time.planned import PlannedRun, plan_run
from hybridbench.over_time.stored import write_record
from hybridbench.records.finding import Rate, VerdictKind
from hybridbench.records.nightly import (
    Attempt,
    AttemptFinding,
    AttemptReason,
    CellRecord,
)
from hybridbench.rundir.layout import CELL
from hybridbench.workload.catalog import list_profiles

# 2026-11-20, 12:00 UTC.
NOON_S = 1_795_176_000.0
DAY_S = 86_400.0

PLAN = """\
name: test
duration: 30m
least_duration: 15m
cells:
  - {id: one, profile: smoke}
  - {id: two, profile: smoke, seed: 5}
"""


def planned_run(folder: Path, text: str = PLAN, **options: Any) -> PlannedRun:
    """Store the plan ``text`` in ``folder`` and return its planned run."""
    path = folder / "plan.yaml"
    path.write_text(text, encoding="utf-8")
    return plan_run(path, **options)


def profile_file(path: Path, name: str) -> None:
    """Write a profile called ``name`` to ``path``."""
    text = list_profiles()["smoke"].read_text(encoding="utf-8")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(re.sub("(?m)^name: .*", f"name: {name}", text), encoding="utf-8")


def rate(value: float, per: str = "h", unit: str = "B", width: float = 0.1) -> Rate:
    low, high = value * (1 - width), value * (1 + width)
    return Rate(value=value, lower=low, upper=high, unit=unit, per=per)


GROWTH = AttemptFinding(
    kind="growth",
    verdict=VerdictKind.LEAK,
    subject="rss_anon_swap_bytes",
    title="private memory grows",
    rates=(rate(2e9),),
    exact=False,
)
NODES = AttemptFinding(
    kind="instances-wait-for-collector",
    verdict=VerdictKind.LEAK,
    subject="TreeNode",
    title="tree nodes wait for the collector",
    driver="nodes_evicted",
    rates=(rate(0.85, "evicted node", "nodes"),),
)
UNDECIDED = AttemptFinding(
    kind="undecided",
    verdict=VerdictKind.INCONCLUSIVE,
    subject="rss_anon_swap_bytes",
    title="too short",
)


def attempt(
    verdict: str = "CLEAN",
    *findings: AttemptFinding,
    reason: AttemptReason = AttemptReason.FIRST,
    **changes: Any,
) -> Attempt:
    """Return a finished attempt."""
    given: dict[str, Any] = {
        "number": 1,
        "reason": reason,
        "seed": 1,
        "duration_s": 1800.0,
        "started_wall_s": NOON_S,
        "ended_wall_s": NOON_S + 80.0,
        "command": ("hybridbench", "soak"),
        "extend_s": 1800.0,
        "run": "attempt-1/run",
        "exit_code": {"CLEAN": 0, "INCONCLUSIVE": 13}.get(verdict, 10),
        "verdict": verdict,
        "headline": f"what was found: {len(findings)}",
        "findings": findings,
        "metrics": {"throughput_tokens_per_s": 1000.0},
        "growth": {"rss_anon_swap_bytes": rate(1e6)},
        "judged_s": 50.0,
        "machine_class": "a machine",
        "engine": "e0",
    }
    return Attempt(**{**given, **changes})


def finished(of: PlannedRun, cell_id: str, *attempts: Attempt, done: bool = True) -> CellRecord:
    """Return the record in cell.json of the cell ``cell_id`` after ``attempts``."""
    cell = find_cell(of.cells, cell_id).cell
    return CellRecord(plan=of.record, cell=cell, attempts=attempts, finished=done)


def store(record: CellRecord, folder: Path) -> Path:
    """Write ``record`` as `nightly cell --out FOLDER` does; return its directory."""
    cell_dir = folder / record.id
    cell_dir.mkdir(parents=True)
    write_record(cell_dir / CELL, record)
    return cell_dir


def at(record: Attempt, days: float) -> Attempt:
    """Return ``record`` moved ``days`` later."""
    later_s = record.started_wall_s + days * DAY_S
    return msgspec.structs.replace(record, started_wall_s=later_s, ended_wall_s=later_s + 80.0)
