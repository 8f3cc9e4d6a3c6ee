"""Leaks that differ between two versions: findings matched by signature, rates subtracted.

An exact finding (a missing slot, uncollected garbage) needs no test: it is present or absent,
provided both versions had the opportunity to show it.  A statistical finding is new or fixed only
if the verdicts of the two runs differ *and* their rates differ significantly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from statistics import NormalDist

from hybridbench.analysis.comparison.reasons import (
    BelowLimit,
    FasterThanMemory,
    FewEvents,
    InvalidRun,
    NoLeak,
    NoRate,
    OneRunAlone,
    OtherDriver,
    ShorterRun,
    UnderATenth,
)
from hybridbench.analysis.comparison.records import Change, ComparisonTerms, LeakComparison, Version
from hybridbench.analysis.facts.counters import EventCounters, event_counters
from hybridbench.analysis.findings.decay import CostChanged
from hybridbench.analysis.findings.growth import Growth, Undecided, exceeds
from hybridbench.analysis.findings.incomplete import BenchError
from hybridbench.analysis.findings.thresholds import ThresholdNotMet
from hybridbench.foundation.labels import unlabelled
from hybridbench.foundation.metrics import COLLECTIBLE, MEMORY, Unit
from hybridbench.records.finding import Finding, Rate, VerdictKind, recorded
from hybridbench.records.verdict import (
    DecayResult,
    MetricResult,
    Verdict,
    Why,
    leak_kind,
    memory_result,
)

GROWTH, DECAY = Growth.kind, CostChanged.kind
_LEAK = VerdictKind.LEAK.value

_JUDGED = frozenset(
    {VerdictKind.LEAK, VerdictKind.INVARIANT, VerdictKind.CORRUPT, VerdictKind.DEGRADED}
)
# Metrics always listed, so that a comparison without a finding shows how much growth it excludes.
_ALWAYS = (MEMORY, COLLECTIBLE)

# The absence of a finding counts if the other version's rate predicts at least this many
# occurrences: exp(-7) is about one in a thousand.
_EXPECTED = 7.0
# Without a driver, a version needs this share of the other's running time.
_ENOUGH_TIME = 0.5
# A finding present in both has changed if its rate changed by this share.
_LEAST_CHANGE = 0.10

_NORMAL = NormalDist()


def leak_comparisons(
    base: Version, other: Version, terms: ComparisonTerms
) -> tuple[LeakComparison, ...]:
    """Return every finding of either version, and memory growth in both, worst change first."""
    first, second = _Side(base), _Side(other)
    signatures = dict.fromkeys([*second.exact, *first.exact])
    rows = [_exact(key, first, second, terms) for key in signatures]
    names = dict.fromkeys([*second.metrics, *first.metrics])
    rows += [row for name in names for row in _growth(name, first, second, terms)]
    others = dict.fromkeys(k for k in [*second.trends, *first.trends] if k not in signatures)
    rows += [_trend(key, first, second, terms) for key in others]
    listed = {row.subject for row in rows}
    rows += [
        _undecided(first, finding, terms)
        for subject, finding in second.undecided.items()
        if subject not in listed
    ]
    return tuple(sorted(within_the_whole(rows, base, other), key=_rank))


def difference(base: Rate | None, other: Rate | None, alpha: float) -> Rate | None:
    """Return ``other`` less ``base`` at confidence 1 - alpha, with errors from the two intervals.

    A missing side counts as zero.  None if both are missing, the units differ, or an interval is
    open-ended.
    """
    given = other if other is not None else base
    if given is None:
        return None
    if base is not None and other is not None and (base.unit, base.per) != (other.unit, other.per):
        return None
    errors = [_standard_error(rate) for rate in (base, other) if rate is not None]
    if not all(math.isfinite(error) for error in errors):
        return None
    reach = _NORMAL.inv_cdf(1.0 - 0.5 * alpha) * math.hypot(*errors)
    value = (other.value if other is not None else 0.0) - (base.value if base is not None else 0.0)
    return Rate(value, value - reach, value + reach, given.unit, given.per, 1.0 - alpha)


def within_the_whole(
    rows: Sequence[LeakComparison], base: Version, other: Version
) -> Iterable[LeakComparison]:
    """Yield ``rows`` without bytes-per-hour rates that exceed the growth of the whole process.

    Objects may be freed, or may reuse memory that was freed earlier.  Their bytes then do not make
    the process grow, and the row says so instead.
    """
    for row in rows:
        part = row.bytes_per_hour
        if row.subject == MEMORY or part is None:
            yield row
            continue
        grown = part
        if part.value < 0:
            grown = replace(part, value=-part.value, lower=-part.upper, upper=-part.lower)
        verdict = (base if part.value < 0 else other).verdict
        memory = memory_result(verdict.metrics)
        whole = None if memory is None else memory.rate_per_hour
        if whole is None or not exceeds(grown, whole):
            yield row
            continue
        faster = FasterThanMemory(
            value=grown.value,
            lower=grown.lower,
            upper=grown.upper,
            memory_upper=max(whole.upper, 0.0),
        )
        why = (*row.why, faster.why())
        yield replace(row, bytes_per_hour=None, why=why)


def leaks_judged(base: Version, other: Version) -> bool:
    """Return whether the absence of a finding in both runs is meaningful."""
    return not unjudged(base.verdict) and not unjudged(other.verdict)


def unjudged(verdict: Verdict) -> bool:
    """Return whether the absence of a finding in this run is meaningless."""
    failed = any(finding.kind == BenchError.kind for finding in verdict.findings)
    return verdict.invalid or failed or verdict.kind is VerdictKind.CRASHED


_Key = tuple[str, str]  # kind and subject of a finding


class _Side:
    """One version's findings by signature, and its trends."""

    def __init__(self, version: Version) -> None:
        self.version = version
        judged = [f for f in version.verdict.findings if f.verdict in _JUDGED]
        # A threshold has already been tested with its own interval: it is either missed or met.
        exact = [f for f in judged if f.exact or f.kind == ThresholdNotMet.kind]
        self.exact: dict[_Key, Finding] = {(leak_kind(f.kind), f.subject): f for f in exact}
        self.trends: dict[_Key, Finding] = {
            (f.kind, f.subject): f for f in judged if f not in exact and f.kind != GROWTH
        }
        self.growth = {f.subject: f for f in judged if f.kind == GROWTH}
        # Possible leaks, by subject only: their kind depends on what the run could observe.  An
        # undecided trend is compared with its metric.
        self.undecided: dict[str, Finding] = {
            f.subject: f
            for f in version.verdict.findings
            if f.verdict is VerdictKind.INCONCLUSIVE and f.rates and f.kind != Undecided.kind
        }
        self.metrics: dict[str, MetricResult] = {m.metric: m for m in version.verdict.metrics}
        self.decay: dict[str, DecayResult] = {d.name: d for d in version.verdict.decay}

    @property
    def valid(self) -> bool:
        return not self.version.verdict.invalid

    def judged(self, key: _Key) -> Finding | None:
        """Return the finding with this signature, whether exact or statistical."""
        return self.exact.get(key) or self.trends.get(key)

    def found(self, key: _Key) -> Finding | None:
        """Return the finding with this signature, or else the undecided one on its subject."""
        return self.judged(key) or self.undecided.get(key[1])

    def measured(self, name: str) -> MetricResult | None:
        """Return the growth of a metric; None if it had too few samples for any model."""
        result = self.metrics.get(name)
        return None if result is None or result.rate_per_hour is None else result

    @property
    def duration_s(self) -> float:
        return self.version.record.span_s[1]

    def events(self, driver: str) -> float:
        return self._counters.total(driver) if driver in self._counters.names else 0.0

    @cached_property
    def _counters(self) -> EventCounters:
        return event_counters(self.version.record)


