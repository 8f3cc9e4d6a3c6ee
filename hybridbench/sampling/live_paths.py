"""Count every object that the program can reach, by the classes on the path to it.

The breadth-first walk starts at the engine, then at the modules, then at objects that only frames
and C code hold, so that each object is counted once, at its shortest and most informative path.
Pointers to siblings and parents (``prev``, ``next``, ``parent``) are followed last: objects reached
only through these have left their structure and are called dragged.

Run in a forked child: it references everything it visits.
"""

from __future__ import annotations

import gc
import random
import sys
import types
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hybridbench.sampling.array_views import ArrayViews
from hybridbench.sampling.edge_names import Neighbours, edge_name, instance_dict
from hybridbench.sampling.forked_child import MemoryRange
from hybridbench.sampling.garbage_size import garbage_size
from hybridbench.sampling.tensor_storage import TensorStorages

STEP = " > "
DRAGGED = "~"  # prefix of a class that was reached by a neighbour pointer

_FOLD_LEVELS = 3
_SIZED_PER_PLACE = 100
_LARGEST_PER_PLACE = 20
_CHAIN_MAX = 24
_OTHER_MODULES = "modules of others"
_ELSEWHERE = "frames and C code"


@dataclass
class Place:
    """Objects of one class at the end of one path of classes, sized without the places below."""

    name: str
    above: Place | None
    dragged: bool = False
    below: dict[tuple[type, bool], Place] = field(default_factory=dict)
    kind: type | None = None
    objects: list[object] = field(default_factory=list)
    size_bytes: float = 0.0

    @property
    def path(self) -> str:
        """The classes from the root on."""
        if self.above is None or not self.above.name:
            return self.name
        return f"{self.above.path}{STEP}{self.name}"

    def step(self, kind: type, *, dragged: bool) -> Place:
        """Return the place of a ``kind`` held from here.

        A place of the same class up to three levels above is reused; otherwise a tree would have as
        many places as levels.  Containers may have different owners, so only the third container of
        one class in a row is folded.
        """
        dragged = dragged or self.dragged
        place: Place | None = self
        if kind.__module__ == "builtins":
            if self.kind is kind and self.above is not None and self.above.kind is kind:
                return self
            place = None
        for _ in range(_FOLD_LEVELS):
            if place is None or place.kind is None:
                break
            if place.kind is kind and place.dragged == dragged:
                return place
            place = place.above
        found = self.below.get((kind, dragged))
        if found is None:
            name = DRAGGED * dragged + kind.__qualname__
            found = self.below[kind, dragged] = Place(name, self, dragged, kind=kind)
        return found

    def walk(self) -> Iterable[Place]:
        """Yield this place and all places below it."""
        stack = [self]
        while stack:
            place = stack.pop()
            yield place
            stack += place.below.values()


