"""Convert records to JSON and back.

JSON has neither NaN nor infinity: both are stored as null.  Where a record requires a number, null
is read as NaN, or as the value that the field's type gives (``LowerEnd``: minus infinity).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache
from typing import TypeVar, cast

import msgspec

from hybridbench.records.json_value import JsonValue, plain_mapping

NAN = float("nan")
_NUMBERS = (msgspec.inspect.IntType, msgspec.inspect.FloatType)

_Record = TypeVar("_Record")


class OpenRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A record that keeps a later version's unknown keys and writes them back when stored."""

    unknown: Mapping[str, JsonValue] = {}


def to_json(record: object) -> dict[str, JsonValue]:
    """Convert ``record`` to dicts, lists and finite numbers."""
    plain = msgspec.to_builtins(record, enc_hook=_number)
    return plain_mapping(cast("dict[str, JsonValue]", plain))


def from_json(stored: Mapping[str, JsonValue], kind: type[_Record]) -> _Record:
    """Return the record of ``kind`` that ``to_json`` or ``by_name`` wrote.

    Unknown keys come from a later version; an ``OpenRecord`` keeps them.

    Raises:
        msgspec.ValidationError: a key is missing or of another type.
    """
    return msgspec.convert(_restored(stored, _type_info(cast("type", kind))), kind)


def by_name(record: msgspec.Struct) -> dict[str, JsonValue]:
    """Return ``record`` with its fields by name, even if the wire sends them as an array."""
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


@cache
def _type_info(kind: type) -> msgspec.inspect.Type:
    return msgspec.inspect.type_info(kind)


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


def _number(value: object) -> float:
    # NumPy's float64 is a float, but msgspec accepts exact types only.
    if isinstance(value, float):
        return float(value)
    raise NotImplementedError(f"{value!r} is not a value of a record")


def _restored(value: JsonValue, kind: msgspec.inspect.Type, null: float = NAN) -> JsonValue:
    """Replace each null in ``value`` where ``kind`` requires a number."""
    if isinstance(kind, msgspec.inspect.Metadata):
        return _restored(value, kind.type, (kind.extra or {}).get("null", null))
    if isinstance(kind, msgspec.inspect.UnionType):
        # Convert a union of None and one other type; leave other unions unchanged.
        inner = [one for one in kind.types if not isinstance(one, msgspec.inspect.NoneType)]
        if value is None and all(isinstance(one, _NUMBERS) for one in kind.types):
            return null
        return value if value is None or len(inner) > 1 else _restored(value, inner[0])
    if isinstance(kind, msgspec.inspect.FloatType):
        return null if value is None else value
    if isinstance(value, Mapping):
        return _restored_mapping(value, kind)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return _restored_items(value, kind)
    return value


def _restored_mapping(value: Mapping[str, JsonValue], kind: msgspec.inspect.Type) -> JsonValue:
    if isinstance(kind, msgspec.inspect.DataclassType | msgspec.inspect.StructType):
        known = {field.encode_name: field for field in kind.fields}
        restored = {k: _restored(v, known[k].type) for k, v in value.items() if k in known}
        if isinstance(kind, msgspec.inspect.StructType):
            return _of_struct(value, restored, kind)
        return restored
    if isinstance(kind, msgspec.inspect.DictType):
        return {key: _restored(item, kind.value_type) for key, item in value.items()}
    return value


def _of_struct(
    value: Mapping[str, JsonValue],
    restored: dict[str, JsonValue],
    kind: msgspec.inspect.StructType,
) -> JsonValue:
    """Return the form that msgspec accepts for ``kind``: some structs are arrays or have tags."""
    if kind.array_like:
        return [restored.get(field.encode_name, _default(field)) for field in kind.fields]
    if issubclass(kind.cls, OpenRecord):
        restored["unknown"] = {k: v for k, v in value.items() if k not in restored}
    if kind.tag_field is not None:
        restored[kind.tag_field] = kind.tag
    return restored


def _default(field: msgspec.inspect.Field) -> JsonValue:
    made = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    return cast("JsonValue", made)


def _restored_items(value: Sequence[JsonValue], kind: msgspec.inspect.Type) -> Sequence[JsonValue]:
    if isinstance(kind, msgspec.inspect.VarTupleType | msgspec.inspect.ListType):
        return [_restored(item, kind.item_type) for item in value]
    if isinstance(kind, msgspec.inspect.TupleType) and len(kind.item_types) == len(value):
        return [_restored(item, of) for item, of in zip(value, kind.item_types, strict=True)]
    return value
