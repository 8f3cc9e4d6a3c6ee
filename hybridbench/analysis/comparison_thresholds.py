"""Ratios that a comparison was told to keep: ``throughput.ratio>0.97`` against each version.

Every other threshold is one on a version's own run, and its findings are compared like any others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hybridbench.analysis.comparison_verdict import ComparisonVerdict, Outcome, SideComparison
from hybridbench.analysis.findings import ThresholdOutcome, ThresholdResult
from hybridbench.analysis.levels import Measured
from hybridbench.analysis.thresholds import gate
from hybridbench.thresholds import Stat, Threshold, parse_thresholds

_MISSED, _OPEN = "THRESHOLD MISSED", "THRESHOLD UNDECIDED"


@dataclass(frozen=True)
class HeldRatio:
    """One threshold against one version; ``result`` is None where its metric was not measured."""

    version: str
    text: str
    result: ThresholdResult | None

    @property
    def said(self) -> str:
        """One sentence."""
        if self.result is None:
            return f"{self.text} was not checked: no block of {self.version} measured it"
        return f"{self.version}: {self.result.said}"


def hold_ratios(
    verdict: ComparisonVerdict, thresholds: Sequence[str]
) -> tuple[ComparisonVerdict, tuple[HeldRatio, ...]]:
    """``verdict`` with the ratios among ``thresholds`` held against it.

    A missed one is a regression; one that nobody could decide keeps what else would be SAME from
    being called so.
    """
    wanted = [t for t in parse_thresholds(thresholds) if t.stat is Stat.RATIO]
    held = tuple(_held(side, threshold) for side in verdict.sides for threshold in wanted)
    missed = [h for h in held if _outcome(h) is ThresholdOutcome.MISSED]
    undecided = [h for h in held if _outcome(h) is ThresholdOutcome.UNDECIDED]
    if missed:
        return _answered(verdict, Outcome.REGRESSION, _MISSED, missed), held
    if undecided and verdict.outcome in (Outcome.SAME, Outcome.BETTER):
        return _answered(verdict, Outcome.INCONCLUSIVE, _OPEN, undecided), held
    return verdict, held


def _held(side: SideComparison, threshold: Threshold) -> HeldRatio:
    metric = next((m for m in side.metrics if m.metric == threshold.metric), None)
    if metric is None:
        return HeldRatio(side.name, threshold.text, None)
    measured = Measured(metric.ratio, metric.lower, metric.upper)
    return HeldRatio(side.name, threshold.text, gate(threshold, measured))


def _outcome(held: HeldRatio) -> ThresholdOutcome:
    return ThresholdOutcome.UNDECIDED if held.result is None else held.result.outcome


def _answered(
    verdict: ComparisonVerdict, outcome: Outcome, word: str, held: Sequence[HeldRatio]
) -> ComparisonVerdict:
    """What is a regression by itself keeps its word; the sentence is told beside it."""
    if verdict.outcome is Outcome.REGRESSION:
        return replace(verdict, notes=(*verdict.notes, *(h.said for h in held)))
    said = "; ".join(h.said for h in held)
    headline = f"{word}: {said}. {verdict.headline}"
    return replace(verdict, outcome=outcome, word=word, headline=headline)
