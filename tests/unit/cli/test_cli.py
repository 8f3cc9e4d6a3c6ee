"""The command line: a user's mistake is one sentence and exit code 2, never a traceback."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import NoReturn

import pytest
import typer
from typer.core import TyperGroup
from typer.testing import CliRunner

from hybridbench.cli.app import app
from hybridbench.cli.options import GcMode
from hybridbench.cli.run_options import SoakUi, StopMode
from hybridbench.cli.soak import DiagnoseMode
from hybridbench.foundation.errors import ErrorCode, UsageError
from hybridbench.workload.catalog import list_profiles
from tests.unit.cli.conftest import CommandLine

pytestmark = pytest.mark.usefixtures("catalog_in_this_process")


def one_sentence(result: subprocess.CompletedProcess[str]) -> str:
    """Return the message of a usage error, after checking that nothing else was printed."""
    assert result.returncode == 2, result.stderr
    assert "Traceback" not in result.stderr
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("hybridbench: ")
    return lines[0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--profile", "chat-chrn"], "did you mean chat-churn"),
        (["--profile", "absent.yaml"], "absent.yaml"),
        (["--defect", "lru-reference-cycles"], "did you mean lru-reference-cycle"),
        (["--duration", "1h30"], "write 90s, 5m"),
        (["--duration", "5s"], "--duration 5s: too short to be judged; use at least 20s."),
        (["--duration", "5"], "a number without a unit is in seconds, and 5 s is too short to be"),
        (["--set", "pools.mamba_slots"], "write KEY=VALUE"),
        (["--set", "pools.mamba_slot=4"], "mamba_slots"),
        (["--speedup", "20"], "belong to --trace"),
        (["--trace", "absent.jsonl"], "absent.jsonl"),
        (["--trace", "absent.jsonl", "--length-scale", "2"], "--length-scale"),
        (["--model", "qwen3-nxt-tiny"], "--model: 'qwen3-nxt-tiny' is neither a preset nor a"),
        (["--model", "qwen3-nxt-tiny"], "directory; did you mean qwen3-next-tiny?"),
        (["--model", "./absent"], "--model: there is no directory ./absent; nothing is down"),
        (["--model", __file__], "is a file; give the directory that holds config.json and *.saf"),
        (["--set", "model=llama-3"], "profile chat-churn: model: 'llama-3' is neither"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_soak_is_told_in_one_sentence_and_leaves_nothing(
    hybridbench: CommandLine, tmp_path: Path, arguments: list[str], said: str
) -> None:
    result = hybridbench("soak", "--ui", "none", *arguments, cwd=tmp_path)

    assert said in one_sentence(result)
    runs = tmp_path / "results"
    assert not runs.exists() or list(runs.iterdir()) == []


@pytest.mark.parametrize(
    ("option", "choices"),
    [("--ui", SoakUi), ("--gc", GcMode), ("--diagnose", DiagnoseMode), ("--stop", StopMode)],
)
def test_a_value_that_is_no_choice_is_refused_with_the_choices(
    option: str, choices: type[StrEnum]
) -> None:
    error = CliRunner().invoke(app, ["soak", option, "pretty"]).exception

    assert isinstance(error, UsageError)
    assert error.code is ErrorCode.UNKNOWN_CHOICE
    assert f"{option} pretty" in str(error)
    assert all(choice.value in str(error) for choice in choices)


def test_a_malformed_profile_is_told_with_file_and_line(
    hybridbench: CommandLine, tmp_path: Path
) -> None:
    (tmp_path / "mine.yaml").write_text("name: mine\narrivals: {process: closed}\n", "utf-8")

    result = hybridbench("profiles", "validate", "mine.yaml", cwd=tmp_path)

    assert result.returncode == 2
    assert result.stderr.splitlines() == [
        "hybridbench: mine.yaml:2: unknown key arrivals; did you mean arrival?",
        "hybridbench: mine.yaml: promise is missing.",
    ]


def test_a_profile_with_a_model_that_is_nowhere_is_not_valid(
    hybridbench: CommandLine, tmp_path: Path
) -> None:
    shipped = list_profiles()["steady-decode"].read_text("utf-8")
    (tmp_path / "mine.yaml").write_text(f"{shipped}\nmodel: llama-3\n", "utf-8")

    result = hybridbench("profiles", "validate", "mine.yaml", cwd=tmp_path)

    said = "hybridbench: mine.yaml: model: 'llama-3' is neither a preset nor a directory; choose"
    assert one_sentence(result).startswith(said)


def test_every_profile_is_validated_though_one_is_wrong(
    hybridbench: CommandLine, tmp_path: Path
) -> None:
    (tmp_path / "mine.yaml").write_text("name: mine\n", "utf-8")

    result = hybridbench("profiles", "validate", "absent", "smoke", "mine.yaml", cwd=tmp_path)

    assert result.returncode == 2
    assert result.stdout == "smoke: valid\n"
    assert [line.split(": ")[1] for line in result.stderr.splitlines()] == [
        "there is no profile 'absent'; choose one of " + ", ".join(list_profiles()) + ".",
        "mine.yaml",
        "mine.yaml",
    ]


def test_report_on_something_that_is_no_run_is_told_in_one_sentence(
    hybridbench: CommandLine, tmp_path: Path
) -> None:
    assert "not a run directory" in one_sentence(hybridbench("report", str(tmp_path)))


def test_the_shipped_profiles_are_listed_and_valid(hybridbench: CommandLine) -> None:
    listed = hybridbench("profiles", "list").stdout

    for name in ("smoke", "chat-churn", "steady-decode", "admission-squeeze"):
        assert name in listed
    names = ["smoke", "chat-churn", "steady-decode", "admission-squeeze"]
    assert hybridbench("profiles", "validate", *names).returncode == 0
    assert json.loads(hybridbench("profiles", "schema").stdout)["type"] == "object"


def test_defects_are_listed_with_their_source(hybridbench: CommandLine) -> None:
    assert "sglang#25770" in hybridbench("list", "defects").stdout
    shown = hybridbench("explain", "mamba-adder-reject").stdout
    assert "PrefillAdder._return_unadmitted" in shown


def test_commands_that_compute_nothing_load_no_numpy(tmp_path: Path) -> None:
    commands = (
        "--help",
        "--version",
        "soak --help",
        "report --help",
        "judge --format pdf series.csv",
        "prune",
        "profiles list",
        "list runs --store .",
    )
    # One process for all, which names the first command after which something heavy is loaded.
    code = (
        "import sys\nfrom hybridbench.cli.app import main\n"
        "for command in sys.argv[1:]:\n"
        "    sys.argv = ['hybridbench', *command.split()]\n"
        "    try:\n        main()\n    except SystemExit:\n        pass\n"
        "    heavy = {'numpy', 'scipy', 'torch', 'jinja2', 'hybridbench.engine'}\n"
        "    found = heavy & set(sys.modules)\n"
        "    if found:\n        sys.exit(f'{command}: {found}')"
    )

    result = subprocess.run(
        [sys.executable, "-c", code, *commands], check=False, capture_output=True, cwd=tmp_path
    )

    assert result.returncode == 0, result.stderr


def test_report_judges_without_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from hybridbench.cli import render; from hybridbench.analysis import judge; "
        "from hybridbench.report import write; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=tmp_path).returncode == 0


def _leaves(command: object, *words: str) -> Iterator[tuple[str, ...]]:
    if isinstance(command, TyperGroup):
        for word, below in command.commands.items():
            yield from _leaves(below, *words, word)
    else:
        yield words


@pytest.mark.parametrize("words", list(_leaves(typer.main.get_command(app))), ids=" ".join)
@pytest.mark.parametrize("columns", [80, 200])
def test_the_help_of_a_command_has_an_example_and_no_types_and_fits(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))

    text = CliRunner().invoke(app, [*words, "--help"]).output

    assert f"Example: hybridbench {' '.join(words)}" in " ".join(text.split())
    assert not re.search(r"<(?:str|int|path|list\[|float>|int range)|\{|x>=|<=x", text)
    assert max(map(len, text.splitlines())) <= columns


def test_ctrl_c_before_anything_has_begun_is_no_traceback(
    hybridbench: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted() -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr("hybridbench.cli.app.app", interrupted)

    ended = hybridbench("profiles", "list")

    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


@pytest.mark.parametrize(("columns", "widest"), [(60, 60), (100, 100), (120, 120), (300, 120)])
def test_help_is_as_wide_as_the_terminal_up_to_what_reads_well(
    hybridbench: CommandLine, monkeypatch: pytest.MonkeyPatch, columns: int, widest: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))

    # Typer's test runner would set a width of its own.
    lines = hybridbench("soak", "--help").stdout.splitlines()

    assert widest - 10 < max(map(len, lines)) <= widest


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["list", "profiles"], "did you mean 'hybridbench profiles'"),
        (["list", "run"], "did you mean 'runs'"),
        (["list", "nothing"], "see 'hybridbench list --help'"),
    ],
)
def test_a_command_in_the_wrong_group_is_met_with_where_it_is(words: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        CliRunner().invoke(app, words, catch_exceptions=False)
