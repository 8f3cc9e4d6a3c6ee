"""Judge a row: compare what was found with the expectation and with the truth."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hybridbench.analysis.comparison.records import Call, ComparisonVerdict, MetricComparison
from hybridbench.analysis.facts.counters import singular
from hybridbench.analysis.findings.kinds import finding_kinds
from hybridbench.defects.defect import MILLISECONDS, Signature
from hybridbench.records.finding import Finding, Rate, VerdictKind, recorded
from hybridbench.records.verdict import MetricResult, Verdict
from hybridbench.selftest.matrix import Expect, Row

# Findings carry 95% intervals.  Because many rows are compared at once, each is widened to 99.9%:
# the ratio of the two normal quantiles.
_WIDER = 3.2905 / 1.9600
_WORSE = Call.WORSE
_WRONG = (
    VerdictKind.LEAK,
    VerdictKind.DEGRADED,
    VerdictKind.INVARIANT,
    VerdictKind.CORRUPT,
)
_MS_PER_HOUR = 3_600_000


@dataclass(frozen=True)
class Outcome:
    """One row after its run and comparison; right if nothing is ``wrong``."""

    row: Row
    verdict: str
    subject: str = ""
    driver: str = ""
    rate: str = ""
    truth: str = ""
    detect_s: float | None = None
    wrong: tuple[str, ...] = ()
    run_dir: str = ""


@dataclass(frozen=True)
class RowTruth:
    """Counts of a row's defect: total, up to the last idle checkpoint, before ``steady``.

    ``process_growth`` holds the metrics of the control that does the same work and keeps nothing:
    the process's hourly growth without the defect, which a defect cannot count.
    """

    counts: Mapping[str, int]
    at_idle: Mapping[str, int]
    before_steady: Mapping[str, int]
    process_growth: Sequence[MetricResult] = ()

    def seen_by(self, finding: Finding | None) -> Mapping[str, int]:
        """Return the counts that ``finding`` can reflect.

        A finding from idle checkpoints does not cover what happened after the last one: a leak may
        keep the engine from ever being idle again.  A trend begins when the engine is steady.
        """
        kind = None if finding is None else finding_kinds().get(finding.kind)
        if kind is not None and kind.from_checkpoints:
            return self.at_idle
        if kind is not None and kind.from_steady:
            before = self.before_steady
            return {name: count - before.get(name, 0) for name, count in self.counts.items()}
        return self.counts

    def without_defect(self, finding: Finding | None) -> tuple[float, float]:
        """Return the 95% interval of the control's hourly growth for the subject of ``finding``."""
        subject = None if finding is None else finding.subject
        rates = (m.rate_per_hour for m in self.process_growth if m.metric == subject)
        rate = next((rate for rate in rates if rate is not None), None)
        return (0.0, 0.0) if rate is None else (rate.lower, rate.upper)


def compare(
    row: Row,
    verdict: Verdict,
    truth: RowTruth,
    detect_s: float | None = None,
    objections: Mapping[str, int] | None = None,
) -> Outcome:
    """Return the outcome of ``row``: what is wrong with ``verdict``.

    Args:
        row: the row, with its expected outcome.
        verdict: the verdict of its soak.
        truth: the counts of its defect.
        detect_s: when the run could first have reached that verdict.
        objections: by pool, how many slots ownership checks would have refused.
    """
    said = _Said(verdict.kind.value, verdict.headline, verdict.findings)
    finding = _named(row.signature, said.findings)
    outcome = _compared(row, said, finding, truth.seen_by(finding), truth.without_defect(finding))
    wrong = list(outcome.wrong)
    if not row.signature.kinds:
        accusing = (f for f in verdict.findings if _accuses(f) and verdict.stands(f))
        wrong += [f"found {f.kind}: {f.title}" for f in accusing]
    if row.expect is not Expect.CAUGHT:
        wrong += [
            f"{count} slots of {pool} were freed by an owner that did not hold them"
            for pool, count in sorted((objections or {}).items())
            if count
        ]
    return replace(outcome, detect_s=detect_s, wrong=tuple(wrong))


