"""Records as JSON and back.

JSON has neither NaN nor infinity: both are stored as null.  Where a record wants a number, null
comes back as NaN, or as what the field's own type names (``LowerEnd``: minus infinity).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache
from types import GenericAlias, NoneType, UnionType
from typing import TypeVar, Union, cast, get_args, get_origin

import msgspec

from hybridbench.records.json_value import JsonValue, plain_mapping

NAN = float("nan")

_Record = TypeVar("_Record")
_Named = TypeVar("_Named", bound=msgspec.Struct)
_Key = TypeVar("_Key")


class OpenRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A record that keeps the keys of a later version, and gives them back where it is stored."""

    unknown: Mapping[str, JsonValue] = {}


def to_json(record: object) -> dict[str, JsonValue]:
    """``record`` in dicts, lists and finite numbers."""
    plain = msgspec.to_builtins(record, enc_hook=_number)
    return plain_mapping(cast("dict[str, JsonValue]", plain))


def from_json(stored: Mapping[str, JsonValue], kind: type[_Record]) -> _Record:
    """The record of ``kind`` that ``to_json`` wrote; unknown keys are those of a later version.

    Raises:
        msgspec.ValidationError: a key is missing or of another type.
    """
    return msgspec.convert(_restored(stored, msgspec.inspect.type_info(kind)), kind)


def by_name(record: msgspec.Struct) -> dict[str, JsonValue]:
    """``record`` with its fields by name, also where the wire has them in an array."""
    stored = {
        stored_name: _by_name(value)
        for stored_name, value in zip(
            record.__struct_encode_fields__, msgspec.structs.astuple(record), strict=True
        )
    }
    if isinstance(record, OpenRecord):
        del stored["unknown"]
        stored |= record.unknown
    return stored


def of_names(stored: Mapping[str, JsonValue], kind: type[_Named]) -> _Named:
    """The record of ``kind`` that ``by_name`` made; all its fields have defaults.

    What an older version did not store, or stored in another form, has its default; of a list or a
    mapping, the items that can be read are kept.
    """
    known: dict[str, object] = {}
    for name, stored_name, of in _fields(kind):
        if stored_name in stored:
            with contextlib.suppress(msgspec.ValidationError):
                known[name] = _of_names(stored[stored_name], of)
    if issubclass(kind, OpenRecord):
        own = kind.__struct_encode_fields__
        known["unknown"] = {key: value for key, value in stored.items() if key not in own}
    return kind(**known)


def _by_name(value: object) -> JsonValue:
    if isinstance(value, msgspec.Struct):
        return by_name(value)
    if is_dataclass(value):
        return {name: _by_name(part) for name, part in vars(value).items()}
    if isinstance(value, list | tuple):
        return [_by_name(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _by_name(item) for key, item in value.items()}
    return cast("JsonValue", value)


@cache
def _fields(kind: type[msgspec.Struct]) -> tuple[tuple[str, str, type], ...]:
    """Name, stored name and type of each field."""
    fields = msgspec.structs.fields(kind)
    return tuple((field.name, field.encode_name, field.type) for field in fields)


@cache
def _has_records(kind: type | GenericAlias) -> bool:
    """Whether ``kind`` is a record, or a container of some."""
    if isinstance(kind, type) and get_origin(kind) is None:
        return issubclass(kind, msgspec.Struct)
    return any(_has_records(of) for of in get_args(kind))


@cache
def _without_none(kind: type | GenericAlias) -> type | GenericAlias:
    """``kind`` without its ``None``, where one other type is left."""
    inner = [one for one in get_args(kind) if one is not NoneType]
    return inner[0] if get_origin(kind) in (Union, UnionType) and len(inner) == 1 else kind


def _of_names(stored: JsonValue, kind: type | GenericAlias) -> object:
    if stored is None:
        return msgspec.convert(stored, kind)
    kind = _without_none(kind)
    if not _has_records(kind):
        with contextlib.suppress(msgspec.ValidationError):
            return msgspec.convert(stored, kind)
    if isinstance(stored, Mapping) and isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return of_names(stored, kind)
    of = get_args(kind)
    if isinstance(stored, Mapping) and get_origin(kind) in (dict, Mapping):
        return dict(_readable(stored.items(), of[1]))
    if isinstance(stored, Sequence) and not isinstance(stored, str):
        if get_origin(kind) is list:
            return [item for _, item in _readable(enumerate(stored), of[0])]
        if get_origin(kind) is tuple and of[-1] is Ellipsis:
            return tuple(item for _, item in _readable(enumerate(stored), of[0]))
    return msgspec.convert(stored, kind)


def _readable(items: Iterable[tuple[_Key, JsonValue]], of: type) -> Iterator[tuple[_Key, object]]:
    for key, item in items:
        with contextlib.suppress(msgspec.ValidationError):
            yield key, _of_names(item, of)


def _number(value: object) -> float:
    # NumPy's float is a float, and msgspec takes exact types only.
    if isinstance(value, float):
        return float(value)
    raise NotImplementedError(f"{value!r} is not a value of a record")


def _restored(value: JsonValue, kind: msgspec.inspect.Type, null: float = NAN) -> JsonValue:
    """``value`` with a number for each null where ``kind`` has a number and no None."""
    if isinstance(kind, msgspec.inspect.Metadata):
        return _restored(value, kind.type, (kind.extra or {}).get("null", null))
    if isinstance(kind, msgspec.inspect.UnionType):
        # None beside one other type; what else there is goes through as it is.
        inner = [one for one in kind.types if not isinstance(one, msgspec.inspect.NoneType)]
        return value if value is None or len(inner) > 1 else _restored(value, inner[0])
    if isinstance(kind, msgspec.inspect.FloatType):
        return null if value is None else value
    if isinstance(value, Mapping):
        return _restored_mapping(value, kind)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return _restored_items(value, kind)
    return value


def _restored_mapping(
    value: Mapping[str, JsonValue], kind: msgspec.inspect.Type
) -> Mapping[str, JsonValue]:
    if isinstance(kind, msgspec.inspect.DataclassType | msgspec.inspect.StructType):
        known = {field.encode_name: field.type for field in kind.fields}
        return {k: _restored(v, known[k]) if k in known else v for k, v in value.items()}
    if isinstance(kind, msgspec.inspect.DictType):
        return {key: _restored(item, kind.value_type) for key, item in value.items()}
    return value


def _restored_items(value: Sequence[JsonValue], kind: msgspec.inspect.Type) -> Sequence[JsonValue]:
    if isinstance(kind, msgspec.inspect.VarTupleType | msgspec.inspect.ListType):
        return [_restored(item, kind.item_type) for item in value]
    if isinstance(kind, msgspec.inspect.TupleType) and len(kind.item_types) == len(value):
        return [_restored(item, of) for item, of in zip(value, kind.item_types, strict=True)]
    return value
