"""Turn parsed YAML into a checked record; every fault in the file becomes one sentence."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from hybridbench.foundation.errors import ConfigError, full_stop, nearest
from hybridbench.foundation.units import format_bytes, parse_bytes
from hybridbench.workload.yaml_source import KeyPath, Source, dotted_path

T = TypeVar("T")

JsonSchema = dict[str, Any]

_FAULTS_SHOWN = 20


@dataclass(frozen=True)
class KeyFault:
    """An invalid key.

    Attributes:
        path: path of the key.
        fault: "unknown_key", "malformed", "conflict" (with another key), or pydantic's type error.
        sentence: what is wrong, without the place.
    """

    path: KeyPath
    fault: str
    sentence: str


class KeyFaultError(ConfigError):
    """Invalid keys; the attributes are those of the first.

    Attributes:
        place: file and line.
        key: dotted, as ``--set`` takes it.
        fault: the kind of fault.
    """

    def __init__(self, source: Source, faults: Sequence[KeyFault]) -> None:
        first = faults[0]
        self.place = source.place(first.path)
        self.key = dotted_path(first.path)
        self.fault = first.fault
        sentences = [
            full_stop(f"{source.place(fault.path)}: {fault.sentence}")
            for fault in faults[:_FAULTS_SHOWN]
        ]
        if len(faults) > _FAULTS_SHOWN:
            more = len(faults) - _FAULTS_SHOWN
            sentences.append(f"{source.place(())}: {more} more faults follow.")
        self._sentences = tuple(dict.fromkeys(sentences))
        super().__init__(" ".join(self._sentences))

    @property
    def sentences(self) -> tuple[str, ...]:
        """One sentence per fault, in the order of the file."""
        return self._sentences


def validated(adapter: TypeAdapter[T], source: Source) -> T:
    """Convert ``source`` to what ``adapter`` describes.

    Raises:
        KeyFaultError: every fault in the order of the file: place, key path, and what is expected.
    """
    try:
        return adapter.validate_python(source.data)
    except ValidationError as error:
        every = error.errors(include_url=False)
        # A misspelt key also makes the right one missing: report only the spelling.
        unknown = [_path(f) for f in every if f["type"] == "unexpected_keyword_argument"]
        faults = sorted(
            (f for f in every if f["type"] != "missing" or not _misspelt(_path(f), unknown)),
            key=lambda fault: (fault["type"] == "missing", source.line(_path(fault))),
        )
        schema: JsonSchema = adapter.json_schema(by_alias=True)
        found = [
            KeyFault(_path(f), _CODES.get(f["type"], f["type"]), _sentence(f, schema))
            for f in faults
        ]
        # Keep the values of valid keys out of the traceback as well as out of the sentences.
        raise KeyFaultError(source, found) from None


def _misspelt(missing: KeyPath, unknown: Sequence[KeyPath]) -> bool:
    """Whether an unknown key next to ``missing`` is probably a misspelling of it."""
    beside = [str(path[-1]) for path in unknown if path[:-1] == missing[:-1]]
    return bool(difflib.get_close_matches(str(missing[-1]), beside, n=1, cutoff=0.6))


def _path(fault: ErrorDetails) -> KeyPath:
    return tuple(fault["loc"])


def _sentence(fault: ErrorDetails, schema: JsonSchema) -> str:
    path = _path(fault)
    dotted = dotted_path(path)
    kind = fault["type"]
    if kind == "unexpected_keyword_argument":
        parent = dotted_path(path[:-1])
        where = f"{parent}: " if parent else ""
        keys = _keys(schema, path[:-1])
        return f"{where}unknown key {path[-1]}; {nearest(str(path[-1]), keys)}"
    if kind == "missing":
        return f"{dotted} is missing"
    if kind == "dataclass_type":
        known = ", ".join(_keys(schema, path))
        return f"{dotted}: must hold keys ({known}), not {_shown(fault['input'])}"
    return f"{dotted}: {complaint(fault)}"


def complaint(fault: ErrorDetails) -> str:
    """Return what is wrong with a value, as the end of a sentence that begins with its name."""
    kind, value = fault["type"], fault["input"]
    context = fault.get("ctx", {})
    if kind == "value_error":
        return str(context["error"])
    if kind in _WANTED:
        return f"must be {_WANTED[kind]}, not {_shown(value)}"
    if kind in _BOUNDS:
        word, key = _BOUNDS[kind]
        return f"must be {word} {_bound(context[key], value)}, not {_shown(value)}"
    if kind == "literal_error":
        choices = str(context["expected"]).replace("'", "")
        return f"must be {choices}, not {_shown(value)}"
    message = fault["msg"]
    return message[:1].lower() + message[1:]


def _bound(bound: float, value: object) -> str:
    """Format ``bound`` like ``value``: in bytes if that is a size, else as a number."""
    # On a command line a number is text as well, but a size has a unit.
    try:
        parse_bytes(str(value))
    except ValueError:
        return str(bound)
    return format_bytes(bound)


_CODES = {"unexpected_keyword_argument": "unknown_key", "value_error": "malformed"}
_WANTED = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "float_parsing": "a number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "text",
    "string_pattern_mismatch": "lower-case letters, digits, dots and dashes",
    "tuple_type": "a list",
    "mapping_type": "a mapping of names to values",
}
_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("more than", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("less than", "lt"),
}


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _keys(schema: JsonSchema, path: KeyPath) -> list[str]:
    """Return the valid keys of the mapping at ``path``."""
    here = _resolve(schema, schema)
    for step in path:
        if isinstance(step, int):
            here = _resolve(here.get("items", {}), schema)
        else:
            below = here.get("properties", {}).get(step, here.get("additionalProperties", {}))
            here = _resolve(below if isinstance(below, dict) else {}, schema)
    return list(here.get("properties", {}))


def _resolve(node: JsonSchema, schema: JsonSchema) -> JsonSchema:
    for choice in node.get("anyOf", ()):
        resolved = _resolve(choice, schema)
        if "properties" in resolved:
            return resolved
    if "$ref" in node:
        name = str(node["$ref"]).rsplit("/", 1)[-1]
        return cast("JsonSchema", schema["$defs"][name])
    return node
