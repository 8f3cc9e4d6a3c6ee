"""Name references as in source code: ``TreeNode.parent``, ``list[*]``, ``module log.LOG``.

The collector reports that one object refers to another, but not through which attribute.  The name
is found by searching the holder for the referent: its slots, its instance dict, its items.
"""

from __future__ import annotations

import contextlib
import re
import types
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

# Pointers to siblings and parents.  They keep alive what the structure itself has dropped.
_NEIGHBOUR = re.compile(r"(^|_)(prev|next|parent)$")
_SMALL_DICT = 64


def is_neighbour(attribute: str) -> bool:
    """Whether an attribute of this name points to a sibling or parent."""
    return _NEIGHBOUR.search(attribute) is not None


def edge_name(holder: object, referent: object) -> str:
    """Name the reference from ``holder`` to ``referent``: its class and the attribute or item."""
    if isinstance(holder, types.ModuleType):
        return f"module {holder.__name__}.{_key_of(vars(holder), referent, '*')}"
    if isinstance(holder, type):
        return f"class {holder.__qualname__}.{_key_of(vars(holder), referent, '*')}"
    # Only the class: modules would just make chains long.
    name = type(holder).__qualname__
    if isinstance(holder, dict):
        return f"{name}[{_item_key(holder, referent)}]"
    if isinstance(holder, list | tuple | set | frozenset | deque):
        return f"{name}[*]"
    attribute = attribute_name(holder, referent)
    if attribute:
        return f"{name}.{attribute}"
    if isinstance(holder, types.FunctionType):
        return f"{holder.__qualname__}.<closure or default>"
    return f"{name}.<inside>"


def attribute_name(holder: object, referent: object) -> str:
    """Return the slot or instance attribute of ``holder`` that is ``referent``; empty if none."""
    for attribute, value in slot_values(holder):
        if value is referent:
            return attribute
    attributes = instance_dict(holder)
    if attributes is None:
        return ""
    return "__dict__" if attributes is referent else _key_of(attributes, referent, "")


def slot_values(holder: object) -> Iterator[tuple[str, object]]:
    """Yield the slots of ``holder`` that are set, by name."""
    for attribute, descriptor in _slots(type(holder)).items():
        try:
            yield attribute, descriptor.__get__(holder, type(holder))
        except AttributeError:
            continue


@dataclass(frozen=True)
class Neighbours:
    """A class's pointers to siblings and parents: attributes called prev, next or parent."""

    slots: tuple[types.MemberDescriptorType, ...]
    names: tuple[str, ...]

    @classmethod
    def like(cls, example: object) -> Neighbours | None:
        """Find these pointers for the class of ``example``; None if it has none."""
        slots = tuple(slot for name, slot in _slots(type(example)).items() if is_neighbour(name))
        is_class = issubclass(type(example), type)
        attributes = () if is_class else instance_dict(example) or ()
        names = tuple(name for name in attributes if is_neighbour(str(name)))
        return cls(slots, names) if slots or names else None

    def of(self, holder: object) -> list[object]:
        """Return the objects that these pointers of ``holder`` refer to."""
        kind = type(holder)
        found: list[object] = []
        for slot in self.slots:
            with contextlib.suppress(AttributeError):
                found.append(slot.__get__(holder, kind))
        if self.names:
            attributes = instance_dict(holder) or {}
            found += [attributes.get(name) for name in self.names]
        return [value for value in found if value is not None]


def instance_dict(holder: object) -> Mapping[str, object] | None:
    """Return the instance dict of ``holder``, or None if it has none.

    Uses the descriptor directly: ``vars`` would run code of classes that compute attributes.
    """
    for base in type(holder).__mro__:
        descriptor = vars(base).get("__dict__")
        if isinstance(descriptor, types.GetSetDescriptorType):
            attributes = descriptor.__get__(holder, type(holder))
            return attributes if isinstance(attributes, dict) else None
    return None


def _slots(kind: type) -> Mapping[str, types.MemberDescriptorType]:
    return {
        name: member
        for base in reversed(kind.__mro__)
        for name, member in vars(base).items()
        if isinstance(member, types.MemberDescriptorType)
    }


def _key_of(attributes: Mapping[str, object], referent: object, otherwise: str) -> str:
    return next((name for name, value in attributes.items() if value is referent), otherwise)


def _item_key(holder: Mapping[object, object], referent: object) -> str:
    """Return the key if the dict has few named keys, ``*`` if it is a table."""
    if len(holder) > _SMALL_DICT:
        return "*"
    for key, value in holder.items():
        if value is referent:
            return repr(key) if isinstance(key, str) else "*"
    return "*"
