"""``hybridbench report``: every format of a stored run, without overwriting anything else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from hybridbench.cli import results
from hybridbench.cli.options import ReportFormat
from hybridbench.cli.output import ReportFile, given_outputs
from hybridbench.cli.render import OutputOptions, render, render_ended
from hybridbench.foundation.clock import FakeClock
from hybridbench.foundation.errors import ErrorCode, ExitCode, UsageError
from hybridbench.records.events import Steady
from hybridbench.records.manifest import manifest_from_json
from hybridbench.report import formats
from hybridbench.rundir.layout import BENCH_ERRORS
from hybridbench.rundir.writer import RunWriter
from tests.unit.cli.conftest import CommandLine
from tests.unit.cli.test_cli import one_sentence
from tests.unit.report.pages import STORED, page
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


def as_file(form: ReportFormat, path: Path) -> OutputOptions:
    return OutputOptions(files=(ReportFile(form, path),))


def test_the_formats_of_the_help_are_those_of_the_table_and_csv() -> None:
    assert (*formats.FORMATS, "csv") == tuple(ReportFormat)


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


def test_files_get_their_formats_and_standard_output_its_own(
    hybridbench: CommandLine, run_dir: Path, tmp_path: Path
) -> None:
    files = ("junit=out.xml", "html=out.html", "csv=out.csv")
    words = [word for file in files for word in ("--output", file)]

    result = hybridbench("report", str(run_dir), "--format", "json", *words, cwd=tmp_path)

    assert result.returncode == 16
    assert json.loads(result.stdout)["answer"] == "INVALID"
    assert ET.parse(tmp_path / "out.xml").getroot().tag == "testsuites"
    assert (tmp_path / "out.html").read_text().startswith("<!doctype html>")
    assert (tmp_path / "out.csv").read_text().splitlines()[0] == "t_s,rss_anon_swap_bytes"
    assert names(run_dir) == EVIDENCE


def test_without_a_format_the_summary_is_printed_beside_the_files(
    hybridbench: CommandLine, run_dir: Path, tmp_path: Path
) -> None:
    alone = hybridbench("report", str(run_dir))

    result = hybridbench("report", str(run_dir), "--output", "json=out.json", cwd=tmp_path)

    assert result.stdout == alone.stdout
    assert json.loads((tmp_path / "out.json").read_text())["answer"] == "INVALID"


def test_a_file_that_cannot_be_written_costs_neither_the_others_nor_the_verdict(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = [
        ReportFile(ReportFormat.JUNIT, tmp_path / "absent" / "out.xml"),
        ReportFile(ReportFormat.JSON, tmp_path / "out.json"),
    ]

    code = render(run_dir, OutputOptions(files=tuple(wanted)))

    out, err = capsys.readouterr()
    assert code == 16
    assert "INVALID" in out
    assert json.loads((tmp_path / "out.json").read_text())["answer"] == "INVALID"
    assert len(err.splitlines()) == 1
    assert "cannot write" in err


def test_a_clean_run_whose_file_is_missing_does_not_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clean = replace(page("CLEAN"), exit_code=0)
    monkeypatch.setattr(
        "hybridbench.cli.render.read_result", lambda *_: results.Result(clean, tuple)
    )

    code = render(tmp_path, as_file(ReportFormat.JUNIT, tmp_path / "absent" / "x"), rebuild=False)

    assert code == ExitCode.USAGE


def test_the_samples_of_a_run_are_a_table_and_a_comparison_has_none(
    hybridbench: CommandLine, run_dir: Path
) -> None:
    table = hybridbench("report", str(run_dir), "--format", "csv")
    refused = hybridbench("report", str(STORED / "comparison"), "--format", "csv")
    upfront = hybridbench("compare", ".", ".", "--output", "csv=x.csv", cwd=run_dir.parent)

    assert table.returncode == 16
    assert table.stdout.splitlines()[1] == "1,100000000"
    assert "csv has the samples of one run" in one_sentence(refused)
    assert "csv has the samples of one run" in one_sentence(upfront)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--output", "x.md"], "x.md: write FORMAT=FILE"),
        (["--output", "markdown="], "markdown=: write FORMAT=FILE"),
        (["--output", "juint=x.xml"], "there is no format juint; did you mean junit?"),
        (["--output", "json=x", "--output", "html=./x"], "x is to get two formats"),
        (["--so-far", "--open"], "cannot be combined with other options"),
        (["--so-far", "--output", "json=x"], "cannot be combined with other options"),
        (["--output", "json=run/samples.jsonl"], "evidence"),
        (["--output", "json=run"], "name a file in it"),
        (["--output", "json=-"], "--format prints to standard output"),
        (["--output", "json=absent/x.json"], "there is no directory absent"),
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
    # Opened at both ends, so that neither side waits for the other.
    reader = os.open(pipe, os.O_RDWR)
    try:
        render(run_dir, as_file(ReportFormat.MARKDOWN, pipe), rebuild=False)
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

    render(run_dir, as_file(ReportFormat.JSON, link), rebuild=False)

    assert link.is_symlink()
    assert json.loads(target.read_text())["answer"] == "INVALID"


def test_a_link_to_standard_output_prints(run_dir: Path, tmp_path: Path) -> None:
    # Like /dev/stdout.  If standard output is a file, opening it a second time would clash.
    link, out = tmp_path / "stdout", tmp_path / "out"
    link.symlink_to("/proc/self/fd/1")
    command = [sys.executable, "-m", "hybridbench", "report", str(run_dir)]
    words = [*command, "--quiet", "--output", f"json={link}"]

    with out.open("w") as file:
        file.write("before\n")
        file.flush()
        done = subprocess.run(words, stdout=file, check=False)

    assert done.returncode == 16
    assert link.is_symlink()
    before, _, text = out.read_text().partition("\n")
    assert before == "before"
    document, end = json.JSONDecoder().raw_decode(text)
    assert document["answer"] == "INVALID"
    assert text[end:].strip().startswith("INVALID: ")


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
        given_outputs([f"json={path}"])

    assert refused.value.code is ErrorCode.NOT_WRITABLE
    assert (run_dir / name).read_text() == "recorded"


@pytest.mark.parametrize("name", ["night.json", "cell.json", "comparison.json"])
def test_a_night_and_a_comparison_are_no_output_either(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("recorded")

    with pytest.raises(UsageError) as refused:
        given_outputs([f"json={tmp_path / name}"])

    assert refused.value.code is ErrorCode.NOT_WRITABLE
    assert (tmp_path / name).read_text() == "recorded"


def test_the_same_name_elsewhere_and_the_pages_of_a_run_may_be_written(
    run_dir: Path, tmp_path: Path
) -> None:
    for path in (tmp_path / "verdict.json", run_dir / "junit.xml"):
        render(run_dir, as_file(ReportFormat.JUNIT, path), rebuild=False)

        assert path.read_text().startswith("<?xml")


def test_a_history_goes_through_the_same_door(
    hybridbench: CommandLine, run_dir: Path, tmp_path: Path
) -> None:
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "target.json")
    words = ["--store", str(run_dir.parent), "--output"]

    written = hybridbench("history", *words, f"json={link}")
    refused = hybridbench("history", *words, f"json={run_dir / 'samples.jsonl'}")
    unknown = hybridbench("history", *words, f"csv={tmp_path / 'x.csv'}")

    assert "there is no format csv" in one_sentence(unknown)
    assert written.returncode == 0
    assert link.is_symlink()
    assert json.loads((tmp_path / "target.json").read_text())
    assert "evidence" in one_sentence(refused)


def test_a_directory_that_refuses_writing_is_told_all_the_same(
    hybridbench: CommandLine, run_dir: Path
) -> None:
    # A directory in place of the first file, because permissions would not stop root.
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


def test_quiet_prints_one_line_verbose_more_and_both_together_are_refused(
    hybridbench: CommandLine, run_dir: Path
) -> None:
    brief, usual, full = (
        hybridbench("report", str(run_dir), *options).stdout for options in (("-q",), (), ("-v",))
    )
    both = hybridbench("report", str(run_dir), "-q", "-v")

    assert len(usual) < len(full)
    headline = json.loads((run_dir / "verdict.json").read_text())["headline"]
    assert brief.casefold() == f"{headline}\n".casefold()
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


def test_a_comparison_interrupted_during_its_first_version_ends_by_the_signal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = {
        "schema": "hybridbench.comparison-plan/1",
        "versions": [{"name": "."}],
        "ended": "interrupted",
        "exit_code": 130,
    }
    (tmp_path / "comparison.json").write_text(json.dumps(made))

    assert render_ended(tmp_path, OutputOptions(), ExitCode.INTERRUPTED) == ExitCode.INTERRUPTED
    assert "ended before its second version had run" in capsys.readouterr().err


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
