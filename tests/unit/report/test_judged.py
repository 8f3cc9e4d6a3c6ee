"""A run judged and rendered: any failure becomes a finding and keeps the run from being CLEAN."""

from __future__ import annotations

from typing import NoReturn

import pytest

from hybridbench.records.finding import VerdictKind
from hybridbench.report import write
from hybridbench.report.judged import judged_run
from hybridbench.rundir.layout import JUNIT, REPORT_HTML
from tests.unit.analysis.records import Run, healthy_record


def broken(*_: object) -> NoReturn:
    raise KeyError("a word")


def test_a_clean_run_without_its_report_is_inconclusive(monkeypatch: pytest.MonkeyPatch) -> None:
    record = healthy_record(Run(seed=3))
    whole = judged_run(record)
    monkeypatch.setattr(write, "render_html", broken)

    run = judged_run(record)

    assert whole.verdict.kind is VerdictKind.CLEAN
    assert run.verdict.kind is VerdictKind.INCONCLUSIVE
    assert (
        run.verdict.full_headline
        == "INCONCLUSIVE: hybridbench failed in report.html (KeyError: 'a word')"
    )
    assert run.pages.texts[REPORT_HTML] is None
    assert "hybridbench failed in report.html" in (run.pages.texts[JUNIT] or "")
