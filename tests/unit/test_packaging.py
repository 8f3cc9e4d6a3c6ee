"""The wheel is self-contained: it has the profiles, schemas and report assets."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel installed, without its dependencies and without network access."""
    pytest.importorskip("hatchling")
    target = tmp_path_factory.mktemp("site")
    # Run elsewhere, because a build that works only in the checkout would pass otherwise.
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation",
         "--no-index", "--no-compile", "--disable-pip-version-check", "--target", str(target),
         str(ROOT)],
        cwd=tmp_path_factory.mktemp("elsewhere"),
        check=True,
        timeout=300,
    )  # fmt: skip
    return target


def run_installed(installed: Path, cwd: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(installed), "PYTHONSAFEPATH": "1"}
    result = subprocess.run(
        [sys.executable, "-m", "hybridbench", *arguments],
        cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.slow
def test_profiles_are_found_from_an_empty_directory(installed: Path, tmp_path: Path) -> None:
    assert "chat-churn" in run_installed(installed, tmp_path, "profiles", "list")
    shown = run_installed(installed, tmp_path, "profiles", "show", "smoke")

    assert shown == (ROOT / "profiles" / "smoke.yaml").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["report/assets", "rundir/schemas"])
def test_data_files_travel_in_the_wheel(installed: Path, folder: str) -> None:
    source = {p.name for p in (ROOT / "hybridbench" / folder).iterdir() if p.is_file()}
    shipped = {p.name for p in (installed / "hybridbench" / folder).iterdir() if p.is_file()}

    assert source
    assert shipped >= source


@pytest.mark.slow
def test_the_wheel_has_the_package_alone(installed: Path) -> None:
    folders = {path.name for path in installed.iterdir() if not path.name.endswith(".dist-info")}

    assert folders - {"bin"} == {"hybridbench"}


@pytest.mark.slow
def test_the_description_renders_away_from_the_repository(installed: Path) -> None:
    (metadata,) = installed.glob("hybridbench-*.dist-info/METADATA")
    head, _, description = metadata.read_text(encoding="utf-8").partition("\n\n")

    assert "Description-Content-Type: text/markdown" in head
    assert "hybridbench soak" in description
    targets = re.findall(r"\]\(([^)]*)\)", description)
    assert all(target.startswith("https://") for target in targets)


def test_the_steps_of_the_action_are_shell_that_parses() -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    scripts = [step["run"] for step in action["runs"]["steps"]]

    assert len(scripts) == 2
    for script in scripts:
        # Inputs come by the environment, so that user input never becomes part of the script.
        assert "${{" not in script
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


GH = """#!/bin/bash
# Stands for GitHub's command: keeps what it is asked, and knows the comment of $KNOWN.
printf '%s\\n' "$*" >> "$CALLS"
case "$*" in
  *--paginate*) [ -z "$KNOWN" ] || printf '%s\\n' "$KNOWN" 99 ;;
  *body=@*) last="${!#}"; cp "${last#body=@}" "$CALLS.body"; exit "${REFUSED:-0}" ;;
esac
"""
BENCH = """#!/bin/bash
printf '%s\\n' "$@" > "$CALLS.words"
env > "$CALLS.environment"
[ "$2" != --output ] || printf '# LEAK \\342\\202\\254%.0s' {1..9000} > "${3#markdown=}"
exit 12
"""


@dataclass(frozen=True)
class Step:
    """What the action's step did: its exit code, its output, and the commands that it called."""

    code: int
    printed: str
    words: list[str]
    calls: list[str]
    body: str
    environment: str


