"""Find the reference cycles that keep garbage alive, such as one through ``TreeNode.parent``.

Only objects on a cycle need the collector; they hold the rest of the garbage.  The cycles are the
strongly connected components of the garbage; for a sample of objects, the shortest cycle is found
and named by its attributes.
"""

from __future__ import annotations

import gc
import random
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hybridbench.records.heap import Cycle
from hybridbench.sampling.edge_names import edge_name, instance_dict

_OBJECTS_MAX = 600_000
_WAYS_LOOKED_UP = 120
_WAY_VISITS_MAX = 4_000
_SHAPES_REPORTED = 6


@dataclass(frozen=True)
class GarbageCycles:
    """All cycles in the garbage.

    ``hanging`` counts garbage that is on no cycle.  ``types`` are the classes on cycles, most
    frequent first.
    """

    components: int = 0
    objects: int = 0
    hanging: int = 0
    types: tuple[tuple[str, int], ...] = ()
    shapes: tuple[Cycle, ...] = ()


def garbage_cycles(garbage: Sequence[object]) -> GarbageCycles:
    """Find and name the cycles of ``garbage``, which must not include the caller's own objects."""
    objects = garbage[:_OBJECTS_MAX]
    edges = _edges(objects)
    components = [part for part in _components(edges) if len(part) > 1 or part[0] in edges[part[0]]]
    on_cycles = [index for part in components for index in part]
    kinds = Counter(type(objects[index]) for index in on_cycles)
    own = Counter({kind: number for kind, number in kinds.items() if kind.__module__ != "builtins"})
    named = [(kind.__qualname__, number) for kind, number in (own or kinds).most_common(6)]
    return GarbageCycles(
        components=len(components),
        objects=len(on_cycles),
        hanging=len(objects) - len(on_cycles),
        types=tuple(named),
        shapes=_shapes(objects, edges, on_cycles, own or kinds),
    )


def _edges(objects: Sequence[object]) -> list[list[int]]:
    place = {id(found): index for index, found in enumerate(objects)}
    return [
        [place[id(below)] for below in gc.get_referents(found) if id(below) in place]
        for found in objects
    ]


def _components(edges: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return strongly connected components, by Tarjan's algorithm without recursion."""
    size = len(edges)
    found_at, low, on_stack = [-1] * size, [0] * size, bytearray(size)
    stack: list[int] = []
    parts: list[list[int]] = []
    clock = 0
    for start in range(size):
        if found_at[start] >= 0:
            continue
        work = [(start, 0)]
        while work:
            node, position = work.pop()
            if position == 0:
                found_at[node] = low[node] = clock
                clock += 1
                stack.append(node)
                on_stack[node] = 1
            below = edges[node]
            while position < len(below):
                child = below[position]
                position += 1
                if found_at[child] < 0:
                    work += [(node, position), (child, 0)]
                    break
                if on_stack[child]:
                    low[node] = min(low[node], found_at[child])
            else:
                _close(node, stack, on_stack, found_at, low, parts)
                if work:
                    above = work[-1][0]
                    low[above] = min(low[above], low[node])
    return parts


def _close(
    node: int,
    stack: list[int],
    on_stack: bytearray,
    found_at: Sequence[int],
    low: Sequence[int],
    parts: list[list[int]],
) -> None:
    """Finish ``node``: if nothing reaches further back, the stack above it is a component."""
    if low[node] != found_at[node]:
        return
    part: list[int] = []
    while not part or part[-1] != node:
        part.append(stack.pop())
        on_stack[part[-1]] = 0
    parts.append(part)


def _shapes(
    objects: Sequence[object],
    edges: Sequence[Sequence[int]],
    on_cycles: Sequence[int],
    kinds: Mapping[type, int],
) -> tuple[Cycle, ...]:
    if not kinds:
        return ()
    wanted = max(kinds, key=lambda kind: kinds[kind])
    starts = [index for index in on_cycles if type(objects[index]) is wanted]
    if len(starts) > _WAYS_LOOKED_UP:
        starts = random.Random(len(starts)).sample(starts, _WAYS_LOOKED_UP)
    inside = set(on_cycles)
    ways = [_way_round(start, edges, inside) for start in starts]
    shapes = Counter(_canonical(_named(objects, way)) for way in ways if way)
    looked_up = max(1, sum(shapes.values()))
    return tuple(
        Cycle(shape, number / looked_up) for shape, number in shapes.most_common(_SHAPES_REPORTED)
    )


def _way_round(start: int, edges: Sequence[Sequence[int]], inside: set[int]) -> list[int]:
    """Return the shortest cycle from ``start``, with ``start`` only once; empty if none is near."""
    came_from = {start: start}
    queue = deque([start])
    while queue and len(came_from) < _WAY_VISITS_MAX:
        node = queue.popleft()
        for child in edges[node]:
            if child == start:
                way = [node]
                while way[-1] != start:
                    way.append(came_from[way[-1]])
                return way[::-1]
            if child in inside and child not in came_from:
                came_from[child] = node
                queue.append(child)
    return []


def _named(objects: Sequence[object], way: Sequence[int]) -> tuple[str, ...]:
    """Name the edges of a cycle; an instance's dict belongs to the instance."""
    names: list[str] = []
    members = [objects[index] for index in way]
    for holder, referent in zip(members, [*members[1:], members[0]], strict=True):
        attributes = instance_dict(holder)
        if attributes is referent:
            continue
        owner = _owner(holder, members)
        names.append(edge_name(holder if owner is None else owner, referent))
    return tuple(names)


def _owner(attributes: object, members: Sequence[object]) -> object | None:
    """Return the member whose ``__dict__`` is ``attributes``."""
    if type(attributes) is not dict:
        return None
    return next((found for found in members if instance_dict(found) is attributes), None)


def _canonical(names: tuple[str, ...]) -> tuple[str, ...]:
    """Rotate the cycle so that equal cycles begin with the same edge, wherever the walk began."""
    turns = [names[index:] + names[:index] for index in range(len(names))]
    return min(turns, default=())
