"""Build a Document from a RunRecord and a Verdict: what is reported, and in which order."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from hybridbench.analysis.boundary import Boundary
from hybridbench.analysis.facts.facts import CUTS
from hybridbench.analysis.facts.limits import planned_s, served_s
from hybridbench.analysis.facts.window import last_segment, segments
from hybridbench.analysis.findings.engine_reports import Crashed
from hybridbench.analysis.findings.held import CacheFills, Held
from hybridbench.analysis.findings.restarts import Restarted
from hybridbench.analysis.findings.words import certain
from hybridbench.analysis.headline import in_headline
from hybridbench.analysis.record import RunRecord
from hybridbench.analysis.trend.work_cost import DERIVED_METRICS
from hybridbench.foundation.errors import ExitCode
from hybridbench.foundation.metrics import Unit
from hybridbench.foundation.units import format_duration
from hybridbench.records.events import (
    BenchFailed,
    Census,
    Event,
    IdleLook,
    Interrupted,
    Note,
    Phase,
    event_data,
    kind_of,
)
from hybridbench.records.finding import Finding, VerdictKind
from hybridbench.records.json_value import JsonValue
from hybridbench.records.manifest import OBSERVED
from hybridbench.records.rates import TIME_UNITS, per_text
from hybridbench.records.verdict import MetricResult, Verdict, memory_result
from hybridbench.report.advice import MEANING, NEXT, next_step, top_finding
from hybridbench.report.charts import chart_groups
from hybridbench.report.diagnosis import diagnosis_text
from hybridbench.report.document import (
    DETECTION_LIMIT,
    NO_TABLE,
    Document,
    DocumentKind,
    Fact,
    FindingText,
    Measure,
    Table,
)
from hybridbench.report.gates import gates_of
from hybridbench.report.heaps import heap_tables
from hybridbench.report.processes import processes_table
from hybridbench.report.provenance import (
    model_note,
    profile_yaml,
    provenance_tables,
    started_text,
)
from hybridbench.report.quantity import (
    SECONDS,
    Form,
    Phrase,
    Quantity,
    Text,
    joined,
    length,
    moment,
    phrase,
    sure_text,
)
from hybridbench.report.serving import serving_table
from hybridbench.report.threshold_gates import thresholds_table
from hybridbench.report.timeline import timeline_of
from hybridbench.report.wording import (
    BADGES,
    NO_RATE,
    capital,
    command_text,
    covered,
    finding_name,
    finding_rates,
    growth_of,
    limit_of,
    metric_label,
    metric_title,
    model_text,
    needed_text,
    plain_text,
    rate_facts,
    rate_text,
    since_text,
    window_text,
)

_EVENTS_MAX = 200
# If a metric's own window begins this much later, its row says when.
_LATE_S: Final = 10.0

_HIGHER_IS_BETTER: Final = {
    derived.name for derived in DERIVED_METRICS if not derived.higher_is_worse
}
_LIMIT_NOTE: Final = (
    "A metric passes if the whole interval of its growth is below the limit. Growth that is "
    "certain, and more than a healthy process settles by in this time, is a LEAK also below it."
)
# The label for the subject of a verdict's first finding.
_QUESTIONS: Final = {
    VerdictKind.LEAK: "What leaks",
    VerdictKind.DEGRADED: "What decays",
    VerdictKind.INCONCLUSIVE: "Undecided",
}
# Verdicts whose headline says everything: their subject is the worker, or the run itself.
_SUBJECT_IS_PLAIN: Final = (VerdictKind.CRASHED, VerdictKind.INVALID)
# Events after which a run ends without the phase "done".
_ENDS: Final[tuple[type[Event], ...]] = (*CUTS, BenchFailed)
_BY_SIGNAL: Final = dict.fromkeys(("SIGTERM", "SIGHUP", "SIGQUIT"), ExitCode.TERMINATED)


def build_document(record: RunRecord, verdict: Verdict) -> Document:
    """Return the report of one judged run; reads no file, no clock and no setting."""
    manifest = record.manifest
    recorded_s = record.last_moment_s
    # An interrupted run never ends like a complete one.
    interrupted = last_segment(record).last_event(Interrupted)
    code = verdict.exit_code
    if interrupted is not None:
        code = _BY_SIGNAL.get(interrupted.signal, ExitCode.INTERRUPTED)
    observed = manifest.target.kind == OBSERVED
    # Only a run of ours can be resumed.
    next_fact = next_step(verdict, manifest, interrupted=interrupted is not None and not observed)
    # A chart that cannot be drawn must not cost a nightly run its verdict.
    boundary = Boundary()
    charts = boundary.value("the charts", (), chart_groups, record, verdict)
    diagnosis = boundary.value("the diagnosis", None, diagnosis_text, record)
    processes = boundary.value("the processes", NO_TABLE, processes_table, record, verdict)
    heaps = boundary.value("the heaps of processes", (), heap_tables, record)
    lost = [f"{f.part} cannot be shown ({f.said})" for f in boundary.failures]
    return Document(
        kind=DocumentKind.WATCH if observed else DocumentKind.RUN,
        run_id=manifest.run_id,
        subtitle=_subtitle(record, recorded_s),
        badge=BADGES[verdict.kind],
        meaning=MEANING[verdict.kind],
        exit_code=int(code),
        headline=_headline(verdict),
        answer=(*_answer(verdict), next_fact),
        gates=gates_of(verdict, code),
        suite=_suite(record),
        measures=tuple(_measures(verdict)),
        ruling=verdict.can_rule_out,
        ruling_label=_ruling_label(verdict),
        tables=(thresholds_table(verdict), processes, serving_table(verdict), *heaps),
        findings=tuple(_finding_text(finding, verdict) for finding in verdict.findings),
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
    """Return the report of a run in progress; its verdict may still change."""
    document = build_document(record, verdict)
    answer = tuple(fact for fact in document.answer if fact.label != NEXT)
    notes = tuple(note for note in document.notes if note != _no_end(record))
    return replace(document, so_far=True, answer=answer, notes=notes, gates=(), measures=())


def _headline(verdict: Verdict) -> str:
    """Capitalise the headline, unless it begins with the name of a process."""
    first = top_finding(verdict)
    named = first is not None and _begins_with_a_name(first)
    return verdict.headline if named else capital(verdict.headline)


def _begins_with_a_name(finding: Finding) -> bool:
    match finding.basis:
        case Held() | CacheFills():
            return True
        case Crashed(target=name) | Restarted(server=name):
            return bool(name)
        case _:
            return False


def _subtitle(record: RunRecord, recorded_s: float) -> Text:
    manifest = record.manifest
    model = manifest.model
    release = "" if manifest.prepared is None else manifest.prepared.name
    parts: list[Text] = [
        # A watched run has the release as its model name.
        release if release != model.name else "",
        model_text(model),
        manifest.profile.name,
        phrase(length("recorded", recorded_s), " recorded"),
        "" if manifest.started_wall_s is None else started_text(manifest.started_wall_s),
    ]
    defects = manifest.defects
    if defects:
        parts.insert(3, f"defect {plain_text(defects)}")
    return joined(" · ", (part for part in parts if part))


def _ruling_label(verdict: Verdict) -> str:
    """Choose the label: memory that leaks has a rate, but no detection limit."""
    memory = memory_result(verdict.metrics)
    leaks = memory is not None and memory.outcome == VerdictKind.LEAK and not verdict.invalid
    return "Memory growth" if leaks else DETECTION_LIMIT


def _suite(record: RunRecord) -> str:
    """Return model, preset, profile and defects, which are the same in every nightly run."""
    manifest = record.manifest
    model = manifest.model
    names = [model.name, model.preset, manifest.profile.name, *manifest.defects]
    # JUnit readers turn dots into folders.
    return ".".join(["hybridbench", *(name.replace(".", "_") for name in names if name)])


def _measures(verdict: Verdict) -> Iterator[Measure]:
    if verdict.invalid:
        # Inconclusive numbers must not become points in a trend.
        return
    for result in verdict.metrics:
        growth = growth_of(result)
        if growth is not None and math.isfinite(growth.value):
            yield Measure(f"{result.metric} growth", growth, growth.unit + per_text(growth.per))
    for decay in verdict.decay:
        if math.isfinite(decay.value):
            smaller = decay.name not in _HIGHER_IS_BETTER
            cost = Quantity(decay.name, decay.value, decay.unit, verdict.window_s)
            yield Measure(decay.name, cost, decay.unit, smaller)


def _answer(verdict: Verdict) -> tuple[Fact, ...]:
    """Return those facts that are known: what, how fast, per event, since when, why."""
    finding = top_finding(verdict)
    if verdict.kind is VerdictKind.CLEAN:
        return _bounded(verdict)
    if verdict.kind is VerdictKind.INCONCLUSIVE and finding is None:
        return _undecided(verdict)
    facts = [] if finding is None else _finding_answer(verdict, finding)
    missing = _not_covered(verdict) if verdict.invalid else []
    first = verdict.kind is VerdictKind.INVALID
    return (*missing, *facts) if first else (*facts, *missing)


def _finding_answer(verdict: Verdict, finding: Finding) -> list[Fact]:
    parts = [] if verdict.kind in _SUBJECT_IS_PLAIN else [metric_title(finding.subject)]
    if not in_headline(verdict, finding):
        named = finding.title.lower().startswith(metric_label(finding.subject).lower())
        parts = [": ".join([*([] if named else parts), finding.title])]
    label = _QUESTIONS.get(verdict.kind, "What") if parts else "Also"
    facts = [Fact(label, ". ".join(parts))] if parts else []
    by_time, by_event = _rates(verdict, finding)
    facts += [Fact("How fast", joined("; ", by_time))] if by_time else []
    facts += [Fact("Per event", joined("; ", by_event))] if by_event else []
    if finding.since_s is not None and math.isfinite(finding.since_s):
        facts.append(Fact("Since", _since(verdict, finding, finding.since_s)))
    if finding.cause:
        facts.append(Fact("Why", finding.cause))
    others = _others(verdict, finding)
    if others:
        facts.append(Fact("Other findings", others))
    return facts


def _others(verdict: Verdict, first: Finding) -> Phrase | None:
    """Summarise the other findings by verdict: ``1 LEAK, 2 INCONCLUSIVE``."""
    counts = Counter(finding.verdict for finding in verdict.findings if finding is not first)
    said = [
        phrase(Quantity(f"other findings: {kind}", n), f" {kind}") for kind, n in counts.items()
    ]
    return joined(", ", said) if said else None


def _rates(verdict: Verdict, finding: Finding) -> tuple[list[Text], list[Text]]:
    """Return the rates by time and by event; bytes per hour may come from related findings."""
    leading = _leading_rates(finding, verdict)
    by_time = [rate_text(rate) for rate in leading if rate.per in TIME_UNITS]
    by_event = [rate_text(rate) for rate in leading if rate.per not in TIME_UNITS]
    if not any(map(_is_byte_rate, leading)):
        others = (f for f in verdict.findings if f is not finding and f.verdict is finding.verdict)
        by_time += [
            phrase(f"{metric_label(other.subject)}: ", rate)
            for other in others
            for rate in _leading_rates(other, verdict)
            if _is_byte_rate(rate)
        ][:1]
    return by_time, by_event


def _leading_rates(finding: Finding, verdict: Verdict) -> list[Quantity]:
    """Return the rates that may head a page: for a leak, only those significantly above zero."""
    rates = zip(finding_rates(finding, verdict), finding.rates, strict=True)
    return [
        shown for shown, rate in rates if finding.verdict is not VerdictKind.LEAK or certain(rate)
    ]


def _is_byte_rate(rate: Quantity) -> bool:
    return rate.per in TIME_UNITS and rate.unit == Unit.BYTES


def _since(verdict: Verdict, finding: Finding, since_s: float) -> Phrase:
    text = since_text(finding, since_s)
    if verdict.window_s is not None and abs(since_s - verdict.window_s[0]) < 1.0:
        return phrase(text, ", where the judged window begins")
    return text


def _bounded(verdict: Verdict) -> tuple[Fact, ...]:
    facts = []
    for result in verdict.metrics:
        # The profile's limit is in the table of gated metrics; here it would be a second bound.
        growth = growth_of(result)
        if growth is not None and math.isfinite(growth.upper or 0.0):
            facts.append(Fact(metric_label(result.metric), growth.shown(Form.BOUND)))
    return tuple(facts)


def _undecided(verdict: Verdict) -> tuple[Fact, ...]:
    facts = []
    for result in verdict.metrics:
        if result.outcome == VerdictKind.INCONCLUSIVE:
            growth = growth_of(result)
            why = result.reason if growth is None else phrase(f"{result.reason}: ", growth)
            facts.append(Fact(metric_label(result.metric), why))
    return tuple(facts)


def _not_covered(verdict: Verdict) -> list[Fact]:
    unmet = [
        phrase(f"{counter} seen ", seen, ", required ", required)
        for counter, row in verdict.coverage.items()
        if not row.met
        for seen, required in [covered(counter, row)]
    ]
    return [Fact("Not covered", joined("; ", unmet))] if unmet else []


def _finding_text(finding: Finding, verdict: Verdict) -> FindingText:
    name = finding_name(finding)
    facts = rate_facts(finding_rates(finding, verdict))
    if finding.driver:
        facts.append(Fact("Driver", finding.driver))
    if finding.since_s is not None and math.isfinite(finding.since_s):
        # An undecided finding has no start, only a judged window.
        label = "Judged from" if finding.verdict is VerdictKind.INCONCLUSIVE else "Since"
        facts.append(Fact(label, since_text(finding, finding.since_s)))
    if finding.cause:
        facts.append(Fact("Cause", finding.cause))
    return FindingText(
        badge=BADGES[finding.verdict],
        kind=finding.kind,
        subject=finding.subject,
        title=finding.title,
        facts=tuple(facts),
        evidence=finding.evidence,
        data=tuple((key, _datum(f"{name}.{key}", value)) for key, value in finding.data.items()),
    )


def _datum(name: str, value: JsonValue) -> Text:
    """Format a finding's data, with every number as a quantity."""
    if isinstance(value, Mapping):
        inner = [phrase(f"{key} ", _datum(f"{name}.{key}", one)) for key, one in value.items()]
        return joined(", ", inner) if inner else "none"
    if isinstance(value, Sequence) and not isinstance(value, str):
        items = [_datum(f"{name}.{index}", one) for index, one in enumerate(value)]
        return joined(", ", items) if items else "none"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return plain_text(value)
    unit = SECONDS if name.endswith("_s") else ""
    return Quantity(name, value, unit, signed=True, form=Form.PLAIN)


