"""Complete short soaks with real processes: a healthy one, and all kinds of interruptions."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hybridbench.analysis.record import RunRecord
from hybridbench.records.events import (
    Allocations,
    Checkpoint,
    Crash,
    EngineViolation,
    Gap,
    Interrupted,
    Note,
    Phase,
)
from hybridbench.records.manifest import Options
from hybridbench.rundir.layout import WORKER_STDERR
from hybridbench.rundir.reader import read_run
from hybridbench.runs.soak import run_soak
from hybridbench.sampling.allocations import is_installed
from tests.scenarios.one_soak import CALM, OVERRIDES, UNCHECKED, short_plan

ROOT = Path(__file__).parents[2]
LIMIT_S = 120.0

FAULTY = '''
"""A defect for a test: {what} once real traffic is served."""
import time
from hybridbench.defects.defect import Defect, Patch, Signature, fingerprint_of
from hybridbench.engine.scheduler.scheduler import Scheduler

healthy = Scheduler.schedule


def schedule_with_a_fault(self, outcome):
    served = [req for req in self.running if not req.rid.startswith("touch-")]
    if served and self._counters.finishes > 100:
        {what}
    return healthy(self, outcome)


DEFECT = Defect(
    slug="{slug}",
    source="test",
    symptom="test",
    profile="smoke",
    signature=Signature(("CRASHED",), ("crash",), "worker", "steps", "once"),
    patches=(Patch(Scheduler, "schedule", schedule_with_a_fault, fingerprint_of(healthy)),),
)
'''


def faulty(tmp_path: Path, slug: str, what: str) -> tuple[str]:
    path = tmp_path / f"{slug.replace('-', '_')}.py"
    path.write_text(FAULTY.format(slug=slug, what=what))
    return (str(path),)


def phases(record: RunRecord) -> list[object]:
    return [event.name for event in record.all_events(Phase)]


class SoakProcess:
    """A soak in its own process, so that it can be killed."""

    def __init__(self, store: Path, duration_s: float) -> None:
        self.store = store
        command = [sys.executable, "-m", "tests.scenarios.one_soak", str(store), str(duration_s)]
        self.process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)

    @property
    def run_dir(self) -> Path:
        (found,) = self.store.iterdir()
        return found

    def worker_pid(self) -> int:
        manifest = json.loads((self.run_dir / "manifest.json").read_text())
        return int(manifest["target"]["pid"])

    def wait_for_traffic(self) -> None:
        """Wait until the samples on disk show finished requests."""

        def finished() -> bool:
            if not self.store.is_dir() or not any(self.store.iterdir()):
                return False
            samples = self.run_dir / "samples.jsonl"
            return samples.exists() and '"requests_per_s"' in samples.read_text()

        wait_until(finished)

    def wait(self) -> int:
        return self.process.wait(LIMIT_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(LIMIT_S)


def wait_until(done: Callable[[], bool]) -> None:
    limit_s = time.monotonic() + LIMIT_S
    while not done():
        assert time.monotonic() < limit_s, "it did not happen in two minutes"
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    """Return whether the process runs; an unreaped zombie does not count."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return "State:\tZ" not in status


def test_a_healthy_soak_goes_through_all_phases_and_everything_balances(tmp_path: Path) -> None:
    often = {"checkpoint.every": "2s", "probe.sample_every": "250ms"}
    overrides = {**OVERRIDES, **CALM, **often}
    outcome = run_soak(short_plan(tmp_path, duration_s=7.0, overrides=overrides))
    record = read_run(outcome.run_dir)

    assert not outcome.crashed
    assert outcome.exit_hint is None
    told = phases(record)
    assert told[:3] == ["boot", "warmup", "steady"]
    assert told[-3:] == ["drain", "idle", "done"]
    checkpoints = record.all_events(Checkpoint)
    assert len(checkpoints) >= 2
    for event in checkpoints:
        assert event.idle is True
        pools, locks = event.pools, event.locks
        assert isinstance(pools, dict)
        assert {pool["residual"] for pool in pools.values()} == {0}
        assert locks == {"full": 0, "mamba": 0}
    assert not record.all_events(EngineViolation)
    assert not record.all_events(Crash)
    assert not record.all_events(Gap)
    series = record.series
    assert len(series["rss_anon_swap_bytes"]) >= 20
    assert len(series["gc_collectible_bytes"]) >= 5
    assert np.all(series["instances.TreeNode.stray"].value == 0)
    assert np.all(series["pool.mamba.waiting_held"].value == 0)
    assert np.all(np.diff(series["events.finishes"].value) >= 0)
    assert series["events.finishes"].value[-1] > 30
    manifest = record.manifest
    assert manifest.engine_hash
    assert manifest.ended_wall_s
    assert manifest.malloc["MALLOC_ARENA_MAX"] == "1"


