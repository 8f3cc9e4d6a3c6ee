"""Run every command with each option, once with a good value and once with a bad one.

With a good value, the command reaches one of ``DOORS``, where long work would begin, or does its
work if that is quick.  With a bad one, it prints one sentence and exits with code 2.  A new option
without a row here fails.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn, TextIO

import pytest
import typer
from typer.core import TyperOption
from typer.testing import CliRunner

from hybridbench.cli.app import app
from hybridbench.cli.command_group import SECTIONS
from hybridbench.compare.worktree import Revision
from hybridbench.foundation.errors import ErrorCode, ExitCode, HybridbenchError
from tests.unit.cli.conftest import CommandLine
from tests.unit.over_time.stores import DAY_S, add_run, verdict

pytestmark = pytest.mark.usefixtures("catalog_in_this_process")

RUN = "results/one"
CSV = "series.csv"
UNTIMED = "rss.txt"


@dataclass(frozen=True)
class Case:
    """The words after an option: ``good`` ones, and ``bad`` ones or None if any text is allowed.

    ``beside`` are other words that the option needs; a flag has no words of its own.
    """

    good: tuple[str, ...] = ()
    bad: tuple[str, ...] | None = None
    beside: tuple[str, ...] = ()


def takes(good: str, bad: str | None = None, *beside: str) -> Case:
    return Case((good,), None if bad is None else (bad,), beside)


FLAG: Final = Case()
COUNT: Final = takes("3", "0")
SEED: Final = takes("3", "x")
BALLAST: Final = takes("0", "-1")
PROFILE: Final = takes("smoke", "")
MODEL: Final = takes("qwen3-next-tiny", "llama-3")
BUDGET: Final = takes("20m", "soon")
OUTPUT: Final = takes("json=out.json", f"json={RUN}/samples.jsonl")
DEFECT: Final = takes("lru-reference-cycle", "no-such-slug")

RELEASE: Final = "sglang-cache==0.5.13"
RELEASES: Final = ("--good", "0.5.13", "--bad", "0.5.9", "--profile", "smoke")
SERVER: Final = ("--url", "http://127.0.0.1:8000", "--pid", "1")

_COMPARED: Final = {
    "--model": MODEL,
    "--profile": PROFILE,
    "--max-time": takes("5m", "soon"),
    "--block": takes("5s", "1ms"),
    "--rounds": takes("6", "x"),
    "--margin": takes("5%", "wide"),
    "--ballast": BALLAST,
    "--renew": takes("2", "-1"),
}
_LIVE: Final = {
    **_COMPARED,
    "--seed": SEED,
    "--gc": takes("default", "off"),
    "--set": takes("pools.mamba_slots=64", "pools.mamba_slots"),
    "--store": takes("results"),
    "--targets": takes("targets", CSV),
    "--ui": takes("none", "fancy"),
}

# By command: the words that make it complete, and a case for each option and argument.
COMMANDS: Final[dict[str, tuple[tuple[str, ...], dict[str, Case]]]] = {
    "": (
        (),
        {
            "--version": FLAG,
            # Typer's own options, which inspect the shell that started them.
            "--install-completion": FLAG,
            "--show-completion": FLAG,
        },
    ),
    "demo": ((), {"--store": takes("results", f"{CSV}/below"), "--ui": takes("none", "fancy")}),
    "soak": (
        (),
        {
            "command": Case(("sleep",), None, ("--url", "http://127.0.0.1:8000")),
            "--url": takes("http://127.0.0.1:8000", "localhost:8000", "--pid", "1"),
            "--target": takes(RELEASE, "vllm==0.31.0", "--targets", "targets"),
            "--targets": takes("targets", CSV, "--target", "vllm==0.32.0"),
            "--api": takes("chat", "telnet", *SERVER),
            "--stream": Case(beside=SERVER),
            "--restarts": takes("2", "-1", "--url", "http://127.0.0.1:8000", "sleep"),
            "--vocab": takes("1000", "10", "--api", "ids", *SERVER),
            "--pid": takes("1", "0", "--url", "http://127.0.0.1:8000"),
            "--metrics": takes("http://127.0.0.1:8000/metrics", "localhost", *SERVER),
            "--ready": takes("http://127.0.0.1:8000/v1/models", "ftp://localhost", *SERVER),
            "--log": takes(CSV, "absent", *SERVER),
            "--idle-every": takes("60s", "1s", *SERVER),
            "--reset-cache": takes("http://127.0.0.1:8000/flush_cache", "/flush_cache", *SERVER),
            "--instrument": takes("vllm", "(", *SERVER),
            "--probe": Case(beside=SERVER),
            "--cache-budget": takes("prompt=8GiB", "prompt", *SERVER),
            "--model": MODEL,
            "--profile": PROFILE,
            "--duration": takes("90s", "1h30"),
            "--defect": DEFECT,
            "--trace": takes("good.jsonl", "late.jsonl", "--dry-run"),
            "--length-scale": takes("1/32", "2", "--trace", "good.jsonl"),
            "--speedup": takes("20", "0", "--trace", "good.jsonl"),
            "--trace-time-unit": takes("ms", "hours", "--trace", "good.jsonl"),
            "--device": takes("cpu", "tpu"),
            "--dtype": takes("bfloat16", "int8"),
            "--seed": SEED,
            "--gc": takes("default", "off"),
            "--ballast": BALLAST,
            "--set": takes("pools.mamba_slots=64", "pools.mamba_slot=64"),
            "--malloc": takes("system", "jemalloc"),
            "--watchdog": takes("1m", "0"),
            "--stop": takes("never", "late"),
            "--extend": takes("10m", "late"),
            "--answers": takes("20s", "late"),
            "--diagnose": takes("never", "maybe"),
            "--threshold": takes("rss.slope<200MiB/h", "rss.slope<"),
            "--on-leak": takes("hold=2h", "hold"),
            "--memray": takes("2m", "x"),
            "--resume": takes(RUN, "absent"),
            "--dry-run": FLAG,
            "--format": takes("json", "pdf"),
            "--output": OUTPUT,
            "--listen": takes("0", "99999999"),
            "--store": takes("results", f"{CSV}/below"),
            "--ui": takes("none", "fancy"),
            "--quiet": FLAG,
            "--verbose": FLAG,
        },
    ),
    "watch": (
        ("--pid", "1"),
        {
            "command": takes("sleep"),
            "--pid": takes("1", "0"),
            "--metrics": takes("http://127.0.0.1:8000/metrics", "localhost"),
            "--ready": takes("http://127.0.0.1:8000/v1/models", "ftp://localhost"),
            "--log": takes(CSV, "absent"),
            "--load": takes("true", "'", "--ready", "http://127.0.0.1:8000/"),
            "--duration": takes("90s", "1h30"),
            "--idle-every": takes("60s", "1s"),
            "--reset-cache": takes("http://127.0.0.1:8000/flush_cache", "/flush_cache"),
            "--instrument": takes("vllm", "("),
            "--probe": FLAG,
            "--cache-budget": takes("prompt=8GiB", "prompt"),
            "--stop": takes("never", "late"),
            "--extend": takes("10m", "late"),
            "--threshold": takes("rss.slope<200MiB/h", "rss.slope<"),
            "--format": takes("json", "pdf"),
            "--output": OUTPUT,
            "--listen": takes("0", "99999999"),
            "--store": takes("results", f"{CSV}/below"),
            "--ui": takes("none", "fancy"),
            "--quiet": FLAG,
            "--verbose": FLAG,
        },
    ),
    "serve": (
        ("--port", "0"),
        {
            "--model": MODEL,
            "--profile": PROFILE,
            "--defect": DEFECT,
            "--seed": SEED,
            "--gc": takes("default", "off"),
            "--ballast": BALLAST,
            "--set": takes("pools.mamba_slots=64", "pools.mamba_slot=64"),
            "--host": takes("localhost", "192.0.2.1"),
            "--port": takes("0", "65536"),
        },
    ),
    "compare": (
        (".", ".", "--profile", "smoke"),
        {
            **_LIVE,
            "versions": takes("defect:slow-step", "defect:no-such-slug"),
            "--slice": takes("20ms", "x"),
            "--allow-mismatch": takes("torch"),
            "--same-engine": FLAG,
            "--threshold": takes("throughput.ratio>0.97", "throughput.ratio>"),
            "--format": takes("json", "pdf"),
            "--output": OUTPUT,
            "--quiet": FLAG,
            "--verbose": FLAG,
        },
    ),
    "bisect": (
        ("--good", "GOOD", "--bad", "BAD", "--profile", "smoke"),
        {
            **_LIVE,
            "--good": takes("GOOD", "no-such-ref"),
            "--bad": takes("BAD", "no-such-ref"),
            "--target": takes("sglang-cache", "triton", *RELEASES),
        },
    ),
    "report": (
        (RUN,),
        {
            "directory": takes(RUN, "absent"),
            "--format": takes("junit", "pdf"),
            "--output": OUTPUT,
            "--open": FLAG,
            "--so-far": FLAG,
            "--threshold": takes("rss.slope<200MiB/h", "rss.slope<"),
            "--quiet": FLAG,
            "--verbose": FLAG,
        },
    ),
    "diagnose": ((RUN,), {"run": takes(RUN, "absent")}),
    "judge": (
        (CSV,),
        {
            "files": takes(CSV, "absent.csv"),
            "--metric": takes("rss", "absent"),
            "--work-column": takes("requests", "absent"),
            "--unit": takes("bytes", "furlongs"),
            "--threshold": takes("rss<200/h", "rss<"),
            "--steady-at": takes("10s", "soon"),
            "--lower-is-worse": takes("rss", "absent"),
            "--time-column": takes("time", "absent"),
            "--interval": Case(("10s", UNTIMED), ("soon", UNTIMED)),
            "--never-restarted": FLAG,
            "--only": Case(beside=("--threshold", "rss<200/h")),
            "--prometheus": takes("http://x:9090", "x:9090", "--query", "rss"),
            "--query": takes("rss", None, "--prometheus", "http://x:9090"),
            "--last": takes("6h", "soon", "--query", "rss", "--prometheus", "http://x:9090"),
            "--format": takes("json", "pdf"),
            "--output": OUTPUT,
            "--quiet": FLAG,
        },
    ),
    "selftest": (
        (),
        {
            "--full": FLAG,
            "--only": takes("mamba-adder-reject", "no-such-slug"),
            "--mutants": FLAG,
            "--half": takes("A", "C", "--mutants"),
            "--sample": takes("5", "-1", "--mutants"),
            "--seed": takes("5", "five", "--mutants"),
            "--jobs": COUNT,
            "--store": takes("new", "results"),
            "--resume": Case(beside=("--store", "results")),
            "--markdown": takes("table.md", "absent/table.md"),
            "--dry-run": FLAG,
            "--quiet": FLAG,
        },
    ),
    "explain": (("slow-step",), {"slug": takes("slow-step", "no-such-slug")}),
    "history": (
        (),
        {
            "--store": takes("results", "absent"),
            "--model": takes("any name"),
            "--profile": takes("any name"),
            "--metric": takes("rss", "absent"),
            "--since": takes("30d", "soon"),
            "--format": takes("junit", "pdf"),
            "--output": OUTPUT,
        },
    ),
    "prune": (
        ("--dry-run", "--keep", "1"),
        {
            "--keep": takes("3", "-1"),
            "--keep-days": takes("3", "-1"),
            "--keep-failed": FLAG,
            "--leaks": FLAG,
            "--damaged": FLAG,
            "--dry-run": FLAG,
            "--store": takes("results", "absent"),
        },
    ),
    "nightly plan": (
        ("nightly",),
        {
            "plan": takes("nightly", "absent.yaml"),
            "--format": takes("json", "jenkins"),
            "--budget": takes("60m", "soon"),
            "--defect": DEFECT,
        },
    ),
    "nightly cell": (
        ("nightly", "--out", "cells", "--index", "0"),
        {
            "plan": takes("nightly", "absent.yaml"),
            "--out": takes("cells", f"{CSV}/cells"),
            "--id": Case(("qwen3-next+chat-churn",), ("no-such-cell",)),
            "--index": takes("1", "99999"),
            "--budget": BUDGET,
            "--defect": DEFECT,
        },
    ),
    "nightly merge": (
        ("results", "--out", "night"),
        {
            "dirs": takes("results"),
            "--out": takes("night", CSV),
            "--plan": takes("nightly", "absent.yaml"),
            "--budget": takes("60m", "soon", "--plan", "nightly"),
            "--defect": takes("lru-reference-cycle", "no-such-slug", "--plan", "nightly"),
            "--baseline": takes("results", "absent"),
            "--keep-baseline": takes("good", CSV),
            "--allow-partial": FLAG,
        },
    ),
    "nightly run": (
        ("nightly",),
        {
            "plan": takes("nightly", "absent.yaml"),
            "--budget": takes("60m", "soon"),
            "--out": takes("night", CSV),
            "--baseline": takes("results", "absent"),
            "--defect": DEFECT,
            "--allow-partial": FLAG,
            "--quiet": FLAG,
        },
    ),
    "nightly schema": ((), {}),
    "target prepare": (
        ("llamacpp==2026.10.11549",),
        {"target": takes("vllm==0.32.0", "vllm"), "--targets": takes("new", CSV)},
    ),
    "target list": ((), {"--targets": takes("new", CSV)}),
    "target remove": (
        ("tiny==1.0", "--targets", "targets"),
        {"target": takes("tiny==1.0", "tiny==2.0"), "--targets": takes("targets", CSV)},
    ),
    "profiles list": ((), {}),
    "profiles show": (("smoke",), {"profile": takes("smoke", "absent")}),
    "profiles validate": (("smoke",), {"files": takes("smoke", "absent")}),
    "profiles schema": ((), {}),
    "probe export": (("copied",), {"folder": takes("copied", "results")}),
    "list runs": (
        (),
        {
            "--store": takes("results", "absent"),
            "--model": takes("any name"),
            "--profile": takes("any name"),
            "--verdict": takes("leak", "LEEK"),
            "--format": takes("json", "pdf"),
        },
    ),
    "list defects": ((), {}),
    "list kernels": ((), {}),
    "list models": ((), {"--format": takes("json", "pdf")}),
}
GROUPS: Final = ("nightly", "target", "profiles", "probe", "list")

# The functions where long work begins, such as an engine, a repository or a nightly run.
DOORS: Final = (
    "hybridbench.runs.replay.replay",
    "hybridbench.runs.watch.AttachedTree",
    "hybridbench.runs.watch.LaunchedCommand",
    "hybridbench.runs.bundled.BundledTarget",
    "hybridbench.runs.preview.BundledTarget",
    "hybridbench.serve.run.BundledTarget",
    "hybridbench.series.prometheus_api.read_prometheus",
    "hybridbench.runs.resume.resume_soak",
    "hybridbench.compare.run.run_comparison",
    "hybridbench.compare.bisect.finished_comparison",
    "hybridbench.selftest.run.SelfTest.run",
    "hybridbench.selftest.mutants.MutantTest.run",
    "hybridbench.over_time.run.CellRunner.run_cell",
    "hybridbench.over_time.run.CellRunner.run_all",
    "hybridbench.over_time.run.merge_cells",
    "hybridbench.targets.prepare.prepare",
    "hybridbench.targets.prepared.remove",
)


class ReachedError(Exception):
    """The command accepted its arguments and began its work."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with a run, a trace, a trace with a late bad row, and a series."""
    here = tmp_path_factory.mktemp("options")
    add_run(here / "results", "one", DAY_S, verdict())
    row = '{"timestamp": 0, "input_length": 600, "output_length": 4, "hash_ids": [1, 2]}\n'
    (here / "good.jsonl").write_text(row * 3)
    (here / "late.jsonl").write_text(row * 3 + "{bad row\n")
    lines = [f"{t},{100_000_000 + t % 7},{5 * t}" for t in range(120)]
    (here / CSV).write_text("\n".join(["time,rss,requests", *lines]) + "\n")
    releases = (("tiny", "1.0"), ("vllm", "0.32.0"), ("sglang-cache", "0.5.13"))
    for engine, release in releases:
        target = here / "targets" / f"{engine}-{release}"
        target.mkdir(parents=True)
        entry = f'{{"engine": "{engine}", "release": "{release}", "servers": ["serve"]}}'
        (target / "target.json").write_text(entry)
    (here / UNTIMED).write_text("".join(f"{100_000 + t % 7}\n" for t in range(120)))
    return here


