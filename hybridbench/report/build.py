"""RunRecord and Verdict in, Document out: what is said, and in which order."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from hybridbench.analysis.boundary import Boundary
from hybridbench.analysis.facts.window import last_segment
from hybridbench.analysis.findings.words import certain
from hybridbench.analysis.headline import in_headline
from hybridbench.analysis.record import RunRecord
from hybridbench.analysis.trend.reasons import tolerance_of
from hybridbench.analysis.trend.work_cost import DERIVED_METRICS
from hybridbench.errors import ExitCode
from hybridbench.metrics import Unit
from hybridbench.rates import (
    TIME_UNITS,
    amount,
    bound_text,
    full_rate_text,
    interval_text,
    number,
    per_text,
    rate_text,
)
from hybridbench.records.events import Interrupted, Note, event_data, kind_of
from hybridbench.records.verdict import (
    Finding,
    MetricResult,
    Rate,
    Verdict,
    VerdictKind,
    memory_result,
)
from hybridbench.report.advice import MEANING, NEXT, next_step, top_finding
from hybridbench.report.charts import chart_groups
from hybridbench.report.diagnosis import diagnosis_text
from hybridbench.report.document import (
    DETECTION_LIMIT,
    Document,
    DocumentKind,
    Fact,
    FindingText,
    Measure,
    Table,
)
from hybridbench.report.gates import gates_of
from hybridbench.report.provenance import (
    model_note,
    profile_yaml,
    provenance_tables,
    started_text,
)
from hybridbench.report.serving import serving_table
from hybridbench.report.timeline import timeline_of
from hybridbench.report.wording import (
    BADGES,
    NO_RATE,
    capital,
    clock_text,
    command_text,
    metric_label,
    metric_title,
    model_text,
    plain_text,
    rate_facts,
)
from hybridbench.thresholds.gates import thresholds_table
from hybridbench.units import format_duration

_EVENTS_MAX = 200
_LATE_S: Final = 10.0
"""A metric whose own window begins so much later says when."""

_HIGHER_IS_BETTER: Final = {
    derived.name for derived in DERIVED_METRICS if not derived.higher_is_worse
}
_LIMIT_NOTE: Final = (
    "Growth passes if all of its interval is below the limit; growth that is certain and beyond "
    "the tolerance is a LEAK, below the limit too."
)
# The label of what a verdict's first finding is about.
_QUESTIONS: Final = {
    VerdictKind.LEAK: "What leaks",
    VerdictKind.DEGRADED: "What decays",
    VerdictKind.INCONCLUSIVE: "Undecided",
}
# Their headline says all: the subject is the worker, or the run itself.
_SUBJECT_IS_PLAIN: Final = (VerdictKind.CRASHED, VerdictKind.INVALID)
_BY_SIGNAL: Final = dict.fromkeys(("SIGTERM", "SIGHUP", "SIGQUIT"), ExitCode.TERMINATED)


def build_document(record: RunRecord, verdict: Verdict) -> Document:
    """The report of one judged run; reads no file, no clock and no setting."""
    manifest = record.manifest
    recorded_s = record.last_moment_s
    code = _exit_code(record, verdict)
    # A chart that cannot be drawn must not cost a night its verdict.
    boundary = Boundary()
    charts = boundary.value("the charts", (), chart_groups, record, verdict)
    diagnosis = boundary.value("the diagnosis", None, diagnosis_text, record)
    lost = [f"{f.part} cannot be shown ({f.said})" for f in boundary.failures]
    return Document(
        kind=DocumentKind.RUN,
        run_id=manifest.run_id,
        subtitle=_subtitle(record, recorded_s),
        badge=BADGES[verdict.kind],
        meaning=MEANING[verdict.kind],
        exit_code=int(code),
        headline=capital(verdict.headline),
        answer=(*_answer(verdict), next_step(verdict, manifest)),
        gates=gates_of(verdict, code),
        suite=_suite(record),
        measures=tuple(_measures(verdict)),
        ruling=verdict.can_rule_out,
        ruling_label=_ruling_label(verdict),
        tables=(thresholds_table(verdict), serving_table(verdict)),
        findings=tuple(_finding_text(finding) for finding in verdict.findings),
        bounds=_bounds_table(verdict),
        coverage=_coverage_table(verdict),
        not_seen=(*record.manifest.not_seen, *verdict.not_seen),
        notes=(*_notes(record, verdict), *lost),
        timeline=timeline_of(record, verdict),
        charts=charts,
        events=_events_table(record),
        provenance=provenance_tables(manifest, recorded_s),
        command=command_text(manifest.command),
        profile_text=profile_yaml(manifest.profile),
        diagnosis=diagnosis,
    )


def build_so_far(record: RunRecord, verdict: Verdict) -> Document:
    """The report of a run in progress; its verdict may still change."""
    document = build_document(record, verdict)
    answer = tuple(fact for fact in document.answer if fact.label != NEXT)
    return replace(document, so_far=True, answer=answer, gates=(), measures=())


def _subtitle(record: RunRecord, recorded_s: float) -> str:
    manifest = record.manifest
    model = manifest.model
    parts = [
        model_text(model),
        manifest.profile.name,
        f"{format_duration(recorded_s)} recorded",
        started_text(manifest.started_wall_s),
    ]
    defects = manifest.defects
    if defects:
        parts.insert(2, f"defect {plain_text(defects)}")
    return " · ".join(part for part in parts if part)


def _ruling_label(verdict: Verdict) -> str:
    """Memory that leaks has a rate, and no limit of detection."""
    memory = memory_result(verdict.metrics)
    leaks = memory is not None and memory.outcome == VerdictKind.LEAK and not verdict.invalid
    return "Memory growth" if leaks else DETECTION_LIMIT


def _suite(record: RunRecord) -> str:
    """Model, preset, profile and defects: what stays the same from night to night."""
    manifest = record.manifest
    model = manifest.model
    names = [model.name, model.preset, manifest.profile.name, *manifest.defects]
    # Readers of JUnit make folders of the dots.
    return ".".join(["hybridbench", *(name.replace(".", "_") for name in names if name)])


def _measures(verdict: Verdict) -> Iterator[Measure]:
    if verdict.invalid:
        # What proves nothing must not become a point in somebody's trend.
        return
    for result in verdict.metrics:
        rate = result.rate_per_hour
        if rate is not None and math.isfinite(rate.value):
            unit = rate.unit + per_text(rate.per)
            yield Measure(f"{result.metric} growth", rate.value, unit, rate.lower, rate.upper)
    for decay in verdict.decay:
        if math.isfinite(decay.value):
            smaller = decay.name not in _HIGHER_IS_BETTER
            yield Measure(decay.name, decay.value, decay.unit, smaller_is_better=smaller)


def _answer(verdict: Verdict) -> tuple[Fact, ...]:
    """What, how fast, per event, since when, why: only what is known."""
    finding = top_finding(verdict)
    if verdict.kind is VerdictKind.CLEAN:
        return _bounded(verdict)
    if verdict.kind is VerdictKind.INCONCLUSIVE and finding is None:
        return _undecided(verdict)
    facts = [] if finding is None else _finding_answer(verdict, finding)
    missing = _not_covered(verdict) if verdict.invalid else []
    first = verdict.kind is VerdictKind.INVALID
    return (*missing, *facts) if first else (*facts, *missing)


def _exit_code(record: RunRecord, verdict: Verdict) -> ExitCode:
    """That of the soak itself: an interrupted one never ends like one that ran its course."""
    interrupted = last_segment(record).last_event(Interrupted)
    if interrupted is None:
        return verdict.exit_code
    return _BY_SIGNAL.get(interrupted.signal, ExitCode.INTERRUPTED)


def _finding_answer(verdict: Verdict, finding: Finding) -> list[Fact]:
    parts = [] if verdict.kind in _SUBJECT_IS_PLAIN else [metric_title(finding.subject)]
    if not in_headline(verdict, finding):
        parts = [": ".join([*parts, finding.title])]
    label = _QUESTIONS.get(verdict.kind, "What") if parts else "Also"
    facts = [Fact(label, ". ".join(parts))] if parts else []
    by_time, by_event = _rates(verdict, finding)
    facts += [Fact("How fast", "; ".join(by_time))] if by_time else []
    facts += [Fact("Per event", "; ".join(by_event))] if by_event else []
    if finding.since_s is not None and math.isfinite(finding.since_s):
        facts.append(Fact("Since", _since_text(verdict, finding.since_s)))
    if finding.cause:
        facts.append(Fact("Why", finding.cause))
    others = _others(verdict, finding)
    if others:
        facts.append(Fact("Other findings", others))
    return facts


def _others(verdict: Verdict, first: Finding) -> str:
    """The other findings by verdict: ``1 LEAK, 2 INCONCLUSIVE``."""
    counts = Counter(finding.verdict for finding in verdict.findings if finding is not first)
    return ", ".join(f"{count} {kind}" for kind, count in counts.items())


def _rates(verdict: Verdict, finding: Finding) -> tuple[list[str], list[str]]:
    """Rates of ``finding`` against time and events; bytes an hour may come from its fellows."""
    told = [rate for rate in finding.rates if _is_told(rate, finding)]
    by_time = [full_rate_text(rate) for rate in told if rate.per in TIME_UNITS]
    by_event = [full_rate_text(rate) for rate in told if rate.per not in TIME_UNITS]
    if not any(rate.per in TIME_UNITS and rate.unit == Unit.BYTES for rate in told):
        others = (f for f in verdict.findings if f is not finding and f.verdict is finding.verdict)
        by_time += [
            f"{metric_label(other.subject)}: {full_rate_text(rate)}"
            for other in others
            for rate in other.rates
            if rate.per in TIME_UNITS and rate.unit == Unit.BYTES and _is_told(rate, other)
        ][:1]
    return by_time, by_event


def _is_told(rate: Rate, finding: Finding) -> bool:
    """Whether ``rate`` may lead a page: of a leak only one that is certainly more than none."""
    return finding.verdict is not VerdictKind.LEAK or certain(rate)


def _since_text(verdict: Verdict, since_s: float) -> str:
    text = f"{clock_text(since_s)} into the run"
    if verdict.window_s is not None and abs(since_s - verdict.window_s[0]) < 1.0:
        text += ", where the judged window begins"
    return text


def _bounded(verdict: Verdict) -> tuple[Fact, ...]:
    facts = []
    for result in verdict.metrics:
        # The profile's limit is in the table of gated metrics: here it would be a second bound.
        text = bound_text(result)
        if text:
            facts.append(Fact(metric_label(result.metric), text))
    return tuple(facts)


def _undecided(verdict: Verdict) -> tuple[Fact, ...]:
    return tuple(
        Fact(metric_label(result.metric), _reason_and_rate(result))
        for result in verdict.metrics
        if result.outcome == VerdictKind.INCONCLUSIVE
    )


def _reason_and_rate(result: MetricResult) -> str:
    rate = result.rate_per_hour
    return result.reason if rate is None else f"{result.reason}: {full_rate_text(rate)}"


def _not_covered(verdict: Verdict) -> list[Fact]:
    unmet = [
        f"{counter} seen {number(row.seen)}, required {number(row.required or 0)}"
        for counter, row in verdict.coverage.items()
        if not row.met
    ]
    return [Fact("Not covered", "; ".join(unmet))] if unmet else []


def _finding_text(finding: Finding) -> FindingText:
    facts = rate_facts(finding.rates)
    if finding.driver:
        facts.append(Fact("Driver", finding.driver))
    if finding.since_s is not None and math.isfinite(finding.since_s):
        # What is undecided has no beginning, only a window in which it was judged.
        label = "Judged from" if finding.verdict is VerdictKind.INCONCLUSIVE else "Since"
        facts.append(Fact(label, f"{clock_text(finding.since_s)} into the run"))
    if finding.cause:
        facts.append(Fact("Cause", finding.cause))
    return FindingText(
        badge=BADGES[finding.verdict],
        kind=finding.kind,
        subject=finding.subject,
        title=finding.title,
        facts=tuple(facts),
        evidence=finding.evidence,
        data=tuple((key, plain_text(value)) for key, value in finding.data.items()),
    )


def _bounds_table(verdict: Verdict) -> Table:
    rates = [result.rate_per_hour for result in verdict.metrics]
    shares = {rate.confidence for rate in rates if rate is not None}
    share = f"{100 * shares.pop():.4g}% " if len(shares) == 1 else ""
    columns = ("metric", "outcome", "growth", f"{share}interval", "per request", "limit", "why")
    rows = tuple(_bound_row(result, verdict) for result in verdict.metrics)
    note = ""
    if verdict.window_s is not None:
        start_s, end_s = verdict.window_s
        note = (
            f"Judged from {clock_text(start_s)} to {clock_text(end_s)} "
            f"({format_duration(end_s - start_s)}). {_LIMIT_NOTE}"
        )
    empty = "No gated metric was judged in this run."
    return Table("Gated metrics", columns, rows, frozenset({2, 3, 4, 5}), note, empty)


def _bound_row(result: MetricResult, verdict: Verdict) -> tuple[str, ...]:
    rate = result.rate_per_hour
    window = ""
    if verdict.window_s is not None and result.window_s[0] - verdict.window_s[0] >= _LATE_S:
        window = f"; judged from {clock_text(result.window_s[0])}"
    needed = ""
    if result.needed_s is not None:
        needed = f"; a judged window of about {format_duration(result.needed_s)} would decide"
    return (
        result.metric,
        "PASS" if result.outcome == VerdictKind.CLEAN else result.outcome,
        NO_RATE if rate is None else rate_text(rate),
        "none" if rate is None else interval_text(rate),
        _per_request(result.rate_per_request),
        _limit(result),
        f"{result.reason}{window}{needed}" + _shape(result),
    )


def _shape(result: MetricResult) -> str:
    return f" (shape: {result.model})" if result.model not in ("", "none") else ""


def _limit(result: MetricResult) -> str:
    """The limit of the profile or a threshold; without one the tolerance, if that was applied."""
    if result.limit_per_hour is not None:
        return f"≤ {amount(result.limit_per_hour, result.unit)}{per_text('h')}"
    tolerance = tolerance_of(result)
    return "none" if tolerance is None else f"≤ {amount(tolerance, result.unit)}{per_text('h')}"


def _per_request(rate: Rate | None) -> str:
    return "" if rate is None else amount(rate.value, rate.unit, signed=True)


def _coverage_table(verdict: Verdict) -> Table:
    rows = []
    for counter, row in verdict.coverage.items():
        required, word = "", ""
        if row.required is not None:
            # Floors are whole numbers in a profile, and counts are not in a sample.
            required, word = number(row.required), "met" if row.met else "NOT MET"
        rows.append((counter, required, number(row.seen), word))
    columns = ("counter", "required", "seen", "")
    empty = "The profile requires nothing to be covered."
    note = "Counted over the whole run, its warm-up included."
    return Table("Coverage", columns, tuple(rows), frozenset({1, 2}), note, empty)


def _notes(record: RunRecord, verdict: Verdict) -> tuple[str, ...]:
    notes = [model_note(record.manifest.model), *verdict.notes]
    notes += [note.text for note in record.all_events(Note)]
    return tuple(dict.fromkeys(note for note in notes if note))


def _events_table(record: RunRecord) -> Table:
    events = [event for event in record.events if not isinstance(event, Note)]
    rows = tuple(
        (clock_text(event.t_s), kind_of(event), _cell(plain_text(data) if data else ""))
        for event in events[:_EVENTS_MAX]
        for data in [event_data(event)]
    )
    left = len(events) - len(rows)
    note = f"{left} later events are in events.jsonl." if left else ""
    return Table("Events of the run", ("time", "event", "what"), rows, frozenset({0}), note)


def _cell(text: str) -> str:
    return text if len(text) <= 300 else text[:299] + "…"