def compare_versions(row: Row, answer: ComparisonVerdict, truth: Mapping[str, int]) -> Outcome:
    """Return the outcome of ``row``: what is wrong with a comparison with and without its defect.

    The defect's own count must lie within the margin in which a comparison treats values as equal.
    """
    findings = tuple(_worse(metric) for metric in answer.sides[-1].metrics if metric.call is _WORSE)
    said = _Said(answer.outcome.value, answer.full_headline, findings)
    return _compared(row, said, _named(row.signature, findings), truth)


@dataclass(frozen=True)
class _Said:
    """The verdict of a soak or the answer of a comparison."""

    verdict: str
    headline: str
    findings: tuple[Finding, ...]


def _worse(metric: MetricComparison) -> Finding:
    span = f"{metric.ratio:.4g} ({metric.lower:.4g} to {metric.upper:.4g})"
    return recorded(
        kind=metric.word,
        verdict=VerdictKind.DEGRADED,
        subject=metric.metric,
        title=f"{metric.label} {span} of the first version's",
        data={
            "base": metric.base,
            "other": metric.other,
            "lower": metric.other * (1.0 - metric.margin),
            "upper": metric.other * (1.0 + metric.margin),
        },
    )


def _compared(
    row: Row,
    said: _Said,
    finding: Finding | None,
    truth: Mapping[str, int],
    besides: tuple[float, float] = (0.0, 0.0),
) -> Outcome:
    """Return the row's outcome; ``besides`` is the hourly growth without the defect."""
    signature = row.signature
    wrong: list[str] = []
    if said.verdict not in signature.verdicts:
        expected = " or ".join(signature.verdicts)
        wrong.append(f"verdict {said.verdict}, not {expected}: {said.headline}")
    if finding is None:
        if signature.kinds:
            seen = ", ".join(f"{f.kind} of {f.subject}" for f in said.findings) or "none"
            kinds = " or ".join(signature.kinds)
            wrong.append(f"no finding {kinds} of {signature.subject}; there is {seen}")
        return Outcome(row, said.verdict, wrong=tuple(wrong))
    rate = _rate_compared(finding, signature)
    if signature.drivers and not _knows_driver(finding, signature.drivers):
        wrong.append(f"driver {finding.driver}, not {' or '.join(signature.drivers)}")
    wrong += _against_truth(signature, finding, rate, truth, besides)
    if signature.alone:
        others = (f for f in said.findings if f.verdict is VerdictKind.LEAK and f is not finding)
        wrong += [f"not alone: found {f.kind}: {f.title}" for f in others]
    return Outcome(
        row,
        said.verdict,
        subject=finding.subject,
        driver=finding.driver or "",
        rate=_rate_text(rate) if rate is not None else _number_text(signature, finding),
        truth=_truth_text(signature, truth, besides),
        wrong=tuple(wrong),
    )


def _named(signature: Signature, findings: Iterable[Finding]) -> Finding | None:
    """Return the finding the row must have; prefer one that can be compared with the truth."""
    fitting = [f for f in findings if f.kind in signature.kinds and signature.subject in f.subject]
    fitting.sort(key=lambda f: (f.driver in signature.drivers, signature.counted in f.data))
    return fitting[-1] if fitting else None


def _knows_driver(finding: Finding, drivers: Sequence[str]) -> bool:
    """Whether the finding names an expected driver, or lists one as a rival."""
    rivals = () if finding.driven is None else finding.driven.rivals
    return finding.driver in drivers or any(driver in rivals for driver in drivers)


def _accuses(finding: Finding) -> bool:
    return finding.verdict in _WRONG


def _hourly(signature: Signature) -> bool:
    """Whether the truth is a rate per hour; then no event has to be named."""
    return signature.per == MILLISECONDS