@pytest.fixture
def doors(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change to ``place``, and raise ReachedError at each door."""
    monkeypatch.chdir(place)

    def reached(*arguments: object, **named: object) -> NoReturn:
        raise ReachedError

    for door in DOORS:
        monkeypatch.setattr(door, reached)
    monkeypatch.setattr("hybridbench.sampling.allocations.is_installed", lambda: True)
    monkeypatch.setattr("webbrowser.open", lambda url: True)
    # Three processes for each manifest.
    monkeypatch.setattr("hybridbench.runs.manifest.git_state", lambda: None)
    from hybridbench.compare import bisect

    between = bisect.commits_between

    def commits(good: str, bad: str) -> list[Revision]:
        if (good, bad) == ("GOOD", "BAD"):
            return [Revision(place, name * 40, name, tree=name) for name in ("a", "b")]
        return between(good, bad)

    monkeypatch.setattr("hybridbench.compare.bisect.commits_between", commits)


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield the path and the object of every command, including groups."""
    yield " ".join(path), command
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, (*path, name))


def words(name: str, option: str, case: Case, values: tuple[str, ...]) -> list[str]:
    """Return the command line: what the command needs, with ``values`` for ``option``."""
    complete, _ = COMMANDS[name]
    needed = list(complete)
    if option in APART:
        needed = needed[: APART[option]]
    if not option.startswith("-"):
        # An argument is the first of the words that the command needs.
        needed[:1] = values
        return [*name.split(), *needed, *case.beside]
    if option in needed:
        at = needed.index(option)
        del needed[at : at + 1 + len(case.good)]
    return [*name.split(), *needed, *case.beside, option, *values]


