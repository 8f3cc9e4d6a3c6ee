"""Compare versions: which is faster, which leaks, and with what confidence.

The blocks are raw; every tolerance is applied here, once.  ``compare`` gives the final answer;
``look`` checks during a comparison whether the answer is already decided.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hybridbench.analysis.boundary import Boundary
from hybridbench.analysis.comparison.answer import answer_of, overall
from hybridbench.analysis.comparison.leaks import leak_comparisons
from hybridbench.analysis.comparison.metrics import (
    COMPARED,
    LEVELS,
    ComparedMetric,
    is_open_loop,
    roles,
    word_of,
)
from hybridbench.analysis.comparison.pairs import PairedMean, Pairs, paired_mean
from hybridbench.analysis.comparison.reasons import AcrossMargin, FewPairs, LoadUnknown, NearMargin
from hybridbench.analysis.comparison.records import (
    Block,
    Call,
    Change,
    Comparison,
    ComparisonTerms,
    ComparisonVerdict,
    InterimAnalysis,
    MetricComparison,
    Outcome,
    Role,
    SideComparison,
)
from hybridbench.analysis.comparison.sequential import critical_t, error_shares
from hybridbench.analysis.comparison.stored import BETWEEN_RUNS, not_alone, unpaired_mean
from hybridbench.analysis.distributions import t_quantile
from hybridbench.analysis.record import FloatArray
from hybridbench.records.verdict import Failure, Why

# The primary metric's share of alpha.  The guards divide the rest, so that they hardly widen the
# primary metric's interval.
_PRIMARY_SHARE = 0.8
# A comparison that would need more rounds than this is not continued.
_MOST_PAIRS = 500
_LEAST_PAIRS = 3
_ON_THE_EDGE = 1e-6  # log ratio; if the mean is this close to the margin, no pairs decide
_LEAST_STEP = 6  # rounds between two looks after the planned ones
_BY_NAME = {metric.name: metric for metric in COMPARED}


def compare(comparison: Comparison, terms: ComparisonTerms) -> ComparisonVerdict:
    """Return the answer to ``comparison``, a pure function of its blocks, records and verdicts.

    If a part fails, its version is undecided; regressions found by other parts still count.
    """
    boundary = Boundary()
    others = range(1, len(comparison.versions))
    plan = _plan(comparison, terms, boundary)
    rounds = complete_rounds(comparison.blocks, len(comparison.versions))
    sides = [_side(comparison, other, plan, boundary) for other in others]
    verdict = overall(comparison, sides, terms, rounds)
    of_runs = [failure for version in comparison.versions for failure in version.verdict.failures]
    return _incomplete(
        verdict,
        (*boundary.failures, *of_runs),
        base_failed=bool(comparison.versions[0].verdict.failures),
    )


def _plan(comparison: Comparison, terms: ComparisonTerms, boundary: Boundary) -> _Plan:
    open_loop = is_open_loop([version.manifest for version in comparison.versions])
    looks = comparison.looks or terms.looks
    slowed = None
    if not comparison.interleaved:
        records = [version.record for version in comparison.versions]
        unknown = LoadUnknown().why()
        slowed = boundary.value("what disturbed the runs", unknown, not_alone, records)
    others = len(comparison.versions) - 1
    return _Plan(terms, looks, others, open_loop, comparison.interleaved, slowed)


def _side(comparison: Comparison, other: int, plan: _Plan, boundary: Boundary) -> SideComparison:
    base, version = comparison.versions[0], comparison.versions[other]
    speed, leak = f"the metrics of {version.name}", f"the leaks of {version.name}"
    metrics = boundary.value(speed, (), _metrics, comparison.blocks, other, plan)
    leaks = boundary.value(leak, (), leak_comparisons, base, version, plan.terms)
    word = Outcome.INCONCLUSIVE.value
    unknown = SideComparison(other, version.name, Outcome.INCONCLUSIVE, word, metrics, leaks)
    said = f"the answer for {version.name}"
    return boundary.value(said, unknown, answer_of, comparison, other, metrics, leaks)


def _incomplete(
    verdict: ComparisonVerdict, failures: tuple[Failure, ...], *, base_failed: bool
) -> ComparisonVerdict:
    """Add the failures to ``verdict``, which is then undecided unless a regression is certain."""
    if not failures:
        return verdict
    verdict = replace(verdict, failures=failures)
    # If the analysis of the first version's run failed, it may have missed the same finding there.
    unsure = base_failed and Change.INTRODUCED.value in verdict.word
    if verdict.outcome is Outcome.REGRESSION and not unsure:
        return verdict
    return replace(verdict, outcome=Outcome.INCONCLUSIVE, word=Outcome.INCONCLUSIVE.value)


def look(
    blocks: Sequence[Block],
    terms: ComparisonTerms,
    *,
    versions: int = 2,
    looks: tuple[int, ...] = (),
    open_loop: bool = False,
) -> InterimAnalysis:
    """Report whether the ``blocks`` so far decide the primary metric of every version.

    Guards, leaks and memory never delay the answer; they are judged at the end, on the data that
    the primary metric needed.  A look that fails decides nothing.
    """
    boundary = Boundary()
    found = boundary.value(
        "this look",
        None,
        primaries,
        blocks,
        terms,
        versions=versions,
        looks=looks,
        open_loop=open_loop,
    )
    if found is None:
        return InterimAnalysis(False, failure=boundary.failures[0])
    if len(found) < versions - 1:
        return InterimAnalysis(False)
    undecided = [m for m in found if m.call is Call.INCONCLUSIVE]
    if not undecided:
        return InterimAnalysis(True, found)
    needed = [m.pairs_needed for m in undecided]
    known = [n for n in needed if n is not None]
    return InterimAnalysis(False, found, max(known) if len(known) == len(needed) else None)


def primaries(
    blocks: Sequence[Block],
    terms: ComparisonTerms,
    *,
    versions: int = 2,
    looks: tuple[int, ...] = (),
    open_loop: bool = False,
) -> tuple[MetricComparison, ...]:
    """Return the primary metric of each version after the first, from interleaved ``blocks``."""
    plan = _Plan(terms, looks or terms.looks, max(1, versions - 1), open_loop, True)
    return tuple(
        metric
        for other in range(1, versions)
        for metric in _metrics(blocks, other, plan, only_primary=True)
    )


def planned_looks(most_rounds: int, terms: ComparisonTerms) -> tuple[int, ...]:
    """Return the looks of a comparison that ends after ``most_rounds``.

    They are the planned ones, then further ones at twice the first interval, and the last round.
    """
    step = max(_LEAST_STEP, 2 * terms.looks[0])
    further = range(terms.looks[-1] + step, most_rounds, step)
    return (*(n for n in (*terms.looks, *further) if n < most_rounds), most_rounds)


def complete_rounds(blocks: Iterable[Block], versions: int) -> int:
    """Count the rounds in which every version had its turn."""
    seen: defaultdict[int, set[int]] = defaultdict(set)
    for block in blocks:
        seen[block.round].add(block.version)
    return sum(len(found) == versions for found in seen.values())


@dataclass(frozen=True)
class _Plan:
    """Settings fixed before the first block.

    ``others`` is the number of versions compared with the first.  ``slowed`` is why the times of
    stored runs cannot be compared, if they cannot.
    """

    terms: ComparisonTerms
    looks: tuple[int, ...]
    others: int
    open_loop: bool
    interleaved: bool
    slowed: Why | None = None

    def alpha_of(self, role: Role, guards: int) -> float:
        """Return one metric's share of alpha: the shares of all gated metrics add up to alpha.

        Each call is a one-sided test at one edge of the margin, so the interval leaves this
        much on either side.
        """
        if role is Role.SHOWN:
            return self.terms.alpha
        alpha = self.terms.alpha / self.others
        if role is Role.PRIMARY:
            return alpha * (_PRIMARY_SHARE if guards else 1.0)
        return alpha * (1.0 - _PRIMARY_SHARE) / guards


def _metrics(
    blocks: Sequence[Block], other: int, plan: _Plan, *, only_primary: bool = False
) -> tuple[MetricComparison, ...]:
    mine = [block for block in blocks if block.version in (0, other)]
    present = {
        version: {name for block in mine if block.version == version for name in block.values}
        for version in (0, other)
    }
    role_of = roles(present[0] & present[other], open_loop=plan.open_loop)
    guards = sum(role is Role.GUARD for role in role_of.values())
    out = []
    for name, role in role_of.items():
        if only_primary and role is not Role.PRIMARY:
            continue
        metric, alpha = _BY_NAME[name], plan.alpha_of(role, guards)
        sides = _sides(mine, other, metric)
        made = _paired(sides, metric) if plan.interleaved else _unpaired(sides, metric)
        if made is not None:
            out.append(_judged(_Measured(metric, role, alpha, *made), plan))
    return tuple(out)


@dataclass(frozen=True)
class _Sides:
    """A metric's blocks in two versions, by round: (log value, turn within the round)."""

    base: dict[int, tuple[float, int]]
    other: dict[int, tuple[float, int]]


