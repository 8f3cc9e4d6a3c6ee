"""Read the samples of a JSON document from its lists of objects, whatever they are nested in.

Monitoring services answer with a list of points inside a list of series (Google Cloud, Azure,
OpenTSDB, Elasticsearch), exporters with a list of containers or devices inside each sample.  The
text around a list identifies the owner of its points.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from hybridbench.series.cells import is_number, number_in
from hybridbench.series.grid import METRIC_NAME, Grid
from hybridbench.series.source import Line, Source
from hybridbench.series.times import is_since_1970, looks_like_time, names_epoch, names_time
from hybridbench.series.units import SERVICE_UNITS, heading_unit, is_memory

_SHOWN_MAX = 8
_SAMPLES_LEAST = 10  # prefer lists with at least this many objects with times
EXPORT = (
    'give what /api/v1/query_range answers: {"status":"success","data":{"resultType":"matrix",'
    '"result":[...]}}'
)
# CloudWatch and Azure write the unit of these columns once, or in every row.
_STATISTICS = frozenset({"average", "maximum", "minimum", "sum", "total"})
# What exporters write beside a value: flag "c" of Varnish, type "counter" of OpenMetrics.
_KINDS, _COUNTERS = ("flag", "type", "kind"), {"c", "counter", "Counter", "COUNTER"}
# The two keys of an attribute, joined by a space.
_PAIR = re.compile(r"(key|name)\S* value\S*")

Object = Mapping[str, object]


@dataclass(frozen=True)
class ObjectList:
    """A list of objects, with its path, the text fields around it by key, and its line."""

    path: str
    around: Mapping[str, str]
    objects: Sequence[Object]
    line: Line

    @cached_property
    def rows(self) -> Sequence[Mapping[str, str]]:
        """The leaves of each object as text, by dotted path."""
        return [_leaves(one) for one in self.objects]

    @property
    def has_numbers(self) -> bool:
        """Whether an object has a number that is not a time."""
        cells = (cell for row in self.rows for cell in row.items())
        texts = (text.replace(",", "") for key, text in cells if not _is_moment(key, text))
        return any(number_in(text) is not None for text in texts)

    @property
    def has_memory(self) -> bool:
        """Whether the first object has a number with a name for memory."""
        cells = self.rows[0].items()
        return any(is_memory(name) and number_in(text) is not None for name, text in cells)

    @property
    def has_names(self) -> bool:
        """Whether a text tells all objects apart; if none does, their place has to."""
        names = (key for key, text in self.rows[0].items() if not is_number(text))
        return any(len({row.get(key) for row in self.rows}) == len(self.rows) for key in names)

    @property
    def is_dated(self) -> bool:
        """Whether a field around the list is a time."""
        return any(_is_moment(*cell) for cell in self.around.items())

    def has_time(self, chosen: str | None) -> bool:
        """Return whether the first object has a time; ``chosen`` is the user's time column."""
        first, name = self.rows[0], (chosen or "").casefold()
        names = name, name.rpartition(":")[0]
        return any(_is_moment(k, text) or k.casefold() in names for k, text in first.items())


def lists_in(
    node: object, line: Line, path: str = "", around: Mapping[str, str] | None = None
) -> Iterator[ObjectList]:
    """Yield the lists of objects at and under ``node``, and tables as lists of objects."""
    around = around or {}
    if isinstance(node, dict):
        own = {key: text for key, text in _leaves(node).items() if _says_whose(key, text)}
        for _, end in _ends(node):
            own |= _attributes(end)
        around = {f"parent.{key}" if key in own else key: around[key] for key in around} | own
        table = table_in(node)
        if table:
            yield ObjectList(path, around, table, line)
            return
        for key, below in node.items():
            yield from lists_in(below, line, f"{path}.{key}" if path else key, around)
    elif isinstance(node, list):
        # Netdata's csvjsonarray and spreadsheets: a list of names, then lists of cells.
        if len(node) > 2 and isinstance(node[0], list) and names_time(str(*node[0][:1])):
            node = rows_below_heading({"columns": node[0], "rows": node[1:]})
        whole = [_with_its_numbers(e) if isinstance(e, dict) else e for e in node]
        objects = [entry for entry in whole if isinstance(entry, dict) and not table_in(entry)]
        if objects and len(objects) == len(node) and not _attributes(node):
            yield ObjectList(path, around, objects, line)
        for entry in whole:
            below = entry.values() if isinstance(entry, dict) else ()
            if isinstance(entry, list) or any(isinstance(one, list | dict) for one in below):
                yield from lists_in(entry, line, path, around)


def records(found: Iterable[ObjectList], source: Source) -> list[Grid]:
    """Build one row per object of the lists that hold the samples.

    Raises:
        ConfigError: no list holds numbers.
    """
    tables: dict[str, list[ObjectList]] = {}
    for one in found:
        tables.setdefault(one.path, []).append(one)
    tables = {path: lists for path, lists in tables.items() if any(o.has_numbers for o in lists)}
    if not tables:
        raise source.wrong(f"holds no series; {EXPORT}, or a list of objects.")
    chosen = _of_samples(tables, source)
    grids = []
    for paths in chosen:
        lists = [one for path in paths for one in tables[path]]
        if len(paths) > 1:
            lists = [replace(one, around={**one.around, "series": one.path}) for one in lists]
        before = f"{paths[0]}." if len(chosen) > 1 and paths[0] else ""
        grids.append(replace(_with_counters(_grid(lists)), before=before))
    _note_unread(tables, {path for paths in chosen for path in paths}, source)
    return grids