def _bounds_table(verdict: Verdict) -> Table:
    rates = [result.rate_per_hour for result in verdict.metrics]
    shares = {rate.confidence for rate in rates if rate is not None}
    share = f"{sure_text(shares.pop())} " if len(shares) == 1 else ""
    columns = ("metric", "outcome", "growth", f"{share}interval", "per request", "limit", "why")
    rows = tuple(_bound_row(result, verdict) for result in verdict.metrics)
    note: Text = ""
    if verdict.window_s is not None:
        note = phrase("Judged ", window_text(verdict.window_s), f". {_LIMIT_NOTE}")
    empty = "No gated metric was judged in this run."
    return Table("Gated metrics", columns, rows, frozenset({2, 3, 4, 5}), note, empty)


def _bound_row(result: MetricResult, verdict: Verdict) -> tuple[Text, ...]:
    growth = growth_of(result)
    why: list[Text] = [result.reason]
    if verdict.window_s is not None and result.window_s[0] - verdict.window_s[0] >= _LATE_S:
        why += ["; judged from ", moment(f"window of {result.metric}", result.window_s[0])]
    if result.needed_s is not None:
        why += ["; ", needed_text(result)]
    return (
        result.metric,
        "PASS" if result.outcome == VerdictKind.CLEAN else result.outcome,
        NO_RATE if growth is None else growth.narrow,
        "none" if growth is None else growth.shown(Form.INTERVAL),
        _per_request(result, verdict),
        limit_of(result),
        phrase(*why, _shape(result)),
    )


