"""Words that reports share: badges, times, names of metrics, commands, values of a manifest."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from hybridbench.labels import unlabelled, whose
from hybridbench.metrics import spec_of
from hybridbench.rates import TIME_UNITS, full_rate_text, number
from hybridbench.records.json_value import JsonValue
from hybridbench.records.manifest import Model
from hybridbench.records.verdict import Rate
from hybridbench.report.document import Badge, Fact, Tone

_SIGNS: Final[Mapping[Tone, Mapping[str, str]]] = {
    Tone.GOOD: {
        "CLEAN": "✓",
        "met": "✓",
        "passed": "✓",
        "PASS": "✓",
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
        "CRASHED": "✕",
        "NOT MET": "✕",
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
    first = text.partition(" ")[0]
    return text if "_" in first or "." in first else text[:1].upper() + text[1:]


def model_text(model: Model) -> str:
    """``qwen3-next (qwen3-next-tiny, cpu)``."""
    inside = ", ".join(name for name in (model.preset, model.device) if name and name != model.name)
    return f"{model.name} ({inside})" if inside else model.name


def clock_text(t_s: float) -> str:
    """``t_s`` seconds as ``h:mm:ss``."""
    total = round(max(0.0, t_s))
    return f"{total // 3600}:{total // 60 % 60:02d}:{total % 60:02d}"


def rate_facts(rates: Iterable[Rate]) -> list[Fact]:
    """Each rate of a finding with its interval."""
    return [
        Fact("Growth" if rate.per in TIME_UNITS else "Per event", full_rate_text(rate))
        for rate in rates
    ]


def metric_title(name: str) -> str:
    """A metric for people: its declared meaning, with its process or family member in front."""
    spec = spec_of(name)
    if spec is None:
        return name
    owner = whose(name)
    if owner:
        return f"{owner}: {metric_title(unlabelled(name))}"
    if "*" not in spec.name:
        return spec.meaning
    head, _, tail = spec.name.partition("*")
    member = name[len(head) : len(name) - len(tail)] if tail else name[len(head) :]
    return f"{member}: {spec.meaning}"


def metric_label(name: str) -> str:
    """A gated metric in two words."""
    spec = spec_of(name)
    label = "" if spec is None else spec.label
    return (label or name.removesuffix("_bytes").replace("_", " ")).capitalize()


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
