"""Decay and thresholds that are missed or open, in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from hybridbench.analysis.reading import mapping, number, text
from hybridbench.analysis.trend.work_cost import DERIVED_METRICS, DerivedMetric
from hybridbench.metrics import Unit
from hybridbench.records.codec import from_json
from hybridbench.records.finding import Words
from hybridbench.records.verdict import Finding, ThresholdResult
from hybridbench.sentences.thresholds import threshold_text
from hybridbench.units import format_duration, format_percent

_DERIVED: Final[Mapping[str, DerivedMetric]] = {d.name: d for d in DERIVED_METRICS}


def decay(found: Finding) -> Words:
    """Work that got dearer, or a rate that fell."""
    data, metric = found.data, _DERIVED[found.subject]
    rose = "rose" if metric.higher_is_worse else "fell"
    how = "in one step" if text(data, "shape") == "step" else "steadily"
    before, after = (_quantity(number(data, key), metric) for key in ("before", "after"))
    return Words(
        f"the {metric.label} {rose} {how} from {before} to {after}",
        evidence=tuple(_decay_evidence(found, metric)),
    )


def _decay_evidence(found: Finding, metric: DerivedMetric) -> Iterable[str]:
    changes = (number(found.data, key) for key in ("sure_change", "least_change"))
    sure, counts = (format_percent(change) for change in changes)
    yield f"worse by at least {sure} (99.9%); changes of {counts} or more are reported"
    if metric.loads:
        yield "adjusted for batch sizes and prompt lengths"
    if metric.timed:
        yield "the other times of the run did not rise with it, so it is not the machine"
    if found.driver is not None:
        yield f"it follows {found.driver} better than it follows time"


def below_threshold(found: Finding) -> Words:
    """A limit of the profile that is missed."""
    data, metric = found.data, _DERIVED[found.subject]
    side = "above" if metric.higher_is_worse else "below"
    value, lower, upper, limit = (
        _quantity(number(data, key), metric) for key in ("value", "lower", "upper", "promise")
    )
    return Words(
        f"the {metric.label} is {value}, {side} the profile's limit of {limit}",
        evidence=(f"{lower} to {upper} over the judged window (99.9%)",),
    )


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


def _quantity(value: float, metric: DerivedMetric) -> str:
    """``0.112 ms``, ``74.2%``."""
    if metric.unit == Unit.RATIO.value:
        return f"{100 * value:.3g}%"
    return f"{value:.3g} {metric.unit}"
