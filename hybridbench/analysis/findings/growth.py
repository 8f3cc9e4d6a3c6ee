"""Findings about unbounded growth of gated metrics, and about metrics that stay undecided.

A part of the process's memory may grow by more than the whole, because freed memory is reused; the
finding then says so.  Growth explained by answering probes is caused by the bench itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

import msgspec
import numpy as np

from hybridbench.analysis.boundary import Boundary
from hybridbench.analysis.drivers.search import Driver, Hints, find_driver
from hybridbench.analysis.facts.counters import bare
from hybridbench.analysis.facts.facts import Facts
from hybridbench.analysis.facts.mappings import MappingGrowth, mapping_growth
from hybridbench.analysis.findings.handles import HANDLES
from hybridbench.analysis.findings.words import certain, driver_evidence
from hybridbench.analysis.record import RunRecord
from hybridbench.analysis.trend.exhaustion import Exhaustion, limit_of, time_to_exhaustion
from hybridbench.analysis.trend.judged_samples import judged_samples
from hybridbench.foundation.labels import unlabelled
from hybridbench.foundation.metrics import (
    AT_REST,
    COLLECTIBLE,
    DEVICE_MEMORY,
    GRAPH_MEMORY,
    MEMORY,
    PINNED_MEMORY,
    Unit,
    label_of,
)
from hybridbench.foundation.units import format_bytes, format_duration, format_percent
from hybridbench.records.finding import (
    Basis,
    Evidence,
    Faster,
    Finding,
    LowerEnd,
    Rate,
    UpperEnd,
    VerdictKind,
    Words,
)
from hybridbench.records.json_value import JsonValue
from hybridbench.records.rates import full_rate_text, rate_text
from hybridbench.records.verdict import MetricResult, Why, memory_result

_EXPLAINS = 0.05

HELD_BY_PROBES = "observer_held_bytes"
# Share of the worker's growth above which the run measures the bench more than the engine.
_PROBES_EXPLAIN = 0.5
_MIN_PROBES = 8

_LEAST_ODDS = 1e-6
_MOSTLY = 0.5  # share of the growth


class HourlyBytes(msgspec.Struct, frozen=True, kw_only=True):
    """The growth of memory with its 95% interval, in bytes per hour."""

    value: float
    lower: LowerEnd
    upper: UpperEnd

    @classmethod
    def of(cls, rate: Rate) -> HourlyBytes:
        """Convert ``rate``, dropping its unit."""
        return cls(value=rate.value, lower=rate.lower, upper=rate.upper)

    def text(self) -> str:
        """The growth without a sign, for use after a verb that gives its direction."""
        return _grown(Rate(self.value, self.lower, self.upper, Unit.BYTES.value, "h"))


class Collectible(HourlyBytes, frozen=True, kw_only=True):
    """The growth of garbage; ``share`` is its share of the memory growth."""

    share: float

    def split(self) -> str:
        """Return a sentence on how much of the memory growth is garbage."""
        if self.share > 1.0:
            return (
                f"collectible memory grows by {self.text()}, faster than private memory: it "
                "accounts for all of the growth and reuses memory that was freed before"
            )
        share = format_percent(self.share)
        return f"collectible memory grows by {self.text()}: {share} of the memory growth"


class Growth(Basis, frozen=True, kw_only=True):
    """Unbounded growth of a gated metric.

    Attributes:
        model: description of the shape that fits best.
        judged_s: time span of the metric's samples.
        q_value: p-value of "grows no faster than the floor", adjusted for ``metrics_tested``
            metrics; None if no model tests that.
        collectible: the growth of garbage, for private memory.
        exhaustion: when the metric reaches a known limit.
        mappings: mappings of one size that increased in number, for private memory.
    """

    kind = "growth"
    meaning = "A gated metric grows by more than its tolerance, and the growth does not slow down."
    evidence = Evidence.STATISTICAL
    from_steady = True

    model: str
    why: Why | None
    judged_s: float
    q_value: float | None
    metrics_tested: int
    collectible: Collectible | None = None
    exhaustion: Exhaustion | None = None
    mappings: MappingGrowth | None = None

    def words(self, found: Finding) -> Words:
        leading = found.rates[: 1 if found.driver is None else 2]
        # If a rate may be zero, only its interval is given, which is printed next to the title.
        by = ", ".join(rate_text(rate, signed=False) for rate in leading if certain(rate))
        garbage = self.collectible is not None and self.collectible.share > _MOSTLY
        return Words(
            f"{label_of(found.subject)} grows{f' by {by}' if by else ''}",
            cause="uncollected cyclic garbage, which only a full collection frees"
            if garbage
            else "",
            evidence=tuple(self._evidence(found)),
        )

    def _evidence(self, found: Finding) -> Iterable[str]:
        # Print the span of the samples, which may begin and end slightly inside the window.
        span, why = format_duration(self.judged_s), "" if self.why is None else self.why.text
        yield f"best model: {self.model}; {why}; its samples span {span}"
        if found.driver != "finishes":
            yield from (_grown(rate) for rate in found.rates if rate.per == "request")
        if self.collectible is not None:
            yield self.collectible.split()
        if self.mappings is not None:
            yield self.mappings.text
        if self.q_value is not None:
            yield (
                f"false-alarm probability: {odds_text(self.q_value)} (Holm-adjusted over "
                f"{self.metrics_tested} gated metrics)"
            )
        if self.exhaustion is not None:
            yield self.exhaustion.text(found.rates[0].unit)
        yield from driver_evidence(found)

    def advice(self, found: Finding) -> str:
        handle = HANDLES.get(unlabelled(found.subject))
        if handle is not None:
            return handle.advice(found)
        return (
            "Compare the growth with the event rates below: the counter that rises with it names "
            "the path. Then repeat the run with that event alone."
        )


class Undecided(Basis, frozen=True, kw_only=True):
    """One metric, or the whole run, is undecided.

    Attributes:
        why: for a metric, the reason.
        needed_s: for a metric, the length of a judged window that would decide it, if any.
        judged_s: for a metric, the actual length.
        open: for the whole run, what is missing.
        ended: how the watched program ended by itself, if that is the cause.
    """

    kind = "undecided"
    meaning = "The run does not show whether the growth of a gated metric is below its limit."
    evidence = Evidence.STATISTICAL
    leads_to = "INCONCLUSIVE"

    why: Why | None = None
    needed_s: float | None = None
    judged_s: float | None = None
    open: Literal["extension", "no-window"] | None = None
    ended: str = ""

    def words(self, found: Finding) -> Words:
        if self.open == "extension":
            return Words(
                "the extension ended before two interim analyses on clearly different data "
                "agreed; run longer"
            )
        if self.open == "no-window":
            why = f": {self.ended}" if self.ended else ""
            return Words(f"the run ended before anything could be judged{why}")
        longer = ""
        if self.needed_s is not None:
            more_s = max(self.needed_s - (self.judged_s or 0.0), 1.0)
            longer = f"; about {format_duration(more_s)} more would decide"
        why = "" if self.why is None else self.why.text
        return Words(f"{label_of(found.subject)}: {why}{longer}")

    def advice(self, found: Finding) -> str:
        return "Give a command that runs until it is stopped, such as a server." * bool(self.ended)

    def as_data(self) -> dict[str, JsonValue]:
        stored = super().as_data()
        return stored if self.open else {"why": None, "needed_s": None, **stored}


class ObserverGrows(Basis, frozen=True, kw_only=True):
    """Growth caused by the bench: ``probes`` answered probes explain at least ``share`` of it.

    ``memory`` is the growth of the worker's memory.
    """

    kind = "observer-grows"
    meaning = "At least half of the growth of the worker's memory is due to the bench's own probes."
    evidence = Evidence.STATISTICAL
    leads_to = "INVALID"

    memory: HourlyBytes
    share: float
    probes: int

    def words(self, found: Finding) -> Words:
        hourly, per_probe = found.rates
        share = format_percent(min(self.share, 1.0))
        return Words(
            f"answering probes makes the worker grow: {format_bytes(per_probe.value)} per probe, "
            f"{rate_text(hourly, signed=False)}",
            cause="the answers to probes are kept, or each is larger than the one before",
            evidence=(
                f"of {self.memory.text()} in all, {share} or more came while {self.probes} probes "
                "were answered",
                "the run says nothing about the engine's own growth",
            ),
        )


def odds_text(q: float) -> str:
    """Format a probability as one in N runs."""
    return "less than 1 in 1,000,000 runs" if q < _LEAST_ODDS else f"1 in {1.0 / q:,.0f} runs"


def _grown(rate: Rate) -> str:
    """Format a rate without its sign, for use after a verb that gives its direction."""
    return full_rate_text(rate, signed=False)


def growth_findings(
    facts: Facts,
    results: Sequence[MetricResult],
    boundary: Boundary,
    tested: int | None = None,
) -> list[Finding]:
    """Return a finding for each metric that leaks and for each that is undecided.

    If the search for a leak's driver fails, the leak is reported without one.  ``tested`` is the
    number of metrics for which the q-values are adjusted, if ``results`` are only some of them.
    """
    if tested is None:
        tested = sum(one.q_value is not None for one in results)
    findings: list[Finding] = []
    for result in results:
        part = f"the growth of {result.metric}"
        if result.outcome == "LEAK":
            drives = f"what drives {result.metric}"
            driver = boundary.value(drives, None, _driver, facts, result)
            leak = boundary.value(part, None, _leak, facts.record, result, results, driver, tested)
            findings += [] if leak is None else [leak]
        elif result.outcome == "INCONCLUSIVE":
            findings.append(_undecided(facts, result))
    return findings


def collectible_growth(results: Sequence[MetricResult]) -> Collectible | None:
    """Return the growth of garbage; None unless memory grows and garbage explains enough of it."""
    by_name = {result.metric: result.rate_per_hour for result in results}
    memory, garbage = by_name.get(MEMORY), by_name.get(COLLECTIBLE)
    if memory is None or garbage is None or min(memory.lower, garbage.value) <= 0:
        return None
    share = garbage.value / memory.value
    if share < _EXPLAINS:
        return None
    return Collectible(share=share, value=garbage.value, lower=garbage.lower, upper=garbage.upper)


def _driver(facts: Facts, result: MetricResult) -> Driver | None:
    """Return the event that drives the metric in the judged window; None if none is found."""
    window, rate = facts.window, result.rate_per_hour
    if window is None or rate is None:
        return None
    t, value = judged_samples(window, facts.record, result.metric)
    sign = 1.0 if rate.value >= 0 else -1.0
    emptied = result.metric == COLLECTIBLE
    load = () if result.metric == AT_REST else facts.load
    hints = Hints(load=load, emptied=emptied)
    return find_driver(t, sign * value, facts.counters, hints)


def _leak(
    record: RunRecord,
    result: MetricResult,
    results: Sequence[MetricResult],
    driver: Driver | None,
    tested: int,
) -> Finding:
    rate, per_request = result.rate_per_hour, result.rate_per_request
    assert rate is not None, "nothing is called a leak without a rate"
    rates: tuple[Rate, ...] = (rate,)
    if driver is not None:
        rates = (*rates, driver.rate(rate.unit))
    if per_request is not None and (
        driver is None or driver.counter != bare(record.drivers.requests)
    ):
        rates = (*rates, per_request)
    return Finding(
        Growth(
            model=result.model,
            why=result.why,
            judged_s=result.window_s[1] - result.window_s[0],
            q_value=result.q_value,
            metrics_tested=tested,
            collectible=collectible_growth(results) if result.metric == MEMORY else None,
            exhaustion=_exhaustion(record, result),
            mappings=_mappings(record, result),
        ),
        VerdictKind.LEAK,
        result.metric,
        driver=None if driver is None else driver.counter,
        rates=rates,
        since_s=result.window_s[0],
        driven=None if driver is None else driver.how,
    )


def _mappings(record: RunRecord, result: MetricResult) -> MappingGrowth | None:
    if result.metric != MEMORY or len(result.fit_value) < 2:
        return None
    grown_bytes = result.fit_value[-1] - result.fit_value[0]
    return mapping_growth(record, result.window_s, grown_bytes)


def _exhaustion(record: RunRecord, result: MetricResult) -> Exhaustion | None:
    limit, rate = limit_of(record, result.metric), result.rate_per_hour
    if limit is None or rate is None or not result.fit_value:
        return None
    return time_to_exhaustion(limit, result.fit_value[-1], rate)


def _undecided(facts: Facts, result: MetricResult) -> Finding:
    # ``needed_s`` is a length of the judged window, whose beginning the trend may skip.
    start_s, end_s = result.window_s
    judged_s = end_s - start_s if facts.window is None else facts.window.duration_s
    return Finding(
        Undecided(
            why=result.why,
            needed_s=result.needed_s,
            judged_s=judged_s,
        ),
        VerdictKind.INCONCLUSIVE,
        result.metric,
        rates=() if result.rate_per_hour is None else (result.rate_per_hour,),
        since_s=result.window_s[0],
    )


def exceeds(part: Rate, whole: Rate) -> bool:
    """Whether ``part`` is significantly above the upper end of ``whole``, in bytes per hour."""
    in_bytes = part.unit == Unit.BYTES.value and part.per == "h"
    return in_bytes and part.lower > max(whole.upper, 0.0)


def with_whole(findings: Sequence[Finding], results: Sequence[MetricResult]) -> list[Finding]:
    """Add an explanation to each finding that grows faster than private memory can."""
    memory = memory_result(results)
    whole = None if memory is None else memory.rate_per_hour
    if whole is None:
        return list(findings)
    return [_explained(finding, whole) for finding in findings]


def _explained(finding: Finding, whole: Rate) -> Finding:
    # Device memory and pinned memory are mapped by the driver and are not part of private memory.
    if finding.subject in (MEMORY, DEVICE_MEMORY, GRAPH_MEMORY, PINNED_MEMORY):
        return finding
    if isinstance(finding.basis, Undecided):
        return finding
    part = next((rate for rate in finding.rates if exceeds(rate, whole)), None)
    if part is None:
        return finding
    most = max(whole.upper, 0.0)
    return replace(finding, faster_than_memory=faster_than(part, most))


def faster_than(part: Rate, most: float) -> Faster:
    """Explain why objects can grow faster than the process, which grows by ``most`` bytes/h."""
    text = (
        f"these objects accumulate {full_rate_text(part, signed=False)} between collections, more "
        f"than private memory grows by (at most {format_bytes(most)}/h, 95%): they reuse memory "
        "that was freed before, so this is not growth of the process"
    )
    return Faster(
        value=part.value, lower=part.lower, upper=part.upper, memory_upper=most, text=text
    )


def probe_growth_findings(record: RunRecord, results: Sequence[MetricResult]) -> list[Finding]:
    """Return a finding if the worker leaks and probes explain at least half of the growth."""
    memory = memory_result(results)
    held = record.series.get(HELD_BY_PROBES)
    grown = None if memory is None else memory.rate_per_hour
    if memory is None or memory.outcome != "LEAK" or grown is None or held is None:
        return []
    seen = held.between(*memory.window_s)
    if len(seen) < _MIN_PROBES:
        return []
    left = np.diff(seen.value)
    # The median is what each probe leaves, without the allocations that other threads make.
    per_probe = float(np.median(left))
    error = 1.25 * float(np.std(left, ddof=1)) / float(np.sqrt(left.size))
    hours = float(seen.t_s[-1] - seen.t_s[0]) / 3600.0
    probes_per_hour = left.size / hours
    rate = Rate(
        per_probe * probes_per_hour,
        (per_probe - 2 * error) * probes_per_hour,
        (per_probe + 2 * error) * probes_per_hour,
        Unit.BYTES.value,
        "h",
    )
    share = rate.lower / grown.value
    if share < _PROBES_EXPLAIN:
        return []
    found = Finding(
        ObserverGrows(memory=HourlyBytes.of(grown), share=share, probes=len(seen)),
        VerdictKind.INVALID,
        "the bench itself",
        rates=(rate, Rate(per_probe, per_probe - error, per_probe + error, "B", "probe")),
        since_s=float(seen.t_s[0]),
    )
    return [found]
