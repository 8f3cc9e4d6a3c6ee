"""Containers and what is known of one: how many entries it has, and the most it can have.

Only methods of the built-in types are called, never one that the program has defined.
"""

from __future__ import annotations

import _queue
import functools
import itertools
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator

from . import raw

_maxlen_of = deque.__dict__["maxlen"].__get__

LENGTH: dict[type, Callable[..., int]] = {
    dict: dict.__len__,
    list: list.__len__,
    set: set.__len__,
    frozenset: frozenset.__len__,
    deque: deque.__len__,
    bytearray: bytearray.__len__,
    _queue.SimpleQueue: _queue.SimpleQueue.qsize,
}
_ITERATE: dict[type, Callable[..., Iterator[object]]] = {
    dict: lambda found: iter(dict.values(found)),
    list: list.__iter__,
    set: set.__iter__,
    frozenset: frozenset.__iter__,
    tuple: tuple.__iter__,
    deque: deque.__iter__,
}
_LAST: dict[type, Callable[..., Iterator[object]]] = {
    dict: lambda found: reversed(dict.values(found)),
    list: list.__reversed__,
    deque: deque.__reversed__,
}
LRU_CACHE = functools._lru_cache_wrapper
_cache_info_of: Callable[..., tuple[int, int, int | None, int]] = LRU_CACHE.cache_info
# What an object calls the most that its containers may hold.
_BOUND_NAMES = frozenset({"maxsize", "max_size", "maxlen", "max_entries"})
# More entries than memory has room for: ``sys.maxsize`` is how a program writes "no limit".
_UNLIMITED = 2**40


class Kinds:
    """The built-in container that a class is or is derived from."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[type, type | None]] = {}

    def of(self, kind: type) -> type | None:
        """``dict`` for an ``OrderedDict``, and so on; None for what is no container."""
        known = self._known.get(id(kind))
        if known is None:
            base = next((base for base in raw.mro(kind) if base in _BASES), None)
            known = self._known[id(kind)] = (kind, base)
        return known[1]


_BASES = (*LENGTH, tuple)


def length(found: object, base: type) -> int:
    """Entries of a container whose built-in class is ``base``."""
    return LENGTH[base](found)


def members(found: object, base: type, most: int | None = None) -> list[object]:
    """The values of a dict, the entries of another container; ``most`` of them."""
    iterate = _ITERATE.get(base)
    if iterate is None:
        return []
    try:
        return list(itertools.islice(iterate(found), most))
    except RuntimeError:
        # Another thread has changed it.
        return []


def latest(found: object, base: type, most: int) -> list[object]:
    """The last of its entries where it has an order."""
    if OrderedDict in raw.mro(type(found)):
        return members(found, base, most)
    iterate = _LAST.get(base, _ITERATE.get(base))
    try:
        return list(itertools.islice(iterate(found), most)) if iterate is not None else []
    except RuntimeError:
        return []


def own_bound(found: object, base: type) -> int | None:
    """The most entries it can have, where it knows that."""
    return _limited(_maxlen_of(found)) if base is deque else None


def bound_of_owner(attributes: dict[str, object]) -> int | None:
    """The most entries that an object says its containers may have: ``maxsize`` and the like."""
    for name, value in list(attributes.items()):
        if type(value) is not int or value <= 0 or type(name) is not str:
            continue
        if name.rpartition("__")[2].lstrip("_") in _BOUND_NAMES:
            return _limited(value)
    return None


def _limited(bound: int | None) -> int | None:
    """``bound``, or None where it limits nothing."""
    return bound if bound is not None and bound < _UNLIMITED else None


def lru_cache(found: object) -> tuple[int, int | None]:
    """Entries and bound of a ``functools.lru_cache``."""
    _, _, maxsize, entries = _cache_info_of(found)
    return entries, _limited(maxsize)


def cached_function(found: object) -> types.FunctionType | None:
    """What an ``lru_cache`` wraps, if that is a function of Python."""
    wrapped = LRU_CACHE.__dict__["__dict__"].__get__(found).get("__wrapped__")
    return wrapped if type(wrapped) is types.FunctionType else None
