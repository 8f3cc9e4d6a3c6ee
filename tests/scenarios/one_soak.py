"""One short soak as a process: ``python -m tests.scenarios.one_soak STORE SECONDS``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from hybridbench.records.manifest import Options
from hybridbench.runs.plan import SoakPlan
from hybridbench.runs.soak import run_soak
from hybridbench.workload.catalog import load_profile

# Small enough to start within seconds, while the run still goes through every phase.
OVERRIDES = {
    "ballast.objects": "1000",
    "warmup.requests": "20",
    "checkpoint.every": "4s",
    "checkpoint.settle": "100ms",
    "probe.collectible_every": "1s",
    "probe.sample_every": "500ms",
}
# A moderate load, for tests that only wait for a run to progress.
CALM = {"arrival": "{process: poisson, rate: 10/s, max_in_flight: 12}"}
# Fewer heap scans and requests, for processes that are only interrupted.
SELDOM = {
    "probe.collectible_every": "5s",
    "arrival": "{process: poisson, rate: 4/s, max_in_flight: 12}",
}
# No greedy answers, because recomputing them takes a second engine.
UNCHECKED = {"sampling": "{greedy: 0.0}"}


def short_plan(
    store: Path,
    duration_s: float,
    model: str = "qwen3-next-nano",
    defects: tuple[str, ...] = (),
    watchdog_s: float = 60.0,
    overrides: Mapping[str, str] = OVERRIDES,
) -> SoakPlan:
    """Return a plan with a shortened smoke profile."""
    return SoakPlan(
        profile=load_profile("smoke").with_overrides(overrides),
        model=model,
        store=store,
        duration_s=duration_s,
        seed=1,
        defects=defects,
        ui="none",
        options=Options(watchdog_s=watchdog_s),
    )


def main() -> int:
    """Return the outcome's exit code if it has one, 14 for a crash, otherwise 0."""
    parser = argparse.ArgumentParser()
    parser.add_argument("store", type=Path)
    parser.add_argument("seconds", type=float)
    options = parser.parse_args()
    overrides = {**OVERRIDES, **CALM, **UNCHECKED, **SELDOM}
    outcome = run_soak(short_plan(options.store, options.seconds, overrides=overrides))
    if outcome.exit_hint is not None:
        return int(outcome.exit_hint)
    return 14 if outcome.crashed else 0


if __name__ == "__main__":
    sys.exit(main())
