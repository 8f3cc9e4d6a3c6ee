"""The analysis bounds the memory growth of a stored healthy run of twelve hours tightly."""

from __future__ import annotations

from pathlib import Path

from hybridbench.analysis.judge import judge
from hybridbench.records.finding import VerdictKind
from hybridbench.rundir.reader import read_run
from tests.unit.analysis.records import hourly

REFERENCE = Path(__file__).parents[3] / "results" / "reference-12h"


def test_twelve_hours_of_the_default_profile_are_clean_and_tightly_bounded() -> None:
    record = read_run(REFERENCE)

    verdict = judge(record)

    assert verdict.kind is VerdictKind.CLEAN, verdict.headline
    (memory,) = [m for m in verdict.metrics if m.metric == "rss_anon_swap_bytes"]
    assert hourly(memory).upper < 2**16
    assert verdict.coverage["finishes"].seen == 1_339_148
    assert all(row.met for row in verdict.coverage.values())
