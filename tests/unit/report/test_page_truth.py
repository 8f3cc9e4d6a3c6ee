"""One page, one truth: no format of a report says two things that cannot both be true."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from hybridbench.analysis.judge import judge
from hybridbench.analysis.record import RunRecord, Series
from hybridbench.compare.store import judged_comparison, read_comparison
from hybridbench.records.events import Interrupted
from hybridbench.report.build import build_document
from hybridbench.report.comparison import comparison_document
from hybridbench.report.diagnosis import diagnosis_text
from hybridbench.report.document import Document
from hybridbench.rundir.reader import read_run
from tests.unit.analysis.comparisons import THROUGHPUT, rounds
from tests.unit.analysis.diagnoses import MIB, dragged, holding, ladder_record, survey
from tests.unit.analysis.records import (
    Run,
    healthy_record,
    reference_cycles,
    with_events,
    with_manifest,
    with_series,
)
from tests.unit.report import comparisons
from tests.unit.report.page_truth import contradictions, different, impossible

STORED = Path(__file__).parents[2] / "fixtures" / "a9932c8"


def _instances() -> RunRecord:
    """A third of the removed nodes survives a collection, in most scans."""
    record = reference_cycles(healthy_record(Run(seed=3)), "default")
    stray = record.series["instances.TreeNode.stray"]
    share = np.where(np.arange(len(stray)) % 5, 0.67, 0.2)
    freed = np.round(share * stray.value)
    parts = {"collectible": freed, "retained": stray.value - freed}
    return with_series(
        record,
        *(Series(f"instances.TreeNode.{name}", stray.t_s, of) for name, of in parts.items()),
    )


def _growth() -> RunRecord:
    record = healthy_record(Run(seed=4))
    memory = record.series["rss_anon_swap_bytes"]
    grown = memory.value + 3e9 / 3600.0 * memory.t_s
    return with_series(record, Series(memory.name, memory.t_s, grown))


def _uncovered() -> RunRecord:
    floors = {"assert_coverage": {"refusals": 5, "retracts": 100_000, "hits": 99_999}}
    return with_manifest(healthy_record(Run(seed=5)), profile=floors, planned_duration_s=1200)


def _soak(record: RunRecord) -> Document:
    return build_document(record, judge(record))


def _diagnosed(record: RunRecord) -> Document:
    document = _soak(healthy_record(Run(seed=1)))
    return replace(document, diagnosis=diagnosis_text(record))


def _stored_comparison() -> Document:
    stored = read_comparison(STORED / "comparison")
    verdict, ratios = judged_comparison(stored)
    return comparison_document(stored.comparison, verdict, stored.manifest, ratios)


def _compared_runs() -> Document:
    """Two stored runs with all that was served, whose rates differ from those of their blocks."""
    made = comparisons.comparison()
    record = read_run(STORED / "soak")
    served = judge(record).serving
    versions = tuple(
        replace(one, verdict=replace(one.verdict, serving=served)) for one in made.versions
    )
    assert served
    return comparisons.document(replace(made, versions=versions, interleaved=False))


def _wild() -> Document:
    """So few and so different rounds that an interval is wider than all there is."""
    made = comparisons.comparison(leaks=True)
    return comparisons.document(replace(made, blocks=rounds(6, {THROUGHPUT: 0.35}, noise=1.5)))


PAGES: dict[str, Callable[[], Document]] = {
    "CLEAN": lambda: _soak(healthy_record(Run(seed=1))),
    "LEAK by instances": lambda: _soak(_instances()),
    "LEAK by growth": lambda: _soak(_growth()),
    "INVALID": lambda: _soak(_uncovered()),
    "interrupted": lambda: _soak(
        with_events(_uncovered().until(400.0), Interrupted(signal="SIGINT", t_s=400.0))
    ),
    "too short": lambda: _soak(healthy_record(Run(100.0, 40.0, probe_s=2.0))),
    "stored soak": lambda: _soak(read_run(STORED / "soak")),
    "stored comparison": _stored_comparison,
    "compared runs": _compared_runs,
    "a leak introduced": lambda: comparisons.document(comparisons.comparison(0.9, leaks=True)),
    "wild rounds": _wild,
    "diagnosis": lambda: _diagnosed(
        ladder_record(
            base=(145, 144, 144, 124),
            end=(160, 155, 155, 135),
            now=survey(
                garbage=int(3.36 * MIB),
                objects=6480,
                rows=[holding("list", 0, 5 * MIB, ["Engine._log"], entries=9), dragged(3, MIB)],
            ),
        )
    ),
}


@cache
def _page(name: str) -> Document:
    return PAGES[name]()


@pytest.mark.parametrize("name", PAGES)
def test_no_format_contradicts_itself_or_another(name: str) -> None:
    assert contradictions(_page(name)) == []


@pytest.mark.parametrize(
    "page",
    [
        "33% survive a full gc.collect() ... 61% survive it",
        "33% survive it ... it frees 68% of the removed objects",
        "memory growth is at most 37.2 MiB/h ... growth of private memory above 37.3 MiB/h is",
        "No findings in 4m57s; ... is ruled out (95%, 4m54s judged)",
        "5m9s recorded · ... 5m8s recorded · ",
        "interrupted after 6m40s ... Interrupted after 6m42s of",
        "throughput +1.0% (0.0% to +2.0%) SAME ... throughput +1.1% (0.0% to +2.0%)",
        "up to 2.20 k removed TreeNode objects ... at most 1.99 k at once",
    ],
)
def test_two_values_of_one_name_are_seen(page: str) -> None:
    assert len(list(different([page]))) == 1
    assert list(different([page.partition(" ... ")[0]])) == []


@pytest.mark.parametrize(
    "page",
    [
        "Of the growth, 35.1% is still referenced, 0.5% is garbage and 55.1% is free memory.",
        "throughput \N{MINUS SIGN}64.5% ± 85.8% INCONCLUSIVE",
        "throughput \N{MINUS SIGN}64.5% (\N{MINUS SIGN}150% to +21.3%)",
        "throughput +64.5% (+65.0% to +71.3%)",
        "up to \N{MINUS SIGN}3 removed objects",
        "+1.20 nodes per evicted node (95% interval \N{MINUS SIGN}0.300 to +2.70)",
    ],
)
def test_what_cannot_be_is_seen(page: str) -> None:
    assert len(list(impossible(page))) == 1


@pytest.mark.parametrize(
    "page",
    [
        "Of the growth, 35.1% is still referenced, 22.4% is garbage and 42.5% is unexplained.",
        "throughput \N{MINUS SIGN}64.5% (\N{MINUS SIGN}100% to +21.3%)",
        "+1.20 nodes per evicted node (95% interval +0.300 to +2.70)",
    ],
)
def test_what_can_be_is_no_contradiction(page: str) -> None:
    assert list(impossible(page)) == []