# These options conflict with words that the command otherwise needs; the number is where to cut
# those.  A cell has a name or a number, a resumed run takes no other settings, series with times
# take no interval, and releases are not commits.
APART: Final = {"--id": -2, "--resume": 0, "--interval": 0, "--target": 0}
ROWS: Final = [(name, *row) for name, (_, table) in COMMANDS.items() for row in table.items()]
GOOD: Final = [row for row in ROWS if row[1] not in ("--install-completion", "--show-completion")]
BAD: Final = [row for row in ROWS if row[2].bad is not None]


def test_every_option_of_every_command_has_a_row() -> None:
    tree = dict(commands(typer.main.get_command(app)))

    there = {(name, parameter.opts[0]) for name, one in tree.items() for parameter in one.params}
    rows = {(name, option) for name, option, _ in ROWS}

    assert there - rows == set(), "a new option needs a good and a bad value here"
    assert rows - there == set()
    assert set(tree) - set(COMMANDS) == set(GROUPS), "a new command needs its options here"


def identity(value: object) -> str:
    return value or "(root)" if isinstance(value, str) else ""


@pytest.mark.usefixtures("doors")
@pytest.mark.parametrize("name", [name for name in COMMANDS if name], ids=identity)
def test_a_complete_command_begins_its_work(name: str) -> None:
    complete, _ = COMMANDS[name]

    begins([*name.split(), *complete])


