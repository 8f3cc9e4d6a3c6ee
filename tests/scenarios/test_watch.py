"""Third-party programs, watched from their start to a report."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hybridbench.cli.app import app
from hybridbench.foundation.errors import ExitCode, RunDirectoryError
from hybridbench.records.events import (
    AnswersRepeated,
    Census,
    Crash,
    IdleLook,
    ProcessStarted,
    Segment,
    StoppedEarly,
)
from hybridbench.rundir.cut import read_cut_run
from hybridbench.rundir.layout import REPORT_MARKDOWN
from hybridbench.rundir.reader import read_run

PROGRAMS = Path(__file__).parent / "watched"
# If the server answered at once, its clients would send hundreds of requests a second.
UNHURRIED = ("--first-s", "0.5")


@dataclass
class Ended:
    """A watched run: its exit code, its directory and its output."""

    code: int
    run_dir: Path
    verdict: dict[str, Any]
    stderr: str

    @property
    def leaks(self) -> list[dict[str, Any]]:
        return [f for f in self.verdict["findings"] if f["verdict"] == "LEAK"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def watch(store: Path, *words: str, command: str = "watch", **environment: str) -> Ended:
    """Run ``hybridbench watch`` or another ``command`` with these arguments."""
    typed = [sys.executable, "-m", "hybridbench", command, "--store", str(store)]
    ended = subprocess.run(
        [*typed, "--ui", "none", "--format", "json", "--extend", "0", *words],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )
    assert "hybridbench/cli" not in ended.stderr, ended.stderr  # no traceback from hybridbench
    (run_dir,) = store.iterdir()
    verdict = json.loads((run_dir / "verdict.json").read_text())
    return Ended(ended.returncode, run_dir, verdict, ended.stderr)


def watch_program(store: Path, program: str, length: str, *options: str, rate: int = 20) -> Ended:
    """Watch a program of tests/scenarios/watched under load from client.py."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    return watch(
        store,
        *("--duration", length, "--metrics", f"{url}/metrics", *options),
        *("--load", f"{sys.executable} {PROGRAMS / 'client.py'} {url}/ {rate}"),
        *("--", sys.executable, str(PROGRAMS / f"{program}.py"), str(port)),
    )


def test_a_watched_server_gets_a_verdict_and_a_report(tmp_path: Path) -> None:
    """Half a minute; the report lists what could be observed and what could not."""
    run = watch_program(
        tmp_path, "keeps_requests", "25s", "--idle-every", "10s", "--cache-budget", "prompt=8GiB"
    )

    record = read_run(run.run_dir)
    assert {e.role for e in record.all_events(ProcessStarted)} == {"keeps_requests"}
    looks, censuses = record.all_events(IdleLook), record.all_events(Census)
    assert len(looks) >= 3
    assert all(look.idle for look in looks)
    assert looks[-1].counters["scraped.answered_requests_total"] > 100
    kept = [c.entries["__main__.kept"] for c in censuses if "__main__.kept" in c.entries]
    assert len(kept) >= 2
    assert kept == sorted(kept)
    assert not run.verdict.get("failures")
    page = (run.run_dir / REPORT_MARKDOWN).read_text()
    assert "answered\\_requests\\_total" in page or "answered_requests_total" in page
    manifest = json.loads((run.run_dir / "manifest.json").read_text())
    assert manifest["target"]["kind"] == "observed"
    assert manifest["options"]["cache_budgets"] == {"prompt": 8 * 2**30}
    assert manifest["git"] is None
    with pytest.raises(RunDirectoryError, match="cannot be resumed"):
        read_cut_run(run.run_dir)


