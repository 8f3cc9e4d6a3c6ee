"""What a comparison left behind, as a cell stores it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from hybridbench.analysis.comparison.answer import CheckedRatio, check_ratios
from hybridbench.analysis.comparison.compare import compare
from hybridbench.analysis.comparison.records import (
    Call,
    Change,
    ComparisonVerdict,
    Outcome,
    Role,
    SideComparison,
)
from hybridbench.analysis.reading import texts
from hybridbench.compare.store import StoredComparison, read_comparison
from hybridbench.errors import RunDirectoryError
from hybridbench.nightly.cells import Cell
from hybridbench.nightly.machine_class import machine_words
from hybridbench.nightly.policy import SLOWER
from hybridbench.nightly.records import AttemptRecord, FindingRecord, finding_record
from hybridbench.nightly.soak_attempt import HYBRIDBENCH
from hybridbench.records.verdict import PRECEDENCE, Finding, ThresholdOutcome, VerdictKind
from hybridbench.rundir.layout import COMPARISON

_ENDED: Final = ("decided", "rounds", "max-time", "lost")
_WORSE: Final = (Change.INTRODUCED, Change.WORSE)


def compare_command(cell: Cell, seed: int, duration_s: float, store: Path) -> list[str]:
    """The comparison of ``cell``, as anybody could type it."""
    words = [*HYBRIDBENCH, "compare", *cell.versions, "--same-engine", "--ui", "plain"]
    # A cell needs a verdict, also on a day without a change.
    words += ["--store", str(store)]
    words += ["--profile", cell.profile_source, "--model", cell.model, "--seed", str(seed)]
    words += ["--max-time", f"{duration_s:g}s"]
    if cell.block_s is not None:
        words += ["--block", f"{cell.block_s:g}s"]
    if cell.margin is not None:
        words += ["--margin", f"{cell.margin:g}"]
    if cell.gc is not None:
        words += ["--gc", cell.gc]
    if cell.ballast is not None:
        words += ["--ballast", str(cell.ballast)]
    for key, value in cell.settings:
        words += ["--set", f"{key}={value}"]
    for threshold in cell.thresholds:
        words += ["--threshold", threshold]
    return words


def with_comparison(attempt: AttemptRecord, store: Path, cell_dir: Path) -> AttemptRecord | None:
    """``attempt`` completed from the comparison in ``store``; None if that came to no answer.

    One that was cut off is none: its versions took turns, and half of them prove little.
    """
    for directory in sorted((path.parent for path in store.glob(f"*/{COMPARISON}")), reverse=True):
        try:
            stored = read_comparison(directory)
        except RunDirectoryError:
            continue
        if stored.ended in _ENDED:
            return _completed(attempt, stored, directory.relative_to(cell_dir))
    return None


def _completed(attempt: AttemptRecord, stored: StoredComparison, run: Path) -> AttemptRecord:
    thresholds = texts(stored.facts, "thresholds")
    verdict, held = check_ratios(compare(stored.comparison, stored.terms), thresholds)
    findings = (
        *(finding for side in verdict.sides for finding in _findings(side)),
        *_ratios(held, verdict),
    )
    kinds = {finding.verdict for finding in findings}
    kind = next((kind for kind in PRECEDENCE if kind in kinds), VerdictKind.CLEAN)
    manifests = [version.manifest for version in stored.comparison.versions]
    return msgspec.structs.replace(
        attempt,
        run=run.as_posix(),
        exit_code=int(verdict.exit_code),
        verdict=kind.value,
        headline=verdict.headline,
        findings=findings,
        judged_s=_length_s(stored),
        machine_class=machine_words(manifests[0]),
        engine=" ".join(str(manifest.get("engine_hash", ""))[:16] for manifest in manifests),
    )


def _findings(side: SideComparison) -> Iterator[FindingRecord]:
    """What makes ``side`` worse than the first version; one undecided answer otherwise."""
    if side.outcome is Outcome.INCONCLUSIVE:
        said = Finding("undecided", VerdictKind.INCONCLUSIVE, side.name, side.headline)
        yield finding_record(said, exact=True)
    if side.outcome is not Outcome.REGRESSION:
        return
    found = [*_leaks(side), *_slower(side)]
    # A version that fell has neither: its end is the finding.
    fell = Finding("crash", VerdictKind.CRASHED, side.name, side.headline)
    yield from found or [finding_record(fell, exact=True)]


def _ratios(held: Iterable[CheckedRatio], verdict: ComparisonVerdict) -> Iterator[FindingRecord]:
    """Thresholds on ratios that were missed, or that keep the answer open."""
    for ratio in held:
        outcome = None if ratio.result is None else ratio.result.outcome
        if outcome is ThresholdOutcome.MISSED:
            missed = Finding("threshold", VerdictKind.DEGRADED, ratio.text, ratio.said)
            yield finding_record(missed, exact=False)
        elif outcome is not ThresholdOutcome.MET and verdict.outcome is Outcome.INCONCLUSIVE:
            open_ = Finding("undecided", VerdictKind.INCONCLUSIVE, ratio.text, ratio.said)
            yield finding_record(open_, exact=True)


def _leaks(side: SideComparison) -> Iterator[FindingRecord]:
    for leak in side.leaks:
        if leak.change in _WORSE:
            rate = leak.difference or leak.other
            found = Finding(
                kind=leak.kind,
                verdict=leak.verdict,
                subject=leak.subject,
                title=f"{leak.change} in {side.name}: {leak.title}",
                driver=leak.driver,
                rates=() if rate is None else (rate,),
            )
            yield finding_record(found, exact=leak.exact)


def _slower(side: SideComparison) -> Iterator[FindingRecord]:
    for metric in side.metrics:
        if metric.role is not Role.SHOWN and metric.call is Call.WORSE:
            said = (
                f"{metric.label} of {side.name} is {metric.word}: ratio {metric.ratio:.3f} "
                f"({metric.lower:.3f} to {metric.upper:.3f})"
            )
            found = Finding(SLOWER, VerdictKind.DEGRADED, metric.metric, said)
            yield finding_record(found, exact=False)


def _length_s(stored: StoredComparison) -> float:
    starts = [block.started_s for block in stored.comparison.blocks]
    return max(starts) - min(starts) if starts else 0.0
