"""Bad input and faults give a user one sentence and an exit code, and overwrite nothing."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import pty
import resource
import select
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hybridbench.cli.app import app
from hybridbench.foundation.errors import ExitCode, HybridbenchError
from hybridbench.records.events import Interrupted, Segment, WorkloadFailed
from hybridbench.rundir.lock import locked_run
from hybridbench.rundir.reader import read_run
from tests.unit.over_time.stores import add_run, verdict

ROOT = Path(__file__).parents[2]
LIMIT_S = 180.0
SERVES = b'"requests_per_s"'  # in a sample of a run with finished requests
# prctl's option that drops a capability, and the capability that lets root write everywhere.
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE = 24, 1
READERS = (("report",), ("diagnose",), ("judge",), ("soak", "--resume"))
# A moderate load: none of the faults needs an engine at its limit.
CALM = (
    *("--profile", "smoke", "--model", "qwen3-next-nano", "--ballast", "0"),
    *("--set", "warmup.requests=20"),
    *("--set", "arrival={process: poisson, rate: 10/s, max_in_flight: 12}"),
    # Recomputing answers takes a second engine.
    *("--answers", "0"),
)
SHORT = (*CALM, "--duration", "20s", "--extend", "0", "--ui", "none")


def hybridbench(
    *words: object, before: Callable[[], None] | None = None
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hybridbench", *(str(word) for word in words)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    if before is not None:
        # The limit could truncate cached bytecode, and later imports of that module would fail.
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
    return subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        preexec_fn=before,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def disk_of(size_bytes: int) -> Callable[[], None]:
    """Limit files to ``size_bytes``; beyond it, writes fail as on a full disk."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, size_bytes))

    return limit


def told(done: subprocess.CompletedProcess[str]) -> str:
    """Return the error that a user reads; checks that it is one line and no traceback."""
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("hybridbench: ")]
    assert len(lines) == 1, done.stderr
    return lines[0]


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def as_plain_user() -> None:
    """Drop root's capability to write everywhere, so that permissions apply."""
    if os.getuid() == 0:
        ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0)


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    folder.chmod(0o555)
    try:
        yield
    finally:
        folder.chmod(0o755)


@pytest.mark.slow
def test_a_disk_that_fills_up_stops_the_run_and_keeps_what_it_has(tmp_path: Path) -> None:
    soak = hybridbench(
        "soak", *SHORT, "--store", tmp_path, "--set", "probe.sample_every=100ms",
        before=disk_of(60_000),
    )  # fmt: skip

    said = soak.stderr.splitlines()
    (run,) = tmp_path.iterdir()
    evidence = {name: (run / name).read_bytes() for name in ("manifest.json", "samples.jsonl")}
    assert "Traceback" not in soak.stderr
    assert said[0].startswith("hybridbench: stopped, what was written is kept: cannot write")
    assert soak.returncode == 16
    record = read_run(run)
    assert len(record.series["rss_bytes"]) > 10
    assert not (run / "run.lock").exists()

    again = hybridbench("report", run)

    assert again.returncode == 16
    assert "could not be written to its end" in again.stdout
    assert (run / "report.html").exists()
    assert evidence == {name: (run / name).read_bytes() for name in evidence}


def soak_with_a_bad_row(folder: Path) -> tuple[subprocess.CompletedProcess[str], Path, Path]:
    """Replay a trace with a damaged last row; return the process, the run directory, the trace."""
    rows = [
        {"timestamp": 60 * i, "input_length": 600, "output_length": 64, "hash_ids": [i, i + 1]}
        for i in range(60)
    ]
    trace, store = folder / "bad.jsonl", folder / "store"
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows) + "{bad row\n")
    soak = hybridbench(
        "soak", *SHORT, "--store", store, "--trace", trace, "--length-scale", "1/32",
        "--trace-time-unit", "ms", "--set", "probe.sample_every=200ms",
    )  # fmt: skip
    (run,) = store.iterdir()
    return soak, run, trace


@pytest.mark.slow
def test_a_bad_row_in_the_middle_of_a_trace_ends_the_run_in_order_and_costs_nothing(
    tmp_path: Path,
) -> None:
    soak, run, trace = soak_with_a_bad_row(tmp_path)

    verdict = json.loads((run / "verdict.json").read_text())
    assert soak.returncode == 16
    assert "Traceback" not in soak.stderr
    assert f"{trace}:61: is not JSON" in verdict["headline"]
    assert len(read_run(run).series["rss_bytes"]) > 10
    assert (run / "report.html").exists()
    assert not (run / "run.lock").exists()


@pytest.mark.slow
def test_a_resumed_run_meets_the_same_bad_row_and_loses_nothing_either(tmp_path: Path) -> None:
    _, run, _ = soak_with_a_bad_row(tmp_path)
    before = {name: (run / name).read_bytes() for name in ("samples.jsonl", "events.jsonl")}

    again = hybridbench("soak", "--resume", run, "--ui", "none")

    assert again.returncode == 16
    record = read_run(run)
    assert all((run / name).read_bytes().startswith(text) for name, text in before.items())
    assert len(record.all_events(WorkloadFailed)) == 2
    assert len(record.all_events(Segment)) == 1


def test_a_configuration_error_before_any_traffic_leaves_no_run_and_no_foreign_file_is_touched(
    tmp_path: Path,
) -> None:
    trace, store = tmp_path / "bad.jsonl", tmp_path / "store"
    trace.write_text("{bad row\n")

    soak = CliRunner().invoke(app, ["soak", *SHORT, "--store", str(store), "--trace", str(trace)])

    assert isinstance(soak.exception, HybridbenchError)
    assert soak.exception.exit_code is ExitCode.USAGE
    assert f"{trace}:1: is not JSON" in str(soak.exception)
    assert not store.exists() or list(store.iterdir()) == []