def _exact(key: _Key, base: _Side, other: _Side, terms: ComparisonTerms) -> LeakComparison:
    # A finding that is exact in one run may be statistical in the other.
    before, after = base.found(key), other.found(key)
    finding = other.judged(key) or base.judged(key)
    assert finding is not None
    rates = _matching(before, after)
    changed = difference(*rates, terms.leak_alpha)
    change: Change = Change.UNCHANGED
    why: Why | None = None
    if before is None or after is None:
        present, absent = (other, base) if before is None else (base, other)
        change = Change.INTRODUCED if before is None else Change.FIXED
        lacking = _no_occasion(finding, absent, present)
        if lacking is not None:
            change, why = Change.UNDECIDED, lacking
    else:
        change, why = _in_both(before, after, rates[0], changed)
    in_bytes = difference(_bytes_rate(before), _bytes_rate(after), terms.leak_alpha)
    row = _row(finding, change, why, rates, changed)
    return replace(row, exact=True, bytes_per_hour=in_bytes)


def _row(
    finding: Finding,
    change: Change,
    why: Why | None,
    rates: tuple[Rate | None, Rate | None],
    changed: Rate | None,
) -> LeakComparison:
    return LeakComparison(
        kind=finding.kind,
        subject=finding.subject,
        driver=finding.driver,
        title=finding.title,
        verdict=finding.verdict,
        change=change,
        exact=False,
        base=rates[0],
        other=rates[1],
        difference=changed,
        why=() if why is None else (why,),
    )