def run_step(place: Path, arguments: str, **environment: str) -> Step:
    """Run the action's second step with a fake ``hybridbench`` and ``gh``, which record calls."""
    action = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    script = action["runs"]["steps"][1]["run"]
    for path, text in ((place / "gh", GH), (place / "hybridbench" / "bin" / "hybridbench", BENCH)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    calls = place / "calls"
    given = {
        "PATH": f"{place}:{os.environ['PATH']}",
        "RUNNER_TEMP": str(place),
        "GITHUB_OUTPUT": str(place / "output"),
        "GITHUB_REPOSITORY": "o/r",
        "GITHUB_WORKFLOW": "ci",
        "GITHUB_JOB": "speed",
        "CALLS": str(calls),
        "ARGUMENTS": arguments,
        "COMMENT_TOKEN": "",
        "PULL_REQUEST": "",
        **environment,
    }
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        env=given, capture_output=True, text=True, check=False,
    )  # fmt: skip

    def kept(suffix: str) -> str:
        file = place / f"calls{suffix}"
        return file.read_text("utf-8") if file.exists() else ""

    assert (place / "output").read_text() == f"exit-code={done.returncode}\n"
    words, asked = kept(".words").splitlines(), kept("").splitlines()
    return Step(done.returncode, done.stdout, words, asked, kept(".body"), kept(".environment"))


IN_PULL_REQUEST = {"COMMENT_TOKEN": "secret", "PULL_REQUEST": "7"}


def test_arguments_with_an_open_quote_are_refused_and_not_cut_there(tmp_path: Path) -> None:
    step = run_step(tmp_path, "judge rss.csv 'other.csv")

    assert step.code == 2
    assert step.words == []
    assert step.printed.startswith("::error::arguments: a quote is not closed")


def test_the_report_becomes_a_comment_on_the_pull_request(tmp_path: Path) -> None:
    step = run_step(tmp_path, "compare 'git:main' .", **IN_PULL_REQUEST)

    assert step.code == 12
    assert step.words[:2] == ["compare", "--output"]
    assert step.words[3:] == ["git:main", "."]
    assert step.calls[-1].startswith("api --silent repos/o/r/issues/7/comments --field body=@")
    mark, _, report = step.body.partition("\n")
    assert mark == "<!-- hybridbench ci / speed -->"
    assert report.startswith("# LEAK €# LEAK €")
    assert 59_000 < len(step.body.encode()) < 61_000
    # What runs under the bench must not inherit the token.
    assert "secret" not in step.environment


def test_the_comment_of_a_former_run_is_written_anew(tmp_path: Path) -> None:
    step = run_step(tmp_path, "compare git:main .", KNOWN="41", **IN_PULL_REQUEST)

    assert step.calls[-1].startswith("api --silent --method PATCH repos/o/r/issues/comments/41 ")


def test_a_comment_that_is_refused_is_a_warning_and_the_exit_code_stays(tmp_path: Path) -> None:
    step = run_step(tmp_path, "compare git:main .", REFUSED="1", **IN_PULL_REQUEST)

    assert step.code == 12
    assert step.printed.startswith("::warning::")


@pytest.mark.parametrize("missing", ["COMMENT_TOKEN", "PULL_REQUEST"])
def test_without_a_token_or_a_pull_request_nothing_is_commented_on(
    missing: str, tmp_path: Path
) -> None:
    step = run_step(tmp_path, "judge rss.csv", **{**IN_PULL_REQUEST, missing: ""})

    assert (step.code, step.words, step.calls) == (12, ["judge", "rss.csv"], [])


def test_what_the_dockerfile_copies_is_not_ignored() -> None:
    kept = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    needed = {"hybridbench", "profiles", "pyproject.toml", "LICENSE", "constraints.txt"}

    assert needed <= {line.removeprefix("!") for line in kept if line.startswith("!")}
    assert all((ROOT / name).exists() for name in needed)


def test_everything_in_the_profiles_folder_travels(installed: Path) -> None:
    source = ROOT / "profiles"
    names = {p.relative_to(source).as_posix() for p in source.rglob("*") if p.is_file()}
    shipped = installed / "hybridbench" / "profiles"

    assert names <= {p.relative_to(shipped).as_posix() for p in shipped.rglob("*")}
