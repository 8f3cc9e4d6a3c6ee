"""Was a row right?  What was found against what was stated before, and against the truth."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hybridbench.analysis.counters import singular
from hybridbench.analysis.findings import Finding, Rate, Verdict, VerdictKind
from hybridbench.selftest.matrix import Row

# Findings carry 95 % intervals.  Many rows are compared at once, so each is taken at 99.9 %: the
# quotient of the two normal quantiles.
_WIDER = 3.2905 / 1.9600
_WRONG = (VerdictKind.LEAK, VerdictKind.DEGRADED, VerdictKind.INVARIANT)


@dataclass(frozen=True)
class Outcome:
    """One row, run and compared; right if nothing is ``wrong``."""

    row: Row
    verdict: str
    subject: str = ""
    driver: str = ""
    rate: str = ""
    truth: str = ""
    detect_s: float | None = None
    wrong: tuple[str, ...] = ()
    run_dir: str = ""


def compare(
    row: Row, verdict: Verdict, truth: Mapping[str, int], detect_s: float | None = None
) -> Outcome:
    """What is wrong with ``verdict`` for ``row``; ``truth`` is what the defect itself counted."""
    signature = row.signature
    wrong: list[str] = []
    if verdict.kind.value not in signature.verdicts:
        expected = " or ".join(signature.verdicts)
        wrong.append(f"verdict {verdict.kind}, not {expected}: {verdict.headline}")
    finding = _named(row, verdict)
    if signature.kinds and finding is None:
        seen = ", ".join(f"{f.kind} of {f.subject}" for f in verdict.findings) or "none"
        kinds = " or ".join(signature.kinds)
        wrong.append(f"no finding {kinds} of {signature.subject}; there is {seen}")
    # What an invalid run found stands in its list, and proves nothing.
    if not signature.kinds and verdict.kind is not VerdictKind.INVALID:
        wrong += [f"found {f.kind}: {f.title}" for f in verdict.findings if _accuses(f)]
    if finding is None:
        return Outcome(row, verdict.kind.value, detect_s=detect_s, wrong=tuple(wrong))
    rate = _rate_per_event(finding)
    true_rate = _true_rate(row, truth)
    if finding.driver in signature.drivers:
        wrong += _wrong_rates(rate, true_rate)
    elif signature.drivers and not _admits(finding, signature.drivers):
        wrong.append(f"driver {finding.driver}, not {' or '.join(signature.drivers)}")
    wrong += _wrong_count(row, finding, truth)
    return Outcome(
        row,
        verdict.kind.value,
        subject=finding.subject,
        driver=finding.driver or "",
        rate="" if rate is None else _rate_text(rate),
        truth="" if true_rate is None else f"{true_rate:.4g}",
        detect_s=detect_s,
        wrong=tuple(wrong),
    )


def _named(row: Row, verdict: Verdict) -> Finding | None:
    """The finding the row must have; of several, one with the right driver."""
    signature = row.signature
    fitting = [
        f for f in verdict.findings if f.kind in signature.kinds and signature.subject in f.subject
    ]
    return next((f for f in fitting if f.driver in signature.drivers), next(iter(fitting), None))


def _admits(finding: Finding, drivers: Sequence[str]) -> bool:
    """Whether the finding says itself that its driver cannot be told from the right one."""
    rivals = finding.data.get("rivals")
    known = rivals if isinstance(rivals, Sequence) and not isinstance(rivals, str) else ()
    return any(driver in known for driver in drivers)


def _accuses(finding: Finding) -> bool:
    return finding.verdict in _WRONG


def _rate_per_event(finding: Finding) -> Rate | None:
    if finding.driver is None:
        return None
    unit = singular(finding.driver)
    return next((rate for rate in finding.rates if rate.per == unit), None)


def _true_rate(row: Row, truth: Mapping[str, int]) -> float | None:
    signature = row.signature
    if not signature.harm or not signature.per:
        return None
    return truth.get(signature.harm, 0) / max(1, truth.get(signature.per, 0))


def _wrong_rates(rate: Rate | None, true_rate: float | None) -> Iterable[str]:
    if true_rate is None:
        return
    if rate is None:
        yield f"no rate for each event; the truth is {true_rate:.4g}"
        return
    lower = rate.value - _WIDER * (rate.value - rate.lower)
    upper = rate.value + _WIDER * (rate.upper - rate.value)
    # Rounding of a sum of floats is no error of the rate.
    slack = 1e-6 * max(1.0, abs(true_rate))
    if not lower - slack <= true_rate <= upper + slack:
        yield f"rate {_rate_text(rate)}; the truth is {true_rate:.4g}"


def _wrong_count(row: Row, finding: Finding, truth: Mapping[str, int]) -> Iterable[str]:
    """Missing slots are counted, not estimated: they must agree to the last one."""
    missing = finding.data.get("missing")
    harm = row.signature.harm
    if finding.kind != "residual" or harm not in truth:
        return
    if isinstance(missing, int | float) and missing != truth[harm]:
        yield f"{missing:.0f} slots reported missing; {truth[harm]} are"


def _rate_text(rate: Rate) -> str:
    return f"{rate.value:+.4g} ({rate.lower:.4g} to {rate.upper:.4g}) {rate.unit}/{rate.per}"
