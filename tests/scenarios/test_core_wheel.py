"""hybridbench-core, installed in its own folder, with imports of torch and the like blocked.

Everything that needs no engine gives the same results as full hybridbench; everything else says in
one sentence that it needs an engine.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hybridbench.cli.app import app
from tests.scenarios.test_documented_commands import STORED, write_series
from tests.scenarios.test_watch import PROGRAMS, UNHURRIED, free_port

pytest.importorskip("hatchling")
from tools import core_wheel

ROOT = Path(__file__).parents[2]
LEAK = ROOT / "hybridbench" / "runs" / "recording"
HOOK = """
import sys

class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "triton", "transformers", "safetensors"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refused())
"""


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed wheel, and a hook for every Python that starts there."""
    wheels, site = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("site")
    core_wheel.build(wheels)
    (wheel,) = wheels.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    # The commands compile what they import, which is a part of what pip would compile.
    words = ["--no-compile", "--disable-pip-version-check", "--target", str(site), str(wheel)]
    subprocess.run([*pip, *words], check=True, timeout=300)
    (site / "sitecustomize.py").write_text(HOOK)
    return site


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with recorded series, a leaking run, and two versions of a comparison."""
    folder = tmp_path_factory.mktemp("place")
    write_series(folder)
    shutil.copytree(LEAK, folder / "results" / "RUN")
    shutil.copytree(STORED / "comparison" / "a", folder / "results" / "RUN1")
    shutil.copytree(STORED / "comparison" / "b", folder / "results" / "RUN2")
    return folder


def run(core: Path, place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(core), "PYTHONSAFEPATH": "1", "COLUMNS": "100"}
    return subprocess.run(
        [sys.executable, "-m", "hybridbench", *words],
        cwd=place, env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


# Runs commands in one process, which takes a tenth of the time of one process per command.
ONE_BY_ONE = """
import json, os, pathlib, sys

from hybridbench.cli.app import main

ended = {}
for words in json.loads(sys.argv[1]):
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC), number)
    sys.argv = ["hybridbench", *words.split()]
    before = sorted(os.listdir("results"))
    code = 0
    try:
        main()
    except SystemExit as end:
        code = end.code
    sys.stdout.flush()
    sys.stderr.flush()
    said = [pathlib.Path(name).read_text() for name in ("out", "err")]
    ended[words] = [code, *said, sorted(os.listdir("results")) == before]