def _with_counters(grid: Grid) -> Grid:
    """Mark the values that a flag or a type beside them declares counters, as varnishstat does."""
    kinds = {c.name for c in grid.columns if set(c.cells) - {""} <= _COUNTERS and any(c.cells)}
    counts = (n for n in grid.names if any(n.removesuffix("value") + k in kinds for k in _KINDS))
    return replace(grid, counters=frozenset(counts))


def _note_unread(
    tables: Mapping[str, Sequence[ObjectList]], read: Collection[str], source: Source
) -> None:
    unread = {path for path in tables if path not in read}
    for path in read:
        ends = (end for one in tables[path] for each in one.objects for end in _ends(each))
        for name in {name for name, end in ends if isinstance(end, list) and not _attributes(end)}:
            whole = f"{path}.{name}" if path else name
            if not any(f"{other}.".startswith(f"{whole}.") for other in read):
                unread.add(name)
    if "" in unread:
        source.notes.append("numbers around the lists are not read")
    if unread - {""}:
        source.notes.append(f"lists are not read: {', '.join(sorted(unread - {''})[:_SHOWN_MAX])}")


def _of_samples(tables: Mapping[str, Sequence[ObjectList]], source: Source) -> list[list[str]]:
    """Return the paths of the lists that hold the samples, grouped by table.

    They are the lists whose objects have times of their own, or the longest one.
    """
    counts = {path: sum(len(one.objects) for one in lists) for path, lists in tables.items()}
    timed = [path for path in tables if tables[path][0].has_time(source.time_column)]
    chosen = {path for path in timed if counts[path] >= _SAMPLES_LEAST}
    if not chosen:
        # A list inside each sample, such as that of its disks, does not replace the sample.
        dated = {path for path, lists in tables.items() if path in timed or lists[0].is_dated}
        chosen = {max(tables, key=lambda path: (path in dated, not path, counts[path]))}
    # The processes or devices inside each sample may leak while the sample's own numbers do not.
    chosen |= {path for path, lists in tables.items() if lists[0].is_dated and lists[0].has_memory}
    # Lists with the same keys are one table, as in {"gpu0": [...], "gpu1": [...]}.
    alike: dict[frozenset[str], list[str]] = {}
    for path, lists in tables.items():
        alike.setdefault(frozenset(lists[0].rows[0]), []).append(path)
    return [paths for paths in alike.values() if not chosen.isdisjoint(paths)]


def _grid(lists: Sequence[ObjectList]) -> Grid:
    """Build one row per object; the text around its list gives the owner or the metric's name."""
    texts: dict[str, set[str]] = {}
    for one in lists:
        for key, text in one.around.items():
            texts.setdefault(key, set()).add(text)
    kept = [
        key
        for key, different in texts.items()
        if len(different) > 1 or key.lower() == "unit" or METRIC_NAME.fullmatch(key)
    ]
    own = {name for one in lists for row in one.rows for name in row}
    names = {key: f"parent.{key}" if key in own else key for key in kept}
    every = []
    for one in lists:
        around = {names[key]: one.around.get(key, "") for key in kept}
        if "unit" in around:
            around["unit"] = SERVICE_UNITS.get(around["unit"].casefold(), around["unit"])
        for place, row in enumerate(one.rows):
            index = {"index": str(place)} if one.is_dated and not one.has_names else {}
            every.append((one.line, {**around, **index, **row}))
    if len({line.number for line, _ in every}) == 1:
        # A document counts as one line, so number its rows instead.
        every = [(Line(number, ""), row) for number, (_, row) in enumerate(every, 1)]
    grid = Grid.of_records(every)
    owners = [names[k] for k in kept if len(texts[k]) > 1 and not _is_moment(k, min(texts[k]))]
    units = {row.get("Unit") or row.get("unit", "") for _, row in every}
    unit = heading_unit(units.pop()) if len(units) == 1 else ""
    headings = [f"{name}{unit}" if name.lower() in _STATISTICS else name for name in grid.names]
    return replace(grid, names=headings, owners=owners)


def table_in(node: Object) -> Sequence[Object]:
    """Return the rows of a table that is not a list of objects; empty if ``node`` is not one.

    These are a heading beside rows (InfluxDB, pandas ``orient="split"``, Netdata, ClickHouse),
    values by time (OpenTSDB), and parallel columns.
    """
    rows = {k: {"value": v} if is_json_number(v) else v for k, v in node.items()}
    by_time = len(node) > 1 and all(k[:1].isdigit() and is_time(k) for k in node)
    if by_time and all(isinstance(row, dict) for row in rows.values()):
        return [{"time": k, **row} for k, row in rows.items() if isinstance(row, dict)]
    return rows_below_heading(node) or _columns_in(node)


