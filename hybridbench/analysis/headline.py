"""Write the sentences about a whole verdict: its headline, and the growth that it rules out."""

from __future__ import annotations

from dataclasses import replace

from hybridbench.analysis.facts.window import LEAK_WITHOUT_STEADY_S
from hybridbench.analysis.findings.words import headline, headline_room, times
from hybridbench.analysis.trend.reasons import NoSteadyState
from hybridbench.analysis.trend.terms import LEAK_AFTER_STEADY_S
from hybridbench.foundation.metrics import label_of
from hybridbench.foundation.units import format_byte_rate, format_duration
from hybridbench.records.finding import Finding, Recorded, VerdictKind
from hybridbench.records.rates import full_rate_text
from hybridbench.records.verdict import Bounds, MetricResult, Verdict


def in_words(verdict: Verdict) -> Verdict:
    """Return ``verdict`` with its headline and the sentence on what it rules out.

    The findings' sentences are also made here, so that an error in one of them is raised here.
    """
    bounds = verdict.bounds
    for finding in verdict.findings:
        finding.make_words()
    return replace(
        verdict,
        headline=_headline(verdict, bounds.memory),
        can_rule_out=can_rule_out(bounds, verdict.window_s, valid=not verdict.invalid),
    )


def in_codes(verdict: Verdict) -> Verdict:
    """Return ``verdict`` with its findings' codes, in case its sentences cannot be made."""
    findings = tuple(map(_in_codes, verdict.findings))
    return replace(verdict, findings=findings, headline=findings[0].title if findings else "")


def _in_codes(found: Finding) -> Finding:
    title = f"{found.kind} of {found.subject}"
    return replace(found, basis=Recorded(name=found.kind, title=title, exact=found.exact))


def _headline(verdict: Verdict, memory: MetricResult | None) -> str:
    if verdict.findings:
        # A truncated title is printed in full below, in the answer and among the findings.
        return headline(verdict.kind, verdict.findings[0].title, tail=_tail(verdict))
    if memory is None:
        return "no findings; the worker's memory was not judged"
    length = format_duration(_judged_s(memory, verdict.window_s))
    if memory.rate_per_hour is None:
        return f"no findings in {length}; too few samples to bound memory growth"
    bound = format_byte_rate(max(0.0, memory.rate_per_hour.upper))
    return f"no findings in {length}; memory growth is at most {bound} (95%)"


def full_headline(verdict: Verdict) -> str:
    """Return the headline of ``verdict`` with the whole title of its first finding.

    For a verdict whose findings are not printed with it.
    """
    if not verdict.findings:
        return verdict.headline
    return verdict.findings[0].title + _more(verdict)


def _more(verdict: Verdict) -> str:
    kind = verdict.kind
    more = sum(f.verdict is kind and verdict.stands(f) for f in verdict.findings[1:])
    return f" (and {times(more, f'more {kind} finding')})" if more else ""


def _tail(verdict: Verdict) -> str:
    """Return the number of further findings, unless only without it the first title fits."""
    tail, length = _more(verdict), len(verdict.findings[0].title)
    is_in_the_way = headline_room(verdict.kind, tail) < length <= headline_room(verdict.kind, "")
    return "" if is_in_the_way else tail


def in_headline(verdict: Verdict, finding: Finding) -> bool:
    """Whether the headline of ``verdict`` contains the full title of its ``finding``."""
    room = headline_room(verdict.kind, _tail(verdict))
    return finding is verdict.findings[0] and len(finding.title) <= room


def _judged_s(memory: MetricResult, window_s: tuple[float, float] | None) -> float:
    """Return the judged length as in the table of gated metrics; memory samples span less."""
    start_s, end_s = window_s or memory.window_s
    return end_s - start_s


def can_rule_out(
    run: Bounds, window_s: tuple[float, float] | None = None, *, valid: bool = True
) -> str:
    """Return a sentence on the growth that the run rules out and the smallest leak it would report.

    A run that is not ``valid`` rules out nothing.  If memory leaks, the sentence gives its growth.
    """
    memory = run.memory
    if memory is None:
        return "No memory samples were judged, so no growth is ruled out."
    if not valid:
        return "No growth is ruled out, because only exact counts hold in this run."
    length_s = memory.window_s[1] - memory.window_s[0]
    length, rate = format_duration(_judged_s(memory, window_s)), memory.rate_per_hour
    if rate is None:
        return f"{length} of steady state has too few memory samples to rule out any growth."
    label = label_of(memory.metric)
    name = label[:1].upper() + label[1:]
    if memory.outcome == VerdictKind.LEAK:
        return f"{name} grows by {full_rate_text(rate, signed=False)}, judged over {length}."
    upper = format_byte_rate(max(rate.upper, 0.0))
    bound = f"{name} may grow by up to {upper} (95%, {length} judged)"
    if memory.outcome == VerdictKind.CLEAN:
        bound = f"Growth of {label} above {upper} is ruled out (95%, {length} judged)"
    shortest = LEAK_AFTER_STEADY_S if run.steady else LEAK_WITHOUT_STEADY_S
    if memory.needed_s is not None and _awaits_steady(memory):
        shortest = min(shortest, memory.needed_s)
    if length_s < shortest:
        before = format_duration(shortest)
        called = f"before {before} of steady state no growth is called a LEAK"
        if not run.steady:
            called = f"without a steady event no growth is called a LEAK before {before}"
    elif run.smallest_leak is None:
        called = "the smallest growth that would be called a LEAK is not known"
    else:
        least = format_byte_rate(run.smallest_leak)
        called = f"steady growth of about {least} or more would be called a LEAK"
    return f"{bound}; {called}."


def _awaits_steady(memory: MetricResult) -> bool:
    """Whether only a steady event is missing to call the growth a leak."""
    return memory.why is not None and memory.why.code == NoSteadyState.code