def _in_both(
    before: Finding, after: Finding, base: Rate | None, changed: Rate | None
) -> tuple[Change, Why | None]:
    """Compare a finding that is in both runs by its rate.

    If several counters are correlated, each run guesses which event drives the leak, so a different
    driver alone is not a new leak; but if the rates cannot be compared, the change is undecided.
    """
    other_event = None
    if before.driver != after.driver:
        other_event = OtherDriver(first=before.driver, second=after.driver).why()
    if changed is None and VerdictKind.INCONCLUSIVE in (before.verdict, after.verdict):
        return Change.UNDECIDED, NoRate().why()
    if base is None or changed is None:
        return (Change.UNCHANGED if other_event is None else Change.UNDECIDED), other_event
    change, why = _moved(base, changed)
    return change, other_event or why


def _no_occasion(finding: Finding, absent: _Side, present: _Side) -> Why | None:
    """Explain why the absence of ``finding`` in one version is inconclusive; None if it counts."""
    per_event = next((r for r in finding.rates if r.per not in ("h", "s", "min")), None)
    if finding.driver is not None and per_event is not None and per_event.value > 0:
        events = absent.events(finding.driver)
        # Count events, not slots: not every event leaks, and no event counts more than once.
        expected = min(1.0, per_event.value) * events
        if expected >= _EXPECTED:
            return None
        return FewEvents(events=events, driver=finding.driver).why()
    enough = absent.duration_s >= _ENOUGH_TIME * present.duration_s
    return None if enough else ShorterRun().why()


def _matching(before: Finding | None, after: Finding | None) -> tuple[Rate | None, Rate | None]:
    """Return the first rates in a common unit; if there is only one finding, its first rate."""
    if before is None or after is None:
        only = [None if f is None or not f.rates else f.rates[0] for f in (before, after)]
        return only[0], only[1]
    for rate in after.rates:
        for earlier in before.rates:
            if (rate.unit, rate.per) == (earlier.unit, earlier.per):
                return earlier, rate
    return None, None


def _bytes_rate(finding: Finding | None) -> Rate | None:
    rates = () if finding is None else finding.rates
    return next((r for r in rates if r.unit == Unit.BYTES and r.per == "h"), None)


def _moved(base: Rate, changed: Rate) -> tuple[Change, Why | None]:
    """Classify the change of a rate by its significance and size."""
    apart = changed.lower > 0 or changed.upper < 0
    if abs(changed.value) < _LEAST_CHANGE * abs(base.value):
        return Change.UNCHANGED, UnderATenth().why() if apart else None
    if changed.lower > 0:
        return Change.WORSE, None
    return (Change.LESS if changed.upper < 0 else Change.UNCHANGED), None


def _growth(
    name: str, base: _Side, other: _Side, terms: ComparisonTerms
) -> Iterable[LeakComparison]:
    """Yield the growth of one gated metric, if it is worth listing.

    Memory is listed if either version could be judged; other metrics are listed if they leak in one
    of the versions, or may be new in the second.
    """
    before, after = base.measured(name), other.measured(name)
    if before is None and after is None:
        return
    rates = (_hourly(before), _hourly(after))
    changed = difference(*rates, terms.leak_alpha) if before and after else None
    change, why = _growth_change(before, after, changed)
    if change not in (Change.UNCHANGED, Change.UNDECIDED) and not (base.valid and other.valid):
        change, why = Change.UNDECIDED, InvalidRun().why()
    leaks = any(_outcome(one) == _LEAK for one in (before, after))
    if not (leaks or change is Change.UNDECIDED or unlabelled(name) in _ALWAYS):
        return
    finding = other.growth.get(name) or base.growth.get(name)
    shown = finding or recorded(GROWTH, VerdictKind.CLEAN, name)
    row = _row(shown, change, why, rates, changed)
    in_bytes = changed is not None and changed.unit == Unit.BYTES
    yield replace(row, bytes_per_hour=changed if in_bytes else None)


def _outcome(result: MetricResult | None) -> str:
    return "" if result is None else result.outcome


def _may_grow(result: MetricResult | None) -> bool:
    """Return whether growth is certain and not CLEAN; it may or may not be a leak."""
    rate = _hourly(result)
    return rate is not None and rate.lower > 0 and _outcome(result) != VerdictKind.CLEAN.value


def _hourly(result: MetricResult | None) -> Rate | None:
    return None if result is None else result.rate_per_hour


