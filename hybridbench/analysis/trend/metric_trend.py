"""Judge the trend of one gated metric in the judged window: LEAK, CLEAN or INCONCLUSIVE."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec
import numpy as np

from hybridbench.analysis.distributions import holm
from hybridbench.analysis.facts.counters import bare
from hybridbench.analysis.facts.facts import Facts
from hybridbench.analysis.facts.limits import next_limit_s, run_length_s
from hybridbench.analysis.reading import mapping
from hybridbench.analysis.record import FloatArray, RunRecord
from hybridbench.analysis.trend.blocks import BYTES_QUANTILE, COUNT_QUANTILE
from hybridbench.analysis.trend.estimate import MIN_SAMPLES, Estimate, Options, Samples, estimate
from hybridbench.analysis.trend.judged_samples import judged_samples
from hybridbench.analysis.trend.reasons import (
    BelowFloor,
    Bounded,
    EveryModelGrows,
    FewCollections,
    FewCycles,
    FewSteps,
    FloorsBounded,
    FloorsRise,
    Growing,
    LimitNotMeasured,
    LoadClimbs,
    LowsRise,
    NoLimit,
    NoSteadyState,
    OfFloors,
    OneCycle,
    Open,
    StillFilling,
    TooFewSamples,
    TooShort,
)
from hybridbench.analysis.trend.sawtooth import FEWEST_FLOORS, Floors, floors_after_collections
from hybridbench.analysis.trend.shapes import SLOWEST
from hybridbench.analysis.trend.terms import (
    HALF_A_DAY_S,
    PAGE_BYTES,
    Terms,
    shortest_for_leak_s,
)
from hybridbench.foundation.labels import unlabelled
from hybridbench.foundation.metrics import (
    AT_REST,
    CLIENT_CONNECTIONS,
    COLLECTIBLE,
    OPEN_FILES,
    Check,
    MetricSpec,
    Unit,
    spec_of,
)
from hybridbench.records.events import ProbeLeftOut
from hybridbench.records.finding import Rate
from hybridbench.records.verdict import NO_MODEL, MetricResult, Reason

# Reasons of an estimate that explain by themselves why growth is not a leak.
_OF_ITS_OWN: Final = {kind.code: kind for kind in (LoadClimbs, FewCycles, OneCycle, FewSteps)}

MIN_PROBES = 30  # heap scans needed before the trend of collectible memory may be judged

# From here on the window is long compared with any warm-up's tail, so slow shapes are left to the
# pace check.
_SLOWEST_AFTER_STEADY = 0.5

# Minimum share of a rise in steps that must come in each half of the window.
_STEP_SHARE = 0.25

_MOST_WORKS = 2
LONGEST_ADVICE = 50.0  # times the window; nobody is told to run longer than that


@dataclass(frozen=True)
class Effort:
    """How much work to spend: the live view judges often and needs only a rough answer."""

    max_blocks: int = 80
    max_steps: int = 3


def gated_metrics(record: RunRecord) -> list[MetricSpec]:
    """Return the trend metrics that have samples in this record.

    Processes with a role have records of their own (``facts/processes.py``).
    """
    if record.gates is not None:
        return [gate.spec for name, gate in record.gates.items() if len(record.series[name])]
    absent = probes_left_out(record)
    own = ((n, series) for n, series in record.series.items() if n == unlabelled(n))
    sampled = sorted(n for n, series in own if len(series) and n not in absent)
    specs = (spec_of(name) for name in sampled)
    # Idle readings are comparable only if the cache was flushed before each of them.
    alike = mapping(record.manifest.profile.resolved, "checkpoint").get("flush") is True
    return [
        spec
        for spec in specs
        if spec is not None and (spec.check is Check.TREND or (alike and spec.name == AT_REST))
    ]


def probes_left_out(record: RunRecord) -> frozenset[str]:
    """Return the metrics whose probe was disabled because it stopped the engine for too long."""
    left_out = record.all_events(ProbeLeftOut)
    return frozenset(name for probe in left_out for name in probe.metrics)


def judge_trend(facts: Facts, spec: MetricSpec, effort: Effort) -> MetricResult:
    """Judge one metric in the judged window, which must exist."""
    assert facts.window is not None, "without a judged window there is no trend"
    t, value = judged_samples(facts.window, facts.record, spec.name)
    sign = 1.0 if spec.higher_is_worse else -1.0
    base = float(np.median(value[: max(3, value.size // 20)])) if value.size else 0.0
    terms = Terms(facts.record, spec, facts.window, base, _rises(sign * value))
    if spec.name == COLLECTIBLE:
        floors = floors_after_collections(facts.record, facts.window, t, value)
        if floors is not None:
            return _by_floors(terms, floors)
    needed = MIN_PROBES if spec.name == COLLECTIBLE else MIN_SAMPLES
    if t.size < needed:
        return _too_few(terms, t, needed)
    counted = map(bare, facts.record.drivers.works)
    works = [name for name in counted if name in facts.counters.series][:_MOST_WORKS]
    load = _load(facts, spec, t)
    found = estimate(
        Samples(t, sign * value, [facts.counters.at(name, t) for name in works], load),
        _options(terms, effort),
    )
    return _result(terms, found, sign, _requests(facts, found))


def _rises(value: FloatArray) -> tuple[float, float]:
    """Return the growth of ``value`` from its start to its middle, and from there to its end."""
    if value.size < MIN_SAMPLES:
        return 0.0, 0.0
    parts = np.array_split(value, 20)
    start, middle, end = (float(np.median(parts[at])) for at in (1, 10, -1))
    return middle - start, end - middle


def _options(terms: Terms, effort: Effort) -> Options:
    fast_only = terms.window.steady and terms.may_call_leak
    return Options(
        floor=terms.least_growth,
        line_floor=terms.line_growth,
        quantile=COUNT_QUANTILE if terms.spec.handles else BYTES_QUANTILE,
        slowest=_SLOWEST_AFTER_STEADY if fast_only else SLOWEST,
        collected=terms.record.gates is not None and terms.record.gates[terms.spec.name].collected,
        max_blocks=effort.max_blocks,
        max_steps=effort.max_steps,
    )


def _load(facts: Facts, spec: MetricSpec, t: FloatArray) -> FloatArray | None:
    """Return what moves the metric up and down: the requests in flight, including waiting ones,
    which also hold their prompts.

    Open files of a server move with the connections that our client keeps open after a request.
    """
    if spec.name == AT_REST:
        return None  # nothing runs when idle
    connections = facts.record.series.get(CLIENT_CONNECTIONS) if spec.name == OPEN_FILES else None
    if connections:
        load = np.interp(t, connections.t_s, connections.value)
    else:
        load = facts.requests_at(t)
    return load if np.ptp(load) else None


def _requests(facts: Facts, found: Estimate) -> float:
    counter = bare(facts.record.drivers.requests)
    if counter not in facts.counters.series:
        return 0.0
    at = facts.counters.at(counter, np.array([found.blocks.start_s, found.blocks.end_s]))
    return float(at[1] - at[0])


def _result(terms: Terms, found: Estimate, sign: float, requests: float) -> MetricResult:
    hours = (found.blocks.end_s - found.blocks.start_s) / 3600.0
    unit = terms.spec.unit.value
    # Memory is measured in pages: a constant series may have changed by less than one.
    page = PAGE_BYTES if terms.spec.unit is Unit.BYTES else 0.0
    lower, upper = min(found.lower, found.growth - page), max(found.upper, found.growth + page)
    rate = Rate(found.growth / hours, lower / hours, upper / hours, unit, "h")
    per_request = None
    if requests > 0:
        per_request = Rate(
            found.growth / requests, found.lower / requests, found.upper / requests, unit, "request"
        )
    if found.warms and not terms.window.reported:
        # The first fill ended, and a slower one followed: the process was not steady yet.
        terms = replace(terms, window=replace(terms.window, steady=False, fill=None))
    outcome, reason = _decide(terms, found, rate)
    line, half = sign * found.fitted, found.band
    result = _unfitted(terms, outcome, reason, found.model, rate, _needed_s(terms, found, rate))
    return msgspec.structs.replace(
        result,
        window_s=(found.blocks.start_s, found.blocks.end_s),
        rate_per_request=per_request,
        fit_t_s=tuple(found.blocks.t_s.tolist()),
        fit_value=tuple(line.tolist()),
        band_lower=tuple((line - half).tolist()),
        band_upper=tuple((line + half).tolist()),
        p_value=found.p_value,
    )


def _decide(terms: Terms, found: Estimate, rate: Rate) -> tuple[str, Reason]:
    unit, upper = terms.spec.unit.value, rate.upper
    if found.leak and terms.may_call_leak:
        # The rate over the judged blocks, which may cover only the later half of the window.
        faster_than = found.floor / (found.blocks.end_s - found.blocks.start_s) * 3600
        return "LEAK", EveryModelGrows(model=found.model, faster_than=faster_than, unit=unit)
    # Significant growth is never CLEAN, whatever the limit: it is a leak or it needs more time.
    if rate.lower > terms.settled_rate(found.reason):
        return "INCONCLUSIVE", _growing(terms, found, rate)
    if terms.unlimited:
        never = next_limit_s(terms.record) is None
        return "INCONCLUSIVE", (NoLimit if never else LimitNotMeasured)(upper=upper, unit=unit)
    if upper >= terms.bound:
        return "INCONCLUSIVE", _undecided(terms, found, rate)
    lows = found.lows / (found.blocks.end_s - found.blocks.start_s) * 3600
    if lows >= terms.bound:
        return "INCONCLUSIVE", LowsRise(value=lows, unit=unit)
    if _steps_may_go_on(terms, found):
        return "INCONCLUSIVE", FewSteps()
    return "CLEAN", Bounded(upper=upper, bound=terms.bound, source=terms.bound_by, unit=unit)


def _steps_may_go_on(terms: Terms, found: Estimate) -> bool:
    """Whether the metric rose in steps, in both halves, by more than a healthy process settles by.

    Always False if a profile limits how much a healthy run may grow.
    """
    risen = sum(terms.rises)
    if terms.has_limits or risen <= terms.least_growth:
        return False
    in_steps = " step" in found.model and float(found.fitted[-1] - found.fitted[0]) > found.growth
    return in_steps and min(terms.rises) >= _STEP_SHARE * risen


def _growing(terms: Terms, found: Estimate, rate: Rate) -> Reason:
    if terms.never_decides(rate):
        return BelowFloor(
            value=rate.value,
            lower=rate.lower,
            upper=rate.upper,
            floor=terms.floor_after(np.inf),
            unit=terms.spec.unit.value,
        )
    is_warm_up = found.leak and terms.may_warm_up
    growth = (NoSteadyState if is_warm_up else Growing)(
        value=rate.value, lower=rate.lower, upper=rate.upper, unit=terms.spec.unit.value
    )
    if found.leak or not (_fills(found) or found.reason in _OF_ITS_OWN):
        return growth
    return msgspec.structs.replace(_undecided(terms, found, rate), growing=growth)


def _fills(found: Estimate) -> bool:
    """Whether growth slows down; the pace check can also fail for other reasons."""
    if found.reason != StillFilling.code:
        return False
    return found.fade is None or found.fade[0] > max(found.fade[1], 0.0)


def _undecided(terms: Terms, found: Estimate, rate: Rate) -> Open:
    unit = terms.spec.unit.value
    if _fills(found) and found.fade is not None:
        hours = (found.blocks.end_s - found.blocks.start_s) / 3600.0
        early, late = (part / hours for part in found.fade)
        return StillFilling(early=early, late=late, unit=unit)
    if found.reason in _OF_ITS_OWN:
        return _OF_ITS_OWN[found.reason]()
    return TooShort(upper=rate.upper, bound=terms.bound, unit=unit)


def _needed_s(terms: Terms, found: Estimate, rate: Rate) -> float | None:
    """Return the window length that would decide: the interval narrows with time to the power 3/2.

    None if no length would: flat memory under a profile without a limit, or significant growth that
    is not a leak.
    """
    if terms.never_decides(rate):
        return None
    present = terms.window.duration_s
    half = max(rate.upper - rate.value, rate.value - rate.lower)
    # Real growth must exceed the floor; if there is none, it must stay below the bound.
    room = max(terms.bound - max(rate.value, 0.0), rate.value - terms.floor, 1e-9)
    longer = present * min(max((half / room) ** (2.0 / 3.0), 1.3), LONGEST_ADVICE)
    if terms.settled_rate(found.reason) < rate.lower <= terms.floor:
        # Sure growth below the present floor: after half a day a lower one applies.
        longer = max(longer, HALF_A_DAY_S)
    if terms.window.fill is None and _steps_may_go_on(terms, found):
        longer = max(longer, 2.0 * present)  # then the second half shows whether more steps come
    shortest = shortest_for_leak_s(terms.window)
    if rate.lower > terms.bound and (terms.window.fill is not None or not _fills(found)):
        # If the growth continues, it is a leak once it exceeds what a healthy process settles by.
        longer = max(longer, shortest, terms.least_growth / rate.lower * 3600.0)
    if terms.unlimited:
        limit_s = next_limit_s(terms.record)
        if limit_s is None:
            return shortest if found.leak else None
        longer = max(present + limit_s - run_length_s(terms.record), 1.3 * present)
    return float(max(longer, shortest) if found.leak else longer)


def _by_floors(terms: Terms, floors: Floors) -> MetricResult:
    """Judge collectible garbage by its levels after full collections."""
    unit, seconds = terms.spec.unit.value, terms.window.duration_s
    rate = Rate(floors.slope_per_s * 3600, floors.lower * 3600, floors.upper * 3600, unit, "h")
    enough = len(floors) >= FEWEST_FLOORS
    rises = enough and floors.surely * seconds > terms.least_growth
    bounded = rate.upper < terms.bound and rate.lower <= terms.excused
    kind: type[OfFloors]
    if rises and terms.may_call_leak:
        outcome, kind = "LEAK", FloorsRise
    elif bounded and not rises and not terms.unlimited:
        outcome, kind = "CLEAN", FloorsBounded
    else:
        outcome, kind = "INCONCLUSIVE", FewCollections
    reason = kind(collections=len(floors), upper=rate.upper, bound=terms.bound, unit=unit)
    model = f"floors after {len(floors)} full collections"
    line = tuple(floors.value.tolist())
    return msgspec.structs.replace(
        _unfitted(terms, outcome, reason, model, rate, 2.0 * seconds),
        fit_t_s=tuple(floors.t_s.tolist()),
        fit_value=line,
        band_lower=line,
        band_upper=line,
    )


def _too_few(terms: Terms, t: FloatArray, needed: int) -> MetricResult:
    """Return a result without a rate: the range of a few samples is not an interval."""
    present_s = terms.window.duration_s
    sampled = terms.record.series[terms.spec.name].t_s
    if t.size > 1 or sampled.size < 2:
        longer_s = min(present_s * needed / max(t.size, 1), LONGEST_ADVICE * present_s)
    else:
        # One sample does not give a sampling interval; the samples before the window do.
        longer_s = present_s + (needed - t.size) * float(np.median(np.diff(sampled)))
    reason = TooFewSamples(
        samples=t.size, judged_s=present_s, samples_needed=needed, unit=terms.spec.unit.value
    )
    return _unfitted(terms, "INCONCLUSIVE", reason, NO_MODEL, needed_s=longer_s)


def _unfitted(
    terms: Terms,
    outcome: str,
    reason: Reason,
    model: str,
    rate: Rate | None = None,
    needed_s: float | None = None,
) -> MetricResult:
    """Return a result over the whole window, without a fitted line."""
    return MetricResult(
        metric=terms.spec.name,
        outcome=outcome,
        window_s=(terms.window.start_s, terms.window.end_s),
        rate_per_hour=rate,
        rate_per_request=None,
        floor_per_hour=terms.floor,
        limit_per_hour=terms.limit,
        model=model,
        needed_s=needed_s if outcome == "INCONCLUSIVE" else None,
        why=reason.why(),
    )


def with_q_values(results: Sequence[MetricResult]) -> list[MetricResult]:
    """Add to ``results`` Holm's adjusted p-values of "grows no faster than its floor".

    Metrics that could not be tested keep None and are not counted.
    """
    tested = [i for i, result in enumerate(results) if result.p_value is not None]
    adjusted = holm([results[i].p_value or 0.0 for i in tested])
    out = list(results)
    for i, q in zip(tested, adjusted, strict=True):
        out[i] = msgspec.structs.replace(results[i], q_value=q)
    return out
