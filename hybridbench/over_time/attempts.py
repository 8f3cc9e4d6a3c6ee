"""One attempt at a cell: its command, the progress of its run, and the result.

An interrupted soak is resumed and judged; an interrupted comparison is restarted, because its
versions alternate and half of the rounds show little.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from hybridbench.analysis.comparison.ratios import CheckedRatio
from hybridbench.analysis.comparison.records import (
    Call,
    Change,
    ComparisonVerdict,
    Outcome,
    Role,
    SideComparison,
)
from hybridbench.analysis.facts.window import judged_length_s, last_segment, segments
from hybridbench.analysis.findings.incomplete import BenchError
from hybridbench.analysis.record import RunRecord
from hybridbench.compare.store import StoredComparison, judged_comparison, read_comparison
from hybridbench.foundation.errors import RunDirectoryError
from hybridbench.over_time.cells import (
    DEFECT,
    DEFECTS_AS_OF,
    THIS_ENGINE,
    PlannedCell,
)
from hybridbench.over_time.comparer import THROUGHPUT, machine
from hybridbench.over_time.plan import is_release
from hybridbench.over_time.policy import SLOWER, worst_kind
from hybridbench.records.comparison import FINISHED
from hybridbench.records.events import Extended, ExtensionEnded, Interrupted
from hybridbench.records.finding import VerdictKind
from hybridbench.records.nightly import (
    Attempt,
    AttemptFinding,
    Cell,
    CellKind,
    attempt_finding,
)
from hybridbench.records.stored_verdict import read_verdict
from hybridbench.records.threshold_result import ThresholdOutcome
from hybridbench.records.verdict import Verdict
from hybridbench.rundir.cut import is_finished
from hybridbench.rundir.layout import COMPARISON, MANIFEST, SAMPLES, VERDICT
from hybridbench.rundir.reader import read_run

# Compared between nightly runs; medians over the judged window.
_METRICS: Final = (
    THROUGHPUT,
    "requests_per_s",
    "ttft_ms_p50",
    "ttft_ms_p99",
    "itl_ms_p50",
    "itl_ms_p99",
    "rss_anon_swap_bytes",
)
_HYBRIDBENCH: Final = (sys.executable, "-m", "hybridbench")
_WORSE: Final = (Change.INTRODUCED, Change.WORSE)


class Progress(Enum):
    """How far the newest run in an attempt's store has come."""

    CUT = "cut"  # soak --resume can continue it
    UNJUDGED = "unjudged"  # complete, but interrupted before the verdict
    DONE = "done"


@dataclass(frozen=True)
class Stored:
    """The newest run of an attempt."""

    progress: Progress
    run_dir: Path


def start_command(planned: PlannedCell, attempt: Attempt, store: Path) -> list[str]:
    """Return the cell's soak or comparison as a command line that a user could type."""
    cell = planned.cell
    if cell.kind is CellKind.WATCH:
        return _watch_command(planned, attempt, store)
    if cell.kind is CellKind.COMPARE:
        # A cell needs a verdict even on a day without a change.
        words = [*_HYBRIDBENCH, "compare", *cell.versions, "--same-engine"]
        words += ["--max-time", f"{attempt.duration_s:g}s"]
        words += _option("--block", cell.block_s, "s") + _option("--margin", cell.margin)
    else:
        words = [*_HYBRIDBENCH, "soak", "--duration", f"{attempt.duration_s:g}s"]
        words += ["--extend", f"{attempt.extend_s:g}s" if attempt.extend_s else "0"]
        words += [] if cell.device is None else ["--device", cell.device]
        words += [word for version in cell.versions for word in _version_option(version)]
    words += ["--ui", "plain", "--store", str(store), "--profile", planned.profile_source]
    words += ["--model", cell.model, "--seed", str(attempt.seed)]
    words += [] if cell.gc is None else ["--gc", cell.gc]
    words += [] if cell.ballast is None else ["--ballast", str(cell.ballast)]
    for key, value in cell.settings.items():
        words += ["--set", f"{key}={value}"]
    for threshold in cell.thresholds:
        words += ["--threshold", threshold]
    return words


def _watch_command(planned: PlannedCell, attempt: Attempt, store: Path) -> list[str]:
    words = [*_HYBRIDBENCH, "watch", "--duration", f"{attempt.duration_s:g}s"]
    words += ["--extend", f"{attempt.extend_s:g}s" if attempt.extend_s else "0"]
    words += ["--ui", "plain", "--store", str(store)]
    words += [word for text in planned.cell.thresholds for word in ("--threshold", text)]
    return [*words, *planned.watch]


