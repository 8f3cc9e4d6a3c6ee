"""``soak --listen`` serves a real run until a signal ends it in order, and then frees its port."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from hybridbench.records.events import Checkpoint, Interrupted
from hybridbench.rundir.reader import read_run
from tests.scenarios.test_soak_run import is_alive, phases, wait_until

PATIENCE_S = 120.0


def fetched(address: str) -> str:
    """Return the text at ``address``, once there is any."""
    give_up_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            with urllib.request.urlopen(address, timeout=PATIENCE_S) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            if error.code != 503 or time.monotonic() > give_up_s:
                raise
        time.sleep(0.3)


def test_a_run_can_be_watched_until_the_first_signal_which_ends_it_in_order(
    tmp_path: Path,
) -> None:
    options = ["--profile", "smoke", "--duration", "600s", "--ballast", "0", "--listen", "0"]
    options += ["--model", "qwen3-next-nano"]
    options += ["--set", "arrival={process: poisson, rate: 10/s, max_in_flight: 12}"]
    options += ["--set", "warmup.requests=20", "--answers", "0"]
    soak = subprocess.Popen(
        [sys.executable, "-m", "hybridbench", "soak", *options, "--ui", "none", "--format", "json"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert soak.stderr is not None
        told = re.match(r"live report: (http://127\.0\.0\.1:\d+/) ", soak.stderr.readline())
        assert told is not None
        address = told[1]
        metrics = fetched(f"{address}metrics")
        page = fetched(address)
        (run_dir,) = (tmp_path / "results").iterdir()
        wait_until(lambda: '"requests_per_s"' in (run_dir / "samples.jsonl").read_text())
        worker = int(json.loads((run_dir / "manifest.json").read_text())["target"]["pid"])
        soak.send_signal(signal.SIGINT)
        out, _ = soak.communicate(timeout=PATIENCE_S)
    finally:
        soak.kill()
        soak.wait()

    assert "hybridbench_run_seconds" in metrics
    assert "so far; run in progress" in page
    assert soak.returncode == 130
    record = read_run(run_dir)
    assert [event.signal for event in record.all_events(Interrupted)] == ["SIGINT"]
    assert record.all_events(Checkpoint)[-1].idle is True
    assert phases(record)[-1] == "done"
    assert not is_alive(worker)
    assert '"schema": "hybridbench.report/1"' in out
    with pytest.raises(urllib.error.URLError, match="refused"):
        urllib.request.urlopen(address, timeout=PATIENCE_S)
