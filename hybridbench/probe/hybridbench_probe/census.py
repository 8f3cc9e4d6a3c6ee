"""Scan the whole heap in a copy of the process: instances by type, containers by place.

Nothing is collected and none of the program's code is called, so that no finalizer runs.
"""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Callable, Iterator

from .containers import LRU_CACHE
from .forked import Copied
from .names import Names, is_own
from .owners import Places

# By identity of the class: a metaclass may define how its classes are compared and hashed.
_frame_of: dict[int, Callable[[object], types.FrameType | None]] = {
    id(types.GeneratorType): vars(types.GeneratorType)["gi_frame"].__get__,
    id(types.CoroutineType): vars(types.CoroutineType)["cr_frame"].__get__,
    id(types.AsyncGeneratorType): vars(types.AsyncGeneratorType)["ag_frame"].__get__,
}
_BATCH = 4096
_UNTRACKED = frozenset(map(id, (dict, set, frozenset)))


def take(copied: Copied, *, whole: bool) -> dict[str, object]:
    """Take a heap scan; only in a copy of the process, as it changes the heap.

    Args:
        whole: also search all tracked objects for containers that the collector does not track.
    """
    objects = copied.objects
    kinds = {id(kind): kind for kind in map(type, objects)}
    counts = dict.fromkeys(kinds, 0)
    for key in map(id, map(type, objects)):
        counts[key] += 1
    names = Names()
    places = Places(names)
    moment = _Moment(copied)
    for function in moment.functions:
        places.read_function(function)
    running = [(code, its_globals) for code, its_globals, _ in moment.frames]
    for code, its_globals in (*copied.codes, *running):
        places.read_code(code, its_globals)
    # Ignore the copy's own lists, which are as long as the heap.
    places.seen.update(map(id, vars(copied).values()))
    _visit(places, objects, kinds, moment)
    if whole:
        objects = objects + _untracked(objects, places)
    places.visit_rest(objects)
    return {
        "tracked": sum(counts.values()),
        "frozen": copied.frozen,
        "types": _by_name(names, kinds, counts),
        **places.found(),
    }


def _visit(places: Places, objects: list[object], kinds: dict[int, type], moment: _Moment) -> None:
    for name, module in list(sys.modules.items()):
        _exhaust(places.visit_module(name, module))
    _exhaust(places.descend())
    classes = {key for key, kind in kinds.items() if issubclass(kind, type)}
    for found in objects:
        if id(type(found)) in classes:
            _exhaust(places.visit_class(found))  # type: ignore[arg-type]
    for function in moment.functions:
        places.visit_function(function)
    _exhaust(places.descend())
    layouts = {key: places.layout(kind) for key, kind in kinds.items() if key not in classes}
    for found in objects:
        layout = layouts.get(id(type(found)))
        if layout is not None:
            places.visit_instance(found, layout)
        elif type(found) is LRU_CACHE:
            places.visit_cache(found)
    _exhaust(places.descend())
    for code, its_globals, variables in moment.frames:
        places.visit_call(code, its_globals, variables)
    _exhaust(places.descend())


class _Moment:
    """All functions, and the frames of those that are running or suspended."""

    def __init__(self, copied: Copied) -> None:
        objects = copied.objects
        self.functions = [found for found in objects if type(found) is types.FunctionType]
        suspended = (
            _frame_of[id(type(found))](found) for found in objects if id(type(found)) in _frame_of
        )
        self.frames = [
            (frame.f_code, frame.f_globals, frame.f_locals)
            for frame in suspended
            if frame is not None
        ]
        self.frames += copied.frames


def _exhaust(steps: Iterator[None]) -> None:
    for _ in steps:
        pass


def _untracked(objects: list[object], places: Places) -> list[object]:
    """Containers that the collector does not track and no visited owner holds."""
    tracked = set(map(id, objects))
    found: dict[int, object] = {}
    for start in range(0, len(objects), _BATCH):
        # Frames of threads that the copy lacks have dangling pointers.
        batch = [
            item for item in objects[start : start + _BATCH] if type(item) is not types.FrameType
        ]
        for referent in gc.get_referents(*batch):
            if id(type(referent)) in _UNTRACKED and id(referent) not in tracked:
                found[id(referent)] = referent
    return [referent for key, referent in found.items() if key not in places.seen]


def _by_name(names: Names, kinds: dict[int, type], counts: dict[int, int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for key, kind in kinds.items():
        name = names.type_name(kind)
        if not is_own(name):
            found[name] = found.get(name, 0) + counts[key]
    return found