def resume_command(cell: Cell, run_dir: Path) -> list[str]:
    """Return the command that resumes an interrupted soak, as a new segment."""
    words = [*_HYBRIDBENCH, "soak", "--resume", str(run_dir), "--ui", "plain"]
    for version in cell.versions:
        # Code is never run just because a manifest names it: pass the defect's file again.
        words += _defect_option(version) if version.endswith(".py") else []
    return words


def judge_command(run_dir: Path) -> list[str]:
    """Return the command that judges a run that has ended."""
    return [*_HYBRIDBENCH, "report", str(run_dir)]


def stored_attempt(kind: CellKind, store: Path) -> Stored | None:
    """Return how far the newest run in ``store`` has come; None if there is none."""
    return _stored_comparison(store) if kind is CellKind.COMPARE else _stored_soak(store)


def with_result(kind: CellKind, attempt: Attempt, run_dir: Path, cell_dir: Path) -> Attempt:
    """Complete ``attempt`` from the finished run in ``run_dir``.

    Raises:
        RunDirectoryError: the run or its verdict cannot be read.
    """
    attempt = msgspec.structs.replace(attempt, run=run_dir.relative_to(cell_dir).as_posix())
    if kind is CellKind.COMPARE:
        return _with_comparison(attempt, read_comparison(run_dir))
    return _with_verdict(attempt, read_run(run_dir), read_verdict(run_dir / VERDICT))


def _option(name: str, value: float | None, unit: str = "") -> list[str]:
    return [] if value is None else [name, f"{value:g}{unit}"]


def _version_option(version: str) -> list[str]:
    return ["--target", version] if is_release(version) else _defect_option(version)


def _defect_option(version: str) -> list[str]:
    if version == THIS_ENGINE:
        return []
    name = version if version.startswith(DEFECTS_AS_OF) else version.removeprefix(DEFECT)
    return ["--defect", name]


def _stored_soak(store: Path) -> Stored | None:
    try:
        runs = sorted(path for path in store.iterdir() if (path / MANIFEST).exists())
    except OSError:
        return None
    for run_dir in reversed(runs):
        try:
            record = read_run(run_dir)
        except RunDirectoryError:
            continue
        if is_finished(record):
            judged = (run_dir / VERDICT).exists()
            return Stored(Progress.DONE if judged else Progress.UNJUDGED, run_dir)
        interrupted = last_segment(record).last_event(Interrupted) is not None
        if (run_dir / VERDICT).exists() and not interrupted and not _went_on(run_dir):
            return Stored(Progress.DONE, run_dir)
        return Stored(Progress.CUT, run_dir)
    return None


def _stored_comparison(store: Path) -> Stored | None:
    for directory in sorted((path.parent for path in store.glob(f"*/{COMPARISON}")), reverse=True):
        try:
            if read_comparison(directory).manifest.ended in FINISHED:
                return Stored(Progress.DONE, directory)
        except RunDirectoryError:
            continue
    return None


def _with_verdict(attempt: Attempt, record: RunRecord, verdict: Verdict) -> Attempt:
    window = verdict.window_s
    return msgspec.structs.replace(
        attempt,
        exit_code=int(verdict.exit_code),
        verdict=verdict.kind.value,
        headline=verdict.headline,
        findings=tuple(attempt_finding(finding) for finding in verdict.findings),
        metrics=_medians(record, window),
        growth={
            found.metric: found.rate_per_hour
            for found in verdict.metrics
            if found.rate_per_hour is not None
        },
        judged_s=0.0 if window is None else judged_length_s(record, window),
        segments=len(segments(record)),
        extended_s=_extended_s(record),
        machine_class=machine(record.manifest),
        engine=record.manifest.engine_hash,
    )


def _with_comparison(attempt: Attempt, stored: StoredComparison) -> Attempt:
    verdict, ratios = judged_comparison(stored)
    findings = tuple(_compared_findings(verdict, ratios))
    manifests = [version.manifest for version in stored.comparison.versions]
    starts = [block.started_s for block in stored.comparison.blocks]
    kind = worst_kind(findings)
    return msgspec.structs.replace(
        attempt,
        exit_code=int(verdict.exit_code),
        verdict=kind.value,
        headline=_said(verdict, kind),
        findings=findings,
        judged_s=max(starts) - min(starts) if starts else 0.0,
        machine_class=machine(manifests[0]),
        engine=" ".join(manifest.engine_hash[:16] for manifest in manifests),
    )