def _rate_compared(finding: Finding, signature: Signature) -> Rate | None:
    if _hourly(signature):
        unit = "h"
    elif finding.driver is None:
        return None
    else:
        unit = singular(finding.driver)
    return next((rate for rate in finding.rates if rate.per == unit), None)


def _truth(signature: Signature, truth: Mapping[str, int]) -> float:
    """Return the defect's effect per event, per hour, or in total; in the finding's unit."""
    harm = signature.scale * truth.get(signature.harm, 0)
    each = harm / max(1, truth.get(signature.per, 0)) if signature.per else harm
    return each * _MS_PER_HOUR if _hourly(signature) else each


def _against_truth(
    signature: Signature,
    finding: Finding,
    rate: Rate | None,
    truth: Mapping[str, int],
    besides: tuple[float, float],
) -> Iterable[str]:
    """Yield how the finding differs from the truth; a row with nothing to compare is wrong."""
    if not truth.get(signature.harm):
        yield f"the defect did nothing: its truth counts no {signature.harm}"
        return
    has_rate = _hourly(signature) or (finding.driver in signature.drivers and signature.per)
    if has_rate:
        true = _truth(signature, truth)
        ends = (true + besides[0], true + besides[1]) if _hourly(signature) else (true, true)
        said = _truth_text(signature, truth, besides)
        yield from _wrong_rate(rate, ends, said, at_most=signature.at_most)
    if signature.counted:
        # With an expected driver, the rate is per event and this number is the total.
        whole = replace(signature, per="") if signature.drivers else signature
        yield from _wrong_number(whole, finding, _truth(whole, truth))
    elif signature.says:
        if signature.says not in str(finding.data.get("detail")):
            yield f"the finding does not say {signature.says!r}: {finding.title}"
    elif not has_rate:
        yield f"nothing in the finding is compared with the truth, {_truth(signature, truth):.4g}"


def _wrong_rate(
    rate: Rate | None, true: tuple[float, float], said: str, *, at_most: bool
) -> Iterable[str]:
    if rate is None:
        yield f"no rate to compare; the truth is {said}"
        return
    lower = rate.value - _WIDER * (rate.value - rate.lower)
    upper = rate.value + _WIDER * (rate.upper - rate.value)
    # Allow for floating-point rounding of sums.
    slack = 1e-6 * max(1.0, *map(abs, true))
    if true[1] < lower - slack or (true[0] > upper + slack and not at_most):
        yield f"rate {_rate_text(rate)}; the truth is {said}"


def _truth_text(
    signature: Signature, truth: Mapping[str, int], besides: tuple[float, float]
) -> str:
    said = f"{_truth(signature, truth):.4g}"
    if not _hourly(signature) or besides == (0.0, 0.0):
        return said
    return f"{said}, and {besides[0]:.3g} to {besides[1]:.3g} without the defect"


def _wrong_number(signature: Signature, finding: Finding, true: float) -> Iterable[str]:
    """Check a number of the finding: within its own interval if it has one, else exactly."""
    said = finding.data.get(signature.counted)
    if not isinstance(said, int | float):
        yield f"the finding has no number {signature.counted!r}; the truth is {true:.4g}"
        return
    ends = [finding.data.get(end, said) for end in ("lower", "upper")]
    lower, upper = (end if isinstance(end, int | float) else said for end in ends)
    if true < lower or (true > upper and not signature.at_most):
        span = f"{said:.6g}" if lower == upper else f"{said:.4g} ({lower:.4g} to {upper:.4g})"
        yield f"{signature.counted}: {span}; the truth is {true:.6g}"


def _number_text(signature: Signature, finding: Finding) -> str:
    said = finding.data.get(signature.counted)
    return f"{said:.4g} {signature.counted}" if isinstance(said, int | float) else ""


def _rate_text(rate: Rate) -> str:
    return f"{rate.value:+.4g} ({rate.lower:.4g} to {rate.upper:.4g}) {rate.unit}/{rate.per}"
