"""Scan the heap in the process itself, in slices of a millisecond, if a copy would cost too much.

The walk starts at modules and follows references.  It counts no types and skips containers of more
than a few thousand entries.  The heap may change between slices, so totals are approximate.
"""

from __future__ import annotations

import gc
import sys
import time
import types
from collections.abc import Iterator

from . import raw
from .containers import LRU_CACHE, length, members
from .forked import running_frames
from .names import Names, is_own
from .owners import Places

SLICE_S = 0.0007
REST_S = 0.01
_OWNERS_MAX = 300_000
_DESCEND_MAX = 4096
_LONG = 64


class Walk:
    """A walk that can be suspended after each step."""

    def __init__(self) -> None:
        self._places = Places(Names())
        self._steps = self._walk()
        self.is_done = False

    def take_slice(self) -> None:
        """Continue for less than a millisecond."""
        end_s = time.perf_counter() + SLICE_S
        for _ in self._steps:
            if time.perf_counter() > end_s:
                return
        self.is_done = True

    def found(self) -> dict[str, object]:
        """The counts, in the form of a whole scan."""
        return {
            "tracked": None,
            "frozen": gc.get_freeze_count(),
            "types": {},
            **self._places.found(),
        }

    def _walk(self) -> Iterator[None]:
        modules = [pair for pair in list(sys.modules.items()) if type(pair[1]) is types.ModuleType]
        # Collect the names in code first: only these may be reported.
        for frame in running_frames():
            self._places.read_code(frame.f_code, frame.f_globals)
            yield
        for _, module in modules:
            for value in list(raw.module_dict(module).values()):
                yield from self._read_names(value)
        places = self._places
        for name, module in modules:
            yield from places.visit_module(name, module)
            yield from places.descend(_DESCEND_MAX)
        met: set[int] = set()
        waiting: list[object] = [module for name, module in modules if not is_own(name)]
        while waiting and len(met) < _OWNERS_MAX:
            found = waiting.pop()
            if id(found) in met:
                continue
            met.add(id(found))
            yield from self._visit(found)
            yield from places.descend(_DESCEND_MAX)
            if not self._has_many(found):
                waiting += filter(gc.is_tracked, gc.get_referents(found))
            yield

    def _read_names(self, value: object) -> Iterator[None]:
        if type(value) is types.FunctionType:
            self._places.read_function(value)
            yield
        elif issubclass(type(value), type):
            for function in raw.functions_of_type(value):  # type: ignore[arg-type]
                self._places.read_function(function)
                yield

    def _visit(self, found: object) -> Iterator[None]:
        places, kind = self._places, type(found)
        if kind is types.FunctionType:
            places.visit_function(found)  # type: ignore[arg-type]
        elif kind is LRU_CACHE:
            places.visit_cache(found)
        elif issubclass(kind, type):
            yield from places.visit_class(found)  # type: ignore[arg-type]
        elif kind is not types.ModuleType and self._is_worth_naming(found):
            layout = places.layout(kind)
            if layout is not None:
                places.visit_instance(found, layout)

    def _is_worth_naming(self, found: object) -> bool:
        """Whether the object holds a long container, which justifies reading its attributes.

        Reading them by name gives the object a dict, which it keeps.  Objects that are large
        containers themselves are excluded: checking each entry would take too long.
        """
        if self._has_many(found):
            return False
        for referent in gc.get_referents(found):
            if self._is_long(referent):
                return True
            # If it already has that dict, its attributes are one reference further away.
            if type(referent) is dict and any(map(self._is_long, members(referent, dict, _LONG))):
                return True
        return False

    def _has_many(self, found: object) -> bool:
        """Whether it is a container with too many entries for one step."""
        base = self._places.kinds.of(type(found))
        if base is tuple:
            return tuple.__len__(found) > _DESCEND_MAX  # type: ignore[arg-type]
        return base is not None and length(found, base) > _DESCEND_MAX

    def _is_long(self, referent: object) -> bool:
        base = self._places.kinds.of(type(referent))
        return base is not None and base is not tuple and length(referent, base) >= _LONG
