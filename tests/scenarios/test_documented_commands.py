"""The shell commands of the pages end as documented, or their page says when they were run by hand.

A page runs in an empty directory, command by command.  The expected exit code is 0, or the N of a
comment ``# exit code N``.  hybridbench commands that only read, and whose output is not redirected,
run in this process, because a separate one would spend most of its time on imports.  An HTML
comment before a block changes how it is run:

- ``<!-- test: slow -->``: only by ``make test-deep``.
- ``<!-- run: 2026-11-23, needs Docker -->``: by hand, last on this day or ``never``, and why.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import random
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup
from typer.testing import CliRunner

from benchmarks.__main__ import app as benchmarks
from hybridbench.cli.app import app

ROOT = Path(__file__).parents[2]
STORED = ROOT / "tests" / "fixtures" / "stored"
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "profiles").glob("*.md")]
MARKER = re.compile(r"^ *<!-- (?:test|run)\b.*-->$", re.MULTILINE)
BLOCK = re.compile(
    r"(?:^ *<!-- (?:(?P<slow>test: slow)"
    r"|run: (?P<by_hand>(?:\d{4}-\d\d-\d\d|never), [^\n]+)) -->\n)?"
    r"^(?P<indent> *)```sh\n(?P<body>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
INDENTED_COMMAND = re.compile(r"^ {4,}(?:hybridbench|make|python3?|git|pip|uv) .*", re.MULTILINE)
EXIT_CODE = re.compile(r"# exit code (\d+)")
FENCED = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A shell block of a page."""

    body: str
    slow: bool
    by_hand: bool

    def commands(self) -> Iterator[str]:
        """Yield the commands; each is one line, or as many as bash needs to parse it."""
        command = ""
        for line in self.body.splitlines(keepends=True):
            command += line
            parsed = subprocess.run(["bash", "-n", "-c", command], capture_output=True, check=False)
            if parsed.returncode == 0 and not command.endswith("\\\n"):
                yield command.strip()
                command = ""
        assert command == "", f"bash cannot parse {command!r}"


def blocks_of(page: Path) -> list[Block]:
    return [
        Block(match["body"], slow=bool(match["slow"]), by_hand=bool(match["by_hand"]))
        for match in BLOCK.finditer(page.read_text(encoding="utf-8"))
    ]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


BLOCKS = {name_of(page): blocks_of(page) for page in PAGES}
FAST = [
    name for name, blocks in BLOCKS.items() if any(not b.slow and not b.by_hand for b in blocks)
]
SLOW = [name for name, blocks in BLOCKS.items() if any(b.slow for b in blocks)]
# Built once, because typer rebuilds all commands and their options at every call.
PROGRAMS = {
    "hybridbench": typer.main.get_command(app),
    "python -m benchmarks": typer.main.get_command(benchmarks),
}
# Commands that start processes or show live progress.
OWN_PROCESS = {"bisect", "compare", "demo", "probe", "selftest", "serve", "soak", "target", "watch"}
NOT_IN_MAKE_TEST = [
    name for name, blocks in BLOCKS.items() if any(b.slow or b.by_hand for b in blocks)
]


def run(command: str, directory: Path) -> None:
    expected = EXIT_CODE.search(command)
    environment = {
        "PATH": f"{directory / '.venv' / 'bin'}:/usr/bin:/bin",
        "HOME": str(directory),
        "LANG": "C.UTF-8",
        "COLUMNS": "100",
    }
    words = shlex.split(command, comments=True)
    if is_plain(words):
        with contextlib.chdir(directory):
            called = CliRunner().invoke(app, words[1:], env=environment)
        code, said = called.exit_code, f"{called.output}{called.exception!r}"
    else:
        ended = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            cwd=directory, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        code, said = ended.returncode, f"{ended.stdout[-2000:]}{ended.stderr[-2000:]}"
    assert code == int(expected[1] if expected else 0), f"{command}\n{said[-4000:]}"


