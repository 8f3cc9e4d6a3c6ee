"""Find contradictions on a page: two values of one quantity, wrong sums, impossible numbers.

Every measured number of a report is a quantity with a name and a window, so quantities are compared
as numbers.  The sentences of a verdict are texts; each rate, length and share in a headline must be
one of the page's quantities.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import Final

from hybridbench.analysis.facts.window import LEAK_WITHOUT_STEADY_S
from hybridbench.analysis.trend.terms import LEAK_AFTER_STEADY_S
from hybridbench.foundation.units import parse_duration_s
from hybridbench.report.document import Document, DocumentKind, FindingText, Table
from hybridbench.report.quantity import SHARE, Quantity, quantities

# Largest difference from rounding between two computations of a number, or parts and their sum.
_CLOSE: Final = 1e-6
_MINUS: Final = "\N{MINUS SIGN}"
# An amount in a sentence: number, prefix and unit, and the time or event to which it refers.
_AMOUNT: Final = re.compile(
    rf"([{_MINUS}+-]?\d[\d,]*(?:\.\d+)?) ?(%|[KMGT]i?B|[kMG]\b|B\b)?(/h| per [a-z]+(?: [a-z]+)?)?"
)
_LENGTH: Final = re.compile(r"\b(?:\d+[dhms]){1,2}\b")
# Only in the ruling: apart from the table's limit, the page has nothing to compare it with.
_DETECTION_LIMIT: Final = re.compile(r"steady growth of about \S+ \S+ or more would be called")
_RULES_S: Final = (LEAK_AFTER_STEADY_S, LEAK_WITHOUT_STEADY_S)
_FACTOR: Final = {
    "%": 0.01,
    "B": 1.0,
    "KiB": 2.0**10,
    "MiB": 2.0**20,
    "GiB": 2.0**30,
    "TiB": 2.0**40,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "": 1.0,
}


def contradictions(document: Document) -> list[str]:
    """Return the statements of ``document`` that contradict each other."""
    told = list(quantities(document))
    return [
        *different(told),
        *impossible(told),
        *not_whole(told),
        *told_twice(document.tables),
        *unknown_in_sentences(document, told),
    ]


def different(told: Iterable[Quantity]) -> Iterator[str]:
    """Yield names with two values, units or intervals in one window."""
    for (of, name, window), same in _grouped(told):
        for one in same[1:]:
            first, second = _numbers(same[0]), _numbers(one)
            if (one.unit, one.per or same[0].per) != (same[0].unit, same[0].per or one.per):
                yield f"{of} {name} {window}: in {same[0].unit} and in {one.unit}"
            elif not all(map(_alike, first, second)):
                yield f"{of} {name} {window}: {first} and {second}"


def impossible(told: Iterable[Quantity]) -> Iterator[str]:
    """Yield values outside their interval, negative sizes and counts, and shares above 1."""
    for one in told:
        ends = [end for end in (one.lower, one.value, one.upper) if end is not None]
        known = [end for end in ends if math.isfinite(end)]
        if any(low > high + _CLOSE * abs(high) for low, high in pairwise(ends)):
            yield f"{one.name}: {one.value} is not in {one.lower} to {one.upper}"
        if not one.signed and not one.part_of and any(end < 0.0 for end in known):
            yield f"{one.name}: {ends} is below 0"
        if one.unit == SHARE and any(not end >= -1.0 for end in known):
            yield f"{one.name}: a fall by more than all, {ends}"
        if one.unit == SHARE and not one.signed and any(end > 1.0 + _CLOSE for end in known):
            yield f"{one.name}: more than all, {ends}"
        if one.name.startswith("instances-") and any(end < 0.0 for end in known):
            yield f"{one.name}: fewer objects than none, {ends}"
        if (one.unit == "" or one.count is not None) and (one.count or 0) < 0:
            yield f"{one.name}: counted {one.count}"


def not_whole(told: Sequence[Quantity]) -> Iterator[str]:
    """Yield parts that do not sum to their whole (1 for shares), and traffic beyond its window."""
    parts = {one.name: one for one in told if one.part_of}
    ordered = sorted(parts.values(), key=lambda one: (one.part_of, one.unit))
    for (whole, unit), group in groupby(ordered, key=lambda one: (one.part_of, one.unit)):
        total = sum(one.value for one in group)
        wholes = [one.value for one in told if one.name == whole and one.unit == unit]
        expected = wholes[0] if wholes else 1.0 if unit == SHARE else math.nan
        if not _alike(total, expected, 1e-3):
            yield f"the parts of {whole} sum to {total:g} {unit}, not to {expected:g}"
    judged = {one.window: one.value for one in told if one.name == "length.judged"}
    for one in told:
        if one.name == "length.traffic" and one.value > judged.get(one.window, math.inf) + 1.0:
            yield f"{one.value:g} s of traffic in {judged[one.window]:g} s"


def told_twice(tables: Iterable[Table]) -> Iterator[str]:
    """Yield rows of the same name and versions with different numbers in two tables."""
    known: dict[str, tuple[str, ...]] = {}
    for table in tables:
        at = [i for i, column in enumerate(table.columns) if column in ("A", "B")]
        for row in table.texts if len(at) == 2 and table.columns[0] != "finding" else ():
            name = re.sub(r"/s$| \(ms\)", "", row[0].lower())
            numbers = tuple(re.sub(r"/s$| \S+$", "", row[i]) for i in at)
            if known.setdefault(name, numbers) != numbers:
                yield f"{name}: {known[name]} and {numbers}"


def unknown_in_sentences(document: Document, told: Sequence[Quantity]) -> Iterator[str]:
    """Yield amounts in the headline, the ruling and titles that match no quantity."""
    # Negative growth is printed as 0.
    values = [0.0, *(end for one in told for end in _numbers(one) if end is not None)]
    judged = [one.value for one in told if one.name.startswith("length.judged")]
    needed = [one.value for one in told if one.name.startswith("length.needed")]
    lengths = [one.value for one in told if one.unit == "s"]
    lengths += [max(a - b, 1.0) for a in needed for b in judged]
    # A nightly run stores its cells' titles without the underlying quantities.
    findings = () if document.kind is DocumentKind.NIGHTLY else document.findings
    titles = (finding.title for finding in findings if _has_rates(finding))
    ruling = _DETECTION_LIMIT.sub("", str(document.ruling))
    sentences = [*((text, lengths) for text in (str(document.headline), *titles))]
    given = [
        row[0] for table in document.tables if table.title == "Thresholds" for row in table.texts
    ]
    for sentence, known in (*sentences, (ruling, [*judged, *_RULES_S])):
        measured = sentence
        for threshold in given:
            # The limit as the user wrote it is no measured amount.
            limit = re.escape(re.split("[<>]", threshold)[1])
            measured = re.sub(rf"(?<![\d.]){limit}(?![\d.])", "", measured)
        for said in _LENGTH.findall(measured):
            if not any(abs(parse_duration_s(said) - one) <= _rounded(one) for one in known):
                yield f"no quantity is {said} long, as in {sentence!r}"
        for digits, unit, per in _AMOUNT.findall(measured):
            if per and not any(_is_printed(digits, _FACTOR[unit], value) for value in values):
                yield f"no quantity is {digits} {unit}{per}, as in {sentence!r}"


def _rounded(seconds: float) -> float:
    """Return the largest rounding error of a printed length."""
    return 60.0 if seconds > 3600.0 else 1.0


def _has_rates(finding: FindingText) -> bool:
    return any(isinstance(fact.text, Quantity) for fact in finding.facts)


def _is_printed(digits: str, factor: float, value: float) -> bool:
    """Whether ``value``, rounded, is ``digits`` times ``factor``."""
    plain = digits.replace(",", "").replace(_MINUS, "-")
    decimals = len(plain.partition(".")[2])
    return abs(float(plain) - value / factor) <= 0.51 * 10.0**-decimals


def _grouped(
    told: Iterable[Quantity],
) -> Iterator[tuple[tuple[str, str, tuple[float, float] | None], list[Quantity]]]:
    groups: dict[tuple[str, str, tuple[float, float] | None], list[Quantity]] = {}
    for one in told:
        groups.setdefault((one.of, one.name, one.window), []).append(one)
    yield from groups.items()


def _numbers(one: Quantity) -> tuple[float | None, ...]:
    """Return value and interval."""
    return one.value, one.lower, one.upper


def _alike(first: float | None, second: float | None, close: float = _CLOSE) -> bool:
    if first is None or second is None or first == second:
        # A narrow column may omit the interval.
        return True
    both_unknown = math.isnan(first) and math.isnan(second)
    return both_unknown or math.isclose(first, second, rel_tol=close, abs_tol=1e-9)
