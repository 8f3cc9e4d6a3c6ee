"""Work that becomes more expensive, or a cache that helps less, while memory is flat: DEGRADED.

If something else slows the whole machine, all times grow by the same factor; that is only a note.
A defect present from the first minute causes no change over time; only the profile's limit on a
cost or a rate shows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from hybridbench.analysis.facts.facts import Facts
from hybridbench.analysis.record import RunRecord
from hybridbench.analysis.trend.decay import (
    Change,
    can_judge,
    change_of,
    half_width,
    level_followed,
    traffic_start,
)
from hybridbench.analysis.trend.work_cost import (
    DERIVED_METRICS,
    DerivedMetric,
    WorkBlocks,
    work_blocks,
)
from hybridbench.analysis.trend.worsening import Worsening
from hybridbench.foundation.metrics import Unit, declared
from hybridbench.foundation.units import format_percent
from hybridbench.records.finding import Basis, Evidence, Finding, VerdictKind, Words
from hybridbench.records.verdict import DecayResult

_FEWEST_BLOCKS = 8
_DERIVED: Final[Mapping[str, DerivedMetric]] = {d.name: d for d in DERIVED_METRICS}


class CostChanged(Basis, frozen=True, kw_only=True):
    """Work that became more expensive, or a rate that fell.

    Attributes:
        shape: "step" or "trend".
        before, after: values in ``unit``, on the two sides of a step or in the first and last
            third.
        factor: the factor by which it got worse, with its interval.
        sure_change: the lower bound (99.9%) of the change, as a share.
        least_change: the smallest change that counts, as a share.
    """

    kind = "decay"
    meaning = "A unit of work became more expensive during the run, or the hit rate fell."
    evidence = Evidence.STATISTICAL
    leads_to = "DEGRADED"
    advised = (
        "Look at the charts under Cost of work: the time that rises alone names the code path; "
        "what it rises with (leaves of the tree, live objects) is what that path iterates over."
    )

    shape: str
    unit: str
    before: float
    after: float
    factor: float
    factor_lower: float
    factor_upper: float
    sure_change: float
    least_change: float

    def words(self, found: Finding) -> Words:
        metric = _DERIVED[found.subject]
        rose = "rose" if metric.higher_is_worse else "fell"
        how = "in one step" if self.shape == "step" else "steadily"
        before, after = (_quantity(value, metric) for value in (self.before, self.after))
        return Words(
            f"the {metric.label} {rose} {how} from {before} to {after}",
            evidence=tuple(self._evidence(found, metric)),
        )

    def _evidence(self, found: Finding, metric: DerivedMetric) -> Iterable[str]:
        sure, counts = format_percent(self.sure_change), format_percent(self.least_change)
        yield f"worse by at least {sure} (99.9%); changes of {counts} or more are reported"
        if metric.loads:
            yield "adjusted for batch sizes and prompt lengths"
        if metric.timed:
            yield "the other times of the run did not rise with it, so it is not the machine"
        if found.driver is not None:
            yield f"it follows {found.driver} better than it follows time"


class BelowThreshold(Basis, frozen=True, kw_only=True):
    """A quantity that misses the profile's limit over the whole judged window, with interval."""

    kind = "below-threshold"
    meaning = (
        "The hit rate, or the cost of an eviction or of the engine's checks, misses the profile's "
        "limit over the whole judged window."
    )
    evidence = Evidence.STATISTICAL
    leads_to = "DEGRADED"
    question = "every threshold of the profile is met"

    value: float
    lower: float
    upper: float
    limit: float

    def words(self, found: Finding) -> Words:
        metric = _DERIVED[found.subject]
        side = "above" if metric.higher_is_worse else "below"
        value, lower, upper, limit = (
            _quantity(one, metric) for one in (self.value, self.lower, self.upper, self.limit)
        )
        return Words(
            f"the {metric.label} is {value}, {side} the profile's limit of {limit}",
            evidence=(f"{lower} to {upper} over the judged window (99.9%)",),
        )

    def advice(self, found: Finding) -> str:
        return (
            f"Compare with a healthy run of the same profile: {found.subject} missed its limit "
            "from the start, so no trend shows the cause."
        )


def _quantity(value: float, metric: DerivedMetric) -> str:
    """Format ``value`` with its unit: ``0.112 ms``, ``74.2%``."""
    if metric.unit == Unit.RATIO.value:
        return f"{100 * value:.3g}%"
    return f"{value:.3g} {metric.unit}"


