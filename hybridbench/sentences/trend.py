"""Growth and decay in words: how much, with which event, and when a limit is reached."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from hybridbench.analysis.findings.words import certain, driver_evidence
from hybridbench.analysis.reading import mapping, number, text
from hybridbench.analysis.trend.work_cost import DERIVED_METRICS, DerivedMetric
from hybridbench.metrics import Unit, label_of
from hybridbench.rates import full_rate_text, rate_text
from hybridbench.records.codec import from_json
from hybridbench.records.finding import Words
from hybridbench.records.json_value import JsonValue
from hybridbench.records.verdict import Finding, Rate, ThresholdResult
from hybridbench.sentences.reasons import reason_text
from hybridbench.sentences.thresholds import threshold_text
from hybridbench.units import (
    format_bytes,
    format_count,
    format_duration,
    format_percent,
)

_LEAST_ODDS = 1e-6
_DERIVED: Final[Mapping[str, DerivedMetric]] = {d.name: d for d in DERIVED_METRICS}


def growth(found: Finding) -> Words:
    """A metric that grows without end."""
    told = found.rates[: 1 if found.driver is None else 2]
    # One that may be none is said with its interval only, which stands beside the title.
    by = ", ".join(rate_text(rate, signed=False) for rate in told if certain(rate))
    split = collectible_split(found.data)
    garbage = number(mapping(found.data, "collectible"), "share") > 0.5
    return Words(
        f"{label_of(found.subject)} grows{f' by {by}' if by else ''}",
        cause="uncollected cyclic garbage, which only a full collection frees" if garbage else "",
        evidence=(
            *_judged(found),
            *((split,) if split else ()),
            *_odds(found.data),
            *_exhaustion(found),
            *driver_evidence(found),
        ),
    )


def _judged(found: Finding) -> Iterable[str]:
    data = found.data
    # The window has one length on a page; samples may begin and end a little inside of it.
    span = format_duration(number(data, "judged_s"))
    yield f"best model: {text(data, 'model')}; {_why(data)}; its samples span {span}"
    if found.driver != "finishes":
        yield from (_grown(rate) for rate in found.rates if rate.per == "request")


def _odds(data: Mapping[str, JsonValue]) -> Iterable[str]:
    if data.get("q_value") is None:
        return
    q = number(data, "q_value")
    odds = "less than 1 in 1,000,000 runs" if q < _LEAST_ODDS else f"1 in {1.0 / q:,.0f} runs"
    tested = number(data, "metrics_tested")
    yield f"false-alarm probability: {odds} (Holm-adjusted over {tested:,.0f} gated metrics)"


def _exhaustion(found: Finding) -> Iterable[str]:
    data = mapping(found.data, "exhaustion")
    if not data:
        return
    in_bytes = found.rates[0].unit == Unit.BYTES.value
    limit = (format_bytes if in_bytes else format_count)(number(data, "limit"))
    expected, soonest = (format_duration(number(data, key)) for key in ("expected_s", "soonest_s"))
    never = data.get("latest_s") is None
    latest = "never" if never else format_duration(number(data, "latest_s"))
    yield (
        f"at this rate the limit of {limit} is reached in {expected} ({soonest} to {latest}) "
        f"({text(data, 'limit_is')})"
    )


def collectible_split(data: Mapping[str, JsonValue]) -> str:
    """How much of the growth of memory is garbage; nothing where that is not known."""
    split = mapping(data, "collectible")
    if not split:
        return ""
    share, grows = number(split, "share"), _grown(_rate(split))
    if share > 1.0:
        return (
            f"collectible memory grows by {grows}, faster than private memory: it accounts for all "
            "of the growth and reuses memory that was freed before"
        )
    return f"collectible memory grows by {grows}: {format_percent(share)} of the memory growth"


def faster_than_memory(part: Mapping[str, JsonValue]) -> str:
    """Why objects can grow by more than the process does: their rate and the bound on memory."""
    most = format_bytes(number(part, "memory_upper"))
    return (
        f"these objects accumulate {_grown(_rate(part))} between collections, more than private "
        f"memory grows by (at most {most}/h, 95%): they reuse memory that was freed before, so "
        "this is not growth of the process"
    )


def undecided(found: Finding) -> Words:
    """What the run leaves open: one metric, or all of them."""
    data = found.data
    match text(data, "open"):
        case "extension":
            return Words(
                "the extension ended before two interim analyses on clearly different data "
                "agreed; run longer"
            )
        case "no-window":
            return Words("the run ended before anything could be judged")
    longer = ""
    if data.get("needed_s") is not None:
        more_s = max(number(data, "needed_s") - number(data, "judged_s"), 1.0)
        longer = f"; about {format_duration(more_s)} more would decide"
    return Words(f"{label_of(found.subject)}: {_why(data)}{longer}")


def _why(data: Mapping[str, JsonValue]) -> str:
    why = mapping(data, "why")
    return reason_text(text(why, "code"), mapping(why, "data"))


def observer_grows(found: Finding) -> Words:
    """The bench makes the worker grow."""
    hourly, per_probe = found.rates
    whole = _grown(_rate(mapping(found.data, "memory")))
    share, probes = number(found.data, "share"), number(found.data, "probes")
    return Words(
        f"answering probes makes the worker grow: {format_bytes(per_probe.value)} per probe, "
        f"{rate_text(hourly, signed=False)}",
        cause="the answers to probes are kept, or each is larger than the one before",
        evidence=(
            f"of {whole} in all, {format_percent(min(share, 1.0))} or more came while "
            f"{probes:.0f} probes were answered",
            "the run says nothing about the engine's own growth",
        ),
    )


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


def _grown(rate: Rate) -> str:
    """A rate after a verb that says its direction."""
    return full_rate_text(rate, signed=False)


def _rate(data: Mapping[str, JsonValue]) -> Rate:
    """A growth of memory for each hour."""
    value, lower, upper = (number(data, key) for key in ("value", "lower", "upper"))
    return Rate(value, lower, upper, Unit.BYTES.value, "h")


def _quantity(value: float, metric: DerivedMetric) -> str:
    """``0.112 ms``, ``74.2%``."""
    if metric.unit == Unit.RATIO.value:
        return f"{100 * value:.3g}%"
    return f"{value:.3g} {metric.unit}"