def _sides(blocks: Iterable[Block], other: int, metric: ComparedMetric) -> _Sides:
    sides = _Sides({}, {})
    for block in blocks:
        value = block.values.get(metric.name)
        if value is None or not math.isfinite(value):
            continue
        value = max(value, metric.least)
        if value > 0.0:
            rounds = sides.other if block.version == other else sides.base
            rounds[block.round] = (math.log(value), block.position)
    return sides


def _paired(
    sides: _Sides, metric: ComparedMetric
) -> tuple[PairedMean, int, tuple[float, float]] | None:
    rounds = sorted(sides.base.keys() & sides.other.keys())
    base = np.array([sides.base[r] for r in rounds], dtype=np.float64).reshape(-1, 2)
    other = np.array([sides.other[r] for r in rounds], dtype=np.float64).reshape(-1, 2)
    pairs = Pairs(other[:, 0] - base[:, 0], other[:, 1] - base[:, 1])
    found = paired_mean(pairs, creeping=metric.name in LEVELS)
    return None if found is None else (found, len(rounds), _levels(base[:, 0], other[:, 0]))


def _unpaired(
    sides: _Sides, metric: ComparedMetric
) -> tuple[PairedMean, int, tuple[float, float]] | None:
    base = np.array([sides.base[r][0] for r in sorted(sides.base)])
    other = np.array([sides.other[r][0] for r in sorted(sides.other)])
    # Hit rates and memory levels do not depend on the machine's speed.
    found = unpaired_mean(base, other, between=BETWEEN_RUNS if metric.timed else 0.0)
    if found is None:
        return None
    return found, min(base.size, other.size), _levels(base, other)