@pytest.mark.slow
def test_a_terminal_that_closes_ends_a_run_in_order(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()

    def take_terminal() -> None:
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)
        # CI systems that run jobs in the background ignore this signal.
        signal.signal(signal.SIGHUP, signal.SIG_DFL)

    command = [sys.executable, "-m", "hybridbench", "soak", *CALM]
    soak = subprocess.Popen(
        [*command, "--duration", "10m", "--store", str(tmp_path)],
        cwd=ROOT,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=take_terminal,  # noqa: PLW1509  # before this process has threads
    )
    os.close(theirs)
    reader = threading.Thread(target=_read_until_hangup, args=(ours,), daemon=True)
    reader.start()
    try:
        limit_s = time.monotonic() + LIMIT_S
        while not any(SERVES in path.read_bytes() for path in tmp_path.rglob("samples.jsonl")):
            assert time.monotonic() < limit_s
            assert soak.poll() is None
            time.sleep(0.2)
        _HANGUP.set()
        reader.join(LIMIT_S)
        code = soak.wait(LIMIT_S)
    finally:
        soak.kill()
        soak.wait()

    (run,) = tmp_path.iterdir()
    record = read_run(run)
    interrupted = record.last_event(Interrupted)
    assert code == 143
    assert interrupted is not None
    assert interrupted.signal == "SIGHUP"
    assert (run / "report.html").exists()
    assert json.loads((run / "verdict.json").read_text())["verdict"]
    assert not (run / "run.lock").exists()


_HANGUP = threading.Event()


def _read_until_hangup(terminal: int) -> None:
    """Read a terminal's output until it hangs up."""
    while not _HANGUP.is_set():
        ready, _, _ = select.select([terminal], [], [], 0.1)
        if ready:
            os.read(terminal, 65536)
    os.close(terminal)


def test_a_request_for_evidence_before_there_is_a_run_ends_nothing(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys\n"
        "from hybridbench.cli import app\n"
        "app.app = lambda: (os.kill(os.getpid(), signal.SIGUSR1), print('goes on'))\n"
        "app.main()\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout) == (0, "goes on\n")


def test_a_working_directory_that_is_gone_is_one_sentence(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    command = 'cd "$0" && rmdir "$0" && exec "$1" -m hybridbench list runs'

    done = subprocess.run(
        ["/bin/sh", "-c", command, str(gone), sys.executable],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 2
    assert "the working directory no longer exists" in told(done)


def test_a_disk_without_room_for_a_manifest_leaves_nothing_behind(tmp_path: Path) -> None:
    soak = hybridbench("soak", *SHORT, "--store", tmp_path, before=disk_of(100))

    assert "manifest.json" in told(soak)
    assert soak.returncode == 2
    assert list(tmp_path.iterdir()) == []


def test_a_second_process_in_the_same_run_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    run = add_run(tmp_path, "run", 0.0)
    before = contents(run)

    # A lock is held by the file that is open, so that this process is refused as another is.
    with locked_run(run):
        refused = CliRunner().invoke(app, ["soak", "--resume", str(run)]).exception

    assert isinstance(refused, HybridbenchError)
    assert refused.exit_code is ExitCode.USAGE
    assert f"being written by process {os.getpid()}" in str(refused)
    assert contents(run) == before


def test_a_report_of_read_only_results_is_told_all_the_same(tmp_path: Path) -> None:
    run = add_run(tmp_path, "run", 0.0, verdict())
    before = contents(run)

    with read_only(run):
        report = hybridbench("report", run, before=as_plain_user)

    assert "not rebuilt" in told(report)
    assert "exit code" in report.stdout
    assert contents(run) == before


def test_a_read_only_store_is_one_sentence_before_anything_starts(tmp_path: Path) -> None:
    with read_only(tmp_path):
        soak = hybridbench("soak", *SHORT, "--store", tmp_path, before=as_plain_user)

    assert "choose another --store" in told(soak)
    assert soak.returncode == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("reader", READERS, ids=" ".join)
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("missing", "without manifest.json|has no manifest.json"),
        ("future", "hybridbench.run/9"),
        ("torn", "not JSON"),
        ("samples", "Is a directory"),
    ],
)
def test_a_run_that_cannot_be_read_is_one_sentence_and_stays_as_it_is(
    tmp_path: Path, reader: tuple[str, ...], damage: str, said: str
) -> None:
    run = add_run(tmp_path, "run", 0.0)
    manifest = run / "manifest.json"
    if damage == "missing":
        manifest.unlink()
    elif damage == "future":
        manifest.write_text(manifest.read_text().replace("hybridbench.run/1", "hybridbench.run/9"))
    elif damage == "torn":
        manifest.write_text(manifest.read_text()[:100])
    else:
        (run / "samples.jsonl").unlink()
        (run / "samples.jsonl").mkdir()
    before = contents(run)

    error = CliRunner().invoke(app, [*reader, str(run)]).exception

    assert isinstance(error, HybridbenchError)
    assert error.exit_code is ExitCode.USAGE
    assert any(part in str(error) for part in said.split("|"))
    assert contents(run) == before


def test_a_torn_sample_file_is_judged_without_its_last_line_and_left_alone(tmp_path: Path) -> None:
    run = add_run(tmp_path, "run", 0.0)
    samples = run / "samples.jsonl"
    samples.write_bytes(samples.read_bytes() + b'{"t":2.0,"m":{"rss_by')
    before = samples.read_bytes()

    done = CliRunner().invoke(app, ["report", str(run), "--format", "markdown"])

    assert done.stderr == ""
    assert "the last line of samples.jsonl was torn and is left out" in done.stdout
    assert samples.read_bytes() == before
