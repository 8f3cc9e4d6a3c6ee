"""Soaks that are cut off and go on, with real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from hybridbench.analysis.facts.window import segments
from hybridbench.records.events import Crash, Note
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


def refusal(run_dir: Path) -> str:
    """What a resume that must not work says."""
    process = resume(run_dir)
    _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 2, said
    return said


def stored(run_dir: Path, name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run_dir / name).read_text())
    return content


def wait_for_requests(soak: SoakProcess) -> None:
    """Until enough has been sampled for a segment of its own."""
    soak.wait_for_traffic()
    samples = soak.run_dir / "samples.jsonl"
    wait_until(lambda: samples.read_bytes().count(b'"requests_per_s"') >= 6)


def test_a_killed_soak_goes_on_as_a_second_segment_with_one_verdict(tmp_path: Path) -> None:
    soak = SoakProcess(tmp_path / "store", DURATION_S)
    try:
        wait_for_requests(soak)
        worker = soak.worker_pid()
        soak.process.kill()
        soak.wait()
        wait_until(lambda: not is_alive(worker))
    finally:
        soak.close()
    samples = soak.run_dir / "samples.jsonl"
    whole = samples.read_bytes()
    with samples.open("ab") as file:
        file.write(b'{"t":999,"wall":1')

    process = resume(soak.run_dir)
    try:
        wait_until(lambda: '"segment"' in (soak.run_dir / "events.jsonl").read_text())
        second = refusal(soak.run_dir)
        _, said = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
        process.wait(LIMIT_S)

    assert f"is being written by process {process.pid}" in second
    assert (soak.run_dir / "verdict.json").exists(), said
    record = read_run(soak.run_dir)
    early, late = segments(record)
    verdict, manifest = stored(soak.run_dir, "verdict.json"), stored(soak.run_dir, "manifest.json")
    assert process.returncode == verdict["exit_code"], said
    # On a machine too busy to cover the profile in seconds it may be INVALID; never a leak.
    assert verdict["verdict"] in {"CLEAN", "INCONCLUSIVE", "INVALID"}, verdict["headline"]
    # Not a line of the first segment is lost, and only the torn one is gone.
    assert samples.read_bytes().startswith(whole)
    assert b'"t":999' not in samples.read_bytes()
    assert any("tore the last line" in note.text for note in record.all_events(Note))
    rss = record.series["rss_bytes"]
    assert np.all(np.diff(rss.t_s) > 0)
    finishes = record.series["events.finishes"]
    assert np.any(np.diff(finishes.value) < 0), "the new worker counts from zero"
    # The cut may fall into a checkpoint.
    assert phases(early)[-1] in {"warmup", "steady", "drain", "idle", "resume"}
    assert phases(late)[:2] == ["boot", "warmup"]
    assert phases(late)[-1] == "done"
    first, next_one = manifest["segments"]
    assert first["pid"] != next_one["pid"]
    assert first["traffic_seed"] != next_one["traffic_seed"]
    assert next_one["traffic_s"] < first["traffic_s"] == DURATION_S
    total = verdict["coverage"]["finishes"]["seen"]
    assert total == sum(part.series["events.finishes"].value.max() for part in (early, late))
    assert not (soak.run_dir / "run.lock").exists()

    assert "ended as planned and has nothing left to resume" in refusal(soak.run_dir)


def test_a_soak_whose_worker_was_killed_goes_on_and_stays_crashed(tmp_path: Path) -> None:
    soak = SoakProcess(tmp_path / "store", DURATION_S)
    try:
        wait_for_requests(soak)
        os.kill(soak.worker_pid(), signal.SIGKILL)
        assert soak.wait() == 14
    finally:
        soak.close()

    process = resume(soak.run_dir)
    _, said = process.communicate(timeout=LIMIT_S)

    verdict = stored(soak.run_dir, "verdict.json")
    early, late = segments(read_run(soak.run_dir))
    assert process.returncode == verdict["exit_code"], said
    # A machine too busy to cover the profile in seconds makes it INVALID; the crash stays told.
    assert (
        {"CRASHED"}
        <= {f["verdict"] for f in verdict["findings"]}
        <= {
            "CRASHED",
            "INVALID",
            "INCONCLUSIVE",
        }
    ), verdict["findings"]
    assert early.last_event(Crash) is not None
    assert late.last_event(Crash) is None
    assert phases(late)[-1] == "done"
