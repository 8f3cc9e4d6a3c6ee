"""Series in JSON: objects (flat, or samples of a run), or a Prometheus range export."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hybridbench.errors import ConfigError
from hybridbench.foreign import ForeignDataError, json_value
from hybridbench.series.owners import labels
from hybridbench.series.table import (
    Grid,
    RawColumn,
    RawTable,
    TableOptions,
    table_of,
)
from hybridbench.series.times import scaled

_SHOWN_CHARS = 40
_LISTS_MAX = 8
_EXPORT = (
    'give what /api/v1/query_range answers: {"status":"success","data":{"resultType":"matrix",'
    '"result":[...]}}'
)


def json_lines(text: str, options: TableOptions) -> RawTable:
    """One object a line; the samples of a run (``{"t": 1.0, "m": {...}}``) are taken apart."""
    notes: list[str] = []
    objects: list[Mapping[str, object]] = []
    numbers: list[int] = []
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        parsed = _object(line)
        if parsed is not None:
            objects.append(parsed)
            numbers.append(number)
        elif number >= len(lines) - 1 or not "".join(lines[number:]).strip():
            notes.append(f"the last line ({number}) is cut short: left out")
        else:
            raise ConfigError(
                f"{options.source}:{number}: not a JSON object: {line.strip()[:_SHOWN_CHARS]!r}; "
                "write one object a line."
            )
    if objects and all(isinstance(entry.get("m"), dict) for entry in objects):
        return _samples(objects, notes)
    return _records(objects, numbers, options, notes)


def json_document(document: object, options: TableOptions) -> RawTable:
    """A list of objects (pandas, CloudWatch's Datapoints), or a Prometheus range export."""
    lists = list(document.values()) if isinstance(document, dict) else [document]
    for found in lists:
        if isinstance(found, list) and found and all(map(_is_record, found)):
            return _records(found, range(1, len(found) + 1), options, [])
    return _prometheus(document, options)


def _is_record(entry: object) -> bool:
    return isinstance(entry, Mapping) and not {"metric", "value", "values"} >= set(entry)


def _records(
    objects: Sequence[Mapping[str, object]],
    numbers: Sequence[int],
    options: TableOptions,
    notes: list[str],
) -> RawTable:
    # Keys in the order of their first coming; a line need not have them all.
    names = list(dict.fromkeys(key for entry in objects for key in _flat(entry)))
    lists = sorted({key for entry in objects for key in entry if isinstance(entry[key], list)})
    if lists:
        notes.append(f"lists are not read: {', '.join(lists[:_LISTS_MAX])}")
    rows = []
    for entry in objects:
        flat = _flat(entry)
        rows.append([flat.get(name, "") for name in names])
    return table_of(Grid(names, rows, numbers), options, notes)


def _prometheus(document: object, options: TableOptions) -> RawTable:
    """A range export: one column for each labelled series, each with times of its own."""
    result = _result(document, options)
    names = _names([_labels(entry) for entry in result])
    columns = []
    for index, (entry, name) in enumerate(zip(result, names, strict=True)):
        values = entry.get("values") if isinstance(entry, Mapping) else None
        if not isinstance(values, list):
            raise ConfigError(
                f"{options.source}: result {index} ({name}) has no list of values; {_EXPORT}."
            )
        columns.append(_range(index, name, values, options))
    return RawTable([column for column in columns if column.t_s.size], [])


def _object(line: str) -> Mapping[str, object] | None:
    try:
        parsed = json_value(line)
    except ForeignDataError:
        return None
    return parsed if isinstance(parsed, dict) else None


def _flat(entry: Mapping[str, object], prefix: str = "") -> dict[str, str]:
    """Leaves by their dotted path, as text; lists are left out."""
    leaves: dict[str, str] = {}
    for key, value in entry.items():
        if isinstance(value, dict):
            leaves.update(_flat(value, f"{prefix}{key}."))
        elif not isinstance(value, list):
            leaves[f"{prefix}{key}"] = "" if value is None else str(value)
    return leaves


def _samples(objects: Sequence[Mapping[str, object]], notes: list[str]) -> RawTable:
    times: dict[str, list[float]] = {}
    values: dict[str, list[float]] = {}
    for entry in objects:
        at, metrics = entry.get("t"), entry.get("m")
        if not isinstance(at, int | float) or not isinstance(metrics, dict):
            continue
        for name, value in metrics.items():
            if isinstance(value, int | float):
                times.setdefault(name, []).append(float(at))
                values.setdefault(name, []).append(float(value))
    columns = [
        RawColumn(name, np.array(times[name]), np.array(values[name]), absolute=False, group=index)
        for index, name in enumerate(times)
    ]
    return RawTable(columns, notes)


def _result(document: object, options: TableOptions) -> list[object]:
    found = document
    if isinstance(document, dict):
        if document.get("status") == "error":
            said = document.get("error", "no reason given")
            raise ConfigError(f"{options.source}: Prometheus answered with an error: {said}.")
        data = document.get("data", document)
        kind = data.get("resultType") if isinstance(data, dict) else None
        if kind not in (None, "matrix"):
            raise ConfigError(f"{options.source}: holds a {kind}, not a range; {_EXPORT}.")
        found = data.get("result") if isinstance(data, dict) else None
    if not isinstance(found, list) or not found:
        raise ConfigError(f"{options.source}: holds no series; {_EXPORT}.")
    return found


def _labels(entry: object) -> dict[str, str]:
    metric = entry.get("metric") if isinstance(entry, Mapping) else None
    return {str(k): str(v) for k, v in metric.items()} if isinstance(metric, Mapping) else {}


def _names(series: Sequence[Mapping[str, str]]) -> list[str]:
    """The metric's name with the labels that tell the series apart."""
    keys = sorted({key for one in series for key in one if key != "__name__"})
    differ = [key for key in keys if len({one.get(key) for one in series}) > 1]
    return [
        one.get("__name__", "value") + labels((key, one[key]) for key in differ if key in one)
        for one in series
    ]


def _pair(entry: object) -> tuple[float, float]:
    if not isinstance(entry, Sequence) or isinstance(entry, str) or len(entry) != 2:
        raise ValueError(f"{entry!r}")
    return float(entry[0]), float(entry[1])


def _range(index: int, name: str, values: list[object], options: TableOptions) -> RawColumn:
    try:
        numbers = np.array([_pair(entry) for entry in values], dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f'{options.source}: series {name} has a value that is not a [time, "number"] pair '
            f"({error})."
        ) from error
    numbers = numbers.reshape(-1, 2)
    value = numbers[:, 1]
    value[~np.isfinite(value)] = np.nan
    times = scaled(numbers[:, 0])
    return RawColumn(name, times.t_s, value, times.absolute, group=index)
