"""``make gpu`` without a GPU: its commands exist, and its page does not hide failures."""

from __future__ import annotations

import argparse
import os
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup

from benchmarks.__main__ import app as benchmarks
from hybridbench.cli.app import app
from tools import gpu_page
from tools.gpu_machine import environment_of, machine_facts, missing_wheels
from tools.gpu_page import TESTS, TESTS_OF_TIMES, file_name, page, plan
from tools.gpu_steps import GRACE_S, ROOT, Command, Ended, Result, Step, run_step
from tools.step_profile import given_options

STORED = ROOT / "tests" / "fixtures" / "stored"
HEADER = {"card": "made up"}


@pytest.fixture
def steps(tmp_path: Path) -> tuple[Step, ...]:
    return plan(tmp_path)


def of(steps: tuple[Step, ...], title: str) -> Step:
    return next(step for step in steps if step.title == title)


def runs(step: Step, tmp_path: Path, limit_s: float = 60.0) -> tuple[Result, str]:
    """Run ``step``; return its result, and a page with that result alone."""
    result = run_step(step, environment_of(tmp_path, tmp_path), limit_s, tmp_path)
    return result, page(HEADER, [result], "2026-01-01")


def commands(steps: tuple[Step, ...], module: str) -> Iterator[list[str]]:
    """Yield the arguments of the commands in ``steps`` that run ``module``."""
    for step in steps:
        for command in step.commands:
            assert command.arguments[0] == "-m"
            if command.arguments[1] == module:
                yield list(command.arguments[2:])


def test_a_dry_run_names_each_step_and_shows_what_failed_and_what_had_no_time(
    steps: tuple[Step, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert gpu_page.main(["--dry-run"]) == 0

    said = capsys.readouterr().out
    for step in steps:
        assert f"| {step.title} |" in said
    for step in steps[1:-1]:
        assert re.search(rf"^\| {re.escape(step.title)} \| as expected \| 1 \|$", said, re.M)
        assert f"## {step.title}" in said
    assert "| GPU tests | FAILED: pytest: exit code 1 | 2 |" in said
    assert "FAILED tests/made_up.py\n1 failed in 2s" in said
    assert f"| {steps[-1].title} | not run: no time left (3 s; it needs 15 s) | |" in said
    assert f"## {steps[-1].title}" not in said
    assert "| healthy | CLEAN | 0 | -0.50 to 1.00 MiB/h | -0.50 to 1.00 MiB/h | made up |" in said


def test_the_shortest_run_of_every_step_fits_eight_minutes(steps: tuple[Step, ...]) -> None:
    assert sum(step.least_s for step in steps) + GRACE_S < 480
    assert all(step.least_s < step.limit_s for step in steps)


def test_every_command_line_is_one_that_its_program_takes(steps: tuple[Step, ...]) -> None:
    own = [(app, words) for words in commands(steps, "hybridbench")]
    timed = [(benchmarks, words) for words in commands(steps, "benchmarks")]
    assert (len(own), len(timed)) == (3, 2)
    for program, words in (*own, *timed):
        parser = typer.main.get_command(program)
        while isinstance(parser, TyperGroup):
            parser = parser.commands[words.pop(0)]
        parser.make_context("hybridbench", words)

    (words,) = commands(steps, "tools.step_profile")
    assert given_options(words).device == "cuda"


def test_the_gpu_tests_are_all_those_of_the_suite_but_the_soaks() -> None:
    here = Path(__file__)
    marked = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests").rglob("test_*.py")
        if path != here and re.search(r"mark\.gpu|import DEVICES", path.read_text(encoding="utf-8"))
    }

    named = (*TESTS, *TESTS_OF_TIMES)
    left_out = {name for name in marked if not name.startswith(named)}
    assert left_out == {"tests/scenarios/test_gpu.py"}
    assert all((ROOT / name).exists() for name in named)


@pytest.mark.slow
def test_a_failed_and_a_skipped_test_are_on_the_page(
    steps: tuple[Step, ...], tmp_path: Path
) -> None:
    tests = tmp_path / "test_some.py"
    tests.write_text(
        "import pytest\n"
        "pytestmark = pytest.mark.gpu\n"
        "def test_a(): pass\n"
        "def test_b(): pytest.skip('not here')\n"
        "def test_c(): assert 0\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -ra\nmarkers = gpu: a device\n")
    step = of(steps, "GPU tests")
    (command,) = step.commands
    arguments = [word for word in command.arguments if word not in TESTS]
    arguments[arguments.index("-n") + 1] = "1"
    given = (*arguments, "-c", str(tmp_path / "pytest.ini"), str(tests))

    result, text = runs(replace(step, commands=(replace(command, arguments=given),)), tmp_path)

    assert not result.is_right
    assert "| GPU tests | FAILED: pytest: exit code 1 |" in text
    shown = text.partition("## GPU tests")[2].partition("exit code")[0]
    assert re.search(r"^SKIPPED \[1\] .*not here$", shown, re.M)
    assert re.search(r"^FAILED .*::test_c", shown, re.M)
    assert "1 failed, 1 passed, 1 skipped" in shown
    assert str(tmp_path) not in text


def test_a_step_out_of_time_is_stopped_and_the_other_command_kept(tmp_path: Path) -> None:
    def code(name: str, text: str) -> Command:
        return Command(name, ("-c", text), "done")

    step = Step(
        "both",
        1,
        2,
        (code("quick", "print('done')"), code("slow", "import signal; signal.pause()")),
        gpu_page._text,
    )

    result, text = runs(step, tmp_path, limit_s=1.0)

    assert [ended.exit_code for ended in result.ended] == [0, None]
    assert re.search(r"^\| both \| FAILED: slow: stopped after 1 s \| 1 \|$", text, re.M)
    assert "```text\ndone\n```" in text


def test_a_command_that_did_other_work_is_a_failure() -> None:
    ended = Ended(Command("kernels", (), "decode step"), 0, 1.0, "nothing to do here\n")

    assert ended.failure == "its output lacks 'decode step'"


@pytest.mark.parametrize(("right", "outcome"), [("LEAK", "as expected"), ("CLEAN", "FAILED")])
def test_a_soak_is_judged_by_the_verdict_that_it_left(
    steps: tuple[Step, ...], tmp_path: Path, right: str, outcome: str
) -> None:
    soak = Command("healthy", ("-c", "raise SystemExit(10)"), right, store=STORED)

    _, text = runs(replace(of(steps, "Three soaks at once"), commands=(soak,)), tmp_path)

    assert f"| Three soaks at once | {outcome}" in text
    assert ("LEAK instead of CLEAN" in text) == (outcome == "FAILED")
    row = next(line for line in text.splitlines() if line.startswith("| healthy |"))
    assert row.startswith("| healthy | LEAK | 10 | not judged | ")
    assert "697 state slots are missing" in row


def test_without_a_verdict_the_end_of_what_the_soak_said_is_shown(
    steps: tuple[Step, ...], tmp_path: Path
) -> None:
    code = "import sys; sys.exit('the worker died')"
    soak = Command("healthy", ("-c", code), "CLEAN", store=tmp_path / "none")

    _, text = runs(replace(of(steps, "Three soaks at once"), commands=(soak,)), tmp_path)

    assert "FAILED: healthy: exit code 1, no verdict" in text
    assert "```text\nthe worker died\n```" in text


def test_a_run_without_time_writes_a_page_that_says_so(
    steps: tuple[Step, ...], tmp_path: Path
) -> None:
    given = argparse.Namespace(budget_s=20, commit="0123abc", wheels=None, out=tmp_path / "out")
    facts = {"card": "NVIDIA H100 80GB HBM3", "memory": "79 GiB", "torch": "2.11.0"}

    is_right = gpu_page.run_all(given, tmp_path / "scratch", facts)

    assert not is_right
    (written,) = (tmp_path / "out").iterdir()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d-nvidia-h100-80gb-hbm3\.md", written.name)
    text = written.read_text(encoding="utf-8")
    assert text.startswith("# NVIDIA H100 80GB HBM3, 20")
    assert "| commit | 0123abc |" in text
    for step in steps:
        assert f"| {step.title} | not run: no time left (" in text


def test_a_machine_without_a_device_gets_one_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gpu_page, "machine_facts", lambda: {"torch": "2.13.0+cpu"})

    assert gpu_page.main(["--out", str(tmp_path / "out")]) == 2

    said = capsys.readouterr()
    assert said.err == "no CUDA device here: PyTorch 2.13.0+cpu finds none, and nothing was run.\n"
    assert said.out == ""
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_facts_are_asked_of_the_interpreter_of_the_steps() -> None:
    facts = machine_facts()

    assert facts["python"] == ".".join(map(str, sys.version_info[:3]))
    assert facts["torch"][0].isdigit()