@pytest.mark.usefixtures("doors")
@pytest.mark.parametrize(("name", "option", "case"), GOOD, ids=identity)
def test_a_good_value_is_taken(name: str, option: str, case: Case) -> None:
    begins(words(name, option, case, case.good))


@pytest.mark.usefixtures("doors")
@pytest.mark.parametrize(("name", "option", "case"), BAD, ids=identity)
def test_a_bad_value_is_one_sentence(name: str, option: str, case: Case) -> None:
    assert case.bad is not None

    said = str(refusal(words(name, option, case, case.bad)))

    assert "\n" not in said
    assert said


def beyond_its_bounds() -> Iterator[tuple[str, str, str, str]]:
    """Yield each bounded number option, a value beyond its bound, and the bound in words."""
    for name, command in commands(typer.main.get_command(app)):
        for option in command.params:
            bounds = option.type_descriptor.parameter_info
            if bounds.min is not None:
                yield name, option.opts[0], str(bounds.min - 1), f"must be at least {bounds.min}"
            if bounds.max is not None:
                yield name, option.opts[0], str(bounds.max + 1), f"must be at most {bounds.max}"


@pytest.mark.parametrize(
    ("name", "option", "value", "said"), list(beyond_its_bounds()), ids=identity
)
def test_the_bound_of_a_number_is_a_number(name: str, option: str, value: str, said: str) -> None:
    error = refusal([*name.split(), option, value])

    assert str(error) == f"{name}: {option}: {said}, not '{value}'."


