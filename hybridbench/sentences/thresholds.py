"""Thresholds on the ratio of two versions, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hybridbench.analysis.comparison.answer import (
    THRESHOLD_MISSED,
    THRESHOLD_UNDECIDED,
    CheckedRatio,
)
from hybridbench.analysis.comparison.records import ComparisonVerdict
from hybridbench.analysis.findings.thresholds import threshold_text
from hybridbench.analysis.findings.words import headline
from hybridbench.records.verdict import ThresholdOutcome


def phrased_ratios(
    compared: ComparisonVerdict, verdict: ComparisonVerdict, ratios: Sequence[CheckedRatio]
) -> tuple[ComparisonVerdict, tuple[CheckedRatio, ...]]:
    """What ``check_ratios`` made of ``compared``, with its sentences: in the headline where a ratio
    decided, else among the notes.
    """
    held = tuple(replace(ratio, said=_ratio_text(ratio)) for ratio in ratios)
    wanted = (
        ThresholdOutcome.UNDECIDED
        if verdict.word == THRESHOLD_UNDECIDED
        else ThresholdOutcome.MISSED
    )
    said = [ratio.said for ratio in held if ratio.outcome is wanted]
    if verdict.word in (THRESHOLD_MISSED, THRESHOLD_UNDECIDED):
        lead = f"{'; '.join(said)}. {compared.full_headline}"
        said_first = headline(verdict.word, lead)
        return replace(verdict, headline=said_first, names_version=False), held
    # What is a regression by itself keeps its headline.
    return replace(verdict, notes=(*verdict.notes, *said)), held


def _ratio_text(ratio: CheckedRatio) -> str:
    if ratio.result is None:
        return f"{ratio.text} was not checked: no block of {ratio.version} measured it"
    return f"{ratio.version}: {threshold_text(ratio.result)}"
