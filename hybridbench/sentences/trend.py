"""Thresholds that are missed or open, in words."""

from __future__ import annotations

from hybridbench.analysis.reading import mapping, number, text
from hybridbench.records.codec import from_json
from hybridbench.records.finding import Words
from hybridbench.records.verdict import Finding, ThresholdResult
from hybridbench.sentences.thresholds import threshold_text
from hybridbench.units import format_duration


def threshold(found: Finding) -> Words:
    """A limit of the user that is missed or open."""
    data = found.data
    if "error" in data:
        return Words(f"the threshold {text(data, 'error')}, and is not checked")
    title = threshold_text(from_json(mapping(data, "measured"), ThresholdResult))
    if "settling_s" in data:
        settling = format_duration(number(data, "settling_s"))
        title += f", but in less than {settling} growth may be settling"
    return Words(title, evidence=(f"the user's threshold: {text(data, 'threshold')}",))