def test_nothing_that_was_sent_or_set_is_in_any_file(tmp_path: Path) -> None:
    """The program prints its prompt and its key wherever it can, and ends with an error."""
    program = tmp_path / "chatty.py"
    program.write_text(
        "import os, sys, time\n"
        "prompt, key = sys.argv[2], os.environ['API_KEY']\n"
        "class Request: pass\n"
        "r = Request(); setattr(r, prompt, {prompt: [key] * 100}); kept = {prompt: r}\n"
        "globals()[key] = [prompt] * 200\n"
        "print(prompt, key, flush=True)\n"
        "time.sleep(8)\n"
        "raise ValueError(prompt + key)\n"
    )
    prompt, key = "c4n4rypr0mpt", "c4n4ryk3y"
    words = ("--duration", "40s", "--", sys.executable, str(program), "--password", prompt)
    run = watch(tmp_path / "runs", *words, API_KEY=key)

    assert run.code == ExitCode.CRASHED
    (crash,) = read_run(run.run_dir).all_events(Crash)
    assert "exit code 1" in crash.detail
    assert "ValueError: [its message is left out]" in crash.stderr_tail
    for path in run.run_dir.iterdir():
        text = path.read_text(errors="replace")
        assert prompt not in text, path
        assert key not in text, path
    # The program's own last output is still shown at the terminal.
    assert f"ValueError: {prompt}{key}" in run.stderr


@pytest.mark.slow
def test_a_target_that_ends_in_order_ends_the_run(tmp_path: Path) -> None:
    words = (sys.executable, "-c", "import time; time.sleep(3)")
    run = watch(tmp_path, "--duration", "60s", "--", *words)

    stopped = read_run(run.run_dir).all_events(StoppedEarly)
    assert [event.reason for event in stopped] == ["target-ended"]
    assert run.code == ExitCode.INCONCLUSIVE