def is_plain(words: list[str]) -> bool:
    """Return whether a line is a single hybridbench command that only reads."""
    program, command = Path(words[0]).name, words[1] if words[1:] else ""
    return (
        program == "hybridbench"
        and command not in OWN_PROCESS
        and words[1:3] != ["nightly", "run"]
        and not {">", "|", "&&", "&"} & set(words)
    )


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """What the pages assume: the command, finished runs, and recorded series."""
    (tmp_path / ".venv").symlink_to(sys.prefix)
    shutil.copytree(STORED / "soak", tmp_path / "results" / "RUN")
    shutil.copytree(STORED / "comparison" / "a", tmp_path / "results" / "RUN1")
    shutil.copytree(STORED / "comparison" / "b", tmp_path / "results" / "RUN2")
    shutil.copy(ROOT / "profiles" / "traces" / "synthetic-mooncake.jsonl", tmp_path / "trace.jsonl")
    write_series(tmp_path)
    return tmp_path


def write_series(directory: Path) -> None:
    """Write two hours of a process without a leak, in the formats that the pages use."""
    rss_mib = [900 + random.Random(i).gauss(0, 2) for i in range(720)]
    rows = [f"{10 * i},{mib:.2f},{400 * i}\n" for i, mib in enumerate(rss_mib)]
    table = "elapsed_s,rss_mib,requests_total\n" + "".join(rows)
    (directory / "rss.csv").write_text(table)
    (directory / "rss.csv.gz").write_bytes(gzip.compress(table.encode()))
    (directory / "rss.txt").write_text("".join(f"{mib * 1024:.0f}\n" for mib in rss_mib))
    values = [[1_790_000_000 + 10 * i, f"{mib * 2**20:.0f}"] for i, mib in enumerate(rss_mib)]
    name = {"__name__": "process_resident_memory_bytes"}
    for file in ("before.json", "after.json"):
        (directory / file).write_text(json.dumps([{"metric": name, "values": values}]))
    start = datetime(2026, 11, 23, tzinfo=UTC)
    (directory / "gpus.csv").write_text(
        "timestamp, index, memory.used [MiB]\n"
        + "".join(
            f"{start + timedelta(seconds=10 * i):%Y/%m/%d %H:%M:%S.000}, {gpu}, {mib:.0f} MiB\n"
            for i, mib in enumerate(rss_mib)
            for gpu in (0, 1)
        )
    )


@pytest.mark.parametrize("name", FAST)
def test_the_commands_of_a_page_end_as_it_says(name: str, directory: Path) -> None:
    for block in BLOCKS[name]:
        if not block.slow and not block.by_hand:
            for command in block.commands():
                run(command, directory)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", SLOW)
def test_the_slow_commands_of_a_page_end_as_it_says(name: str, directory: Path) -> None:
    for block in BLOCKS[name]:
        if not block.by_hand:
            for command in block.commands():
                run(command, directory)


@pytest.mark.parametrize("name", NOT_IN_MAKE_TEST)
def test_commands_that_are_not_run_have_options_that_exist(name: str) -> None:
    for block in BLOCKS[name]:
        if not block.slow and not block.by_hand:
            continue
        for command in block.commands():
            if re.match(rf"(\.venv/bin/)?({'|'.join(PROGRAMS)}) ", command):
                parse(command)


def parse(command: str) -> None:
    """Parse a command; raises typer's error for an unknown command or option."""
    program = next(name for name in PROGRAMS if command.removeprefix(".venv/bin/").startswith(name))
    parser = PROGRAMS[program]
    words = shlex.split(command.removeprefix(".venv/bin/").removeprefix(program), comments=True)
    words = words[: next((i for i, word in enumerate(words) if word in {">", "|", "&&"}), None)]
    while isinstance(parser, TyperGroup):
        parser = parser.commands[words.pop(0)]

    parser.make_context("hybridbench", words)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_has_its_commands_in_shell_blocks_and_its_markers_before_them(
    page: Path,
) -> None:
    text = page.read_text(encoding="utf-8")

    marked = [block for block in BLOCKS[name_of(page)] if block.slow or block.by_hand]

    assert INDENTED_COMMAND.findall(FENCED.sub("", text)) == []
    assert len(MARKER.findall(text)) == len(marked)
