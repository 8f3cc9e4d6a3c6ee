"""Text common to reports: badges, names of metrics, commands, and names of a verdict's numbers."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

from hybridbench.analysis.findings.thresholds import ThresholdNotMet
from hybridbench.analysis.trend.reasons import bound_of
from hybridbench.foundation.labels import unlabelled, whose
from hybridbench.foundation.metrics import Unit, spec_of
from hybridbench.records.finding import Finding, VerdictKind
from hybridbench.records.json_value import JsonValue
from hybridbench.records.manifest import Model
from hybridbench.records.rates import TIME_UNITS, number
from hybridbench.records.verdict import RETAINED, WAITING, Covered, MetricResult, Verdict
from hybridbench.report.document import Badge, Fact, Tone
from hybridbench.report.quantity import (
    Phrase,
    Quantity,
    Text,
    Window,
    length,
    moment,
    of_rate,
    phrase,
)

if TYPE_CHECKING:
    from hybridbench.records.nightly import AttemptFinding

_SIGNS: Final[Mapping[Tone, Mapping[str, str]]] = {
    Tone.GOOD: {
        "CLEAN": "✓",
        "met": "✓",
        "passed": "✓",
        "PASS": "✓",
        "MET": "✓",
        "SAME": "=",
        "FASTER": "△",
        "BETTER": "△",
        "FIXED": "✓",
        "LESS": "▽",
        "HIGHER": "△",
    },
    Tone.BAD: {
        "LEAK": "▲",
        "DEGRADED": "▼",
        "INVARIANT": "≠",
        "CORRUPT": "≠",
        "CRASHED": "✕",
        "NOT MET": "✕",
        "MISSED": "✕",
        "failed": "✕",
        "error": "✕",
        "FAIL": "✕",
        "MISSING": "✕",
        "REGRESSION": "▲",
        "SLOWER": "▼",
        "WORSE": "▼",
        "INTRODUCED": "▲",
        "MORE": "▲",
        "LOWER": "▼",
    },
    Tone.OPEN: {
        "INCONCLUSIVE": "?",
        "UNDECIDED": "?",
        "GROWS FASTER": "△",
        "skipped": "?",
        "WAIVED": "~",
    },
    Tone.VOID: {"INVALID": "∅", "UNCHANGED": "=", "GROWS SLOWER": "▽"},
}

# The word of every possible answer, with its shape and tone in all reports.
BADGES: Final[Mapping[str, Badge]] = {
    word: Badge(word, glyph, tone)
    for tone, signs in _SIGNS.items()
    for word, glyph in signs.items()
}

# Replaces a growth rate that has too few samples.
NO_RATE: Final = "no estimate"


def capital(text: str) -> str:
    """Capitalise ``text`` to begin a sentence, unless it begins with a name in code."""
    first = text.partition(" ")[0].removesuffix(":")
    is_name = any(joint in first for joint in "_.:")
    return text if is_name else text[:1].upper() + text[1:]


def model_text(model: Model) -> str:
    """``qwen3-next (qwen3-next-tiny, cpu)``."""
    inside = ", ".join(name for name in (model.preset, model.device) if name and name != model.name)
    return f"{model.name} ({inside})" if inside else model.name


def growth_of(result: MetricResult) -> Quantity | None:
    """Return the growth of a gated metric; None with too few samples."""
    rate = result.rate_per_hour
    return None if rate is None else of_rate(f"growth.{result.metric}", rate, result.window_s)


def limit_of(result: MetricResult, of: str = "") -> Text:
    """Return the bound on the growth: the limit from the profile or a threshold, otherwise the
    tolerance if it was applied.
    """
    limit = bound_of(result)
    if limit is None:
        return "" if result.outcome == VerdictKind.LEAK else "none"
    return Quantity(f"limit.{result.metric}", limit, result.unit, per="h", of=of)


def finding_rates(finding: Finding, verdict: Verdict) -> tuple[Quantity, ...]:
    """Return the rates of ``finding``; for a gated metric, the growth in its table row."""
    windows = {result.metric: result.window_s for result in verdict.metrics}
    kind = "growth" if finding.subject in windows else finding.kind
    window = windows.get(finding.subject, verdict.window_s)
    return named_rates(f"{kind}.{finding.subject}", finding, window)


def named_rates(
    name: str, finding: Finding | AttemptFinding, window: Window = None, of: str = ""
) -> tuple[Quantity, ...]:
    """Name ``finding.rates``; for objects, rates in bytes refer to the memory that they hold."""
    held = {Unit.BYTES.value: ".bytes"} if finding.kind in (WAITING, RETAINED) else {}
    return tuple(
        of_rate(name + held.get(rate.unit, ""), rate, window, of) for rate in finding.rates
    )


def rate_text(rate: Quantity) -> Text:
    """Format the ``rate`` of a finding, and its subject if that differs from the finding's."""
    held = rate.unit == Unit.BYTES and rate.name.startswith((WAITING, RETAINED))
    return phrase("collectible memory between collections: ", rate) if held else rate


