"""Read series from JSON: labelled points and parallel lists here, samples in ``json_lists.py``.

Prometheus, CloudWatch, Datadog, Graphite and Grafana each nest one of these shapes under their own
keys; the reader ignores which keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TypeGuard

import numpy as np

from hybridbench.foundation.foreign import ForeignDataError, json_value
from hybridbench.series.grid import VALUE, Grid, Row
from hybridbench.series.json_lists import (
    EXPORT,
    Object,
    is_column,
    is_json_number,
    is_time,
    lists_in,
    records,
    table_in,
)
from hybridbench.series.owners import labels
from hybridbench.series.source import Line, Source
from hybridbench.series.times import names_time
from hybridbench.series.units import heading_unit

_SHOWN_CHARS = 40
# Inside a document, a comma separates them.
_BETWEEN_DOCUMENTS = re.compile(r"(?<=[}\]])\s*(?=[{\[])")
# The points of one series: its labels, then times and values as text.
_Series = tuple[Mapping[str, str], Sequence[str], Sequence[str]]
_Values = Sequence[object]
# The object that describes a column, the key of its list if that is its name, and the column.
_Column = tuple[Object, str, _Values]


def json_tables(lines: Sequence[Line], source: Source) -> list[Grid]:
    """Return the tables of a document, or of several that follow each other.

    Raises:
        ConfigError: the text is not JSON, or holds no series.
    """
    are_samples = False
    try:
        document = json_value("\n".join(line.text for line in lines))
        _refuse_error(document, source)
        nodes: list[tuple[object, Line]] = [(document, Line(1, ""))]
    except ForeignDataError as error:
        if not any(isinstance(_value(line.text), dict | list) for line in lines[:2]):
            lines = list(_documents(lines))
            if len(lines) == 1 or _value(lines[0].text) is None:
                raise source.wrong(
                    f"starts like JSON and cannot be read: it {error}; give JSON "
                    "lines (one object a line) or an export of /api/v1/query_range."
                ) from error
        objects = _objects(lines, source)
        nodes = [([entry], line) for entry, line in objects]
        # An object with a number of its own is a sample, whatever lists it has.
        are_samples = any(_has_number(entry) for entry, _ in objects)
    found = [] if are_samples else [one for node, _ in nodes for one in _series_in(node)]
    if found:
        return [_labelled(found)]
    return records((one for node, line in nodes for one in lists_in(node, line)), source)


def _documents(lines: Sequence[Line]) -> Iterator[Line]:
    """Yield each document as one line, however documents follow each other.

    jq in a loop prints one over several lines, and some servers end none with a new line.
    """
    for at, group in groupby(lines, key=lambda line: line.at):
        below = list(group)
        text, number, begin = "\n".join(line.text for line in below), below[0].number, 0
        for end in [*(m.end() for m in _BETWEEN_DOCUMENTS.finditer(text)), len(text)]:
            yield Line(number, text[begin:end], at)
            number, begin = number + text.count("\n", begin, end), end


def _value(text: str) -> object:
    """Return the JSON value of a line, which may be an entry of a list; None for other text."""
    try:
        return json_value(text.rstrip().removesuffix(","))
    except ForeignDataError:
        return None


def _objects(lines: Sequence[Line], source: Source) -> list[tuple[Object, Line]]:
    """Parse the object on each line; skip a few damaged lines.

    `podman stats --format json` and `pm2 jlist` in a loop print a list of objects on each.
    """
    each = ((line, _value(line.text)) for line in lines)
    parsed = [(line, {"list": v} if isinstance(v, list) else v) for line, v in each]
    bad = [line for line, value in parsed if not isinstance(value, dict)]
    shown = repr(bad[0].text.strip()[:_SHOWN_CHARS]) if bad else ""
    source.leave_out(
        bad,
        lines,
        "not a JSON object",
        f"not a JSON object: {shown}; write one object a line.",
        few=0,
    )
    return [(value, line) for line, value in parsed if isinstance(value, dict)]


def _has_number(entry: Object) -> bool:
    """Return whether an object has a number of its own; a run's samples have only their time."""
    numbers = any(map(is_json_number, entry.values()))
    return numbers and not isinstance(entry.get("m"), dict)


def _series_in(node: object) -> Iterator[_Series]:
    """Yield the series under ``node``: lists of [time, value], or times beside lists of values.

    Programs differ in the order of time and value in a point, and in the key names.
    """
    for below in node if isinstance(node, list) else ():
        yield from _series_in(below)
    if not isinstance(node, dict) or table_in(node):
        return
    found = False
    for table, known in _tables(node):
        # Byte counts may look like epoch seconds, but they rise less evenly.
        timed = (column for *_, column in table if _are_times(column))
        times = known or min(timed, key=_unevenness, default=())
        for owner, key, column in table:
            if column is not times and len(column) == len(times):
                found = True
                values = ["nan" if number is None else str(number) for number in column]
                yield _labels(owner, key), list(map(str, times)), values
    for below in () if found else node.values():
        yield from _series_in(below)


