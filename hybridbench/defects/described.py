"""Descriptions of defects, as `explain` and `list defects` print them.

A defect refers to the classes that it patches, so the catalog imports the engine.
hybridbench-core lacks the engine's dependencies and ships these texts in a file instead
(tools/core_wheel.py).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from hybridbench.defects.names import nearest_defect
from hybridbench.foundation.errors import UsageError
from hybridbench.foundation.units import format_duration

if TYPE_CHECKING:
    from hybridbench.defects.defect import Defect, Signature

DESCRIPTIONS: Final = Path(__file__).with_name("descriptions.json")
_EXACT = "an exact check, as soon as it fails; no trend is needed"
_STATISTICAL = "statistics over the judged window"


class Description(msgspec.Struct, frozen=True):
    """One defect: ``rows`` are pairs of a label and a text, ``command`` reproduces it."""

    slug: str
    source: str
    symptom: str
    role: str
    rows: tuple[tuple[str, str], ...]
    command: str


def described_catalog() -> Mapping[str, tuple[Description, ...]]:
    """Return the whole catalog, keyed by section title.

    Raises:
        ModuleNotFoundError: the engine cannot be imported, and there are no stored descriptions.
    """
    try:
        from hybridbench.defects.catalog import CONTROLS, DEFECTS, PLANTED
    except ModuleNotFoundError:
        if not DESCRIPTIONS.exists():
            raise
        stored = msgspec.json.Decoder(dict[str, tuple[Description, ...]])
        return stored.decode(DESCRIPTIONS.read_bytes())
    parts = {
        "Historic defects": DEFECTS,
        "Controls (healthy behaviour that looks like a leak)": CONTROLS,
        "Slowdowns of known size, for comparisons": PLANTED,
    }
    return {title: tuple(map(_described, defects)) for title, defects in parts.items()}


def described(name: str) -> Description:
    """Return the description of ``name``: a slug, or any other value of ``--defect``.

    Raises:
        UsageError: there is no such defect, or it has no such rate.
        ConfigError: ``name`` is a file that defines no defect.
        ModuleNotFoundError: ``name`` is not in the catalog, and the engine cannot be imported.
    """
    known = [defect for part in described_catalog().values() for defect in part]
    for defect in known:
        if defect.slug == name:
            return defect
    try:
        from hybridbench.defects.catalog import find_defect
    except ModuleNotFoundError:
        if name.endswith(".py") or "@" in name:
            raise
        hint = nearest_defect(name, {defect.slug: defect.source for defect in known})
        raise UsageError(f"{name}: no such defect; {hint}", option="explain") from None
    return _described(find_defect(name, "explain"))


def _described(defect: Defect) -> Description:
    from hybridbench.defects.defect import Role

    role = {
        Role.DEFECT: "",
        Role.CONTROL: "a control: looks like a leak but is not one",
        Role.PLANTED: "injected: a slowdown of known size, which a soak alone cannot see",
    }[defect.role]
    rows = tuple(_rows(defect))
    return Description(defect.slug, defect.source, defect.symptom, role, rows, _command(defect))


def _rows(defect: Defect) -> Iterator[tuple[str, str]]:
    from hybridbench.defects.defect import Role

    signature = defect.signature
    yield "what it does", defect.symptom
    if defect.harmed:
        yield "impact", defect.harmed
    if defect.cure:
        yield "fix", defect.cure
    if defect.versions:
        yield "releases", ", ".join(map(_span, defect.versions))
    for index, patch in enumerate(defect.patches):
        yield ("replaces" if not index else ""), f"{patch.holder.__name__}.{patch.method}"
    if defect.role is Role.CONTROL:
        yield "growth", signature.rate
    else:
        yield "effect", signature.rate
        yield "on each", signature.event
    yield "expected", _expected(defect)
    if signature.drivers:
        yield "driver", " or ".join(signature.drivers)
    if defect.rates:
        *others, default = defect.rates
        yield "rate", f"{default}; set another with {defect.slug}@{others[0]}"
    if defect.healthy_twin:
        yield "healthy twin", f"{defect.healthy_twin}: the same work, with all memory freed"
    yield from _finding(signature)
    if defect.corrupts:
        yield "warning", "the generated tokens may also change"


def _finding(signature: Signature) -> Iterator[tuple[str, str]]:
    if signature.kinds:
        yield "found by", _EXACT if rests_on_counts(signature) else _STATISTICAL
    yield "duration", f"about {format_duration(signature.duration_s)}"


def rests_on_counts(signature: Signature) -> bool:
    """Whether an exact count shows the defect in a run of any length, without statistics."""
    from hybridbench.analysis.findings.kinds import evidence_of
    from hybridbench.defects.defect import FoundBy
    from hybridbench.records.finding import Evidence

    counted = all(evidence_of(kind) is Evidence.EXACT for kind in signature.kinds)
    return signature.found_by is FoundBy.SOAK and counted


def _span(releases: tuple[str, str]) -> str:
    first, last = releases
    return first if first == last else f"{first} to {last}"


def _expected(defect: Defect) -> str:
    from hybridbench.defects.defect import FoundBy

    verdicts = " or ".join(defect.signature.verdicts)
    if not defect.signature.kinds:
        return verdicts
    kinds = " or ".join(defect.signature.kinds)
    subject = defect.signature.subject
    if defect.signature.found_by is FoundBy.COMPARE:
        return f"{verdicts} in a comparison, with {subject} {kinds}; a soak alone cannot see it"
    return f"{verdicts}, with finding {kinds} of {subject}"


def _command(defect: Defect) -> str:
    """Return the command line that reproduces ``defect``."""
    from hybridbench.defects.defect import FoundBy, Role

    if defect.role is Role.PLANTED or defect.signature.found_by is FoundBy.COMPARE:
        return f"hybridbench compare . defect:{defect.slug} --profile {defect.profile}"
    words = ["hybridbench", "soak", "--profile", defect.profile, "--defect", defect.slug]
    words += ["--duration", format_duration(defect.signature.duration_s)]
    if defect.model:
        words += ["--model", defect.model]
    for key, value in defect.overrides:
        words += ["--set", f"{key}={value}"]
    return shlex.join(words)
