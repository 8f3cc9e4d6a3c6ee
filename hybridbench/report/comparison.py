"""A judged comparison as a document: the result first, then the changes, then the method."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from hybridbench.analysis.comparison.metrics import MEMORY_AT_REST, PEAK_MEMORY
from hybridbench.analysis.comparison.ratios import CheckedRatio
from hybridbench.analysis.comparison.records import (
    Change,
    Comparison,
    ComparisonVerdict,
    LeakComparison,
    MetricComparison,
    Outcome,
    Role,
    SideComparison,
    Version,
)
from hybridbench.analysis.comparison.words import TOLD, display_name, leak_text, undecided_text
from hybridbench.records.comparison import ComparisonManifest
from hybridbench.records.finding import Finding, VerdictKind
from hybridbench.records.manifest import OBSERVED
from hybridbench.records.threshold_result import ThresholdOutcome
from hybridbench.report.advice import NEXT
from hybridbench.report.comparison_charts import comparison_charts
from hybridbench.report.comparison_gates import comparison_gates, comparison_measures, side_name
from hybridbench.report.comparison_tables import change, comparison_tables, leak_rates, letter
from hybridbench.report.document import (
    Document,
    DocumentKind,
    Fact,
    FindingText,
    Gate,
    Table,
    Timeline,
)
from hybridbench.report.provenance import model_note, provenance_tables, started_text
from hybridbench.report.quantity import (
    SHARE,
    Form,
    Quantity,
    Text,
    joined,
    phrase,
    share_text,
)
from hybridbench.report.serving import compared_serving
from hybridbench.report.threshold_gates import STATE
from hybridbench.report.wording import (
    BADGES,
    capital,
    model_text,
    split_options,
)
from hybridbench.rundir.layout import VERDICT

_MEANING: Final[Mapping[Outcome, str]] = {
    Outcome.REGRESSION: "A version is worse than the baseline A: slower beyond the margin, with a "
    "new leak, or crashed.",
    Outcome.INCONCLUSIVE: "Not decided: the interval of the primary metric crosses the margin, or "
    "a finding could not be compared.",
    Outcome.SAME: "The primary metric lies within the margin, no guardrail is worse, and no "
    "finding is new.",
    Outcome.BETTER: "Nothing is worse, and a version is faster beyond the margin or leaks less.",
}
# The options that bisect shares with compare, without those of its output.
BISECT_OPTIONS: Final = (
    *("--model", "--profile", "--seed", "--set", "--gc", "--ballast", "--renew", "--targets"),
    *("--max-time", "--block", "--rounds", "--margin", "--store"),
)
_ROOM: Final = 1.3  # reserve factor on the time per round so far


def comparison_document(
    comparison: Comparison,
    verdict: ComparisonVerdict,
    manifest: ComparisonManifest,
    ratios: Sequence[CheckedRatio] = (),
) -> Document:
    """Return the report of one judged comparison; reads no file, no clock and no setting.

    ``ratios`` are its checked thresholds on ratios.
    """
    base = comparison.versions[0]
    code = manifest.ended_by if manifest.ended_by is not None else verdict.exit_code
    ends = [version.record.last_moment_s for version in comparison.versions]
    return Document(
        kind=DocumentKind.COMPARISON,
        run_id=manifest.comparison_id,
        subtitle=_subtitle(comparison, verdict),
        badge=replace(BADGES[verdict.outcome], word=verdict.word),
        meaning=_MEANING[verdict.outcome],
        exit_code=int(code),
        headline=capital(verdict.headline),
        answer=tuple(_answer(comparison, verdict, manifest.command)),
        gates=(
            *comparison_gates(comparison, verdict, code),
            *(_ratio_gate(ratio, verdict) for ratio in ratios),
        ),
        suite=f"hybridbench compare {_suite(comparison)}",
        measures=comparison_measures(comparison, verdict),
        ruling=_ruling(verdict),
        tables=(
            *comparison_tables(comparison, verdict),
            compared_serving(comparison.versions, interleaved=comparison.interleaved),
            _ratio_table(ratios),
        ),
        findings=tuple(_findings(comparison, verdict)),
        notes=tuple(_notes(comparison, verdict)),
        timeline=Timeline(max(ends)),
        charts=comparison_charts(comparison, verdict),
        provenance=provenance_tables(base.manifest, ends[0]),
        command=shlex.join(manifest.command),
        data_file=VERDICT,
    )


def _ratio_gate(ratio: CheckedRatio, verdict: ComparisonVerdict) -> Gate:
    group = f"thresholds of {side_name(verdict, ratio.position)}"
    return Gate(ratio.text, group, STATE[_outcome(ratio)], ratio.said)


def _ratio_table(ratios: Sequence[CheckedRatio]) -> Table:
    rows = tuple((r.version, r.text, _outcome(r).value, r.said) for r in ratios)
    return Table("Thresholds on ratios", ("version", "threshold", "outcome", "measured"), rows)


def _outcome(ratio: CheckedRatio) -> ThresholdOutcome:
    return ThresholdOutcome.UNDECIDED if ratio.result is None else ratio.result.outcome


def _suite(comparison: Comparison) -> str:
    manifest = comparison.versions[0].manifest
    model = manifest.model.name
    return f"{model} {manifest.profile.name}"


def _subtitle(comparison: Comparison, verdict: ComparisonVerdict) -> Text:
    names = " and ".join(display_name(v) for v in comparison.versions)
    manifest = comparison.versions[0].manifest
    noun = " round" if verdict.rounds == 1 else " rounds"
    rounds = phrase(Quantity("rounds", verdict.rounds), noun)
    parts: list[Text] = [
        names,
        model_text(manifest.model),
        manifest.profile.name,
        rounds if verdict.interleaved else "stored runs",
        started_text(manifest.started_wall_s),
    ]
    return joined(" · ", (part for part in parts if part))


def _answer(
    comparison: Comparison, verdict: ComparisonVerdict, command: Sequence[str]
) -> Iterator[Fact]:
    """Yield speed, leaks and memory per version; then what to do."""
    several = len(verdict.sides) > 1
    for side in verdict.sides:
        who = f"{letter(side.version)}: " if several else ""
        primary = side.primary()
        if primary is not None:
            sentence = _metric_sentence(primary, verdict, letter(side.version))
            yield Fact("Speed", phrase(who, sentence))
        for row in side.leaks:
            if row.change in TOLD:
                said = who + leak_text(row, side.leaks) + (f"; {row.reason}" if row.reason else "")
                yield Fact(f"Leak {row.change.value.lower()}", said)
        memory = [m for m in side.metrics if m.metric in (MEMORY_AT_REST, PEAK_MEMORY)]
        if memory:
            levels = [
                phrase(f"{m.label} ", change(m, letter(side.version)), f" {m.word}") for m in memory
            ]
            yield Fact("Memory", phrase(who, joined("; ", levels)))
    yield _next_step(comparison, verdict, command)


def _metric_sentence(metric: MetricComparison, verdict: ComparisonVerdict, other: str) -> Text:
    blocks = " pairs" if verdict.interleaved else " windows of each run"
    ratio = change(metric, other)
    pairs = phrase(f" {metric.word}, ", ratio.shown(Form.COUNT), blocks)
    undecided = undecided_text(metric)
    return phrase(f"{metric.label} ", ratio, pairs, f"; {undecided}" if undecided else "")


def _next_step(comparison: Comparison, verdict: ComparisonVerdict, command: Sequence[str]) -> Fact:
    base = comparison.versions[0]
    worst = next((s for s in verdict.sides if s.outcome is verdict.outcome), verdict.sides[0])
    other = comparison.versions[worst.version]
    if verdict.outcome is Outcome.INCONCLUSIVE:
        return _more_rounds(comparison, worst, command)
    if verdict.outcome is not Outcome.REGRESSION:
        return Fact(NEXT, "No regression found.")
    if base.kind == "git" and other.kind in ("git", "tree"):
        bad = other.name.removeprefix("git:") if other.kind == "git" else "HEAD"
        ends = ("--good", base.name.removeprefix("git:"), "--bad", bad)
        kept, _ = split_options(command, *BISECT_OPTIONS)
        words = ("hybridbench", "bisect", *ends, *kept)
        return Fact(NEXT, "Find the commit that caused it.", shlex.join(words))
    if other.verdict.kind is VerdictKind.CRASHED:
        return Fact(NEXT, f"Open the report of run {letter(worst.version)}: it says how it ended.")
    if any(row.change in (Change.INTRODUCED, Change.WORSE) for row in worst.leaks):
        return Fact(
            NEXT,
            f"Open the report of run {letter(worst.version)}: its findings name the mechanism and "
            "the event that triggers it.",
        )
    return Fact(NEXT, "Compare the charts under Cost of work in the reports of the two runs.")


def _more_rounds(comparison: Comparison, side: SideComparison, command: Sequence[str]) -> Fact:
    versions = comparison.versions
    if any(version.kind == "server" for version in versions):
        return Fact(NEXT, "Soak the servers longer, with --max-time, on a quieter machine.")
    if any(version.kind == "run" for version in versions):
        if versions[0].manifest.target.kind == OBSERVED:
            return Fact(NEXT, "Compare longer runs, made on a quieter machine.")
        return Fact(NEXT, "Stored runs cannot decide more: compare live versions.")
    primary = side.primary()
    if primary is None or primary.pairs_needed is None:
        return Fact(
            NEXT,
            "See the reasons in the tables; a quieter machine or longer blocks narrow the "
            "intervals.",
        )
    rounds = primary.pairs + primary.pairs_needed
    begun = sorted(block.started_s for block in comparison.blocks)
    per_round_s = (begun[-1] - begun[0]) / max(1.0, len(begun) / len(versions) - 1.0)
    minutes = math.ceil(_ROOM * rounds * per_round_s / 60.0)
    names = [version.name for version in versions]
    given = command or ["hybridbench", "compare", *names]
    _, kept = split_options(given, "--rounds", "--max-time")
    longer = [*kept, "--rounds", str(rounds), "--max-time", f"{minutes}m"]
    return Fact(NEXT, "Run the comparison longer.", shlex.join(longer))


def _ruling(verdict: ComparisonVerdict) -> Text:
    primary = [m for s in verdict.sides if (m := s.primary()) is not None]
    if not primary or not verdict.interleaved:
        return ""
    widest = max(primary, key=lambda m: m.upper / m.lower)
    half = 0.5 * (widest.upper - widest.lower)
    margin = f"(margin: {share_text(verdict.terms.margin)})"
    pairs = change(widest, "").shown(Form.COUNT)
    if not half < 1.0:
        few = f" rounds are too few to resolve a change of {widest.label} {margin}."
        return phrase(pairs, few)
    resolved = Quantity(f"resolved.{widest.metric}", half, SHARE)
    return phrase(pairs, f" rounds resolve changes of {widest.label} of ", resolved, f" {margin}.")


def _findings(comparison: Comparison, verdict: ComparisonVerdict) -> Iterator[FindingText]:
    for side in verdict.sides:
        for row in side.leaks:
            if row.change in TOLD:
                yield _finding_text(comparison, side, row)


def _finding_text(comparison: Comparison, side: SideComparison, row: LeakComparison) -> FindingText:
    index = 0 if row.change is Change.FIXED else side.version
    version = comparison.versions[index]
    origin = _origin(version, row)
    facts = [Fact("In", f"{letter(index)}, {display_name(version)}")]
    base, other, difference = leak_rates(row, letter(side.version))
    facts += [Fact(f"Rate in {rate.of}", rate) for rate in (base, other) if rate is not None]
    if difference is not None and base is not None and other is not None:
        # If only one version has the finding, the difference would just repeat its rate.
        facts.append(Fact("Difference", difference))
    if row.driver:
        facts.append(Fact("Driver", row.driver))
    if origin is not None and origin.cause:
        facts.append(Fact("Cause", origin.cause))
    return FindingText(
        badge=BADGES[row.change.value],
        kind=row.kind,
        subject=row.subject,
        title=row.title,
        facts=tuple(facts),
        evidence=(*((row.reason,) if row.reason else ()), *(origin.evidence if origin else ())),
    )


def _origin(version: Version, row: LeakComparison) -> Finding | None:
    """Return the finding of the version's own run that ``row`` is about."""
    same = (f for f in version.verdict.findings if (f.kind, f.subject) == (row.kind, row.subject))
    return next(same, None)


def _notes(comparison: Comparison, verdict: ComparisonVerdict) -> Iterator[str]:
    yield from verdict.notes
    for side in verdict.sides:
        lead = f"{letter(side.version)}: " if len(verdict.sides) > 1 else ""
        yield from (lead + note for note in side.notes)
        yield from (
            f"{lead}{row.title}: {row.reason}"
            for row in side.leaks
            if row.reason and row.change not in TOLD
        )
        yield from (lead + said for said in _sureness(side, verdict))
    note = model_note(comparison.versions[0].manifest.model)
    if note:
        yield note


def _sureness(side: SideComparison, verdict: ComparisonVerdict) -> Iterator[str]:
    primary = side.primary()
    guards = [m for m in side.metrics if m.role is Role.GUARD]
    if primary is None or not guards:
        return

    def wrong(metric: MetricComparison) -> str:
        return share_text(0.5 * (1.0 - metric.confidence))

    yield (
        f"false positives between equal versions: at most {wrong(primary)} of comparisons by "
        f"{primary.label}, {wrong(guards[0])} by each of the {len(guards)} guardrails, "
        f"{share_text(verdict.terms.alpha)} in total"
    )
