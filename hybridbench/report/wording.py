"""What reports share: badges, names of metrics, commands, and the names of a verdict's numbers."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from hybridbench.analysis.findings.thresholds import ThresholdNotMet
from hybridbench.analysis.trend.reasons import bound_of
from hybridbench.foundation.labels import unlabelled, whose
from hybridbench.foundation.metrics import Unit, spec_of
from hybridbench.foundation.rates import TIME_UNITS, number
from hybridbench.records.json_value import JsonValue
from hybridbench.records.manifest import Model
from hybridbench.records.verdict import (
    RETAINED,
    WAITING,
    Covered,
    Finding,
    MetricResult,
    Verdict,
    VerdictKind,
)
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

# Every word that is an answer, with the shape and tone it has in any report.
BADGES: Final[Mapping[str, Badge]] = {
    word: Badge(word, glyph, tone)
    for tone, signs in _SIGNS.items()
    for word, glyph in signs.items()
}

# In place of a growth that too few samples were taken of.
NO_RATE: Final = "no estimate"


def capital(text: str) -> str:
    """``text`` as the beginning of a sentence; a name in code stays as it is."""
    first = text.partition(" ")[0].removesuffix(":")
    is_name = any(joint in first for joint in "_.:")
    return text if is_name else text[:1].upper() + text[1:]


def model_text(model: Model) -> str:
    """``qwen3-next (qwen3-next-tiny, cpu)``."""
    inside = ", ".join(name for name in (model.preset, model.device) if name and name != model.name)
    return f"{model.name} ({inside})" if inside else model.name


def growth_of(result: MetricResult) -> Quantity | None:
    """The growth of a gated metric; None where too few samples were taken."""
    rate = result.rate_per_hour
    return None if rate is None else of_rate(f"growth.{result.metric}", rate, result.window_s)


def limit_of(result: MetricResult, of: str = "") -> Text:
    """What the growth must stay below: the limit of the profile or a threshold; without one the
    tolerance, if that was applied.
    """
    limit = bound_of(result)
    if limit is None:
        return "" if result.outcome == VerdictKind.LEAK else "none"
    return Quantity(f"limit.{result.metric}", limit, result.unit, per="h", of=of)


def finding_rates(finding: Finding, verdict: Verdict) -> tuple[Quantity, ...]:
    """The rates of ``finding``; that of a gated metric is the growth of its row in the table."""
    windows = {result.metric: result.window_s for result in verdict.metrics}
    kind = "growth" if finding.subject in windows else finding.kind
    window = windows.get(finding.subject, verdict.window_s)
    return named_rates(f"{kind}.{finding.subject}", finding, window)


def named_rates(
    name: str, finding: Finding | AttemptFinding, window: Window = None, of: str = ""
) -> tuple[Quantity, ...]:
    """``finding.rates``; those in bytes of objects are of the memory that the objects hold."""
    held = {Unit.BYTES.value: ".bytes"} if finding.kind in (WAITING, RETAINED) else {}
    return tuple(
        of_rate(name + held.get(rate.unit, ""), rate, window, of) for rate in finding.rates
    )


def rate_text(rate: Quantity) -> Text:
    """``rate`` of a finding, and of what it is where that is not the finding's subject."""
    held = rate.unit == Unit.BYTES and rate.name.startswith((WAITING, RETAINED))
    return phrase("collectible memory between collections: ", rate) if held else rate


def rate_facts(rates: Iterable[Quantity]) -> list[Fact]:
    """Each rate of a finding with its interval."""
    return [
        Fact("Growth" if rate.per in TIME_UNITS else "Per event", rate_text(rate)) for rate in rates
    ]


def finding_name(finding: Finding | AttemptFinding) -> str:
    """What the numbers of ``finding`` are named after; several may be of one kind and subject."""
    apart = finding.driver
    if isinstance(finding, Finding) and isinstance(finding.basis, ThresholdNotMet):
        apart = apart or finding.basis.threshold
    return f"{finding.kind}.{finding.subject}" + (f".{apart}" if apart else "")


def since_text(finding: Finding, since_s: float) -> Phrase:
    """When ``finding`` began: ``0:01:21 into the run``."""
    return phrase(moment(finding_name(finding), since_s), " into the run")


def window_text(window_s: tuple[float, float]) -> Phrase:
    """The judged window: ``from 0:01:21 to 0:04:37 (3m16s)``."""
    start_s, end_s = window_s
    start, end = moment("judged from", start_s), moment("judged to", end_s)
    judged = length("judged", end_s - start_s, window_s)
    return phrase("from ", start, " to ", end, " (", judged, ")")


def needed_text(result: MetricResult) -> Phrase:
    """How long a judged window would have to be."""
    needed = length(f"needed for {result.metric}", result.needed_s or 0.0)
    return phrase("a judged window of about ", needed, " would decide")


def covered(counter: str, row: Covered) -> tuple[Quantity, Quantity]:
    """How often an event was seen, and how often it had to be."""
    required = Quantity(f"required.{counter}", row.required or 0)
    return Quantity(f"seen.{counter}", row.seen), required


# Whose the metrics of a process are, in their declarations.
_OWNER: Final = "the worker"


def metric_title(name: str) -> str:
    """A metric for people: its declared meaning, with its process or family member in front."""
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
    """A gated metric in two words, and whose it is."""
    spec = spec_of(name)
    label = "" if spec is None else spec.label
    words = capital(label or unlabelled(name).removesuffix("_bytes").replace("_", " "))
    owner = "" if spec is None else whose(name)
    return f"{words} of {owner}" if owner else words


def command_text(command: Sequence[str]) -> str:
    """The command line as one would type it; empty when the manifest has none."""
    return shlex.join(command)


def without_options(command: Sequence[str], *options: str) -> list[str]:
    """``command`` as given, but for these options and their values."""
    kept: list[str] = []
    words = iter(command)
    for word in words:
        if word in options:
            next(words, None)
        elif word.partition("=")[0] not in options:
            kept.append(word)
    return kept


def plain_text(value: JsonValue) -> str:
    """Any manifest value in one line."""
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
