"""``hybridbench.load_run`` returns what the commands judge and print."""

from __future__ import annotations

import csv
import io
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import hybridbench
from hybridbench.analysis.judge import judge
from hybridbench.analysis.record import RunRecord, Series
from hybridbench.cli.render import render
from hybridbench.foundation.errors import RunDirectoryError
from hybridbench.foundation.labels import labelled
from hybridbench.records.stored_verdict import verdict_text
from hybridbench.report.samples_csv import render_samples
from hybridbench.rundir.reader import read_run
from hybridbench.runs.replay import RECORDING
from tests.unit.report.synthetic import record_of

ROOT = Path(__file__).parents[3]
STORED = ROOT / "tests" / "fixtures" / "stored"
(CELL,) = (STORED / "nightly" / "cells" / "qwen3-next+session-churn").glob("*/*/")
RUNS = {
    "a leak": RECORDING,
    "a short soak": STORED / "soak",
    "a version of a comparison": STORED / "comparison" / "b",
    "a cell": CELL,
}


def table_of(record: RunRecord) -> dict[str, Series]:
    """Return the series of ``record`` as read back from their printed table."""
    heading, *rows = csv.reader(io.StringIO(render_samples(record)))
    assert all(len(row) == len(heading) for row in rows)
    found = {}
    for column, name in enumerate(heading[1:], 1):
        pairs = [(float(row[0]), float(row[column])) for row in rows if row[column]]
        t_s, value = np.array(pairs).reshape(-1, 2).T
        found[name] = Series(name, t_s, value)
    return found


def assert_same(found: Series, wanted: Series) -> None:
    np.testing.assert_array_equal(found.t_s, wanted.t_s)
    np.testing.assert_array_equal(found.value, wanted.value)


@pytest.mark.parametrize("name", RUNS)
def test_a_loaded_run_has_the_series_and_the_verdict_that_report_has(
    name: str, tmp_path: Path
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(RUNS[name], copy)

    run = hybridbench.load_run(str(copy))
    code = render(copy)

    record = read_run(RUNS[name])
    assert run.manifest == record.manifest
    assert list(run.events) == list(record.events)
    assert run.series.keys() == record.series.keys()
    for series in record.series.values():
        assert_same(run.series[series.name], series)
    stored = (copy / "verdict.json").read_text()
    assert verdict_text(run.verdict, run.manifest.run_id) == stored
    assert run.verdict.exit_code == code
    assert run.findings == judge(record).findings


@pytest.mark.parametrize("name", RUNS)
def test_the_table_has_every_sample_with_all_its_digits(name: str) -> None:
    record = read_run(RUNS[name])

    table = table_of(record)

    assert table.keys() == record.series.keys()
    for series in record.series.values():
        assert_same(table[series.name], series)


def test_a_name_with_labels_and_a_run_without_samples_are_tables_too() -> None:
    record = record_of(60.0)
    name = labelled("rss_anon_swap_bytes", {"role": 'a "b", c'})
    series = Series(name, np.array([1.0, 2.5]), np.array([1e300, 0.1]))

    assert_same(table_of(replace(record, series={name: series}))[name], series)
    assert render_samples(replace(record, series={})) == "t_s\n"


def test_the_program_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "reference" / "python-api.md").read_text("utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    shutil.copytree(RECORDING, tmp_path / "results" / "RUN")
    monkeypatch.chdir(tmp_path)

    exec(program, {})

    run = hybridbench.load_run("results/RUN")
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 2 + len(run.findings) > 3
    assert printed[1] == run.verdict.full_headline.replace(":", "", 1)
    # The attributes named on the page exist.
    for owner, row in (("verdict", run.verdict), ("findings", run.findings[0])):
        (line,) = [line for line in page.splitlines() if line.startswith(f"| `run.{owner}`")]
        names = re.findall(r"`([a-z_]+)`", line.rpartition("|")[0].partition(": ")[2])
        assert len(names) > 5
        assert all(hasattr(row, name) for name in names)


def test_what_is_no_run_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="manifest"):
        hybridbench.load_run(tmp_path)


def test_loading_and_judging_need_no_engine_and_importing_needs_no_numpy() -> None:
    program = (
        "import sys, hybridbench; assert 'numpy' not in sys.modules;"
        "print(hybridbench.load_run(sys.argv[1]).verdict.kind);"
        "assert not {'torch', 'hybridbench.engine'} & set(sys.modules)"
    )

    done = subprocess.run(
        [sys.executable, "-c", program, str(RECORDING)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert (done.returncode, done.stdout) == (0, "LEAK\n"), done.stderr
