"""What must not differ on one page: each number with its name and its window, in every format.

Reports are text, so numbers are found by the words around them.  A number that is said in several
places (headline, answer, evidence, advice, tables) has one name here, with all the words that
introduce it.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from hybridbench.analysis.comparison.metrics import COMPARED
from hybridbench.records.json_value import JsonValue
from hybridbench.report.document import Document, Table
from hybridbench.report.formats import FORMATS

_LENGTH: Final = r"((?:\d+[dhms]){1,2})"
_PER_HOUR: Final = r"([\d.,]+ [KMGT]?i?B/h)"
_COUNT: Final = r"([\d.,]+(?: [kMG])?)"
_MINUS: Final = "[\N{MINUS SIGN}-]"
# In a table the ends have no sign of their own for percent.
_CHANGE: Final = rf"((?:{_MINUS}|\+)?[\d.,]+% \([^()]+\))"

# By name and window: what stands around the number.
_SAID: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    ("bound on the growth of private memory", "judged window"): (
        rf"memory growth is at most {_PER_HOUR}",
        rf"[Gg]rowth of private memory above {_PER_HOUR}",
        rf"Private memory may grow by up to {_PER_HOUR}",
        rf"Private memory:? growth of at most {_PER_HOUR}",
    ),
    ("growth of private memory", "judged window"): (rf"[Pp]rivate memory grows by {_PER_HOUR}",),
    ("smallest growth that would be a LEAK", "judged window"): (
        rf"steady growth of about {_PER_HOUR} or more",
    ),
    ("length", "judged window"): (
        rf"[Nn]o findings in {_LENGTH}",
        rf"\(95%, {_LENGTH} judged\)",
        rf"judged over {_LENGTH}",
        rf"Judged from \S+ to \S+ \({_LENGTH}\)",
    ),
    ("length", "recorded"): (rf"{_LENGTH} recorded ·", rf"\brecorded {_LENGTH}"),
    ("end", "interrupted run"): (rf"[Ii]nterrupted after {_LENGTH}",),
    ("share that survives a collection", "all heap scans"): (
        r"(\d+)% survive",
        r"the other (\d+)%",
        r"the (\d+)% that survive",
    ),
    ("share that a collection frees", "all heap scans"): (
        r"it frees (\d+)%",
        r"(\d+)% form reference cycles",
        r"frees the (\d+)% in cycles",
    ),
    ("removed objects alive at once", "all heap scans"): (
        rf"at most {_COUNT} at once",
        rf"[Uu]p to {_COUNT} removed",
    ),
    **{
        (f"change of {metric.label}", "blocks"): (rf"\b{metric.label}:? {_CHANGE}",)
        for metric in COMPARED
    },
}
_SPLIT: Final = (
    ("share that survives a collection", "all heap scans"),
    ("share that a collection frees", "all heap scans"),
)
_SHARES: Final = re.compile(rf"Of the growth, ((?:{_MINUS}?[\d.]+% [^%]+?)+)\.(?: |$)")
_NO_MORE_THAN_ALL: Final = re.compile(rf"{_MINUS}([\d,.]+)%")
_HALF_WIDTH: Final = re.compile(rf"({_MINUS}|\+)?([\d,.]+)% ± >?([\d,.]+)%")
_NEGATIVE_COUNT: Final = re.compile(
    rf"(?:[Uu]p to|at most) {_MINUS}\d[^,;]*|"
    rf"[\d.]+(?: [kM])? (?:nodes|objects|\w+ instances)[^()]*\(9[\d.]+% interval {_MINUS}[^)]*\)"
)
_INTERVAL: Final = re.compile(
    rf"((?:{_MINUS}|\+)?[\d,.]+)% \(((?:{_MINUS}|\+)?[\d,.]+)%? to ((?:{_MINUS}|\+)?[\d,.]+)%?\)"
)


def contradictions(document: Document) -> list[str]:
    """What the formats of ``document`` say that cannot all be true."""
    texts = {name: plain(name, render(document)) for name, render in FORMATS.items()}
    found = [f"{name}: {one}" for name, text in texts.items() for one in impossible(text)]
    return [*found, *different(texts.values()), *_rows_told_twice(document), *_split(document)]


def plain(name: str, text: str) -> str:
    """What a reader of the format sees, in one line."""
    if name == "json":
        text = "\n".join(_strings(json.loads(text)))
    elif name in ("html", "junit"):
        text = re.sub(r"(?s)<(script|style)\b.*?</\1>", " ", text)
        text = html.unescape(re.sub(r"<[^>]+>", " ", text))
    # Frames of the console, marks of Markdown.
    return re.sub(r"[\s│|\\*`>]+", " ", text)


def different(texts: Iterable[str]) -> Iterator[str]:
    """Names with two values in one window, and parts of one whole that do not sum to it."""
    values: dict[tuple[str, str], set[str]] = {}
    for text in texts:
        for key, patterns in _SAID.items():
            for pattern in patterns:
                said = (re.sub(r"%(?= to|\))", "", one) for one in re.findall(pattern, text))
                values.setdefault(key, set()).update(said)
    for (name, window), seen in values.items():
        if len(seen) > 1:
            yield f"{name} ({window}): {', '.join(sorted(seen))}"
    parts = [values[key] for key in _SPLIT]
    if all(len(seen) == 1 for seen in parts):
        kept, freed = (int(next(iter(seen))) for seen in parts)
        if kept + freed != 100:
            yield f"{kept}% survive and {freed}% are freed"


def impossible(text: str) -> Iterator[str]:
    """Shares that do not sum, falls by more than all, negative counts, values off an interval."""
    for shares in _SHARES.findall(text):
        yield from _not_whole(re.findall(rf"({_MINUS}?[\d.]+)%", shares), f"of {shares!r}")
    outside = _SHARES.sub(" ", text)
    for fall in _NO_MORE_THAN_ALL.findall(outside):
        if _number(fall) > 100.0:
            yield f"a fall of {fall}%"
    for sign, change, half in _HALF_WIDTH.findall(outside):
        if _number(f"{sign}{change}") - _number(half) < -100.0:
            yield f"a fall of more than 100% in {sign}{change}% ± {half}%"
    yield from (f"a negative count: {found}" for found in _NEGATIVE_COUNT.findall(outside))
    for value, lower, upper in _INTERVAL.findall(outside):
        if not _number(lower) <= _number(value) <= _number(upper):
            yield f"{value}% is not in {lower}% to {upper}%"


def _rows_told_twice(document: Document) -> Iterator[str]:
    """Rows of one name in two tables that are of the same versions, with other numbers."""
    told: dict[tuple[str, ...], tuple[str, ...]] = {}
    for table in document.tables:
        at = [i for i, column in enumerate(table.columns) if column in ("A", "B")]
        if len(at) < 2 or table.columns[0] == "finding":
            continue
        for row in table.rows:
            name = row[0].lower().removesuffix(" (ms)").removesuffix("/s")
            name = re.sub(r" \(ms\)(?= p\d)", "", name)
            numbers = tuple(row[i].split(" ")[0].removesuffix("/s") for i in at)
            if told.setdefault((name,), numbers) != numbers:
                yield f"{name}: {told[name,]} and {numbers}"


def _split(document: Document) -> Iterator[str]:
    if document.diagnosis is not None and document.diagnosis.split.rows:
        table = document.diagnosis.split
        yield from _not_whole(_column(table, "share"), f"in the table {table.title!r}")


def _column(table: Table, name: str) -> list[str]:
    at = table.columns.index(name)
    return [row[at].removesuffix("%") for row in table.rows]


def _not_whole(shares: list[str], where: str) -> Iterator[str]:
    total = sum(map(_number, shares))
    if abs(total - 100.0) > 0.051 * len(shares):
        yield f"the shares {where} sum to {total:.4g}%"


def _number(text: str) -> float:
    return float(text.replace("\N{MINUS SIGN}", "-").replace(",", "").rstrip("."))


def _strings(value: JsonValue) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