def _tables(node: Object) -> Iterator[tuple[Sequence[_Column], _Values]]:
    """Yield the columns of each table in ``node``, and its times if they are known.

    A table is a list of points or of columns, or the columns are the values of ``node`` itself.
    """
    described = _described(node)
    if described:
        yield described, ()
        return
    sample = node.get("m")
    if isinstance(sample, dict) and is_json_number(node.get("t")):
        # Of a stored run: {"t": 1.0, "m": {...}}.
        numbers = {name: value for name, value in sample.items() if is_json_number(value)}
        yield [({"name": name}, "", [value]) for name, value in numbers.items()], [node["t"]]
        return
    of_metric = isinstance(node.get("metric"), dict)
    value = node.get("value")
    lists = {"value": [value]} if of_metric and isinstance(value, list) else node
    points = {key: below for key, below in lists.items() if _are_points(below, of_metric)}
    for key, below in points.items():
        columns = list(zip(*below, strict=True))
        table = [(node, key if len(points) > 1 else "", column) for column in columns]
        # Prometheus puts the time first.
        yield table, columns[0] if of_metric else ()
    if points:
        return
    plain = {k: v for k, v in node.items() if isinstance(v, list) and is_column(v)}
    named = (column for key, column in plain.items() if names_time(key.removesuffix("s")))
    times = next(filter(_are_times, named), [])
    yield [(node, key if times else "", column) for key, column in plain.items()], times


def _described(node: Object) -> list[_Column]:
    """Return the columns described by a list of objects beside them, one object per column.

    Grafana's data frames describe the times as well; Datadog's second API does not.
    """
    schema, data = node.get("schema"), node.get("data")
    if isinstance(schema, dict) and isinstance(data, dict):
        each, columns = schema.get("fields"), data.get("values")
    else:
        each, columns = node.get("series"), node.get("values")
        if isinstance(each, list) and isinstance(columns, list):
            each, columns = [{}, *each], [node.get("times"), *columns]
    if not isinstance(each, list) or not isinstance(columns, list) or len(each) != len(columns):
        return []
    pairs = zip(each, columns, strict=True)
    return [
        (one, "", column) for one, column in pairs if isinstance(one, dict) and is_column(column)
    ]


def _are_points(points: object, of_metric: bool) -> TypeGuard[list[list[object]]]:
    """Return whether each point is a time and a value, in either order."""
    if not isinstance(points, list) or not points:
        return False
    pairs = all(is_column(point) and len(point) == 2 for point in points)
    return pairs and (of_metric or any(map(is_time, points[0])))


def _are_times(column: Sequence[object]) -> bool:
    """Return whether all are times and they differ; the bytes of a flat level are all the same."""
    return all(map(is_time, column)) and len(set(column)) > 1


def _unevenness(column: Sequence[object]) -> float:
    """Return how much the steps of a column vary, relative to the median step; 0 for dates."""
    if not all(map(is_json_number, column)) or len(column) < 3:
        return 0.0
    steps = np.diff(np.array(column, dtype=np.float64))
    return float(np.ptp(steps) / (abs(np.median(steps)) or 1.0))


def _labels(node: Object, key: str = "") -> dict[str, str]:
    """Return the labels of a series or a described column, including its name and unit.

    ``key`` is the name of its list, used if it has none of its own.
    """
    metric, of_labels, tags = node.get("metric"), node.get("labels"), node.get("group_tags")
    if isinstance(metric, dict):
        return {str(key): str(value) for key, value in metric.items()}
    found = {str(k): str(v) for k, v in of_labels.items()} if isinstance(of_labels, dict) else {}
    names = (found.get("__name__"), *map(node.get, ("metric", "Label", "target", "name")))
    name = next((one for one in names if one and isinstance(one, str)), "")
    if not name:
        found |= {label: text for label, text in node.items() if isinstance(text, str)}
    if not VALUE.fullmatch(key.removesuffix("s")):
        name = f"{name}.{key}".strip(".")
    if isinstance(node.get("scope"), str):
        found["scope"] = str(node["scope"])
    for number, tag in enumerate(tags if isinstance(tags, list) else ()):
        tag_key, colon, value = str(tag).partition(":")
        found[tag_key if colon else f"tag{number}"] = value if colon else tag_key
    if is_json_number(node.get("query_index")):
        found["query"] = str(node["query_index"])
    return {**found, "__name__": f"{name or 'value'}{_unit(node)}"}


def _unit(node: Object) -> str:
    units, config = node.get("unit"), node.get("config")
    if units is None and isinstance(config, dict):
        units = config.get("unit")
    first = units[0] if isinstance(units, list) and units else units
    return heading_unit(first.get("name") if isinstance(first, dict) else first)


def _labelled(found: Sequence[_Series]) -> Grid:
    """Build one row per point, named by its metric and the labels that differ."""
    keys = sorted({key for of_one, *_ in found for key in of_one if key != "__name__"})
    differ = [key for key in keys if len({of_one.get(key) for of_one, *_ in found}) > 1]
    rows: list[Row] = []
    nowhere = Line(0, "")
    for of_one, times, values in found:
        own = labels((key, of_one[key]) for key in differ if key in of_one)
        name = of_one.get("__name__", "value") + own
        rows += [(nowhere, [name, *point]) for point in zip(times, values, strict=True)]
    return Grid(["__name__", "time", "value"], rows, owners=["__name__"])


def _refuse_error(document: object, source: Source) -> None:
    """Refuse an error reply that a server sent instead of series."""
    if not isinstance(document, dict):
        return
    if document.get("status") == "error":
        said = document.get("error", "no reason given")
        raise source.wrong(f"Prometheus answered with an error: {said}.")
    data = document.get("data", document)
    kind = data.get("resultType") if isinstance(data, dict) else None
    if kind not in (None, "matrix"):
        raise source.wrong(f"holds a {kind}, not a range; {EXPORT}.")
    if kind == "matrix" and not data.get("result"):
        raise source.wrong(f"holds no series; {EXPORT}.")
