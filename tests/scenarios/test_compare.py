"""Comparisons of versions in real processes: short blocks, small heaps, every possible ending."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hybridbench.compare.store import read_comparison
from hybridbench.records.events import AnswersCompared, Crash, Segment
from hybridbench.records.prepared import PreparedTarget
from hybridbench.rundir.reader import read_run
from hybridbench.targets.prepared import save

ROOT = Path(__file__).parents[2]
SERVER = Path(__file__).parent / "watched" / "openai_server.py"
QUICK = (
    "--block", "2s", "--ballast", "1000", "--set", "warmup.requests=20",
    "--set", "checkpoint.settle=100ms", "--set", "probe.collectible_every=10s",
)  # fmt: skip
REGRESSION, CRASHED, USAGE, INTERRUPTED = 12, 14, 2, 130


def command(store: Path, *arguments: str, greedy: float = 0.1) -> list[str]:
    """Return a command line; answers drawn with top_p, as all but the ``greedy`` ones are, are not
    recomputed by a second engine."""
    words = [sys.executable, "-m", "hybridbench", "compare", "--store", str(store)]
    words += [] if "--profile" in arguments else ["--profile", "smoke"]
    return [*words, *QUICK, "--set", f"sampling={{greedy: {greedy}, top_p: 0.9}}", *arguments]


def compare(
    store: Path, *arguments: str, temporary: Path | None = None, greedy: float = 0.1
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(store, *arguments, greedy=greedy),
        cwd=ROOT,
        env=os.environ if temporary is None else {**os.environ, "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def only_directory(store: Path) -> Path:
    (directory,) = store.iterdir()
    return directory


def facts_of(directory: Path) -> dict[str, object]:
    facts = json.loads((directory / "comparison.json").read_text())
    assert isinstance(facts, dict)
    return facts


@pytest.mark.slow
def test_the_same_engine_twice_serves_the_same_work_in_turns(tmp_path: Path) -> None:
    began_s = time.monotonic()
    words = ("--rounds", "2", "--model", "qwen3-next-nano")
    # Each block has about 60 requests.
    moderate = ("--set", "arrival={process: poisson, rate: 30/s, max_in_flight: 12}")
    done = compare(tmp_path, ".", ".", *words, *moderate, greedy=0.0)
    took_s = time.monotonic() - began_s

    directory = only_directory(tmp_path)
    stored = read_comparison(directory).comparison
    assert [(b.round, b.position, b.version) for b in stored.blocks] == [
        (0, 0, 0), (0, 1, 1), (1, 0, 1), (1, 1, 0),
    ], done.stderr  # fmt: skip
    for first, second in (stored.blocks[:2], stored.blocks[2:]):
        assert first.values["requests"] == pytest.approx(second.values["requests"], rel=0.1)
        # The next conversation depends on which answer arrives first.
        assert first.values["tokens"] == pytest.approx(second.values["tokens"], rel=0.3)
    hashes = {version.manifest.engine_hash for version in stored.versions}
    assert len(hashes) == 1
    for version in stored.versions:
        kinds = {finding.kind for finding in version.verdict.findings}
        assert not kinds & {"gaps", "sampler-late", "crash", "hang", "residual"}, kinds
    assert done.returncode in {0, 13}, done.stdout
    assert f"engine {next(iter(hashes))[:12]}" in done.stderr
    # Each side counts only its own time, so their sum cannot exceed the time that passed.
    runs = [read_run(directory / side) for side in ("a", "b")]
    lengths = [run.events[-1].t_s for run in runs]
    assert sum(lengths) < took_s


@pytest.mark.slow
def test_answers_of_both_sides_are_recomputed(tmp_path: Path) -> None:
    done = compare(tmp_path, ".", ".", "--rounds", "2", "--model", "qwen3-next-nano")

    directory = only_directory(tmp_path)
    for side in ("a", "b"):
        (answers,) = read_run(directory / side).all_events(AnswersCompared)
        assert answers.compared > 0, done.stderr
        assert answers.wrong_answers == 0


@pytest.mark.slow
def test_a_leak_of_one_side_is_introduced_and_exits_12(tmp_path: Path) -> None:
    done = compare(tmp_path, ".", "defect:mamba-adder-reject", "--rounds", "2", "--profile",
                   "admission-squeeze")  # fmt: skip

    assert done.returncode == REGRESSION, done.stdout + done.stderr
    assert "LEAK INTRODUCED" in done.stdout
    assert "mamba" in done.stdout


@pytest.mark.slow
def test_a_worker_that_dies_is_an_outcome_of_its_version(tmp_path: Path) -> None:
    defect = tmp_path / "falls.py"
    defect.write_text(FALLS)

    done = compare(tmp_path / "store", ".", f"defect:{defect}", "--rounds", "4")

    directory = only_directory(tmp_path / "store")
    events = read_run(directory / "b").events
    assert any(isinstance(event, Crash) for event in events), done.stderr
    assert facts_of(directory)["ended"] == "lost"
    assert done.returncode == REGRESSION, done.stdout
    assert "CRASHED" in done.stdout
    assert "Traceback" not in done.stderr


FALLS = """
import os
from hybridbench.defects.defect import Defect, Patch, Signature, fingerprint_of
from hybridbench.engine.engine import Engine

