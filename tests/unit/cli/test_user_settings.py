"""Options from the environment and from a file, below the command line and above the default."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hybridbench.cli.app import app
from hybridbench.cli.user_settings import typed_command
from hybridbench.foundation.errors import ErrorCode, ExitCode, HybridbenchError
from hybridbench.targets.own_process import own_command
from tests.unit.cli.conftest import CommandLine


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    return tmp_path


def refusal(*command: str) -> HybridbenchError:
    error = CliRunner().invoke(app, list(command)).exception
    assert isinstance(error, HybridbenchError), error
    assert error.exit_code is ExitCode.USAGE
    assert "\n" not in str(error)
    return error


def listed(*options: str) -> bool:
    """Whether ``list runs`` answers in JSON."""
    output = CliRunner().invoke(app, ["list", "runs", *options]).output
    try:
        return isinstance(json.loads(output), object)
    except ValueError:
        return False


@pytest.fixture
def one_run(place: Path) -> None:
    from tests.unit.over_time.stores import DAY_S, add_run, verdict

    add_run(place / "results", "one", DAY_S, verdict())


@pytest.mark.usefixtures("one_run")
@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("hybridbench.toml", '[list.runs]\nformat = "json"\n'),
        ("pyproject.toml", '[tool.hybridbench.list.runs]\nformat = "json"\n'),
    ],
)
def test_a_file_is_above_the_default_the_environment_above_it_and_the_command_line_on_top(
    place: Path, monkeypatch: pytest.MonkeyPatch, file: str, text: str
) -> None:
    assert not listed()
    (place / file).write_text(text)
    assert listed()
    monkeypatch.setenv("HYBRIDBENCH_LIST_RUNS_FORMAT", "console")
    assert not listed()
    assert listed("--format", "json")


def test_the_own_file_is_read_alone(place: Path) -> None:
    (place / "hybridbench.toml").write_text("")
    (place / "pyproject.toml").write_text("[tool.hybridbench.soak]\nno-such = 1\n")

    assert CliRunner().invoke(app, ["profiles", "list"]).exit_code == 0


@pytest.mark.parametrize(
    ("text", "code", "key"),
    [
        ('[soak]\nduratoin = "2h"\n', ErrorCode.UNKNOWN_NAME, "soak.duratoin"),
        ("[sok]\nseed = 2\n", ErrorCode.UNKNOWN_NAME, "sok"),
        ("soak = 3\n", ErrorCode.BAD_VALUE, "soak"),
        ("[soak]\nduration = [2]\n", ErrorCode.BAD_VALUE, "soak.duration"),
        ('[soak]\nthreshold = "rss"\n', ErrorCode.BAD_VALUE, "soak.threshold"),
        ('[soak]\ndry-run = "yes"\n', ErrorCode.BAD_VALUE, "soak.dry-run"),
        ('[soak]\nseed = "x"\n', ErrorCode.BAD_VALUE, "soak.seed"),
        ('[soak]\nui = "fancy"\n', ErrorCode.UNKNOWN_CHOICE, "soak.ui"),
        ('[soak]\nduration = "5s"\n', ErrorCode.BAD_VALUE, "soak.duration"),
        ("[soak\n", ErrorCode.DAMAGED, ""),
    ],
)
def test_what_is_wrong_in_a_file_is_told_with_file_and_key(
    place: Path, text: str, code: ErrorCode, key: str
) -> None:
    (place / "hybridbench.toml").write_text(text)

    error = refusal("soak")

    assert error.code is code
    assert str(error).startswith(f"hybridbench.toml: {key}")


def test_a_directory_in_place_of_the_file_is_refused(place: Path) -> None:
    (place / "hybridbench.toml").mkdir()

    assert refusal("profiles", "list").code is ErrorCode.NOT_READABLE


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("HYBRIDBENCH_SOAK_DURATION", "5s", ErrorCode.BAD_VALUE),
        ("HYBRIDBENCH_SOAK_UI", "fancy", ErrorCode.UNKNOWN_CHOICE),
        ("HYBRIDBENCH_SOAK_SET", "'open", ErrorCode.BAD_VALUE),
        ("HYBRIDBENCH_SOAK_SET", "one two", ErrorCode.BAD_VALUE),
        ("HYBRIDBENCH_SOAK_DRY_RUN", "maybe", ErrorCode.BAD_VALUE),
    ],
)
def test_what_is_wrong_in_a_variable_is_told_with_its_name(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, code: ErrorCode
) -> None:
    monkeypatch.setenv(name, value)

    error = refusal("soak")

    assert error.code is code
    assert str(error).startswith(name)


def test_an_option_that_an_error_only_advises_is_not_blamed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("time_s,load\n" + "".join(f"{i},1\n" for i in range(100)))
    monkeypatch.setenv("HYBRIDBENCH_JUDGE_METRIC", "load")

    typed = refusal("judge", str(tmp_path / "a.csv"), "--threshold", "load<3GiB/h")
    monkeypatch.setenv("HYBRIDBENCH_JUDGE_THRESHOLD", "load<3GiB/h")
    taken = refusal("judge", str(tmp_path / "a.csv"))

    assert str(typed).startswith("--threshold load<3GiB/h: ")
    assert "--metric 'load:GiB'" in str(typed)
    assert str(taken) == f"HYBRIDBENCH_JUDGE_THRESHOLD: {typed}"
    assert taken.code is typed.code is ErrorCode.BAD_VALUE


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("HYBRIDBENCH_LIST_RUNS_FORMT", "; did you mean HYBRIDBENCH_LIST_RUNS_FORMAT?"),
        ("HYBRIDBENCH_SOAK_DURATOIN", "; did you mean HYBRIDBENCH_SOAK_DURATION?"),
        ("HYBRIDBENCH_LIST_RUNS_FORMAT", None),
        ("HYBRIDBENCH_NIGHTLY_RUN_BUDGET", None),
        ("HYBRIDBENCH_REPOSITORY", None),
        ("HYBRIDBENCHMARK_HOME", None),
    ],
)
def test_a_variable_that_sets_nothing_is_named_with_the_nearest(
    monkeypatch: pytest.MonkeyPatch, name: str, said: str | None
) -> None:
    monkeypatch.setenv(name, "json")

    result = CliRunner().invoke(app, ["list", "runs", "--store", "."])

    expected = "" if said is None else f"hybridbench: {name} sets no option and has no effect{said}"
    assert result.stderr.strip() == expected


def test_help_and_completion_work_beside_a_wrong_file(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "hybridbench.toml").write_text("[soak\n")

    assert CliRunner().invoke(app, ["soak", "--help"]).exit_code == 0
    monkeypatch.setenv("_HYBRIDBENCH_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "hybridbench soak --profile chat-c")
    monkeypatch.setenv("COMP_CWORD", "3")
    result = CliRunner().invoke(app, [], prog_name="hybridbench")
    assert result.output.split() == ["chat-churn"]


@pytest.mark.usefixtures("one_run")
def test_a_child_of_ours_takes_nothing_from_file_or_environment(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "hybridbench.toml").write_text("[profiles.show]\nno-such = 1\n")
    monkeypatch.setenv("HYBRIDBENCH_LIST_RUNS_FORMAT", "fancy")

    command = own_command([sys.executable, "-m", "hybridbench", "list", "runs"])
    child = subprocess.run(command, capture_output=True, text=True, check=False)

    assert child.returncode == 0, child.stderr


def test_the_recorded_command_has_what_was_set_elsewhere(
    place: Path, monkeypatch: pytest.MonkeyPatch, hybridbench: CommandLine
) -> None:
    seen: list[tuple[str, ...]] = []
    (place / "hybridbench.toml").write_text('[soak]\nseed = 7\nset = ["gc.mode=default"]\n')
    monkeypatch.setattr(
        "hybridbench.cli.soak.print_preview", lambda plan, output: seen.append(plan.command)
    )

    hybridbench("soak", "--dry-run", "--duration", "5m")

    added = ("--seed", "7", "--set", "gc.mode=default")
    assert [{*seen[0][2:-3]}, *seen[0][-3:]] == [{*added}, "--dry-run", "--duration", "5m"]


def test_outside_a_command_the_typed_words_are_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["anything", "soak"])

    assert typed_command() == ("hybridbench", "soak")