class LivePaths:
    """One walk over the heap.

    Args:
        roots: the roots of the program's own state.
        objects: all tracked objects, listed before the walk.
        ignored: lists that are excluded with their members: garbage, ballast.
        excluded: memory that must not be read.
        modules: the modules to walk after ``roots``; by default all imported ones.
    """

    def __init__(
        self,
        roots: Sequence[object],
        objects: Sequence[object],
        ignored: Iterable[Sequence[object]],
        excluded: Sequence[MemoryRange] = (),
        modules: Mapping[str, object] | None = None,
    ) -> None:
        self.top = Place("", None)
        self._came_from: dict[int, object] = {}
        self._seen: set[int] = set()
        self._shunned = _modules_and_their_dicts()
        self._deferred: list[tuple[object, object, Place]] = []
        self._neighbours: dict[type, Neighbours | None] = {}
        self._excluded = excluded
        self.views = ArrayViews(excluded)
        self._storages = TensorStorages(objects, {type(found) for found in objects}, excluded)
        self._ignore(ignored)
        self._from_roots(roots)
        self._from_modules(sys.modules if modules is None else modules)
        self._from_elsewhere(objects)
        self._weigh_all()

    def table(self, count_min: int, bytes_min: int) -> dict[str, tuple[int, int]]:
        """Return objects and bytes by path, for paths that reach ``count_min`` or ``bytes_min``."""
        return {
            place.path: (len(place.objects), round(place.size_bytes))
            for place in self.top.walk()
            if len(place.objects) >= count_min or place.size_bytes >= bytes_min
        }

    def chain(self, found: object) -> tuple[str, ...]:
        """Return how ``found`` is held: the named edges from a root to it, root first."""
        edges: list[str] = []
        referent = found
        while len(edges) < _CHAIN_MAX:
            holder = self._came_from.get(id(referent))
            if holder is None:
                break
            above = self._came_from.get(id(holder))
            if above is not None and instance_dict(above) is holder:
                # The dict of an instance belongs to the instance.
                holder = above
            edges.append(edge_name(holder, referent))
            referent = holder
        return tuple(reversed(edges))

    def holder_of(self, found: object) -> object:
        """Return the object from which ``found`` was reached; None for a root."""
        return self._came_from.get(id(found))

    # The walk.

    def _ignore(self, ignored: Iterable[Sequence[object]]) -> None:
        for members in ignored:
            self._seen.add(id(members))
            self._seen.update(map(id, members))

    def _from_roots(self, roots: Sequence[object]) -> None:
        starts = []
        for root in roots:
            self._seen.add(id(root))
            starts.append((root, self._enter(root, self.top, dragged=False)))
        self._explore(starts)
        self._follow_neighbours()

    def _from_modules(self, modules: Mapping[str, object]) -> None:
        others = Place(_OTHER_MODULES, self.top)
        self.top.below[types.ModuleType, False] = others
        starts = []
        for name, module in list(modules.items()):
            if id(module) in self._seen or not isinstance(module, types.ModuleType):
                continue
            place = others
            if name.split(".")[0] in {"hybridbench", "__main__"}:
                place = Place(f"module {name}", self.top)
                # A new class as the key gives each module a place of its own.
                self.top.below[type(name, (), {}), False] = place
            self._seen.add(id(module))
            place.objects.append(module)
            starts.append((module, place))
        self._shunned = set()
        self._explore(starts)
        self._follow_neighbours()

    def _from_elsewhere(self, objects: Sequence[object]) -> None:
        elsewhere = Place(_ELSEWHERE, self.top)
        self.top.below[types.FrameType, False] = elsewhere
        for found in objects:
            if id(found) not in self._seen:
                self._seen.add(id(found))
                self._explore([(found, self._enter(found, elsewhere, dragged=False))])
        self._follow_neighbours()

    def _follow_neighbours(self) -> None:
        while self._deferred:
            waiting, self._deferred = self._deferred, []
            starts = []
            for holder, referent, place in waiting:
                if id(referent) not in self._seen:
                    self._seen.add(id(referent))
                    self._came_from[id(referent)] = holder
                    starts.append((referent, self._enter(referent, place, dragged=True)))
            self._explore(starts)

    def _explore(self, starts: Iterable[tuple[object, Place]]) -> None:
        queue = deque(starts)
        seen, shunned, came_from = self._seen, self._shunned, self._came_from
        is_tracked = gc.is_tracked
        while queue:
            holder, place = queue.popleft()
            kind = type(holder)
            near = self._near(holder, kind, place)
            for referent in gc.get_referents(holder):
                key = id(referent)
                if key in seen or referent is kind:
                    continue
                if not is_tracked(referent):
                    self.views.met(holder, referent)
                    continue
                if key in shunned or key in near or (shunned and issubclass(type(referent), type)):
                    continue
                seen.add(key)
                came_from[key] = holder
                queue.append((referent, self._enter(referent, place, dragged=False)))

    def _near(self, holder: object, kind: type, place: Place) -> set[int]:
        """Defer the siblings and parents of ``holder``, and return their ids."""
        if kind not in self._neighbours:
            self._neighbours[kind] = Neighbours.like(holder)
        neighbours = self._neighbours[kind]
        if neighbours is None:
            return set()
        found = neighbours.of(holder)
        self._deferred += [(holder, near, place) for near in found if id(near) not in self._seen]
        return set(map(id, found))

    def _enter(self, found: object, held_from: Place, *, dragged: bool) -> Place:
        place = held_from.step(type(found), dragged=dragged)
        place.objects.append(found)
        return place

    # Sizes.

    def weigh(self, some: Sequence[object]) -> int:
        """Return the bytes of ``some`` objects with all untracked objects below them."""
        return garbage_size(some, self._storages, self._excluded).total_bytes if some else 0

    def _weigh_all(self) -> None:
        draw = random.Random(0)
        for place in self.top.walk():
            if len(place.objects) <= _SIZED_PER_PLACE:
                place.size_bytes = self.weigh(place.objects)
                continue
            # Size the largest containers one by one: one may hold more than all others together.
            by_size = sorted(place.objects, key=lambda one: sys.getsizeof(one, 0))
            rest = by_size[:-_LARGEST_PER_PLACE]
            some = draw.sample(rest, _SIZED_PER_PLACE - _LARGEST_PER_PLACE)
            largest = self.weigh(by_size[-_LARGEST_PER_PLACE:])
            place.size_bytes = largest + self.weigh(some) * len(rest) / len(some)


def counts_by_class(top: Place) -> Mapping[str, int]:
    """Count live objects by class name, wherever they are held."""
    counts: dict[str, int] = {}
    for place in top.walk():
        if place.kind is not None:
            name = place.name.removeprefix(DRAGGED)
            counts[name] = counts.get(name, 0) + len(place.objects)
    return counts


def _modules_and_their_dicts() -> set[int]:
    shunned = {id(sys.modules)}
    for module in list(sys.modules.values()):
        if isinstance(module, types.ModuleType):
            shunned |= {id(module), id(vars(module))}
    return shunned