healthy = Engine.step
steps = []

def step(self):
    steps.append(1)
    if self.counters.finishes > 150:
        os._exit(3)
    return healthy(self)

DEFECT = Defect(
    slug="falls", source="test#1", symptom="It falls.", profile="smoke",
    signature=Signature(("CRASHED",), (), "", "", ""),
    patches=(Patch(Engine, "step", step, fingerprint_of(healthy)),),
)
"""


@pytest.mark.slow
def test_a_first_signal_ends_the_comparison_after_the_round_with_what_there_is(
    tmp_path: Path,
) -> None:
    process = subprocess.Popen(
        command(tmp_path, ".", ".", "--rounds", "20"),
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if "round 1 of" in line:
            break
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=240)

    directory = only_directory(tmp_path)
    stored = read_comparison(directory)
    rounds = {block.round for block in stored.comparison.blocks}
    assert process.returncode == INTERRUPTED, said
    assert facts_of(directory)["ended"] == "interrupted"
    assert 1 <= len(rounds) <= 3
    assert len(stored.comparison.blocks) == 2 * len(rounds)
    assert (directory / "report.html").exists()


@pytest.mark.slow
def test_a_fresh_process_for_each_block_is_a_segment_of_the_side(tmp_path: Path) -> None:
    done = compare(tmp_path, ".", ".", "--rounds", "1", "--renew", "1")

    directory = only_directory(tmp_path)
    record = read_run(directory / "a")
    assert len(record.all_events(Segment)) == 1, done.stderr
    pids = {str(entry) for entry in re.findall(r'"pid": (\d+)', manifest_text(directory / "a"))}
    assert len(pids) == 2
    assert done.returncode in {0, 13}, done.stdout


def manifest_text(run_dir: Path) -> str:
    return (run_dir / "manifest.json").read_text()


@pytest.mark.slow
def test_a_revision_runs_its_own_engine_and_leaves_no_tree(tmp_path: Path) -> None:
    place = tmp_path / "temporary"
    place.mkdir()
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()

    options = ("--rounds", "1", "--same-engine")
    done = compare(tmp_path / "store", f"git:{head}", ".", *options, temporary=place)

    versions = facts_of(only_directory(tmp_path / "store"))["versions"]
    assert isinstance(versions, list)
    assert versions[0]["commit"] == head, done.stderr
    assert f"commit {head[:10]}" in done.stderr
    assert list(place.glob("hybridbench-tree-*")) == []


@pytest.mark.slow
def test_what_differs_in_more_than_the_engine_is_refused_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    first = compare(tmp_path / "one", ".", ".", "--rounds", "1")
    second = compare(tmp_path / "two", ".", ".", "--rounds", "1", "--gc", "freeze-after-warmup")
    one, two = (only_directory(tmp_path / name) / "a" for name in ("one", "two"))

    done = compare(tmp_path / "both", str(one), str(two))

    assert (first.returncode, second.returncode) < (14, 14)
    assert done.returncode == USAGE, done.stdout
    assert "gc (default and freeze-after-warmup)" in done.stderr
    assert not (tmp_path / "both").exists()


def test_a_worker_that_cannot_be_started_exits_14_in_one_sentence(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    # It reports its version, but fails when started as a worker.
    broken.write_text(
        f'#!/bin/sh\ncase "$*" in *bench.worker\\ --*) echo "no such luck" >&2; exit 5;; esac\n'
        f'exec "{sys.executable}" "$@"\n'
    )
    broken.chmod(0o755)

    # The broken version comes first, so that nothing waits for the other one to warm up.
    done = compare(tmp_path / "store", f"python:{broken}", ".")

    assert done.returncode == CRASHED, done.stderr
    assert "no such luck" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_two_prepared_servers_are_soaked_under_one_schedule(tmp_path: Path) -> None:
    targets = tmp_path / "targets"
    for release in ("1.0", "1.1"):
        folder = targets / f"vllm-{release}"
        (folder / "bin").mkdir(parents=True)
        save(folder, PreparedTarget(engine="vllm", release=release, servers=("serve",)))
        script = folder / "bin" / "serve"
        # It is called with --port and a number, and uses only the number.
        script.write_text(f'#!/bin/sh\nexec {sys.executable} {SERVER} "$2"\n')
        script.chmod(0o755)

    done = subprocess.run(
        [sys.executable, "-m", "hybridbench", "compare", "vllm==1.0", "vllm==1.1",
         "--targets", targets, "--store", tmp_path / "store", "--max-time", "40s",
         "--profile", "one-by-one", "--format", "json"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode in {0, 13}, done.stderr
    stored = read_comparison(only_directory(tmp_path / "store")).comparison
    before, after = stored.versions
    assert [(v.name, v.kind) for v in stored.versions] == [
        ("vllm==1.0", "server"), ("vllm==1.1", "server"),
    ]  # fmt: skip
    schedules = {str(version.manifest.workload["schedule"]) for version in (before, after)}
    assert len(schedules) == 1
    assert before.manifest.seed == after.manifest.seed