def _said(compared: ComparisonVerdict | SideComparison, kind: VerdictKind) -> str:
    """Return the headline with its word, unless that only repeats ``kind``, printed beside it."""
    return compared.headline if compared.word == kind.value else compared.full_headline


def _went_on(run_dir: Path) -> bool:
    """Whether the verdict is older than the last sample, because a later segment was cut off."""
    return (run_dir / VERDICT).stat().st_mtime < (run_dir / SAMPLES).stat().st_mtime


def _extended_s(record: RunRecord) -> float:
    """Return how long the run was extended beyond its planned time."""
    began = record.last_event(Extended)
    ended = last_segment(record).last_event(ExtensionEnded)
    return 0.0 if began is None or ended is None else max(ended.t_s - began.t_s, 0.0)


def _medians(record: RunRecord, window: tuple[float, float] | None) -> dict[str, float]:
    if window is None:
        return {}
    medians = {}
    for name in _METRICS:
        series = record.series.get(name)
        values = np.array([]) if series is None else series.between(*window).value
        if values.size:
            medians[name] = float(np.median(values))
    return medians


def _compared_findings(
    verdict: ComparisonVerdict, ratios: Sequence[CheckedRatio]
) -> Iterator[AttemptFinding]:
    if verdict.failures and verdict.outcome is Outcome.INCONCLUSIVE:
        # The sides were judged by the parts of the analysis that worked: they may even be SAME.
        part, said = verdict.failures[0].part, verdict.full_headline
        yield AttemptFinding(BenchError.kind, VerdictKind.INCONCLUSIVE, part, said)
        return
    for side in verdict.sides:
        yield from _findings(side)
    for ratio in ratios:
        yield from _ratio_findings(ratio, verdict)


def _findings(side: SideComparison) -> Iterator[AttemptFinding]:
    """Yield what makes ``side`` worse than the first version, or one undecided finding."""
    if side.outcome is Outcome.INCONCLUSIVE:
        open_ = VerdictKind.INCONCLUSIVE
        yield AttemptFinding("undecided", open_, side.name, _said(side, open_))
    if side.outcome is not Outcome.REGRESSION:
        return
    found = [*_leaks(side), *_slower(side)]
    # A version that crashed has neither leaks nor metrics: its crash is the finding.
    fell = AttemptFinding("crash", VerdictKind.CRASHED, side.name, side.full_headline)
    yield from found or [fell]


def _ratio_findings(ratio: CheckedRatio, verdict: ComparisonVerdict) -> Iterator[AttemptFinding]:
    """Yield a threshold on a ratio that was missed, or that leaves the comparison undecided."""
    outcome = None if ratio.result is None else ratio.result.outcome
    if outcome is ThresholdOutcome.MISSED:
        missed = VerdictKind.DEGRADED
        yield AttemptFinding("threshold", missed, ratio.text, ratio.said, exact=False)
    elif outcome is not ThresholdOutcome.MET and verdict.outcome is Outcome.INCONCLUSIVE:
        yield AttemptFinding("undecided", VerdictKind.INCONCLUSIVE, ratio.text, ratio.said)


def _leaks(side: SideComparison) -> Iterator[AttemptFinding]:
    for leak in side.leaks:
        if leak.change in _WORSE:
            rate = leak.difference or leak.other
            yield AttemptFinding(
                kind=leak.kind,
                verdict=leak.verdict,
                subject=leak.subject,
                title=f"{leak.change} in {side.name}: {leak.title}",
                driver=leak.driver,
                rates=() if rate is None else (rate,),
                exact=leak.exact,
            )


def _slower(side: SideComparison) -> Iterator[AttemptFinding]:
    for metric in side.metrics:
        if metric.role is not Role.SHOWN and metric.call is Call.WORSE:
            said = (
                f"{metric.label} of {side.name} is {metric.word}: ratio {metric.ratio:.3f} "
                f"({metric.lower:.3f} to {metric.upper:.3f})"
            )
            worse = VerdictKind.DEGRADED
            yield AttemptFinding(SLOWER, worse, metric.metric, said, exact=False)
