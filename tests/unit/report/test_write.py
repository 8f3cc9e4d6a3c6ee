"""Writing the derived files: all of them, complete, and repeatedly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hybridbench.foundation.errors import RunDirectoryError
from hybridbench.records.stored_verdict import verdict_from_json
from tests.unit.report import synthetic


def test_reports_can_be_rebuilt_and_are_the_same_each_time(tmp_path: Path) -> None:
    record = synthetic.record_of(120.0)
    verdict = synthetic.leak_verdict(record)

    synthetic.write_reports(tmp_path, record, verdict)
    first = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    synthetic.write_reports(tmp_path, record, verdict)
    second = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    assert sorted(first) == ["junit.xml", "report.html", "report.md", "verdict.json"]
    assert first == second
    assert verdict_from_json(json.loads(first["verdict.json"])) == verdict


def test_a_directory_that_is_gone_is_named(tmp_path: Path) -> None:
    record = synthetic.record_of(120.0)

    with pytest.raises(RunDirectoryError, match="cannot write"):
        synthetic.write_reports(tmp_path / "gone", record, synthetic.clean_verdict(record))
