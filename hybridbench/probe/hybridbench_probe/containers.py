"""Read containers: how many entries they have, and how many they may have.

Only methods of the built-in types are called, never one that the program defines.
"""

from __future__ import annotations

import _queue
import functools
import itertools
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator

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
# Names of attributes with the maximum number of entries in an object's containers, in lower case
# and without underscores.  Not ``size`` or ``cache_size``: such a number may be the present length.
_LIMIT_NAMES = frozenset(
    {
        *("capacity", "cachecapacity", "maxcapacity", "limit", "cachelimit", "sizelimit"),
        *("maxsize", "maxlen", "maxlength", "maxcount", "maxcachesize", "maxcached"),
        *("maxelements", "maxentries", "maxitems", "maxkeys", "maxobjects", "maxrecords"),
    }
)
# More entries than fit into memory are no limit: programs write ``sys.maxsize`` for "unlimited",
# and an unlimited multiprocessing queue has the limit of its semaphore, 2**31 - 1.
_UNLIMITED = 10**9


class Kinds:
    """Maps classes to the built-in container class that they are or derive from."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[type, type | None]] = {}

    def of(self, kind: type) -> type | None:
        """``dict`` for an ``OrderedDict``, and so on; None if ``kind`` is not a container."""
        known = self._known.get(id(kind))
        if known is None:
            base = next((base for base in raw.mro(kind) if id(base) in _BASES), None)
            known = self._known[id(kind)] = (kind, base)
        return known[1]


# By identity: comparing classes, or hashing them, may call a method of their metaclass.
_BASES = frozenset(map(id, (*LENGTH, tuple)))


def length(found: object, base: type) -> int:
    """Number of entries of a container whose built-in class is ``base``."""
    return LENGTH[base](found)


def members(found: object, base: type, most: int | None = None) -> list[object]:
    """The values of a dict, or the entries of another container; at most ``most``."""
    iterate = _ITERATE.get(base)
    if iterate is None:
        return []
    try:
        return list(itertools.islice(iterate(found), most))
    except RuntimeError:
        # Another thread changed it during iteration.
        return []


def latest(found: object, base: type, most: int) -> list[object]:
    """The last ``most`` entries if the container is ordered, otherwise any ``most`` of them."""
    if issubclass(type(found), OrderedDict):
        return members(found, base, most)
    iterate = _LAST.get(base, _ITERATE.get(base))
    try:
        return list(itertools.islice(iterate(found), most)) if iterate is not None else []
    except RuntimeError:
        return []


def own_bound(found: object, base: type) -> int | None:
    """The container's own maximum number of entries; None if it has none."""
    return _limited(_maxlen_of(found)) if base is deque else None


def limit_among(attributes: Iterable[tuple[object, object]]) -> int | None:
    """The maximum number of entries from an attribute such as ``maxsize``; None without one."""
    for name, value in attributes:
        if type(value) is not int or value <= 0 or type(name) is not str:
            continue
        if name.rpartition("__")[2].replace("_", "").lower() in _LIMIT_NAMES:
            return _limited(value)
    return None


def _limited(bound: int | None) -> int | None:
    """``bound``, or None if it is not an effective limit."""
    return bound if bound is not None and bound < _UNLIMITED else None


def lru_cache(found: object) -> tuple[int, int | None]:
    """Number of entries and bound of a ``functools.lru_cache``."""
    _, _, maxsize, entries = _cache_info_of(found)
    return entries, _limited(maxsize)


def cached_function(found: object) -> types.FunctionType | None:
    """The function that an ``lru_cache`` wraps; None if it is not written in Python."""
    wrapped = LRU_CACHE.__dict__["__dict__"].__get__(found).get("__wrapped__")
    return wrapped if type(wrapped) is types.FunctionType else None
