"""A nightly run with real soaks: killed halfway, the rest run cell by cell, one by a fake Slurm."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hybridbench.analysis.facts.window import segments
from hybridbench.records.events import Phase
from hybridbench.rundir.reader import read_run
from hybridbench.workload.catalog import list_profiles
from tests.scenarios.test_soak_run import LIMIT_S, wait_until

ROOT = Path(__file__).parents[2]
SLURM = ROOT / "docs" / "how-to" / "examples" / "nightly-slurm.sh"
# A soak of seconds on a loaded machine covers little and is inconclusive; this file tests neither.
# The profile has no memory limit, because with one a plan of such short cells would be refused.
PLAN = """\
name: scenario
duration: 20s
least_duration: 20s
ballast: 0
set:
  assert_coverage: "{}"
  # An engine at its limit leaves nothing to the other tests.
  arrival: "{process: poisson, rate: 12/s, max_in_flight: 12}"
  # No greedy answer is recomputed.
  sampling: "{greedy: 0.0}"
policy: {extend: 0, rerun_invalid: false}
cells:
  - {id: one, profile: ./brief.yaml, model: qwen3-next-nano}
  - {id: two, profile: ./brief.yaml, model: qwen3-next-nano, version: 'defect:lru-reference-cycle'}
"""
NIGHTLY = (sys.executable, "-m", "hybridbench", "nightly")


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    smoke = list_profiles()["smoke"].read_text(encoding="utf-8")
    brief = re.sub(
        r"(?ms)^promise:\n(  .*?\n)+", "promise:\n  - {from: 0s, collectible: 2GiB/h}\n", smoke
    )
    (tmp_path / "brief.yaml").write_text(brief, encoding="utf-8")
    path = tmp_path / "plan.yaml"
    path.write_text(PLAN, encoding="utf-8")
    return path


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


def run(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*NIGHTLY, *words], cwd=cwd, env=environment(), capture_output=True, text=True,
        timeout=2 * LIMIT_S, check=False,
    )  # fmt: skip


def stored(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def requests_were_served(cells: Path) -> bool:
    samples = list(cells.glob("one/attempt-1/*/samples.jsonl"))
    return bool(samples) and samples[0].read_bytes().count(b'"requests_per_s"') >= 6


def kill_in_the_first_cell(plan: Path, night: Path) -> Path:
    """Kill a nightly run during its first soak; return that soak's run directory."""
    command = [*NIGHTLY, "run", str(plan), "--out", str(night)]
    process = subprocess.Popen(
        command, cwd=plan.parent, env=environment(), stderr=subprocess.DEVNULL
    )
    try:
        wait_until(lambda: requests_were_served(night / "cells"))
    finally:
        process.kill()
        process.wait()
    (run_dir,) = (night / "cells" / "one" / "attempt-1").glob("*/")
    return run_dir


def run_second_cell_as_slurm_does(plan: Path) -> int:
    """Run the second task of the docs' Slurm script; return its exit code."""
    here = plan.parent
    script = SLURM.read_text(encoding="utf-8")
    text, edited = re.subn("(?m)^plan=.*", f"plan={shlex.quote(str(plan))}", script)
    assert edited == 1
    (here / "night.sh").write_text(text, encoding="utf-8")
    (here / "bin").mkdir()
    shim = here / "bin" / "hybridbench"
    shim.write_text(f'#!/bin/sh\nexec {sys.executable} -m hybridbench "$@"\n', encoding="utf-8")
    shim.chmod(0o755)
    task = environment(
        SLURM_ARRAY_TASK_ID="1",
        NIGHTLY_RUN=str(here / "7-scenario"),
        PATH=f"{shim.parent}:{os.environ['PATH']}",
    )
    ended = subprocess.run(
        ["bash", "night.sh"], cwd=here, env=task, capture_output=True, timeout=LIMIT_S,
        check=False,
    )  # fmt: skip
    return ended.returncode


@pytest.mark.slow
def test_a_night_in_pieces_one_of_which_is_killed_is_one_night_and_a_lost_cell_is_missing(
    plan: Path, tmp_path: Path
) -> None:
    night = tmp_path / "7-scenario"
    run_dir = kill_in_the_first_cell(plan, night)
    assert not (night / "night.json").exists()
    # The kernel signals its soak, which ends in an orderly way although nobody reads its output.
    wait_until((run_dir / "report.html").exists)
    phases = read_run(run_dir).all_events(Phase)
    assert phases[-1].name == "done"
    # Neither waivers nor the policy apply: an exactly counted leak is red after one run.
    assert run_second_cell_as_slurm_does(plan) == 10
    assert stored(night / "cells" / "two" / "cell.json")

    again = run("run", str(plan), "--out", str(night), cwd=tmp_path)

    assert again.returncode == 10, again.stderr
    assert again.stderr.count("finished before, skipped") == 1
    assert len(segments(read_run(run_dir))) == 2
    cells = stored(night / "night.json")["cells"]
    assert "has 2 segments" in " ".join(cells[0]["notes"])
    assert [cell["word"] for cell in cells][1] == "LEAK"
    assert "MISSING" not in [cell["word"] for cell in cells]

    before = (night / "cells" / "one" / "cell.json").read_bytes()
    third = run("run", str(plan), "--out", str(night), cwd=tmp_path)
    assert third.returncode == 10
    assert third.stderr.count("finished before, skipped") == 2
    assert (night / "cells" / "one" / "cell.json").read_bytes() == before

    shutil.move(night / "cells" / "two", tmp_path / "elsewhere")
    merged = run("merge", "elsewhere", "--plan", str(plan), "--out", "merged", cwd=tmp_path)
    assert merged.returncode == 10, merged.stderr
    cells = stored(tmp_path / "merged" / "night.json")["cells"]
    assert [(cell["id"], cell["word"]) for cell in cells] == [("one", "MISSING"), ("two", "LEAK")]
    assert "TreeNode" in (tmp_path / "merged" / "summary.md").read_text(encoding="utf-8")