pathlib.Path("ended.json").write_text(json.dumps(ended))
"""


@dataclass(frozen=True)
class Said:
    """The result of a command."""

    code: int
    stdout: str
    stderr: str
    left_the_store: bool
    """Whether the folder of runs has the same contents as before."""


@pytest.fixture(scope="module")
def said(core: Path, place: Path) -> Mapping[str, Said]:
    commands = json.dumps([*WORKS, *NEEDS_ENGINE, *AS_IN_THE_WHOLE, MISSPELT])
    environment = {**os.environ, "PYTHONPATH": str(core), "PYTHONSAFEPATH": "1", "COLUMNS": "100"}
    subprocess.run(
        [sys.executable, "-c", ONE_BY_ONE, commands],
        cwd=place, env=environment, timeout=300, check=True,
    )  # fmt: skip
    ended = json.loads((place / "ended.json").read_text())
    return {words: Said(*each) for words, each in ended.items()}


WORKS: Mapping[str, int] = {
    "--help": 0,
    "judge rss.csv --work-column requests_total": 0,
    "judge results/RUN -q": 10,
    "report results/RUN": 10,
    "report results/RUN --format csv": 10,
    "report results/RUN -q --output html=page.html --output junit=junit.xml": 10,
    "diagnose results/RUN": 0,
    "compare results/RUN1 results/RUN2": 13,
    "history": 0,
    "list runs": 0,
    "list defects": 0,
    "explain lru-reference-cycle": 0,
    "prune --keep 1 --dry-run": 0,
    "profiles list": 0,
    "profiles validate smoke": 0,
    "target list": 0,
    "probe export copied": 0,
    "nightly plan nightly": 0,
}


@pytest.mark.parametrize("words", WORKS)
def test_what_needs_no_engine_works_without_torch(words: str, said: Mapping[str, Said]) -> None:
    done = said[words]

    assert done.code == WORKS[words], done.stderr
    assert done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_demo_runs_to_its_end(core: Path, tmp_path: Path) -> None:
    done = run(core, tmp_path, "demo")

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "results" / "demo" / "report.html").is_file()
    assert "hybridbench watch -- COMMAND" in done.stdout
    # The bundled engine cannot run here.
    assert "hybridbench soak --duration" not in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("command", ["watch", "soak"])
def test_a_server_of_others_is_watched_and_soaked(command: str, core: Path, tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    words = ["--duration", "20s", "--extend", "0", "--idle-every", "10s", "-q"]
    if command == "soak":
        words += ["--url", url, "--profile", "chat-churn", "--set", "arrival.concurrency=4"]
    server = [sys.executable, str(PROGRAMS / "openai_server.py"), str(port), *UNHURRIED]

    done = run(core, tmp_path, command, *words, "--", *server)

    (run_dir,) = (tmp_path / "results").iterdir()
    verdict = json.loads((run_dir / "verdict.json").read_text())
    assert done.returncode == verdict["exit_code"] != 14, done.stderr
    assert done.stdout.startswith(verdict["verdict"])
    # The server ran under the same hook; its counts came through the probe and the client.
    samples = (run_dir / "samples.jsonl").read_text()
    assert '"rss_anon_swap_bytes":' in samples
    assert ('"events.finishes":' in samples) is (command == "soak")


NEEDS_ENGINE = (
    "soak --duration 30s",
    "soak --duration 30s --defect lru-reference-cycle",
    "soak --dry-run",
    "serve --port 0",
    "compare . . --profile smoke --rounds 1",
    "selftest --only lru-reference-cycle",
    "list models",
    "list kernels",
    "explain lru-reference-cycle@1MiB/h",
)


@pytest.mark.parametrize("words", NEEDS_ENGINE)
def test_what_needs_the_engine_says_so_in_a_sentence(words: str, said: Mapping[str, Said]) -> None:
    done = said[words]

    last = done.stderr.splitlines()[-1]
    assert done.code == 2, done.stderr
    assert "needs the bundled engine" in last
    assert "is not installed here: run `pip install hybridbench`" in last
    assert "Traceback" not in done.stderr
    assert done.left_the_store


AS_IN_THE_WHOLE = ("list defects", "explain lru-reference-cycle", "explain slow-step")
MISSPELT = "explain lru-reference-cycel"


@pytest.mark.parametrize("words", AS_IN_THE_WHOLE)
def test_the_defects_are_those_of_the_engine(
    words: str, said: Mapping[str, Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")

    whole = CliRunner().invoke(app, words.split())

    assert whole.output == said[words].stdout


def test_a_defect_that_there_is_not_is_met_with_the_nearest(said: Mapping[str, Said]) -> None:
    done = said[MISSPELT]

    assert done.code == 2
    assert "did you mean lru-reference-cycle?" in done.stderr


def test_both_wheels_have_the_same_files_and_differ_in_what_they_need(
    tmp_path: Path, core: Path
) -> None:
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index"]
    words = ["--no-build-isolation", "--disable-pip-version-check", "--wheel-dir", str(tmp_path)]
    subprocess.run([*pip, *words, str(ROOT)], check=True, timeout=300)
    (wheel,) = tmp_path.glob("*.whl")

    with zipfile.ZipFile(wheel) as archive:
        files = {name for name in archive.namelist() if ".dist-info/" not in name}
        (metadata,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        whole = set(re.findall(r"^Requires-Dist: (.*)$", archive.read(metadata).decode(), re.M))
    found = {
        path.relative_to(core).as_posix()
        for path in (core / "hybridbench").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    (metadata_of_core,) = core.glob("hybridbench_core-*.dist-info/METADATA")
    needed = set(re.findall(r"^Requires-Dist: (.*)$", metadata_of_core.read_text(), re.M))

    assert found - files == {"hybridbench/defects/descriptions.json"}
    assert files - found == set()
    assert {re.split(r"[<>=]", one)[0] for one in whole - needed} == {"torch", "safetensors"}
    assert needed < whole


def test_a_project_without_the_lines_that_are_left_out_is_refused() -> None:
    text = (ROOT / "pyproject.toml").read_text("utf-8").replace('    "torch>=2.6",\n', "")

    with pytest.raises(ValueError, match="torch"):
        core_wheel.core_project(text)