def _shape(result: MetricResult) -> str:
    return f" (shape: {result.model})" if result.model not in ("", "none") else ""


def _per_request(result: MetricResult, verdict: Verdict) -> Text:
    """Use the finding's rate if requests explain the growth, else total growth over requests."""
    found = (
        rate
        for finding in verdict.findings
        for rate in finding.rates
        if finding.subject == result.metric and rate.per == "request"
    )
    rate = next(found, result.rate_per_request)
    if rate is None:
        return ""
    # Omit the denominator, which the column's heading states.
    name = f"growth.{result.metric} per {rate.per}"
    return Quantity(name, rate.value, rate.unit, result.window_s, signed=True)


def _coverage_table(verdict: Verdict) -> Table:
    rows: list[tuple[Text, ...]] = []
    for counter, row in verdict.coverage.items():
        seen, required = covered(counter, row)
        if row.required is None:
            rows.append((counter, "", seen, ""))
        else:
            rows.append((counter, required, seen, "met" if row.met else "NOT MET"))
    columns = ("counter", "required", "seen", "")
    empty = "The profile requires nothing to be covered."
    note = "Counted over the whole run, its warm-up included."
    return Table("Coverage", columns, tuple(rows), frozenset({1, 2}), note, empty)


def _notes(record: RunRecord, verdict: Verdict) -> tuple[str, ...]:
    notes = [model_note(record.manifest.model), _no_end(record), _cut_requests(record)]
    notes += verdict.notes
    notes += [note.text for note in record.all_events(Note)]
    return tuple(dict.fromkeys(note for note in notes if note))


