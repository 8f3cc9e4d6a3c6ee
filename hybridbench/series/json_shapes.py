"""Read series from JSON: records (a document, or one per line), labelled points, parallel lists.

Prometheus, CloudWatch, Datadog, Graphite, Grafana and InfluxDB each nest one of these shapes under
their own keys; the reader ignores which keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from hybridbench.foundation.foreign import ForeignDataError, json_value
from hybridbench.series.cells import is_number
from hybridbench.series.grid import Grid, RawColumn, table_of
from hybridbench.series.owners import labels
from hybridbench.series.source import Line, Source
from hybridbench.series.times import (
    BadTimeError,
    is_since_1970,
    looks_like_time,
    names_time,
    parse_times,
)
from hybridbench.series.units import usual_units

_SHOWN_CHARS = 40
_LISTS_MAX = 8
_EXPORT = (
    'give what /api/v1/query_range answers: {"status":"success","data":{"resultType":"matrix",'
    '"result":[...]}}'
)
_BETWEEN_OBJECTS = re.compile(r"(?<=\})\s*\n\s*(?=\{)")
# Units as CloudWatch and Datadog name them, mapped to the form used in column headings.
_UNITS = {
    "bytes": "bytes", "byte": "bytes", "kilobytes": "kB", "megabytes": "MB", "gigabytes": "GB",
    "kibibyte": "KiB", "mebibyte": "MiB", "gibibyte": "GiB", "percent": "%", "seconds": "s",
    "milliseconds": "ms", "second": "s", "millisecond": "ms",
}  # fmt: skip

Object = Mapping[str, object]
# The points of one series: its labels, then times and values as text.
_Series = tuple[Mapping[str, str], Sequence[str], Sequence[str]]


def json_table(text: str, lines: Sequence[Line], source: Source) -> list[RawColumn]:
    """Return the columns of a document, or of one object per line.

    Raises:
        ConfigError: the text is not JSON, or holds no series.
    """
    if len(lines) == 1 or not any(isinstance(_value(line.text), dict) for line in lines[:2]):
        try:
            return _document_table(json_value(text), source)
        except ForeignDataError as error:
            # jq in a loop prints each object over several lines.
            lines = [Line(n, part) for n, part in enumerate(_BETWEEN_OBJECTS.split(text), 1)]
            if len(lines) == 1 or _value(lines[0].text) is None:
                raise source.wrong(
                    f"starts like JSON and cannot be read: it {error}; give JSON "
                    "lines (one object a line) or an export of /api/v1/query_range."
                ) from error
    objects, lines = _objects(lines, source)
    if all(isinstance(entry.get("m"), dict) for entry in objects):
        return _labelled(list(_samples_of_run(objects)), source)
    found = list(_series_in(objects))
    if found and not any(_is_number(value) for entry in objects for value in entry.values()):
        return _labelled(found, source)
    return _records(objects, lines, source)


def _document_table(document: object, source: Source) -> list[RawColumn]:
    """Return the columns of one document, at any nesting."""
    _refuse_error(document, source)
    rows: Sequence[Object] | None = None
    if isinstance(document, dict):
        rows = _table_in(document) or _columns_in(document)
    if not rows:
        found = list(_series_in(document))
        if found:
            return _labelled(found, source)
        rows = max(_lists_in(document), key=len, default=None)
    if rows is None:
        raise source.wrong(f"holds no series; {_EXPORT}, or a list of objects.")
    return _records(rows, [Line(n, "") for n in range(1, len(rows) + 1)], source)


def _value(text: str) -> object:
    try:
        return json_value(text)
    except ForeignDataError:
        return None


def _objects(lines: Sequence[Line], source: Source) -> tuple[list[Object], list[Line]]:
    """Parse the object on each line; skip a few damaged lines."""
    parsed = [(line, _value(line.text)) for line in lines]
    good = [(line, value) for line, value in parsed if isinstance(value, dict)]
    bad = [line for line, value in parsed if not isinstance(value, dict)]
    shown = repr(bad[0].text.strip()[:_SHOWN_CHARS]) if bad else ""
    source.leave_out(
        [line.number for line in bad],
        [line.number for line in lines],
        "not a JSON object",
        f"not a JSON object: {shown}; write one object a line.",
        few=0,
    )
    return [value for _, value in good], [line for line, _ in good]


def _records(objects: Sequence[Object], lines: Sequence[Line], source: Source) -> list[RawColumn]:
    """Build one row per object; nested keys are joined with dots."""
    flat = [_flat(entry) for entry in objects]
    lists = sorted({key for entry in objects for key in entry if isinstance(entry[key], list)})
    if lists:
        source.notes.append(f"lists are not read: {', '.join(lists[:_LISTS_MAX])}")
    grid = Grid.of_records(list(zip(lines, flat, strict=True)))
    units = {entry.get("Unit", "").casefold() for entry in flat}
    unit = _UNITS.get(units.pop(), "") if len(units) == 1 else ""
    if unit:
        # CloudWatch repeats the unit in each row.
        numeric = {"Average", "Maximum", "Minimum", "Sum"}
        names = [f"{name} ({unit})" if name in numeric else name for name in grid.names]
        grid = replace(grid, names=names)
    return table_of(grid, source)


def _flat(entry: Object, prefix: str = "") -> dict[str, str]:
    """Flatten an object: leaves as text, keyed by dotted path; lists are skipped."""
    leaves: dict[str, str] = {}
    for key, value in entry.items():
        if isinstance(value, dict):
            leaves.update(_flat(value, f"{prefix}{key}."))
        elif not isinstance(value, list):
            leaves[f"{prefix}{key}"] = "" if value is None else str(value)
    return leaves


def _samples_of_run(objects: Sequence[Object]) -> Iterator[_Series]:
    """Yield the samples of a stored run: one ``{"t": 1.0, "m": {...}}`` per line."""
    for entry in objects:
        at, metrics = entry.get("t"), entry.get("m")
        if _is_number(at) and isinstance(metrics, dict):
            for name, value in metrics.items():
                if _is_number(value):
                    yield {"__name__": name}, [str(at)], [str(value)]


def _lists_in(node: object) -> Iterator[Sequence[Object]]:
    """Yield the lists of objects that hold numbers, and InfluxDB tables as lists of objects."""
    if isinstance(node, dict):
        table = _table_in(node) or _columns_in(node)
        if table:
            yield table
            return
        for value in node.values():
            yield from _lists_in(value)
    elif isinstance(node, list) and node and all(isinstance(entry, dict) for entry in node):
        if len(node) > 1 and any(_is_number(v) for entry in node for v in _flat(entry).values()):
            yield node
        for entry in node:
            yield from _lists_in(list(entry.values()))
    elif isinstance(node, list):
        for entry in node:
            if isinstance(entry, dict | list):
                yield from _lists_in(entry)


def _table_in(node: Object) -> Sequence[Object]:
    """Return the rows of an InfluxDB or pandas (``orient="split"``) table."""
    head = node.get("columns")
    body = node.get("values") or node.get("rows") or node.get("data")
    if not isinstance(head, list) or not isinstance(body, list):
        return []
    names = [str(c.get("name", c) if isinstance(c, dict) else c) for c in head]
    return [dict(zip(names, row, strict=False)) for row in body if isinstance(row, list)]


def _columns_in(node: Object) -> Sequence[Object]:
    """Return the rows of parallel columns: lists, or objects keyed by row as pandas writes them."""
    columns = dict(node)
    by_row = [one for one in columns.values() if isinstance(one, dict)]
    if (
        by_row
        and len(by_row) == len(columns)
        and all(one.keys() == by_row[0].keys() for one in by_row)
    ):
        columns = {name: list(one.values()) for name, one in zip(node, by_row, strict=True)}
        if all(map(_is_time, by_row[0])):
            columns = {"time": list(by_row[0]), **columns}
    lists = [one for one in columns.values() if isinstance(one, list) and _is_column(one)]
    same = len(lists) == len(columns) > 1 and len({len(one) for one in lists}) == 1
    if not same or not any(map(names_time, columns)):
        return []
    return [dict(zip(columns, row, strict=True)) for row in zip(*lists, strict=True)]


def _series_in(node: object) -> Iterator[_Series]:
    """Yield the series under ``node``: lists of [time, value], or times beside lists of values.

    Programs differ in the order of time and value in a point, and in the key names.
    """
    for below in node if isinstance(node, list) else ():
        yield from _series_in(below)
    if not isinstance(node, dict):
        return
    of_metric = isinstance(node.get("metric"), dict)
    value = node.get("value")
    lists = [[value]] if of_metric and isinstance(value, list) else list(node.values())
    tables = [list(zip(*points, strict=True)) for points in lists if _are_points(points, of_metric)]
    if not tables:
        plain = [column for column in node.values() if _is_column(column)]
        # Grafana nests a list of columns.
        frames = [v for v in node.values() if isinstance(v, list) and v and all(map(_is_column, v))]
        tables = [plain, *frames]
    found = False
    for table in tables:
        # Byte counts may look like epoch seconds, but they rise less evenly.
        dated = [column for column in table if all(map(_is_time, column))]
        times = min(dated, key=_unevenness, default=None)
        if times is None and of_metric and table:
            times = table[0]
        for column in table:
            if times is not None and column is not times and len(column) == len(times):
                found = True
                values = ["nan" if number is None else str(number) for number in column]
                yield _labels(node), list(map(str, times)), values
    for below in () if found else node.values():
        yield from _series_in(below)


def _are_points(points: object, of_metric: bool) -> bool:
    """Return whether each point is a time and a value, in either order."""
    if not isinstance(points, list) or not points:
        return False
    pairs = all(_is_column(point) and len(point) == 2 for point in points)
    return pairs and (of_metric or any(map(_is_time, points[0])))


def _unevenness(column: Sequence[object]) -> float:
    """Return how much the steps of a column vary, relative to the median step; 0 for dates."""
    if not all(map(_is_number, column)) or len(column) < 3:
        return 0.0
    steps = np.diff(np.array(column, dtype=np.float64))
    return float(np.ptp(steps) / (abs(np.median(steps)) or 1.0))


def _is_column(values: object) -> bool:
    """Return whether ``values`` is a list of two or more numbers, times or gaps."""
    if not isinstance(values, list) or len(values) < 2:
        return False
    return all(v is None or _is_number(v) or looks_like_time(str(v)) for v in values)


def _is_number(value: object) -> bool:
    return not isinstance(value, bool | list | dict) and is_number(str(value))


def _is_time(value: object) -> bool:
    text = str(value)
    return looks_like_time(text) or (_is_number(value) and is_since_1970([text]))


def _labels(node: Object) -> dict[str, str]:
    metric = node.get("metric")
    if isinstance(metric, dict):
        return {str(key): str(value) for key, value in metric.items()}
    name = next(
        (node[k] for k in ("metric", "Label", "target", "name") if isinstance(node.get(k), str)),
        "value",
    )
    found = {"__name__": f"{name}{_unit(node)}"}
    if isinstance(node.get("scope"), str):
        found["scope"] = str(node["scope"])
    return found


def _unit(node: Object) -> str:
    units = node.get("unit")
    first = units[0] if isinstance(units, list) and units else units
    name = first.get("name") if isinstance(first, dict) else first
    unit = _UNITS.get(str(name).casefold(), "")
    return f" ({unit})" if unit else ""


def _labelled(found: Sequence[_Series], source: Source) -> list[RawColumn]:
    """Build one column per set of labels, each with its own times."""
    source.check_has_times()
    merged: dict[tuple[tuple[str, str], ...], tuple[list[str], list[str]]] = {}
    for of_one, times, values in found:
        whole = merged.setdefault(tuple(sorted(of_one.items())), ([], []))
        whole[0].extend(times)
        whole[1].extend(values)
    # Name each column by its metric and the labels that differ between series.
    every = [dict(key) for key in merged]
    keys = sorted({key for one in every for key in one if key != "__name__"})
    differ = [key for key in keys if len({one.get(key) for one in every}) > 1]
    names = [
        one.get("__name__", "value") + labels((key, one[key]) for key in differ if key in one)
        for one in every
    ]
    usual = usual_units(names, of_tool=False)
    columns = []
    for group, (name, (times, values)) in enumerate(zip(names, merged.values(), strict=True)):
        try:
            value, at = np.array(values, dtype=np.float64), parse_times(times)
        except (ValueError, BadTimeError) as error:
            raise source.wrong(
                f'series {name} has a value that is not a [time, "number"] pair ({error}).'
            ) from error
        value[~np.isfinite(value)] = np.nan
        unit = usual.get(name, "")
        columns.append(RawColumn(name, at.t_s, value, at.absolute, group, usual_unit=unit))
    return [column for column in columns if column.t_s.size > 0]


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
        raise source.wrong(f"holds a {kind}, not a range; {_EXPORT}.")
    if kind == "matrix" and not data.get("result"):
        raise source.wrong(f"holds no series; {_EXPORT}.")