@dataclass(frozen=True)
class Decay:
    """The result of judging all derived quantities."""

    findings: tuple[Finding, ...] = ()
    results: tuple[DecayResult, ...] = ()
    notes: tuple[str, ...] = ()


def judge_decay(facts: Facts) -> Decay:
    """Return all findings of decay and missed limits, and one result per quantity."""
    record, window = facts.record, facts.window
    if window is None:
        return Decay()
    findings: list[Finding] = []
    results: list[DecayResult] = []
    machine: list[str] = []
    for derived in DERIVED_METRICS:
        start_s = traffic_start(record, window) if derived.from_traffic else window.start_s
        blocks = work_blocks(record, derived, start_s, window.end_s)
        if blocks is None or not len(blocks):
            continue
        missed = limit_finding(record, derived, blocks)
        if missed is not None:
            findings.append(missed)
        change = Change()
        if can_judge(derived, blocks, window):
            change = change_of(record, derived, blocks, (start_s, window.end_s))
        if change.is_decay(derived) and change.relative is not None:
            findings.append(decay_finding(record, derived, blocks, change.relative))
        elif change.is_machine(derived):
            machine.append(derived.name)
        results.append(_result(derived, blocks, change))
    notes = (_machine_slower(machine),) if machine else ()
    return Decay(tuple(findings), tuple(results), notes)


def _machine_slower(names: Sequence[str]) -> str:
    labels = ", ".join(declared(name).meaning for name in names)
    return (
        f"the machine slowed down in the judged window: {labels} rose, but not more than the other "
        "times did"
    )


def _result(derived: DerivedMetric, blocks: WorkBlocks, change: Change) -> DecayResult:
    seen = change.relative or change.raw
    if not derived.judged:
        outcome = "shown"
    elif change.relative is None:
        outcome = "not judged"
    elif change.is_decay(derived):
        outcome = "worse"
    else:
        outcome = "machine" if change.is_machine(derived) else "no change"
    return DecayResult(
        name=derived.name,
        label=derived.label,
        unit=derived.unit,
        value=blocks.total,
        outcome=outcome,
        least_change=derived.least_change,
        change=None if seen is None else float(np.expm1(seen.change)),
        change_lower=None if seen is None else float(np.expm1(seen.lower)),
        change_upper=None if seen is None else float(np.expm1(seen.upper)),
    )


def limit_finding(record: RunRecord, derived: DerivedMetric, blocks: WorkBlocks) -> Finding | None:
    """Return a finding if the interval lies entirely on the wrong side of the profile's limit."""
    limit = record.manifest.profile.limits_as_planned.get(derived.name)
    if limit is None or len(blocks) < _FEWEST_BLOCKS:
        return None
    value, half = blocks.total, half_width(blocks)
    lower, upper = value - half, value + half
    missed = lower > limit if derived.higher_is_worse else upper < limit
    if not missed:
        return None
    return Finding(
        BelowThreshold(value=value, lower=lower, upper=upper, limit=float(limit)),
        VerdictKind.DEGRADED,
        derived.name,
        since_s=float(blocks.t_s[0]),
    )


def decay_finding(
    record: RunRecord, derived: DerivedMetric, blocks: WorkBlocks, change: Worsening
) -> Finding:
    """Return the finding that reports ``change``."""
    before, after, since_s = _before_after(blocks, change)
    return Finding(
        CostChanged(
            shape=change.shape,
            unit=derived.unit,
            before=before,
            after=after,
            factor=float(np.exp(change.change)),
            factor_lower=float(np.exp(change.lower)),
            factor_upper=float(np.exp(change.upper)),
            sure_change=float(np.expm1(change.sure)),
            least_change=derived.least_change,
        ),
        VerdictKind.DEGRADED,
        derived.name,
        driver=level_followed(record, derived, blocks),
        since_s=since_s,
    )


def _before_after(blocks: WorkBlocks, change: Worsening) -> tuple[float, float, float]:
    """Return the ratios before and after a step, or in the first and last third, and the start."""
    count = len(blocks)
    third = count // 3
    since = 0 if change.step_at is None else change.step_at
    ends = third if change.step_at is None else since
    begins = count - third if change.step_at is None else since
    before, after = _quotient(blocks, 0, ends), _quotient(blocks, begins, count)
    return before, after, float(blocks.t_s[since])


def _quotient(blocks: WorkBlocks, first: int, end: int) -> float:
    return float(blocks.over[first:end].sum() / blocks.under[first:end].sum())