def rate_facts(rates: Iterable[Quantity]) -> list[Fact]:
    """Return each rate of a finding with its interval."""
    return [
        Fact("Growth" if rate.per in TIME_UNITS else "Per event", rate_text(rate)) for rate in rates
    ]


def finding_name(finding: Finding | AttemptFinding) -> str:
    """Return a name for the numbers of ``finding``, unique even for equal kinds and subjects."""
    apart = finding.driver
    if isinstance(finding, Finding) and isinstance(finding.basis, ThresholdNotMet):
        apart = apart or finding.basis.threshold
    return f"{finding.kind}.{finding.subject}" + (f".{apart}" if apart else "")


def since_text(finding: Finding, since_s: float) -> Phrase:
    """Say when ``finding`` began: ``0:01:21 into the run``."""
    return phrase(moment(finding_name(finding), since_s), " into the run")


def window_text(window_s: tuple[float, float]) -> Phrase:
    """Format the judged window: ``from 0:01:21 to 0:04:37 (3m16s)``."""
    start_s, end_s = window_s
    start, end = moment("judged from", start_s), moment("judged to", end_s)
    judged = length("judged", end_s - start_s, window_s)
    return phrase("from ", start, " to ", end, " (", judged, ")")


def needed_text(result: MetricResult) -> Phrase:
    """Say how long a judged window would have to be."""
    needed = length(f"needed for {result.metric}", result.needed_s or 0.0)
    return phrase("a judged window of about ", needed, " would decide")


def covered(counter: str, row: Covered) -> tuple[Quantity, Quantity]:
    """Return how often an event was seen, and how often it was required."""
    required = Quantity(f"required.{counter}", row.required or 0)
    return Quantity(f"seen.{counter}", row.seen), required


# The owner of process metrics in their declarations.
_OWNER: Final = "the worker"


def metric_title(name: str) -> str:
    """Return a metric's declared meaning for display, preceded by its process or family member."""
    spec = spec_of(name)
    if spec is None:
        return name
    owner = whose(name)
    if owner:
        title = metric_title(unlabelled(name))
        return title.replace(_OWNER, owner) if _OWNER in title else f"{owner}: {title}"
    if "*" not in spec.name:
        return spec.meaning
    head, _, tail = spec.name.partition("*")
    member = name[len(head) : len(name) - len(tail)] if tail else name[len(head) :]
    return f"{member}: {spec.meaning}"


def metric_label(name: str) -> str:
    """Name a gated metric in two words, with its owner."""
    spec = spec_of(name)
    label = "" if spec is None else spec.label
    words = capital(label or unlabelled(name).removesuffix("_bytes").replace("_", " "))
    owner = "" if spec is None else whose(name)
    return f"{words} of {owner}" if owner else words


def command_text(command: Sequence[str]) -> str:
    """Return the command line as one would type it; empty if the manifest has none."""
    return shlex.join(command)


def split_options(command: Sequence[str], *options: str) -> tuple[list[str], list[str]]:
    """Split ``command`` into these options, with their values, and all other words."""
    found: list[str] = []
    others: list[str] = []
    words = iter(command)
    for word in words:
        if word in options:
            found += [word, *islice(words, 1)]
        elif word.partition("=")[0] in options:
            found.append(word)
        else:
            others.append(word)
    return found, others


def plain_text(value: JsonValue) -> str:
    """Format any manifest value on one line."""
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return number(float(value)) if isinstance(value, float) else str(value)
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {plain_text(item)}" for key, item in value.items()) or "none"
    return ", ".join(plain_text(item) for item in value) or "none"
