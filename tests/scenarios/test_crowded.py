"""Soaks on a crowded machine: a quarter of a core, and a worker that is stopped for 40 s.

Whatever the machine does to it, a run ends with a verdict, reports no leak of a healthy engine, and
loses no exact count.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from hybridbench.foundation.errors import ExitCode
from hybridbench.records.finding import VerdictKind
from hybridbench.records.stored_verdict import read_verdict
from hybridbench.rundir.layout import REPORT_HTML, VERDICT

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
SPIN = [sys.executable, "-c", "while True: pass"]
BUSY = 3  # processes of the same priority that share a soak's only core
STOPPED_S = 40.0
LENGTH_S = 120.0
LIMIT_S = 900.0
ACCUSED = (ExitCode.LEAK, ExitCode.INVARIANT, ExitCode.CRASHED)


@dataclass(frozen=True)
class Pair:
    """A defect, its healthy twin, and the exit code that only the defect causes."""

    profile: str
    defect: str
    code: ExitCode = ExitCode.LEAK


PAIRS = (
    Pair("chat-churn", "lru-reference-cycle"),
    Pair("admission-squeeze", "mamba-adder-reject"),
    Pair("session-churn", "session-close-mamba"),
    Pair("session-ahead", "session-retract-tail"),
    Pair("chat-churn", "half-migrated-allocator"),
    Pair("session-idle", "session-held-blind-check", ExitCode.INVARIANT),
)


@dataclass(frozen=True)
class Soaked:
    """The result of a soak."""

    code: int
    errors: str
    run_dir: Path
    stopped: bool  # whether its worker was stopped during the run


@contextmanager
def crowded(core: int) -> Iterator[None]:
    """Run three processes that compete for ``core``."""
    taken = [subprocess.Popen(["taskset", "-c", str(core), *SPIN]) for _ in range(BUSY)]
    try:
        yield
    finally:
        for process in taken:
            process.kill()
            process.wait()


def worker_of(pid: int) -> int | None:
    """Return the engine worker among the children of ``pid``."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            parent = (folder / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()[1]
            command = (folder / "cmdline").read_bytes()
            if int(parent) == pid and b"hybridbench.worker\0--fd" in command:
                return int(folder.name)
    return None


def stop_for_a_while(pid: int, after_s: float, over: threading.Event, done: list[int]) -> None:
    """Stop the worker of the soak ``pid`` after ``after_s`` seconds, in whatever phase it is."""
    if over.wait(after_s):
        return
    worker = worker_of(pid)
    if worker is None:
        return
    with suppress(ProcessLookupError):
        os.kill(worker, signal.SIGSTOP)
        done.append(worker)
        over.wait(STOPPED_S)
        os.kill(worker, signal.SIGCONT)


def soak(store: Path, core: int, after_s: float, *arguments: str) -> Soaked:
    command = ["taskset", "-c", str(core), sys.executable, "-m", "hybridbench", "soak"]
    command += [*arguments, "--duration", f"{LENGTH_S:.0f}s", "--extend", "0"]
    command += ["--store", str(store), "--ui", "none"]
    over = threading.Event()
    stopped: list[int] = []
    with crowded(core):
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        stopper = threading.Thread(
            target=stop_for_a_while, args=(process.pid, after_s, over, stopped)
        )
        stopper.start()
        try:
            _, errors = process.communicate(timeout=LIMIT_S)
        finally:
            over.set()
            stopper.join()
            process.kill()
    (run_dir,) = store.iterdir()
    return Soaked(process.returncode, errors, run_dir, bool(stopped))


@pytest.mark.parametrize("number", range(len(PAIRS)), ids=[pair.defect for pair in PAIRS])
def test_a_crowded_machine_costs_no_verdict_and_accuses_nobody(number: int, tmp_path: Path) -> None:
    pair = PAIRS[number]
    cores = sorted(os.sched_getaffinity(0))
    # The time of the stop, anywhere from the start of the worker to the report.
    draw = random.Random(f"crowded {number}")
    moments = [draw.uniform(5.0, 1.5 * LENGTH_S) for _ in range(2)]

    with ThreadPoolExecutor(max_workers=min(2, len(cores))) as pool:
        healthy_soak = pool.submit(
            soak, tmp_path / "healthy", cores[0], moments[0], "--profile", pair.profile
        )
        defective_soak = pool.submit(
            soak,
            tmp_path / "defective",
            cores[-1],
            moments[1],
            *("--profile", pair.profile, "--defect", pair.defect),
        )
        healthy, defective = healthy_soak.result(), defective_soak.result()

    for one, after_s in ((healthy, moments[0]), (defective, moments[1])):
        assert "Traceback" not in one.errors
        assert one.code == read_verdict(one.run_dir / VERDICT).exit_code
        assert (one.run_dir / REPORT_HTML).is_file()
        print(one.run_dir.parent.name, one.code, one.stopped, f"{after_s:.0f} s")
        print(read_verdict(one.run_dir / VERDICT).headline)
    assert healthy.code not in ACCUSED
    found = read_verdict(defective.run_dir / VERDICT).findings
    exact = [f for f in found if f.exact and f.verdict in (VerdictKind.LEAK, VerdictKind.INVARIANT)]
    assert defective.code == pair.code or not exact
    assert defective.code in (pair.code, ExitCode.INCONCLUSIVE, ExitCode.INVALID)
