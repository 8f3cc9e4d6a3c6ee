"""Soaks that are interrupted and resumed, with real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridbench.analysis.facts.window import segments
from hybridbench.foundation.errors import RunDirectoryError
from hybridbench.records.events import Crash, Note
from hybridbench.rundir.cut import read_cut_run
from hybridbench.rundir.lock import holder_of
from hybridbench.rundir.reader import read_run
from tests.scenarios.test_soak_run import (
    LIMIT_S,
    ROOT,
    SoakProcess,
    is_alive,
    phases,
    wait_until,
)

DURATION_S = 24.0


def resume(run_dir: Path) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "hybridbench",
        "soak",
        "--resume",
        str(run_dir),
        "--ui",
        "none",
    ]
    return subprocess.Popen(
        command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def stored(run_dir: Path, name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run_dir / name).read_text())
    return content


def wait_for_requests(run_dir: Path, beyond: int = 0) -> None:
    """Wait until there are enough samples for another segment."""
    wait_until(lambda: requests_sampled(run_dir) >= beyond + 3)


def requests_sampled(run_dir: Path) -> int:
    return (run_dir / "samples.jsonl").read_bytes().count(b'"requests_per_s"')


def worker_of(run_dir: Path) -> int:
    return int(stored(run_dir, "manifest.json")["segments"][-1]["pid"])


def kill_the_worker_of(soak: SoakProcess) -> None:
    """One kind of interruption: the soak reports the killed worker and ends."""
    try:
        soak.wait_for_traffic()
        wait_for_requests(soak.run_dir)
        os.kill(soak.worker_pid(), signal.SIGKILL)
        assert soak.wait() == 14
    finally:
        soak.close()
    (crash,) = read_run(soak.run_dir).all_events(Crash)
    assert crash.reason in {"signal", "oom"}
    assert "killed" in crash.detail


def kill(process: subprocess.Popen[Any], run_dir: Path, before: int = 0) -> None:
    """The other kind: the soak itself is killed after new requests, and its worker ends with it."""
    try:
        wait_for_requests(run_dir, before)
        worker = worker_of(run_dir)
        assert is_alive(worker)
        process.kill()
        process.communicate(timeout=LIMIT_S)
        wait_until(lambda: not is_alive(worker))
    finally:
        process.kill()
        process.wait(LIMIT_S)


@pytest.mark.parametrize("crashes", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_soak_that_is_cut_off_goes_on_in_segments_and_has_one_verdict(
    tmp_path: Path, crashes: int
) -> None:
    soak = SoakProcess(tmp_path / "store", DURATION_S)
    if crashes:
        kill_the_worker_of(soak)
        kill(resume(soak.run_dir), soak.run_dir, requests_sampled(soak.run_dir))
    else:
        soak.wait_for_traffic()
        kill(soak.process, soak.run_dir)
    run_dir = soak.run_dir
    cut = read_run(run_dir)
    samples = run_dir / "samples.jsonl"
    whole = samples.read_bytes()
    with samples.open("ab") as file:
        file.write(b'{"t":999,"wall":1')

    process = resume(run_dir)
    try:
        wait_until(lambda: (run_dir / "events.jsonl").read_text().count('"segment"') > crashes)
        # Only read the holder: a second process (refused in test_faults.py) might start too late.
        holder = holder_of(run_dir)
        _, said = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
        process.wait(LIMIT_S)

    assert len(cut.series["rss_bytes"]) >= 2
    assert "warmup" in phases(segments(cut)[-1])
    assert holder == process.pid
    assert (run_dir / "verdict.json").exists(), said
    record = read_run(run_dir)
    parts = segments(record)
    verdict, manifest = stored(run_dir, "verdict.json"), stored(run_dir, "manifest.json")
    assert process.returncode == verdict["exit_code"], said
    # On a machine too busy to meet the coverage the run is INVALID, but a crash is still reported
    # and there is no leak.
    found = {finding["verdict"] for finding in verdict["findings"]}
    assert ("CRASHED" in found) == bool(crashes)
    assert found <= {"CRASHED", "INVALID", "INCONCLUSIVE"}, verdict["findings"]
    crashed = [part.last_event(Crash) is not None for part in parts]
    assert crashed == [*([True] * crashes), False, False]
    # No line of the first segments is lost; only the truncated one is removed.
    assert samples.read_bytes().startswith(whole)
    assert b'"t":999' not in samples.read_bytes()
    assert any("cut the last line" in note.text for note in record.all_events(Note))
    assert np.all(np.diff(record.series["rss_bytes"].t_s) > 0)
    drops = np.diff(record.series["events.finishes"].value) < 0
    assert np.count_nonzero(drops) == crashes + 1, "each new worker counts from zero"
    # The interruption may fall into a checkpoint.
    assert phases(parts[-2])[-1] in {"warmup", "steady", "drain", "idle", "resume"}
    assert phases(parts[-1])[:2] == ["boot", "warmup"]
    assert phases(parts[-1])[-1] == "done"
    told = manifest["segments"]
    for fact in ("pid", "traffic_seed"):
        assert len({segment[fact] for segment in told}) == crashes + 2
    lengths = [segment["traffic_s"] for segment in told]
    assert lengths[0] == DURATION_S
    assert lengths == sorted(set(lengths), reverse=True)
    total = verdict["coverage"]["finishes"]["seen"]
    assert total == sum(part.series["events.finishes"].value.max() for part in parts)
    assert not (run_dir / "run.lock").exists()

    with pytest.raises(RunDirectoryError, match="ended as planned and has nothing left to resume"):
        read_cut_run(run_dir)
