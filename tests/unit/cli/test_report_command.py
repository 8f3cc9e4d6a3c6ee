"""``hybridbench report``: any format of a stored run, and nothing overwritten on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from hybridbench.cli import results
from hybridbench.cli.options import ReportFormat
from hybridbench.cli.render import OutputOptions, render, render_ended
from hybridbench.clock import FakeClock
from hybridbench.errors import ErrorCode, ExitCode, UsageError
from hybridbench.records.events import Steady
from hybridbench.records.manifest import manifest_from_json
from hybridbench.report import formats
from hybridbench.rundir.layout import BENCH_ERRORS
from hybridbench.rundir.writer import RunWriter
from tests.unit.cli.conftest import CommandLine
from tests.unit.cli.test_cli import one_sentence
from tests.unit.report.synthetic import manifest

EVIDENCE = {"manifest.json", "samples.jsonl", "events.jsonl"}


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run too short to decide anything."""
    with RunWriter(tmp_path / "run", manifest_from_json(manifest()), FakeClock()) as writer:
        for second in range(1, 6):
            writer.sample(float(second), "steady", {"rss_anon_swap_bytes": 1e8})
        writer.event(Steady(reason="pools are full", t_s=1.0))
    return tmp_path / "run"


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_the_formats_of_the_help_are_those_of_the_table() -> None:
    assert tuple(formats.FORMATS) == tuple(ReportFormat)


def test_without_a_format_the_derived_files_are_rebuilt(
    hybridbench: CommandLine, run_dir: Path
) -> None:
    result = hybridbench("report", str(run_dir))

    assert result.returncode == 16, result.stderr
    assert "INVALID" in result.stdout
    assert names(run_dir) == EVIDENCE | {"verdict.json", "report.html", "report.md", "junit.xml"}
    assert ET.parse(run_dir / "junit.xml").getroot().tag == "testsuites"


def test_a_format_is_printed_and_the_directory_left_alone(
    hybridbench: CommandLine, run_dir: Path
) -> None:
    result = hybridbench("report", str(run_dir), "--format", "json")

    assert result.returncode == 16
    assert json.loads(result.stdout)["answer"] == "INVALID"
    assert names(run_dir) == EVIDENCE


def test_an_output_file_gets_the_text_and_standard_output_stays_empty(
    hybridbench: CommandLine, run_dir: Path, tmp_path: Path
) -> None:
    path = tmp_path / "out.xml"

    result = hybridbench("report", str(run_dir), "--format", "junit", "--output", str(path))

    assert result.stdout == ""
    assert ET.parse(path).getroot().tag == "testsuites"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--output", "x.md"], "--format"),
        (["--so-far", "--open"], "cannot be combined with other options"),
        (["--format", "json", "--output", "run/samples.jsonl"], "evidence"),
        (["--format", "json", "--output", "run"], "name a file in it"),
        (["--format", "json", "--output", "absent/x.json"], "cannot write absent/x.json"),
    ],
)
def test_what_cannot_be_is_one_sentence_and_harms_nothing(
    hybridbench: CommandLine, run_dir: Path, arguments: list[str], said: str
) -> None:
    before = {path.name: path.read_bytes() for path in run_dir.iterdir()}

    result = hybridbench("report", str(run_dir), *arguments, cwd=run_dir.parent)

    assert said in one_sentence(result)
    assert {path.name: path.read_bytes() for path in run_dir.iterdir()} == before