@pytest.mark.slow
@pytest.mark.skipif(not is_installed(), reason="needs hybridbench[memray]")
def test_the_allocations_of_a_diagnosed_run_name_the_calls_that_leak(tmp_path: Path) -> None:
    plan = short_plan(tmp_path, 10.0, defects=("lru-reference-cycle",))
    options = Options(watchdog_s=60.0, diagnose="always", memray_s=8.0)
    outcome = run_soak(replace(plan, options=options))

    record = read_run(outcome.run_dir)
    found = record.last_event(Allocations)
    assert found is not None, record.all_events(Note)
    assert found.requests > 0
    engine = [site for site in found.sites if "hybridbench/engine/cache/" in site.stack[0]]
    assert engine, found.sites
    begun_s = next(e.t_s for e in record.all_events(Phase) if e.name == "allocations")
    assert max(series.t_s[-1] for series in record.series.values()) <= begun_s


@pytest.mark.slow
def test_the_second_signal_kills_the_worker_at_once(tmp_path: Path) -> None:
    soak = SoakProcess(tmp_path / "store", 600.0)
    try:
        soak.wait_for_traffic()
        worker = soak.worker_pid()
        # A stopped worker can never drain, so only the second signal ends the soak.
        os.kill(worker, signal.SIGSTOP)
        soak.process.send_signal(signal.SIGTERM)
        wait_until(lambda: "SIGTERM" in (soak.run_dir / "events.jsonl").read_text())
        soak.process.send_signal(signal.SIGINT)
        code = soak.wait()
    finally:
        soak.close()

    assert code == 143
    assert not is_alive(worker)
    assert read_run(soak.run_dir).all_events(Interrupted)[-1].killed is True


def test_a_loop_that_hangs_is_a_hang_and_its_stack_is_kept(tmp_path: Path) -> None:
    defects = faulty(tmp_path, "test-hang", "time.sleep(3600)")
    overrides = {**OVERRIDES, **UNCHECKED}
    plan = short_plan(
        tmp_path / "store", 600.0, defects=defects, watchdog_s=5.0, overrides=overrides
    )
    outcome = run_soak(plan)
    record = read_run(outcome.run_dir)
    (crash,) = record.all_events(Crash)

    assert outcome.crashed
    assert crash.reason == "hang"
    assert "no engine step for" in crash.detail
    assert "schedule_with_a_fault" in str(crash.stderr_tail)
    # The kernel's and the collector's metrics continue while the engine loop hangs.
    assert record.series["allocated_blocks"].t_s[-1] > record.series["events.steps"].t_s[-1]


def test_an_engine_that_raises_ends_the_run_with_its_traceback(tmp_path: Path) -> None:
    defects = faulty(tmp_path, "test-raise", 'raise LookupError("the pool is gone")')
    overrides = {**OVERRIDES, **UNCHECKED}
    outcome = run_soak(short_plan(tmp_path / "store", 600.0, defects=defects, overrides=overrides))
    (crash,) = read_run(outcome.run_dir).all_events(Crash)

    assert outcome.crashed
    assert crash.reason == "exit"
    raised = "the engine loop failed: LookupError('the pool is gone') in schedule_with_a_fault ("
    assert raised in crash.detail
    assert "schedule_with_a_fault" in (outcome.run_dir / WORKER_STDERR).read_text()