SINGLE: Final = [
    (name, option.opts[0])
    for name, command in commands(typer.main.get_command(app))
    for option in command.params
    if isinstance(option, TyperOption) and not (option.is_flag or option.multiple)
]


# With ``doors``: a command that took the last value would begin its work.
@pytest.mark.usefixtures("doors")
@pytest.mark.parametrize(("name", "option"), SINGLE, ids=identity)
def test_two_values_for_an_option_that_takes_one_are_refused(name: str, option: str) -> None:
    error = refusal([*name.split(), option, "one", f"{option}=two"])

    assert error.code is ErrorCode.OPTION_CONFLICT
    assert str(error) == (
        f"{name}: {option} takes one value, and is given one and two; keep one of them."
    )


@pytest.mark.usefixtures("doors")
@pytest.mark.parametrize(
    "typed",
    [
        "soak --dry-run --seed 3 --seed 3",
        "prune --keep 1 --dry-run --dry-run",
        "judge series.csv --metric rss --metric requests",
        "judge series.csv -u bytes --unit bytes",
    ],
)
def test_the_same_value_twice_a_flag_twice_and_an_option_that_repeats_pass(typed: str) -> None:
    begins(typed.split())


# The exit code of these commands is an answer, even if nobody reads their output.
JUDGING: Final = ("report", "judge", "profiles validate")