def _levels(base: FloatArray, other: FloatArray) -> tuple[float, float]:
    return math.exp(float(base.mean())), math.exp(float(other.mean()))


@dataclass(frozen=True)
class _Measured:
    """A metric before its margin is applied."""

    metric: ComparedMetric
    role: Role
    alpha: float
    found: PairedMean
    pairs: int
    levels: tuple[float, float]


def _judged(measured: _Measured, plan: _Plan) -> MetricComparison:
    metric, found = measured.metric, measured.found
    looks = plan.looks if plan.interleaved else ()
    reach = critical_t(measured.pairs, looks, 2.0 * measured.alpha, found.df)
    lower, upper = found.mean - reach * found.se, found.mean + reach * found.se
    # The margin is a ratio in both directions, so that A against B agrees with B against A.
    margin = metric.margin_of(plan.terms.margin)
    edge = math.log1p(margin)
    call, why = _call(measured, (lower, upper), edge, plan)
    needed = None
    if call is Call.INCONCLUSIVE and plan.interleaved:
        needed = _pairs_needed(measured, edge, plan)
    return MetricComparison(
        metric=metric.name,
        label=metric.label,
        unit=metric.unit,
        role=measured.role,
        call=call,
        word=word_of(metric, call),
        margin=margin,
        base=measured.levels[0],
        other=measured.levels[1],
        ratio=math.exp(found.mean),
        lower=math.exp(max(lower, -700.0)),
        upper=math.exp(min(upper, 700.0)),
        confidence=1.0 - 2.0 * measured.alpha,
        pairs=measured.pairs,
        sd=found.sd,
        robust_ratio=math.exp(found.hodges_lehmann),
        pairs_needed=needed,
        position_effect=None if found.position is None else math.expm1(found.position),
        position_p=found.position_p,
        why=why,
    )


def _call(
    measured: _Measured, interval: tuple[float, float], edge: float, plan: _Plan
) -> tuple[Call, Why | None]:
    lower, upper = interval
    if plan.interleaved and measured.pairs < _LEAST_PAIRS:
        return Call.INCONCLUSIVE, FewPairs(pairs=measured.pairs).why()
    if plan.slowed is not None and measured.metric.timed:
        return Call.INCONCLUSIVE, plan.slowed
    when_higher, when_lower = Call.BETTER, Call.WORSE
    if measured.metric.higher_is_worse:
        when_higher, when_lower = when_lower, when_higher
    if lower > edge:
        return when_higher, None
    if upper < -edge:
        return when_lower, None
    if -edge < lower and upper < edge:
        return Call.SAME, None
    differs = lower > 0.0 or upper < 0.0
    reason = NearMargin if differs else AcrossMargin
    return Call.INCONCLUSIVE, reason(margin=math.expm1(edge)).why()


def _pairs_needed(measured: _Measured, edge: float, plan: _Plan) -> int | None:
    """Return how many more pairs would decide the metric if mean and spread stay the same.

    None if the mean is too close to the margin.
    """
    found, have = measured.found, measured.pairs
    if have < _LEAST_PAIRS:
        return None
    room = abs(abs(found.mean) - edge)
    spread = found.se * math.sqrt(have)
    # Assume the error share of the last planned look: a new plan would have as many looks.
    share = error_shares(plan.looks[-1], plan.looks, 2.0 * measured.alpha)[-1]
    total = have + 1
    while total <= _MOST_PAIRS and room > _ON_THE_EDGE:
        reach = t_quantile(1.0 - 0.5 * share, max(1, total - 2))
        if reach * spread < room * math.sqrt(total):
            return total - have
        total += max(1, total // 50)
    return None
