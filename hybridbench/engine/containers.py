"""The lengths of the lists, tables and sets that the engine's lasting objects have as attributes,
and of those that its modules, classes and functions have.

They need no declaration, so a new one that is never emptied is counted as well.
"""

from __future__ import annotations

import logging
import os
import sys
import sysconfig
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from types import FunctionType, ModuleType
from typing import Final, TypeAlias
from weakref import finalize

# Fewer entries than this may be anything; a container that is never emptied soon has more.
_LONG: Final = 100
_CONTAINERS: Final = list | dict | set | deque
# Objects that come and go, and lists of these that ``Engine.containers`` counts as tree nodes, with
# their subclasses.
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

# An entry for each free slot, page or cached block of a pool: they grow until it is full, or empty.
_BOUNDED: Final = frozenset(
    {
        "HiCacheMemory._free",
        "HiCacheMemory._page_of",
        "KvEventRecorder._blocks",
        "MambaSlotAllocator.free_slots",
        "SlotAllocator.free_slots",
    }
)

_PACKAGE: Final = __name__.rpartition(".")[0]
_BENCH: Final = _PACKAGE.partition(".")[0]
# Where code of Python and of installed packages is; their modules are not searched.
_NOT_SEARCHED: Final = (
    "<",
    *(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "purelib", "platlib")),
)
_PLAIN: Final = (bool, bytes, float, int, str, tuple, type(None), ModuleType)
_Cached: Final = type(lru_cache(len))
_Container: TypeAlias = list[object] | dict[object, object] | set[object] | deque[object]
_Count: TypeAlias = Callable[[], int]


def long_containers(root: object) -> dict[str, int]:
    """Lengths by class and attribute, of all that ``root`` reaches through attributes alone.

    The longest counts if several objects of a class have the attribute.
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
    """The number of entries, with those of containers inside one that is not long itself."""
    length = len(container)
    if length < _LONG:
        entries = tuple(container.values() if isinstance(container, dict) else container)
        length += sum(len(entry) for entry in entries if isinstance(entry, _CONTAINERS))
    return length


class SharedContainers:
    """Containers that belong to no object of the engine: those of its modules, classes and
    functions, ``functools`` caches without a limit, and tables of Python's own that lose no entry
    by themselves.

    ``find`` takes milliseconds; ``long`` only counts the entries of what was found.
    """

    def __init__(self) -> None:
        self._counts: dict[str, _Count] = {}

    def find(self) -> None:
        """Find those that exist now."""
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
        """The lengths by name, of the long ones."""
        lengths = ((name, count()) for name, count in self._counts.items())
        return {name: length for name, length in lengths if length >= _LONG}


class _Search:
    """Finds containers; a function that replaced one of the engine's leads to its module."""

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
            if not (name.startswith("__") or isinstance(value, _PLAIN)):
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
            # The engine's own objects are counted elsewhere; of others what they hold themselves,
            # such as the hooks of a torch module.
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
