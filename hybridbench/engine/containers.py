"""Measure the engine's containers (lists, tables, queues, arrays), to find those never emptied.

The search covers the attributes of the engine's long-lived objects, and the variables of its
modules, classes and functions.  Containers need no declaration, so new ones are counted as well.
"""

from __future__ import annotations

import logging
import os
import sys
import sysconfig
from array import array
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from queue import Queue, SimpleQueue
from types import FunctionType, ModuleType
from typing import Final, TypeAlias
from weakref import finalize

# Shorter containers are not reported; one that is never emptied soon exceeds this length.
_LONG: Final = 100
_CONTAINERS: Final = list | dict | set | deque | bytearray | array | SimpleQueue | Queue
# Classes whose objects are not searched, nor those of their subclasses: short-lived ones, and lists
# of tree nodes, which ``Engine.containers`` counts separately.
_PASSING: Final = frozenset(
    {
        "FullLRUList",
        "MambaLRUList",
        "PriorityQueue",
        "RecencyQueue",
        "Req",
        "SWALRUList",
        "ScheduleBatch",
        "StepOutcome",
        "TreeNode",
    }
)

# These have one entry per free slot or page, so a pool's size limits their length.
_BOUNDED: Final = frozenset(
    {
        "HiCacheMemory._free",
        "HiCacheMemory._page_of",
        "MambaSlotAllocator.free_slots",
        "SlotAllocator.free_slots",
    }
)

_PACKAGE: Final = __name__.rpartition(".")[0]
_BENCH: Final = _PACKAGE.partition(".")[0]
# Paths of the standard library and of installed packages, whose modules are not searched.
_NOT_SEARCHED: Final = (
    "<",
    *(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "purelib", "platlib")),
)
# A module's warnings: an entry for each text, so one that names a request stays for ever.
_WARNED: Final = "__warningregistry__"
_PLAIN: Final = (bool, bytes, float, int, str, tuple, type(None), ModuleType)
_Cached: Final = type(lru_cache(len))
_Sized: TypeAlias = list[object] | dict[object, object] | set[object] | deque[object]
_Container: TypeAlias = "_Sized | bytearray | array[int] | SimpleQueue[object] | Queue[object]"
_Count: TypeAlias = Callable[[], int]


def long_containers(root: object) -> dict[str, int]:
    """Return the lengths of the long containers that ``root`` reaches through attributes alone.

    Keys are ``Class.attribute``.  If several objects of a class have the attribute, the longest
    container counts.
    """
    lengths: dict[str, int] = {}
    seen, to_visit = {id(root)}, [root]
    while to_visit:
        holder = to_visit.pop()
        for name, value in vars(holder).items():
            kind = type(value)
            if isinstance(value, _CONTAINERS):
                where, length = f"{type(holder).__name__}.{name}", _entries(value)
                if length >= _LONG and where not in _BOUNDED:
                    lengths[where] = max(length, lengths.get(where, 0))
            elif (
                _is_ours(kind.__module__)
                and _PASSING.isdisjoint(base.__name__ for base in kind.__mro__)
                and kind.__dictoffset__
                and id(value) not in seen
            ):
                seen.add(id(value))
                to_visit.append(value)
    return lengths


def _entries(container: _Container) -> int:
    """Count a container's entries; if it is short, add those of the containers inside it."""
    length = _length(container)
    if length < _LONG and not isinstance(container, SimpleQueue | Queue):
        entries = tuple(container.values() if isinstance(container, dict) else container)
        length += sum(_length(entry) for entry in entries if isinstance(entry, _CONTAINERS))
    return length


def _length(container: _Container) -> int:
    return container.qsize() if isinstance(container, SimpleQueue | Queue) else len(container)


