"""The tables of released-engines.md, and the row of a stored run."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import msgspec
import pytest

from hybridbench.analysis.judge import judge
from hybridbench.records.prepared import PreparedTarget
from hybridbench.rundir.reader import read_run
from hybridbench.runs.replay import RECORDING
from tools.released_rows import PAGE, Row, main, read, row_of, with_tables, write

TEXT = """Before.
<!-- rows: first -->
| of another day |
<!-- end of rows -->
Between.
<!-- rows: second -->
<!-- end of rows -->
After.
"""
ROW = Row(release="vllm==1.0", traffic="`smoke`", finding="CLEAN", minutes=2.5, date="2026-01-02")


def test_the_tables_of_the_page_are_those_of_its_rows() -> None:
    text, rows = PAGE.read_text("utf-8"), read(PAGE)

    assert with_tables(text, rows) == text
    assert re.findall(r"<!-- rows: (\S+) -->", text) == list(rows)


def test_a_table_has_the_columns_in_which_a_row_has_something() -> None:
    counted = msgspec.structs.replace(ROW, counts="a | b", minutes=None)

    text = with_tables(TEXT, {"first": [ROW], "second": [ROW, counted]})

    assert (
        text
        == """Before.
<!-- rows: first -->
| release | traffic | verdict and finding | minutes | date |
|---|---|---|---|---|
| vllm==1.0 | `smoke` | CLEAN | 2.5 | 2026-01-02 |
<!-- end of rows -->
Between.
<!-- rows: second -->
| release | traffic | verdict and finding | exact counts | minutes | date |
|---|---|---|---|---|---|
| vllm==1.0 | `smoke` | CLEAN |  | 2.5 | 2026-01-02 |
| vllm==1.0 | `smoke` | CLEAN | a \\| b |  | 2026-01-02 |
<!-- end of rows -->
After.
"""
    )


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A stored leak of a prepared release, whose command named folders and settings."""
    copy = tmp_path / "run"
    shutil.copytree(RECORDING, copy)
    manifest = read_run(copy).manifest
    command = "hybridbench soak --targets /t --set a.b=1 --store /s --model m --extend 0 --ui none"
    changed = msgspec.structs.replace(
        manifest,
        command=tuple(command.split()),
        prepared=PreparedTarget(engine="vllm", release="1.0"),
    )
    (copy / "manifest.json").write_bytes(msgspec.json.encode(changed))
    return copy


def test_the_row_of_a_run_has_its_first_finding_and_a_command_without_folders(run: Path) -> None:
    record = read_run(run)
    found = judge(record).findings[0]

    row = row_of(run)

    assert row.release == "vllm==1.0"
    assert row.traffic == f"`{record.manifest.profile.name} a.b=1 m`"
    assert row.finding == f"LEAK: {found.title}"
    assert row.rate == "+0.984 nodes per evicted node (95% interval +0.961 to +1.01)"
    assert row.counts == "objects beyond those held in 50 of 51 heap scans, no slot missing"
    assert (row.minutes, row.date) == (8.6, "2026-11-27")
    assert row.command == "hybridbench soak --set a.b=1 --model m --extend 0"


def test_a_row_that_is_added_is_stored_and_in_the_table(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    page.write_text(TEXT)
    write(page, {"first": [ROW], "second": []})
    monkeypatch.setattr("tools.released_rows.PAGE", page)
    monkeypatch.setattr("sys.argv", ["released_rows", "second", str(run)])

    main()

    assert read(page) == {"first": [ROW], "second": [row_of(run)]}
    assert page.read_text() == with_tables(TEXT, read(page))