def test_only_wheels_of_absent_or_older_packages_are_installed(tmp_path: Path) -> None:
    for name in ("pytest-0.1", "pytest-9999.0", "no_such_package-1.0", "pydantic_core-1.10.2"):
        (tmp_path / f"{name}-py3-none-any.whl").touch()

    missing = [path.name.removesuffix("-py3-none-any.whl") for path in missing_wheels(tmp_path)]

    assert missing == ["no_such_package-1.0", "pytest-9999.0"]


def test_the_wheels_of_the_makefile_are_all_that_the_package_and_the_page_s_steps_need() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", "")
    needs = re.search(r"^GPU_NEEDS := (.*)$", makefile, re.M)
    assert needs is not None
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    own = {re.match(r"[\w-]+", line)[0] for line in project["dependencies"]}  # type: ignore[index]

    tests = {"hypothesis", "pytest", "pytest-timeout", "pytest-xdist"}
    rivals = {"fla-core", "einops"}
    assert set(needs[1].split()) == own - {"torch"} | tests | rivals


def test_commands_see_this_checkout_first_and_write_their_caches_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("PYTHONPATH", "theirs")

    environment = environment_of(tmp_path, tmp_path / "site")

    assert "TRITON_INTERPRET" not in environment
    assert environment["PYTHONPATH"].split(os.pathsep) == [
        str(ROOT), str(tmp_path / "site"), "theirs",
    ]  # fmt: skip
    assert Path(environment["TRITON_CACHE_DIR"]).is_relative_to(tmp_path)


def test_a_page_is_named_by_its_day_and_card() -> None:
    assert file_name("NVIDIA H200", "2026-11-26") == "2026-11-26-nvidia-h200.md"