def rows_below_heading(node: Object) -> Sequence[Object]:
    """Return the rows of a table given as a list of names and a list of rows; else empty."""
    head = next((node[k] for k in ("columns", "labels", "meta") if k in node), None)
    bodies = (node.get(key) for key in ("values", "rows", "data"))
    body = next((one for one in bodies if isinstance(one, list)), None)
    if not isinstance(head, list) or body is None:
        return []
    names = [str(c.get("name", c) if isinstance(c, dict) else c) for c in head]
    return [dict(zip(names, row, strict=False)) for row in body if isinstance(row, list)]


def _columns_in(node: Object) -> Sequence[Object]:
    """Return the rows of parallel columns: lists, or objects keyed by row as pandas writes them."""
    columns = dict(node)
    by_row = [one for one in columns.values() if isinstance(one, dict)]
    alike = all(one.keys() == by_row[0].keys() for one in by_row)
    if by_row and len(by_row) == len(columns) and alike:
        columns = {name: list(one.values()) for name, one in zip(node, by_row, strict=True)}
        if all(map(is_time, by_row[0])):
            columns = {"time": list(by_row[0]), **columns}
    lists = [one for one in columns.values() if isinstance(one, list) and is_column(one)]
    same = len(lists) == len(columns) > 1 and len({len(one) for one in lists}) == 1
    if not same or not any(map(names_time, columns)):
        return []
    return [dict(zip(columns, row, strict=True)) for row in zip(*lists, strict=True)]


def is_column(values: object) -> bool:
    """Return whether ``values`` is a list of two or more numbers, times or gaps."""
    if not isinstance(values, list) or len(values) < 2:
        return False
    return all(v is None or is_json_number(v) or looks_like_time(str(v)) for v in values)


def is_json_number(value: object) -> bool:
    """Return whether a JSON value is a number, or text that is one."""
    return not isinstance(value, bool | list | dict) and is_number(str(value))


def is_time(value: object) -> bool:
    """Return whether a JSON value is a date, or a number large enough to be an epoch time."""
    text = str(value)
    return looks_like_time(text) or (is_json_number(value) and is_since_1970([text]))


def _ends(entry: Object, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield the values inside an object that are not objects, by dotted path; skip tables."""
    for key, value in entry.items():
        if isinstance(value, list) and is_memory(key) and is_column(value):
            # One number for each device or worker.
            yield from ((f'{prefix}{key}{{index="{i}"}}', one) for i, one in enumerate(value))
        elif not isinstance(value, dict):
            yield f"{prefix}{key}", value
        elif value.keys() == {"value", "unit"} and is_json_number(value["value"]):
            yield f"{prefix}{key}", f"{value['value']} {value['unit']}"
        elif not table_in(value):
            yield from _ends(value, f"{prefix}{key}.")


def _leaves(entry: Object) -> dict[str, str]:
    """Return the leaves of an object as text, by dotted path; lists give only attributes."""
    found: dict[str, str] = {}
    for path, end in _ends(entry):
        found |= (
            _attributes(end) if isinstance(end, list) else {path: "" if end is None else str(end)}
        )
    return found


def _attributes(end: object) -> dict[str, str]:
    """Return a list of attributes, such as [{"key": "pid", "value": {"intValue": 42}}], as a dict.

    Empty for anything else: a plain number beside a name is a reading, not an attribute.
    """
    found: dict[str, str] = {}
    for one in end if isinstance(end, list) else ():
        leaves = _leaves(one) if isinstance(one, dict) else {}
        if not _PAIR.fullmatch(" ".join(leaves)) or is_number(leaves.get("value", "")):
            return {}
        name, text = leaves.values()
        found[name] = text
    return found


def _with_its_numbers(entry: Object) -> Object:
    """Move numbers from a sample's lists into the sample; keep lists with texts or shared names.

    New Relic writes one object for each function of a query, beside the time of the sample.
    """
    lists = {key: value for key, value in entry.items() if isinstance(value, list)}
    if not lists or not any(_is_moment(*leaf) for leaf in _leaves(entry).items()):
        return entry
    whole = dict(entry)
    for key, value in lists.items():
        objects = value if all(isinstance(one, dict) for one in value) else []
        numbers = {name: number for one in objects for name, number in one.items()}
        apart = len(numbers) == sum(map(len, objects)) and whole.keys().isdisjoint(numbers)
        if apart and all(is_json_number(v) and not names_time(n) for n, v in numbers.items()):
            whole = {k: v for k, v in whole.items() if k != key or not numbers} | numbers
    return whole


def _is_moment(key: str, text: str) -> bool:
    name = key.rpartition(".")[2]
    of_epoch = names_epoch(name) and is_number(text) and is_since_1970([text])
    return looks_like_time(text) or names_time(name) or of_epoch


def _says_whose(key: str, text: str) -> bool:
    """Return whether a leaf around a list may give its owner, or the time of its recording."""
    return _is_moment(key, text) or not (text in ("", "True", "False") or is_number(text))
