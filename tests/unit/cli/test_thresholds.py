"""``--threshold``: refused at once if wrong, and applied to a stored run without changing it."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from hybridbench.cli.app import app
from hybridbench.cli.options import given_thresholds
from hybridbench.foundation.errors import ErrorCode, UsageError

STORED = Path(__file__).parents[2] / "fixtures" / "stored" / "comparison" / "a"


def test_a_wrong_threshold_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UsageError, match=r"^--threshold 'rsss.slope<1MiB/h': .*mean rss\?$"):
        given_thresholds(["rsss.slope<1MiB/h"])


def test_a_ratio_needs_a_comparison() -> None:
    assert given_thresholds(["throughput.ratio>0.97"], of_comparison=True) == (
        "throughput.ratio>0.97",
    )
    with pytest.raises(UsageError) as refused:
        given_thresholds(["throughput.ratio>0.97"])
    assert refused.value.code is ErrorCode.BAD_VALUE


def test_a_stored_run_is_held_against_a_threshold_and_left_as_it_is() -> None:
    before = {path: path.stat().st_mtime_ns for path in STORED.iterdir()}

    told = CliRunner().invoke(app, ["report", str(STORED), "--threshold", "throughput.p50>90000/s"])

    assert told.exit_code == 11
    assert "DEGRADED" in told.output
    assert {path: path.stat().st_mtime_ns for path in STORED.iterdir()} == before