class SharedContainers:
    """Containers that belong to no object of the engine.

    These are the containers of its modules, classes and functions, ``functools`` caches without a
    size limit, and Python's tables of loggers, finalizers and modules.

    ``find`` takes milliseconds; ``long`` only counts the entries of the containers found before.
    """

    def __init__(self) -> None:
        self._counts: dict[str, _Count] = {}

    def find(self) -> None:
        """Search for the containers that exist now."""
        search = _Search()
        for name, module in list(sys.modules.items()):
            if _is_ours(name):
                search.visit_variables(vars(module))
        self._counts = {
            "logging.root.manager.loggerDict": logging.root.manager.loggerDict.__len__,
            "finalize._registry": vars(finalize)["_registry"].__len__,
            "sys.modules": sys.modules.__len__,
            **search.counts,
        }

    def long(self) -> dict[str, int]:
        """Return the lengths of the long containers, by name."""
        lengths = ((name, count()) for name, count in self._counts.items())
        return {name: length for name, length in lengths if length >= _LONG}


class _Search:
    """Searches variables for containers.

    A function patched into the engine from another module leads to that module's variables.
    """

    def __init__(self) -> None:
        self.counts: dict[str, _Count] = {}
        self._seen: set[int] = set()
        self._modules: set[str] = set()

    def visit_variables(self, variables: Mapping[str, object]) -> None:
        """Visit a module's variables."""
        if not self._is_new(variables):
            return
        module = str(variables.get("__name__"))
        self._modules.add(module)
        self._visit_all(module.rpartition(".")[2], variables)

    def _visit_all(self, owner: str, values: Mapping[str, object]) -> None:
        for name, value in list(values.items()):
            is_reserved = name.startswith("__") and name != _WARNED
            if not (is_reserved or isinstance(value, _PLAIN)):
                self._visit(f"{owner}.{name}", value)

    def _visit(self, where: str, value: object) -> None:
        if isinstance(value, type):
            module = value.__module__
            if (_is_ours(module) or module in self._modules) and self._is_new(value):
                self._visit_all(value.__name__, vars(value))
        elif isinstance(value, FunctionType):
            self._visit_function(where, value)
        elif isinstance(value, staticmethod | classmethod | _Cached):
            if isinstance(value, _Cached) and value.cache_info().maxsize is None:
                self.counts[f"{where} (cache)"] = lambda: value.cache_info().currsize
            self._visit(where, value.__wrapped__)
        elif isinstance(value, property):
            self._visit(where, value.fget)
        elif not self._count(where, value) and not _is_ours(type(value).__module__, _BENCH):
            # ``long_containers`` covers the engine's own objects.  Of any other object, count the
            # containers among its attributes, such as the hooks of a torch module.
            held = vars(value) if type(value).__dictoffset__ else {}
            for name, part in list(held.items()):
                self._count(f"{where}.{name}", part)

    def _visit_function(self, where: str, function: FunctionType) -> None:
        if not self._is_new(function):
            return
        if function.__closure__ or function.__defaults__ or function.__kwdefaults__:
            self._visit_all(where, _held_by(function))
        if vars(function):
            self._visit_all(where, vars(function))
        module = function.__globals__
        if not (
            function.__code__.co_filename.startswith(_NOT_SEARCHED)
            or _is_ours(str(module.get("__name__")), _BENCH)
        ):
            self.visit_variables(module)

    def _count(self, where: str, value: object) -> bool:
        if not isinstance(value, _CONTAINERS):
            return False
        if self._is_new(value):
            self.counts[where] = partial(_entries, value)
        return True

    def _is_new(self, value: object) -> bool:
        if id(value) in self._seen:
            return False
        self._seen.add(id(value))
        return True


def _held_by(function: FunctionType) -> dict[str, object]:
    """A function's defaults and the variables of its closure."""
    code, defaults = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount]
    held = dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))
    held.update(function.__kwdefaults__ or {})
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # not yet assigned
            held[name] = cell.cell_contents
    return held


def _is_ours(module: str, package: str = _PACKAGE) -> bool:
    return module == package or module.startswith(f"{package}.")