@pytest.mark.usefixtures("doors")
@pytest.mark.parametrize(
    "command",
    [
        ("--version",),
        *((*name.split(), "--help") for name in COMMANDS),
        *((*name.split(), *needed) for name, (needed, _) in COMMANDS.items() if name),
    ],
    ids=" ".join,
)
def test_a_reader_who_leaves_ends_a_command_without_a_word(
    hybridbench: CommandLine, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    try:
        heard = hybridbench(*command)
    except ReachedError:
        return
    with closed_pipe() as pipe:
        monkeypatch.setattr("sys.stdout", pipe)

        unheard = hybridbench(*command)

    judging = command[-1] != "--help" and " ".join(command).startswith(JUDGING)
    assert unheard.returncode == (heard.returncode if judging else 141)
    assert unheard.stderr == heard.stderr


@contextmanager
def closed_pipe() -> Iterator[TextIO]:
    """A stream into a pipe without a reader; it is flushed at the end, as at interpreter exit."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", encoding="utf-8") as pipe:
        yield pipe


@pytest.mark.usefixtures("doors")
@pytest.mark.parametrize("name", ["", *GROUPS])
def test_a_group_alone_says_what_it_has(name: str) -> None:
    result = CliRunner().invoke(app, name.split())

    assert result.exit_code == ExitCode.USAGE
    assert "Usage:" in result.output


@pytest.mark.parametrize(
    ("typed", "code"),
    [
        ("no-such-command", ErrorCode.UNKNOWN_COMMAND),
        ("nightly no-such", ErrorCode.UNKNOWN_COMMAND),
        ("soak --no-such", ErrorCode.UNKNOWN_OPTION),
        ("soak --seed", ErrorCode.MISSING_ARGUMENT),
        ("report", ErrorCode.MISSING_ARGUMENT),
        ("soak extra", ErrorCode.EXTRA_ARGUMENT),
        ("soak --seed x", ErrorCode.BAD_VALUE),
        ("soak --set gc.mode=default --set gc.mode=frozen", ErrorCode.OPTION_CONFLICT),
        ("soak --ballast -1", ErrorCode.BAD_VALUE),
        ("soak --ui fancy", ErrorCode.UNKNOWN_CHOICE),
    ],
)
def test_each_kind_of_wrong_word_is_one_sentence_with_its_code(typed: str, code: ErrorCode) -> None:
    error = refusal(typed.split())

    assert error.code is code
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("typed", "near"),
    [
        ("sok", "'soak'"),
        ("profiles shw", "'show'"),
        ("soak --sede 5", "--seed"),
        ("soak --ui plan", "plain"),
    ],
)
def test_a_misspelt_word_is_met_with_the_nearest(typed: str, near: str) -> None:
    assert f"did you mean {near}?" in str(refusal(typed.split()))


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("soak --pid 1234", "--pid needs --url, which names a server."),
        ("soak --no-stream", "--stream needs --url, which names a server."),
        (
            "soak --url http://127.0.0.1:1 --device cuda -- sleep 1",
            "--device does not apply to a server, which --url names.",
        ),
        (
            "soak --target vllm==0.32.0 --diagnose never",
            "--diagnose does not apply to a server, which --target names.",
        ),
        (
            "soak --url http://127.0.0.1:1 --target sglang-cache==0.5.13 -- sleep 1",
            "--target and --url name two targets.",
        ),
        (
            "soak --target sglang-cache==0.5.13 --defect lru-reference-cycle",
            "--defect applies to the bundled engine only, and --target names another.",
        ),
        (
            "soak --url http://127.0.0.1:1 --restarts 2",
            "--restarts needs COMMAND: hybridbench can restart only what it has started.",
        ),
        (
            "soak --url http://127.0.0.1:1 --pid 1 --vocab 300",
            "--vocab belongs to --api ids and generate; other interfaces get text.",
        ),
    ],
)
def test_options_of_the_bundled_engine_and_of_servers_do_not_mix(typed: str, said: str) -> None:
    assert str(refusal(typed.split())) == said


def test_a_command_with_many_options_has_them_in_panels_and_an_example() -> None:
    tree = dict(commands(typer.main.get_command(app)))

    for name, table in COMMANDS.items():
        if sum(option.startswith("-") for option in table[1]) > 6:
            one = tree[name]
            options = [each for each in one.params if isinstance(each, TyperOption)]
            assert len({each.rich_help_panel for each in options} - {None}) > 1, name
            assert f"Example: hybridbench {name} " in one.help, name


def test_every_command_is_in_a_section_of_the_help_with_its_whole_summary() -> None:
    output = CliRunner().invoke(app, ["--help"]).output

    assert "Other commands" not in output
    assert "..." not in output.partition("\n")[2]
    for names in SECTIONS.values():
        for name in names:
            assert f"\n  {name} " in output


def begins(command: list[str]) -> None:
    """Check that ``command`` reaches a door, or ends with an answer."""
    result = CliRunner().invoke(app, command)

    if not isinstance(result.exception, ReachedError):
        assert result.exception is None or isinstance(result.exception, SystemExit), result
        assert result.exit_code != ExitCode.USAGE, result.output
        assert result.exit_code != ExitCode.INTERNAL, result.output


def refusal(command: list[str]) -> HybridbenchError:
    """Return the error with which ``command`` is refused; its exit code must be 2."""
    result = CliRunner().invoke(app, command)

    error = result.exception
    assert isinstance(error, HybridbenchError), f"not refused: {error!r} {result.output}"
    assert error.exit_code == ExitCode.USAGE
    return error