@pytest.mark.parametrize("blind", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_running_process_that_carries_a_probe_is_looked_into(tmp_path: Path, blind: bool) -> None:
    """The process was started separately, with the probe in its environment."""
    folder, sockets = tmp_path / "probe", tmp_path / "sockets"
    assert CliRunner().invoke(app, ["probe", "export", str(folder)]).exit_code == 0
    sockets.mkdir(mode=0o700)
    environment = {**os.environ, "PYTHONPATH": str(folder), "HYBRIDBENCH_PROBE_DIR": str(sockets)}
    script = tmp_path / "holds.py"
    script.write_text("import time\nkept = [0] * 50\ntime.sleep(300)\n")
    with subprocess.Popen(
        [sys.executable, script], env=environment, start_new_session=True
    ) as process:
        pid = ("--duration", "20s", "--idle-every", "10s", "--pid", str(process.pid))
        try:
            run = watch(tmp_path / "runs", *pid, *(["--no-probe"] if blind else []))
            still_runs = process.poll() is None
        finally:
            process.kill()

    assert still_runs
    censuses = read_run(run.run_dir).all_events(Census)
    assert [census.entries["__main__.kept"] for census in censuses[:1]] == ([] if blind else [50])


@pytest.mark.slow
def test_what_has_no_probe_is_said(tmp_path: Path) -> None:
    run = watch(tmp_path, "--duration", "20s", "--idle-every", "10s", "--", "sleep", "60")

    assert not read_run(run.run_dir).all_events(Census)
    manifest = json.loads((run.run_dir / "manifest.json").read_text())
    assert "the heap of sleep: it has no probe" in manifest["not_seen"]
    assert "the heap of sleep: it has no probe" in (run.run_dir / REPORT_MARKDOWN).read_text()


@pytest.mark.slow
def test_a_load_that_cannot_serve_ends_the_run_and_says_so(tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/metrics"
    program = str(PROGRAMS / "keeps_requests.py")
    run = watch(
        tmp_path,
        *(
            "--duration",
            "60s",
            "--metrics",
            url,
            "--load",
            f"{sys.executable} -c 'raise SystemExit(7)'",
        ),
        *("--", sys.executable, program, str(port)),
    )

    assert run.code == ExitCode.INVALID
    assert "the load command failed 3 times in a row (exit code 7)" in run.verdict["headline"]


def soak_server(
    store: Path,
    length: str,
    *options: str,
    aborts: str = "aborts={}",
    soak: Sequence[str] = (),
    **environment: str,
) -> Ended:
    """Run ``hybridbench soak --url`` on tests/scenarios/watched/openai_server.py.

    ``options`` are the server's, ``soak`` further options of the soak.
    """
    port = free_port()
    traffic = ("--profile", "chat-churn", "--set", "arrival.concurrency=16")
    return watch(
        store,
        *("--url", f"http://127.0.0.1:{port}", *traffic, "--duration", length, "--seed", "5"),
        *("--set", aborts, "--idle-every", "10s", *soak),
        *("--", sys.executable, str(PROGRAMS / "openai_server.py"), str(port), *options),
        command="soak",
        **environment,
    )


def test_a_server_under_our_own_requests_is_told_what_it_keeps_of_them(tmp_path: Path) -> None:
    # More than a thousand requests, because fewer could be a window of the most recent ones.
    quick = ("--first-s", "0.12", "--gap-s", "0.001")
    aborts = "aborts={decode: 0.05, queued: 0.05}"
    key = "canary-key-5f1c"
    run = soak_server(tmp_path, "45s", "--keep", *quick, aborts=aborts, OPENAI_API_KEY=key)

    assert run.code == ExitCode.LEAK
    (leak,) = run.leaks
    assert "exactly 1.00 entries of __main__.kept per accepted request" in leak["title"]
    record = read_run(run.run_dir)
    counts = {name: series.value[-1] for name, series in record.series.items()}
    ends = ["finishes", "requests_rejected", "requests_failed"]
    ends += ["abort_queued", "abort_prefill", "abort_decode"]
    assert counts["events.requests_submitted"] == sum(counts[f"events.{end}"] for end in ends) > 50
    served = {row["name"]: row for row in run.verdict["serving"]}
    assert served["ttft_ms"]["p50"] >= 5
    assert record.manifest.seed == 5
    assert record.manifest.workload["schedule"]
    stored = b"".join(path.read_bytes() for path in run.run_dir.iterdir())
    assert b"canary-key-5f1c" not in stored
    assert b"people way day" not in stored


@pytest.mark.slow
def test_malformed_requests_that_a_server_fails_at_are_counted_by_what_is_wrong(
    tmp_path: Path,
) -> None:
    """The server refuses all malformed requests except invalid JSON, on which it fails."""
    bad_input = "bad_input={malformed: 0.5, large: 0.1}"
    run = soak_server(tmp_path, "20s", "--fault", "bad-json-500", *UNHURRIED, aborts=bad_input)

    assert run.code != ExitCode.CRASHED
    record = read_run(run.run_dir)
    counts = {
        name.removeprefix("events."): series.value[-1] for name, series in record.series.items()
    }
    ends = ["finishes", "requests_rejected", "requests_failed"]
    ends += ["abort_queued", "abort_prefill", "abort_decode"]
    assert counts["requests_submitted"] == sum(counts[end] for end in ends) > 100
    of_kind = {n.partition(".")[2]: n for n in counts if n.startswith("requests_failed_with.")}
    assert "bad_json" in of_kind
    assert set(of_kind) <= {"bad_json", "deep_json", "bad_unicode"}
    assert counts["requests_failed.500"] == sum(counts[name] for name in of_kind.values())
    assert counts["requests_with.wrong_type"] > 0
    assert run.verdict["coverage"]["requests_failed_with.bad_json"]["seen"] > 0


@pytest.mark.slow
def test_a_server_that_dies_of_a_request_says_what_was_in_flight(tmp_path: Path) -> None:
    """Also with exit code 0, because nobody asked the server to exit."""
    run = soak_server(tmp_path, "30s", "--fault", "dies", aborts="options={share: 0.5}")

    assert run.code == ExitCode.CRASHED
    (crash,) = read_run(run.run_dir).all_events(Crash)
    # Requests with options are named first.
    kinds = (
        r"requests in flight: \d+ with a prompt of \d+ to \d+ tokens, (greedy|sampled), with \w+"
    )
    assert re.search(kinds, crash.detail), crash.detail


def test_a_server_that_dies_is_started_again_and_the_request_that_ended_it_is_found(
    tmp_path: Path,
) -> None:
    """It dies under the traffic, again from the replayed requests, and under later traffic."""
    options = ("--fault", "dies-of-seed", "--first-s", "0.02")
    aborts = "options={share: 0.2}"
    run = soak_server(tmp_path, "60s", *options, aborts=aborts, soak=("--restarts", "2"))

    assert run.code == ExitCode.CRASHED
    record = read_run(run.run_dir)
    first, again, last = record.all_events(Crash)
    borders = [border.t_s for border in record.all_events(Segment)]
    assert first.t_s < borders[0] < again.t_s < borders[1] < last.t_s
    started = [one.pid for one in record.all_events(ProcessStarted) if "openai" in one.role]
    assert len(set(started)) == 3
    counts = {name: series.value[-1] for name, series in record.series.items()}
    ends = ["finishes", "requests_rejected", "requests_failed"]
    ends += ["abort_queued", "abort_prefill", "abort_decode"]
    submitted = counts["events.requests_submitted"]
    assert 0 <= submitted - sum(counts[f"events.{end}"] for end in ends) <= 17
    sequence = json.loads((run.run_dir / "crash-sequence.json").read_text())
    (request,) = sequence["smallest"]
    assert sequence["ended"] == 2  # once from all requests together, once from that one alone
    assert isinstance(request["body"]["seed"], int)
    assert re.fullmatch(r"<[\d,]+ characters>", request["body"]["prompt"])
    (crash,) = [one for one in run.verdict["findings"] if one["kind"] == "crash"]
    assert "one crashes it again when sent alone (crash-sequence.json)" in str(crash)


@pytest.mark.slow
def test_requests_that_run_by_the_gauges_after_all_have_ended_are_a_leak(
    tmp_path: Path,
) -> None:
    aborts = "aborts={decode: 0.3}"
    run = soak_server(tmp_path, "20s", "--fault", "ghosts", *UNHURRIED, aborts=aborts)

    assert run.code == ExitCode.LEAK
    assert "in flight by the server's own gauges" in run.verdict["headline"]
    # The processes' idle memory is still scanned.
    assert len(read_run(run.run_dir).all_events(IdleLook)) >= 2


def test_wrong_answers_of_a_server_of_which_only_the_interface_is_seen(tmp_path: Path) -> None:
    """One in ten answers belongs to another prompt; the server's process is not given."""
    port = free_port()
    fault = ("--owner", "vllm", "--fault", "swaps", "--first-s", "0.1")
    server = subprocess.Popen(
        [sys.executable, str(PROGRAMS / "openai_server.py"), str(port), *fault]
    )
    try:
        run = watch(
            tmp_path,
            *("--url", f"http://127.0.0.1:{port}", "--duration", "20s", "--idle-every", "10s"),
            *("--profile", "chat-churn", "--set", "arrival.concurrency=16"),
            *("--set", "output.tokens=[20, 30]", "--answers", "12s"),
            command="soak",
        )
    finally:
        server.kill()
        server.wait()

    assert run.code == ExitCode.CORRUPT
    kinds = {finding["kind"] for finding in run.verdict["findings"]}
    assert {"answers-differ", "memory-not-seen"} <= kinds
    assert "too-few-samples" not in kinds
    record = read_run(run.run_dir)
    assert record.manifest.target.pid is None
    seen = record.all_events(AnswersRepeated)[-1].so_far
    assert {one.margin for one in (*seen.served, *seen.control)} <= {5.0, None}
    # A fast machine repeats all answers in less time.  The verdict needs two that differ.
    assert seen.compared > seen.served_differ + seen.control_differ > 1
