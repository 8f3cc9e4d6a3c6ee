"""Check thresholds on ratios of a comparison, and add them to its headline or notes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hybridbench.analysis.comparison.answer import THRESHOLD_MISSED, THRESHOLD_UNDECIDED
from hybridbench.analysis.comparison.records import ComparisonVerdict, Outcome, SideComparison
from hybridbench.analysis.findings.words import headline
from hybridbench.analysis.levels import Measured
from hybridbench.analysis.thresholds import gate
from hybridbench.foundation.thresholds import Stat, Threshold, parse_thresholds
from hybridbench.records.threshold_result import ThresholdOutcome, ThresholdResult


@dataclass(frozen=True)
class CheckedRatio:
    """A threshold checked for one version; ``result`` is None if its metric was not measured.

    ``position`` is the version's position in the comparison.
    """

    position: int
    version: str
    text: str
    result: ThresholdResult | None

    @property
    def outcome(self) -> ThresholdOutcome:
        return ThresholdOutcome.UNDECIDED if self.result is None else self.result.outcome

    @property
    def said(self) -> str:
        """One sentence with the numbers."""
        if self.result is None:
            return f"{self.text} was not checked: no block of {self.version} measured it"
        return f"{self.version}: {self.result.said}"


def check_ratios(
    compared: ComparisonVerdict, thresholds: Sequence[str]
) -> tuple[ComparisonVerdict, tuple[CheckedRatio, ...]]:
    """Check the ratios among ``thresholds``; return ``compared`` updated with the results.

    A missed ratio makes a regression; an undecided one turns SAME or BETTER into INCONCLUSIVE.  The
    headline then begins with the deciding ratios.  A comparison that is a regression anyway keeps
    its headline, and gets the missed ratios as notes.
    """
    wanted = [t for t in parse_thresholds(thresholds) if t.stat is Stat.RATIO]
    ratios = tuple(_checked(side, threshold) for side in compared.sides for threshold in wanted)
    outcomes = {ratio.outcome for ratio in ratios}
    if ThresholdOutcome.MISSED in outcomes:
        sentences = _sentences(ratios, ThresholdOutcome.MISSED)
        if compared.outcome is Outcome.REGRESSION:
            return replace(compared, notes=(*compared.notes, *sentences)), ratios
        return _led(compared, Outcome.REGRESSION, THRESHOLD_MISSED, sentences), ratios
    if ThresholdOutcome.UNDECIDED in outcomes and compared.outcome in (
        Outcome.SAME,
        Outcome.BETTER,
    ):
        sentences = _sentences(ratios, ThresholdOutcome.UNDECIDED)
        return _led(compared, Outcome.INCONCLUSIVE, THRESHOLD_UNDECIDED, sentences), ratios
    return compared, ratios


def _checked(side: SideComparison, threshold: Threshold) -> CheckedRatio:
    metric = next((m for m in side.metrics if m.metric == threshold.metric), None)
    if metric is None:
        return CheckedRatio(side.version, side.name, threshold.text, None)
    measured = Measured(metric.ratio, metric.lower, metric.upper)
    return CheckedRatio(side.version, side.name, threshold.text, gate(threshold, measured))


def _sentences(ratios: Sequence[CheckedRatio], outcome: ThresholdOutcome) -> list[str]:
    return [ratio.said for ratio in ratios if ratio.outcome is outcome]


def _led(
    compared: ComparisonVerdict, outcome: Outcome, word: str, sentences: Sequence[str]
) -> ComparisonVerdict:
    """``compared`` with the outcome of its ratios, and their sentences ahead of its headline."""
    lead = headline(word, f"{'; '.join(sentences)}. {compared.full_headline}")
    return replace(compared, outcome=outcome, word=word, headline=lead, names_version=False)