def test_a_pipe_is_written_into_and_stays_a_pipe(run_dir: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    # Held open at both ends, so that neither side waits for the other.
    reader = os.open(pipe, os.O_RDWR)
    try:
        render(run_dir, OutputOptions(ReportFormat.MARKDOWN, pipe), rebuild=False)
        written = os.read(reader, 1 << 20)
    finally:
        os.close(reader)

    assert pipe.is_fifo()
    assert b"INVALID" in written


@pytest.mark.parametrize("exists", [True, False], ids=["to a file", "to nothing yet"])
def test_a_symbolic_link_is_followed_and_stays_a_link(
    run_dir: Path, tmp_path: Path, *, exists: bool
) -> None:
    target, link = tmp_path / "target.md", tmp_path / "link.md"
    if exists:
        target.write_text("older and much longer" * 1000)
    link.symlink_to(target)

    render(run_dir, OutputOptions(ReportFormat.JSON, link), rebuild=False)

    assert link.is_symlink()
    assert json.loads(target.read_text())["answer"] == "INVALID"


def test_a_link_to_standard_output_prints(run_dir: Path, tmp_path: Path) -> None:
    # As /dev/stdout is one; with standard output in a file, a second way into it would clash.
    link, out = tmp_path / "stdout", tmp_path / "out"
    link.symlink_to("/proc/self/fd/1")
    command = [sys.executable, "-m", "hybridbench", "report", str(run_dir)]
    words = [*command, "--format", "json", "--output", str(link)]

    with out.open("w") as file:
        file.write("before\n")
        file.flush()
        done = subprocess.run(words, stdout=file, check=False)

    assert done.returncode == 16
    assert link.is_symlink()
    before, _, text = out.read_text().partition("\n")
    assert before == "before"
    assert json.loads(text)["answer"] == "INVALID"


@pytest.mark.parametrize("name", ["verdict.json", "run.lock", "diagnosis.json", "blocks.jsonl"])
@pytest.mark.parametrize("by_link", [False, True], ids=["named", "through a link"])
def test_what_a_stored_result_consists_of_is_no_output(
    run_dir: Path, tmp_path: Path, name: str, *, by_link: bool
) -> None:
    (run_dir / name).write_text("recorded")
    path = run_dir / name
    if by_link:
        path = tmp_path / "innocent.json"
        path.symlink_to(run_dir / name)

    with pytest.raises(UsageError) as refused:
        render(run_dir, OutputOptions(ReportFormat.JSON, path), rebuild=False)

    assert refused.value.code is ErrorCode.NOT_WRITABLE
    assert (run_dir / name).read_text() == "recorded"


@pytest.mark.parametrize("name", ["night.json", "cell.json", "comparison.json"])
def test_a_night_and_a_comparison_are_no_output_either(
    run_dir: Path, tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_text("recorded")

    with pytest.raises(UsageError) as refused:
        render(run_dir, OutputOptions(ReportFormat.JSON, tmp_path / name), rebuild=False)

    assert refused.value.code is ErrorCode.NOT_WRITABLE
    assert (tmp_path / name).read_text() == "recorded"


def test_the_same_name_elsewhere_and_the_pages_of_a_run_may_be_written(
    run_dir: Path, tmp_path: Path
) -> None:
    for path in (tmp_path / "verdict.json", run_dir / "junit.xml"):
        render(run_dir, OutputOptions(ReportFormat.JUNIT, path), rebuild=False)

        assert path.read_text().startswith("<?xml")


def test_a_history_goes_through_the_same_door(
    hybridbench: CommandLine, run_dir: Path, tmp_path: Path
) -> None:
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "target.json")
    words = ["--store", str(run_dir.parent), "--format", "json", "--output"]

    written = hybridbench("history", *words, str(link))
    refused = hybridbench("history", *words, str(run_dir / "samples.jsonl"))

    assert written.returncode == 0
    assert link.is_symlink()
    assert json.loads((tmp_path / "target.json").read_text())
    assert "evidence" in one_sentence(refused)


def test_a_directory_that_refuses_writing_is_told_all_the_same(
    hybridbench: CommandLine, run_dir: Path
) -> None:
    # A directory in the place of the first file: as root, no permission would stop the writer.
    (run_dir / "verdict.json").mkdir()

    result = hybridbench("report", str(run_dir))

    assert result.returncode == 16
    assert "INVALID" in result.stdout
    assert len(result.stderr.strip().splitlines()) == 1
    assert "the derived files were not rebuilt" in result.stderr
    assert names(run_dir) == EVIDENCE | {"verdict.json"}


def test_open_shows_the_page_and_a_copy_of_it_where_nothing_can_be_written(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []

    def opens(url: str) -> bool:
        opened.append(url)
        return True

    monkeypatch.setattr("webbrowser.open", opens)
    render(run_dir, OutputOptions(open_page=True))
    (run_dir / "verdict.json").unlink()
    (run_dir / "verdict.json").mkdir()
    render(run_dir, OutputOptions(open_page=True))
    monkeypatch.setattr("webbrowser.open", lambda url: False)
    render(run_dir, OutputOptions(open_page=True))

    assert opened[0] == (run_dir / "report.html").as_uri()
    copy = Path(opened[1].removeprefix("file://"))
    assert copy.is_file()
    assert run_dir not in copy.parents
    assert "no browser was found; the page is" in capsys.readouterr().err


def test_another_kind_of_directory_has_a_reader_of_its_own(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = results.read_result(run_dir).document
    written: list[Path] = []
    (tmp_path / "night.json").write_text("{}")

    def reader(directory: Path) -> results.Result:
        def write() -> tuple[()]:
            written.append(directory)
            return ()

        return results.Result(document, write)

    monkeypatch.setattr(results, "_READERS", {"night.json": reader})

    code = render(tmp_path)

    assert code == 16
    assert written == [tmp_path]


def test_the_answer_of_an_output_that_is_refused_is_no_traceback(run_dir: Path) -> None:
    with pytest.raises(UsageError, match="--output"):
        render(run_dir, OutputOptions(ReportFormat.JSON, run_dir / "manifest.json"), rebuild=False)


def test_quiet_prints_less_verbose_more_and_both_together_are_refused(
    hybridbench: CommandLine, run_dir: Path
) -> None:
    brief, usual, full = (
        hybridbench("report", str(run_dir), *options).stdout for options in (("-q",), (), ("-v",))
    )
    both = hybridbench("report", str(run_dir), "-q", "-v")

    assert len(brief) < len(usual) < len(full)
    assert "INVALID" in brief
    assert "How this was run" in full
    assert one_sentence(both) == "hybridbench: -q and -v: choose one of them."


@pytest.mark.parametrize(
    ("hint", "signals", "code"),
    [
        (None, 1, ExitCode.INVALID),
        (None, 2, ExitCode.INTERRUPTED),
        (ExitCode.TERMINATED, 0, ExitCode.TERMINATED),
        (ExitCode.INTERRUPTED, 1, ExitCode.INTERRUPTED),
    ],
)
def test_a_signal_while_a_report_is_written_does_not_cost_it_and_a_second_stops_at_once(
    hint: ExitCode | None,
    signals: int,
    code: ExitCode,
    run_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(directory: Path) -> results.Result:
        for _ in range(signals):
            os.kill(os.getpid(), signal.SIGINT)
        return results.run_result(directory)

    monkeypatch.setattr("hybridbench.cli.render.read_result", lambda place, _: interrupted(place))

    assert render_ended(run_dir, OutputOptions(), hint) == code
    stopped = signals + (hint is not None) > 1
    assert (run_dir / "verdict.json").is_file() is not stopped


@pytest.mark.parametrize("error", [MemoryError(), ImportError("no numpy"), OSError(24, "no files")])
def test_a_run_of_which_nothing_can_be_made_is_inconclusive_and_kept(
    error: Exception,
    run_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refused(*_: object) -> None:
        raise error

    monkeypatch.setattr("hybridbench.cli.render.read_result", refused)

    assert render_ended(run_dir, OutputOptions(), None) == ExitCode.INCONCLUSIVE
    assert f"'hybridbench report {run_dir}' judges it" in capsys.readouterr().err
    assert type(error).__name__ in (run_dir / BENCH_ERRORS).read_text()
