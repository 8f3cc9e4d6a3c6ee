"""The stored healthy run of two hours: real samples, and a bound that the analysis must meet."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridbench.analysis.judge import judge
from hybridbench.records.verdict import VerdictKind
from hybridbench.rundir.reader import read_run
from tests.unit.analysis.records import hourly

REFERENCE = Path(__file__).parents[3] / "results" / "reference-2h"


def test_two_hours_of_the_default_profile_are_clean_and_tightly_bounded() -> None:
    record = read_run(REFERENCE)

    verdict = judge(record)

    assert verdict.kind is VerdictKind.CLEAN, verdict.headline
    (memory,) = [m for m in verdict.metrics if m.metric == "rss_anon_swap_bytes"]
    assert hourly(memory).upper < 4 * 2**20
    assert record.series["events.finishes"].value[-1] == pytest.approx(332_385, rel=0.001)
    assert all(row.met for row in verdict.coverage.values())
