"""Reports of every kind: soaks of each verdict, comparisons, nightly runs, files, histories."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np

from hybridbench.analysis.judge import judge
from hybridbench.analysis.record import RunRecord, Series
from hybridbench.cli.results import read_result
from hybridbench.compare.store import judged_comparison, read_comparison
from hybridbench.over_time.comparer import series_of
from hybridbench.over_time.history_report import history_document
from hybridbench.over_time.merge import find_cells, merged
from hybridbench.over_time.night_report import nightly_document
from hybridbench.over_time.points import read_points
from hybridbench.records.events import AnswersCompared, Crash, Interrupted, WrongAnswer
from hybridbench.records.nightly import Attempt
from hybridbench.records.verdict import Verdict
from hybridbench.report.build import build_document
from hybridbench.report.comparison import comparison_document
from hybridbench.report.diagnosis import diagnosis_text
from hybridbench.report.document import Document
from hybridbench.report.external_series import series_document
from hybridbench.rundir.reader import read_run
from hybridbench.series.judge import JudgeOptions, judge_file
from tests.unit.analysis.comparisons import THROUGHPUT, rounds
from tests.unit.analysis.diagnoses import MIB, dragged, holding, ladder_record, survey
from tests.unit.analysis.records import (
    Run,
    healthy_record,
    reference_cycles,
    refused_and_holding,
    with_events,
    with_manifest,
    with_series,
)
from tests.unit.analysis.resumed import cut_at, resumed
from tests.unit.over_time.planned_runs import (
    GROWTH,
    NODES,
    PLAN,
    UNDECIDED,
    attempt,
    finished,
    planned_run,
    store,
)
from tests.unit.over_time.stores import DAY_S, add_run
from tests.unit.over_time.stores import verdict as stored_verdict
from tests.unit.report import comparisons, synthetic

STORED: Final = Path(__file__).parents[2] / "fixtures" / "stored"


def soak(record: RunRecord) -> Document:
    return build_document(record, judge(record))


def half_retained() -> RunRecord:
    """Return a run in which a third of the removed nodes survive a collection in most scans."""
    record = reference_cycles(healthy_record(Run(seed=3)), "default")
    stray = record.series["instances.TreeNode.stray"]
    share = np.where(np.arange(len(stray)) % 5, 0.67, 0.2)
    freed = np.round(share * stray.value)
    parts = {"collectible": freed, "retained": stray.value - freed}
    return with_series(
        record,
        *(Series(f"instances.TreeNode.{name}", stray.t_s, of) for name, of in parts.items()),
    )


def growing(per_hour: float = 3e9) -> RunRecord:
    record = healthy_record(Run(seed=4))
    memory = record.series["rss_anon_swap_bytes"]
    grown = memory.value + per_hour / 3600.0 * memory.t_s
    return with_series(record, Series(memory.name, memory.t_s, grown))


def slow() -> RunRecord:
    record = healthy_record(Run(seed=7))
    t_s = record.series["rss_anon_swap_bytes"].t_s
    speed = 900.0 + np.random.default_rng(5).normal(0, 20.0, t_s.size)
    return with_series(record, Series("throughput_tokens_per_s", t_s, speed))


def below_zero() -> RunRecord:
    """Return a run with a negative number of protected slots in one sample."""
    record = healthy_record(Run(seed=8))
    t_s = record.series["events.finishes"].t_s
    return with_series(record, Series("pool.kv.protected", t_s, np.where(t_s == 400.0, -2.0, 5.0)))


def wrong_answers() -> RunRecord:
    """Return a run with two answers for which the reference computes other tokens."""
    wrong = tuple(WrongAnswer(rid=f"r{i}", prompt_tokens=90, distance=0.2) for i in range(2))
    compared = AnswersCompared(
        t_s=400.0, compared=80, tokens=900, tolerance=5.75e-4, wrong=wrong, wrong_answers=2
    )
    return with_events(healthy_record(Run(seed=9)), compared)


def with_thresholds(record: RunRecord, *texts: str) -> RunRecord:
    return with_manifest(record, thresholds=list(texts))


def uncovered() -> RunRecord:
    floors = {"assert_coverage": {"refusals": 5, "retracts": 100_000, "hits": 99_999}}
    return with_manifest(healthy_record(Run(seed=5)), profile=floors, planned_duration_s=1200)


def diagnosed() -> Document:
    record = ladder_record(
        base=(145, 144, 144, 124),
        end=(160, 155, 155, 135),
        now=survey(
            garbage=int(3.36 * MIB),
            objects=6480,
            rows=[holding("list", 0, 5 * MIB, ["Engine._log"], entries=9), dragged(3, MIB)],
        ),
    )
    return replace(soak(healthy_record(Run(seed=1))), diagnosis=diagnosis_text(record))


def stored_comparison() -> Document:
    stored = read_comparison(STORED / "comparison")
    verdict, ratios = judged_comparison(stored)
    return comparison_document(stored.comparison, verdict, stored.manifest, ratios)


def compared_runs() -> Document:
    """Return a comparison of two stored runs whose rates differ from those of their blocks."""
    made = comparisons.comparison()
    served = judge(read_run(STORED / "soak")).serving
    versions = tuple(
        replace(one, verdict=replace(one.verdict, serving=served)) for one in made.versions
    )
    assert served
    return comparisons.document(replace(made, versions=versions, interleaved=False))


def wild() -> Document:
    """Return a comparison with rounds so few and different that an interval exceeds 100%."""
    made = comparisons.comparison(leaks=True)
    return comparisons.document(replace(made, blocks=rounds(6, {THROUGHPUT: 0.35}, noise=1.5)))


def stored_verdict_of(make: Callable[[RunRecord], Verdict], *, leaky: bool = False) -> Document:
    record = synthetic.record_of(leaky=leaky)
    return build_document(record, make(record))


def night(*ended: Attempt) -> Document:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        planned = planned_run(folder, PLAN)
        (folder / "cells").mkdir()
        for name, record in zip(("one", "two"), ended, strict=False):
            store(finished(planned, name, record), folder / "cells")
        found = find_cells([folder / "cells"])
        return nightly_document(merged(planned.record, found, []), "20261120-test")


def judged_files(*per_hour: float, hours: float = 4.0) -> Document:
    """Return judged files of one column that grows by the given MB per hour."""
    with tempfile.TemporaryDirectory() as made:
        verdicts = []
        for index, rate in enumerate(per_hour):
            t_s = np.arange(0.0, 3600.0 * hours, 10.0)
            noise = np.random.default_rng(index).normal(0.0, 5e5, t_s.size)
            level = 8e8 + rate * 1e6 * t_s / 3600.0 + noise
            rows = [f"{t},{v:.0f},{2 * t:.0f}" for t, v in zip(t_s, level, strict=True)]
            path = Path(made, f"file-{index}.csv")
            path.write_text("\n".join(["elapsed,rss_bytes,requests_total", *rows]) + "\n")
            verdicts.append(judge_file(str(path), JudgeOptions(steady_at="1m")))
    return series_document([replace(one, source=Path(one.source).name) for one in verdicts])


def history(throughput: list[float]) -> Document:
    with tempfile.TemporaryDirectory() as made:
        for day, value in enumerate(throughput):
            add_run(Path(made), f"run-{day}", day * DAY_S, stored_verdict(throughput=value))
        points, unread = read_points(Path(made))
        return history_document(series_of(points), unread, "results")


PAGES: Final[dict[str, Callable[[], Document]]] = {
    "CLEAN": lambda: soak(healthy_record(Run(seed=1))),
    "LEAK by instances": lambda: soak(half_retained()),
    "LEAK by growth": lambda: soak(growing()),
    "LEAK by slots": lambda: soak(refused_and_holding(healthy_record(Run(seed=6)))),
    "INCONCLUSIVE": lambda: soak(with_thresholds(growing(4e7), "rss.slope<28MiB/h")),
    "DEGRADED": lambda: soak(with_thresholds(slow(), "throughput.p50>1000/s", "rss.max<1GiB")),
    "INVARIANT": lambda: soak(below_zero()),
    "CORRUPT": lambda: soak(wrong_answers()),
    "CRASHED": lambda: soak(with_events(growing(4e7).until(400.0), Crash(t_s=400.0))),
    "INVALID": lambda: soak(uncovered()),
    "interrupted": lambda: soak(
        with_events(uncovered().until(400.0), Interrupted(signal="SIGINT", t_s=400.0))
    ),
    "too short": lambda: soak(healthy_record(Run(100.0, 40.0, probe_s=2.0))),
    "resumed: LEAK": lambda: soak(resumed(healthy_record(Run(seed=1)), growing())),
    "resumed: CLEAN": lambda: soak(resumed(cut_at(growing(), 90.0), healthy_record(Run(seed=1)))),
    "stored soak": lambda: soak(read_run(STORED / "soak")),
    "stored verdict: LEAK": lambda: stored_verdict_of(synthetic.leak_verdict, leaky=True),
    "stored verdict: CLEAN": lambda: stored_verdict_of(synthetic.clean_verdict),
    "stored verdict: INCONCLUSIVE": lambda: stored_verdict_of(synthetic.open_verdict),
    "stored verdict: INVALID": lambda: stored_verdict_of(synthetic.invalid_verdict),
    "stored verdict: CRASHED": lambda: stored_verdict_of(synthetic.crash_verdict),
    "stored comparison": stored_comparison,
    "compared runs": compared_runs,
    "a leak introduced": lambda: comparisons.document(comparisons.comparison(0.9, leaks=True)),
    "the same": lambda: comparisons.document(comparisons.comparison()),
    "slower": lambda: comparisons.document(comparisons.comparison(0.9, several=True)),
    "wild rounds": wild,
    "diagnosis": diagnosed,
    "a nightly run": lambda: night(attempt("LEAK", NODES, GROWTH, UNDECIDED), attempt()),
    "a stored nightly run": lambda: read_result(STORED / "nightly", "").document,
    "a green nightly run": lambda: night(attempt(), attempt()),
    "a growing file": lambda: judged_files(300.0),
    "a steady file": lambda: judged_files(0.0),
    "several files": lambda: judged_files(300.0, 0.0, 20.0),
    "a short file": lambda: judged_files(100.0, hours=0.1),
    "a history": lambda: history([1000.0, 1004.0, 998.0, 1001.0, 996.0, 1002.0, 860.0]),
    "a short history": lambda: history([1000.0, 1004.0]),
}


@cache
def page(name: str) -> Document:
    return PAGES[name]()