def _growth_change(
    before: MetricResult | None, after: MetricResult | None, changed: Rate | None
) -> tuple[Change, Why | None]:
    leaks = [_outcome(one) == _LEAK for one in (before, after)]
    if before is None or after is None or changed is None:
        if not any(leaks) and not _may_grow(after):
            return Change.UNCHANGED, None
        return Change.UNDECIDED, NoRate().why()
    if leaks == [True, True]:
        assert before.rate_per_hour is not None, "nothing is called a leak without a rate"
        return _moved(before.rate_per_hour, changed)
    if not any(leaks):
        return _without_a_leak(before, after, changed)
    new = leaks[1]
    if (changed.lower > 0) if new else (changed.upper < 0):
        return (Change.INTRODUCED if new else Change.FIXED), None
    return Change.UNDECIDED, _alone(in_second=new)


def _alone(*, in_second: bool) -> Why:
    return OneRunAlone(run="second" if in_second else "first").why()


def _without_a_leak(
    before: MetricResult, after: MetricResult, changed: Rate
) -> tuple[Change, Why | None]:
    """Classify growth that leaks in neither version; disjoint intervals never mean unchanged."""
    if changed.lower <= 0 <= changed.upper:
        return Change.UNCHANGED, None
    both_clean = before.outcome == after.outcome == "CLEAN"
    why = (BelowLimit() if both_clean else NoLeak()).why()
    if changed.upper < 0:
        return Change.GROWS_SLOWER, why
    # If growth is faster and not bounded below the limit, it may be a leak.
    return (Change.GROWS_FASTER if after.outcome == "CLEAN" else Change.UNDECIDED), why


def _trend(key: _Key, base: _Side, other: _Side, terms: ComparisonTerms) -> LeakComparison:
    """Compare a decay, a growing container or a missed threshold by its change over the run."""
    kind, subject = key
    before, after = base.found(key), other.found(key)
    finding = other.judged(key) or base.judged(key)
    assert finding is not None
    rates = _decays(subject, base, other) if kind == DECAY else _matching(before, after)
    changed = difference(*rates, terms.leak_alpha)
    change: Change = Change.UNCHANGED
    why: Why | None = None
    if before is not None and after is not None:
        change, why = _in_both(before, after, rates[0], changed)
    elif changed is None:
        change, why = Change.UNDECIDED, NoRate().why()
    elif before is None:
        change = Change.INTRODUCED if changed.lower > 0 else Change.UNDECIDED
    else:
        change = Change.FIXED if changed.upper < 0 else Change.UNDECIDED
    if change is Change.UNDECIDED and why is None:
        why = _alone(in_second=before is None)
    return _row(finding, change, why, rates, changed)


def _undecided(base: _Side, after: Finding, terms: ComparisonTerms) -> LeakComparison:
    """Compare a subject that may leak in the second version, and is a leak in neither."""
    before = base.undecided.get(after.subject)
    rates = _matching(before, after)
    changed = difference(*rates, terms.leak_alpha)
    change: Change = Change.UNDECIDED
    if before is not None and rates[0] is not None and changed is not None:
        moved, _ = _moved(rates[0], changed)
        change = Change.UNDECIDED if moved is Change.WORSE else Change.UNCHANGED
    why = NoLeak().why() if change is Change.UNDECIDED else None
    return _row(after, change, why, rates, changed)


def _decays(subject: str, base: _Side, other: _Side) -> tuple[Rate | None, Rate | None]:
    """Return each side's change of ``subject`` over its run, as a share of the start."""

    def one(result: DecayResult | None) -> Rate | None:
        if result is None or result.change is None:
            return None
        if result.change_lower is None or result.change_upper is None:
            return None
        return Rate(result.change, result.change_lower, result.change_upper, "share", "run")

    return one(base.decay.get(subject)), one(other.decay.get(subject))


def _standard_error(rate: Rate) -> float:
    """Derive the standard error of ``rate`` from its interval; infinite if that is open-ended."""
    return (rate.upper - rate.lower) / (2.0 * _NORMAL.inv_cdf(0.5 + 0.5 * rate.confidence))


_ORDER = (
    Change.INTRODUCED,
    Change.WORSE,
    Change.UNDECIDED,
    Change.FIXED,
    Change.LESS,
    Change.GROWS_FASTER,
    Change.GROWS_SLOWER,
    Change.UNCHANGED,
)
_FIRST = (
    VerdictKind.LEAK,
    VerdictKind.INVARIANT,
    VerdictKind.CORRUPT,
    VerdictKind.DEGRADED,
    VerdictKind.INCONCLUSIVE,
    VerdictKind.CLEAN,
)


def _rank(row: LeakComparison) -> tuple[int, int, bool, str]:
    return _ORDER.index(row.change), _FIRST.index(row.verdict), not row.exact, row.subject