def _cut_requests(record: RunRecord) -> str:
    """Return a note if requests of a trace were longer than the context, otherwise empty."""
    counts = Counter(record.manifest.workload_counts)
    prompts, answers = counts["clipped_inputs"], counts["clipped_outputs"]
    if not prompts and not answers:
        return ""
    return (
        f"of {counts['submitted']} requests of the trace {prompts} prompts and {answers} "
        "answers were cut to fit pools.max_context_len; --length-scale shortens all by one factor"
    )


def _no_end(record: RunRecord) -> str:
    """Return a note if neither the run nor what cut it short recorded its end; otherwise empty."""
    last = last_segment(record)
    phase = last.last_event(Phase)
    # Traffic counts from the warm-up, which only a run that sends its own traffic has.
    ran_s = sum(map(served_s, segments(record))) or record.last_moment_s
    planned = planned_s(record)
    ended = (phase is not None and phase.name == "done") or ran_s >= planned
    if ended or any(isinstance(event, _ENDS) for event in last.events):
        return ""
    return (
        "the end of this run is not recorded: it was killed, or it is still running, after "
        f"{format_duration(ran_s)} of the planned {format_duration(planned)}"
    )


def _events_table(record: RunRecord) -> Table:
    # Heap scans and idle looks have a table of their own, and thousands of names.
    events = [e for e in record.events if not isinstance(e, Note | Census | IdleLook)]
    rows = tuple(
        (moment(f"event {i}", event.t_s), kind_of(event), _cell(plain_text(data) if data else ""))
        for i, event in enumerate(events[:_EVENTS_MAX])
        for data in [event_data(event)]
    )
    left = len(events) - len(rows)
    later = f"{left} later {'event is' if left == 1 else 'events are'} in events.jsonl."
    note = later if left else ""
    return Table("Events of the run", ("time", "event", "what"), rows, frozenset({0}), note)


def _cell(text: str) -> str:
    return text if len(text) <= 300 else text[:299] + "…"
