"""Find what is held now but was not at the baseline: classes that grew, and their holders."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hybridbench.records.heap import RetainedObjects
from hybridbench.sampling.edge_names import is_neighbour
from hybridbench.sampling.live_paths import DRAGGED, STEP, LivePaths, Place, counts_by_class

# Under steady traffic a few objects change between any two surveys.
COUNT_MIN = 32
BYTES_MIN = 32 * 1024
# A container is one object: between two idle points its size changes only by its content.
CONTAINER_BYTES_MIN = 4 * 1024
_CHAINS_SAMPLED = 20
_ROWS_REPORTED = 12
# If a class grew in total by less than this share of a place's growth, its objects just moved.
_NET_SHARE_MIN = 0.5
# With more containers at one place, it is unclear which one grew.
_CONTAINERS_MAX = 64
_PAIR = 2


def retained_growth(
    live: LivePaths, baseline: Mapping[str, Sequence[int]], baseline_classes: Mapping[str, int]
) -> tuple[RetainedObjects, ...]:
    """Return the places of ``live`` that grew since the tables of ``baseline``, largest first."""
    now = counts_by_class(live.top)
    net = {name: number - baseline_classes.get(name, 0) for name, number in now.items()}
    before = {path: (row[0], row[1]) for path, row in baseline.items()}
    grown = list(_grown(live.top, before, net))
    rows = [row for row in (_row(live, place) for place in grown if not place.dragged) if row]
    rows += _dragged_rows(live, [place for place in grown if place.dragged])
    ordered = sorted(rows, key=lambda row: row.size_bytes, reverse=True)
    return tuple(ordered[:_ROWS_REPORTED])


@dataclass(frozen=True)
class _Grown:
    """A place and its growth; if ``count`` is 0, a container grew."""

    place: Place
    count: int
    size_bytes: int

    @property
    def dragged(self) -> bool:
        return self.place.dragged

    @property
    def type_name(self) -> str:
        return self.place.name.removeprefix(DRAGGED)


def _grown(
    place: Place, before: Mapping[str, tuple[int, int]], net: Mapping[str, int]
) -> Iterable[_Grown]:
    """Yield the topmost places that grew; their growth includes what they hold.

    Dragged objects are counted separately from the structure that they hang from.
    """
    count_before, bytes_before = before.get(place.path, (0, 0))
    more = len(place.objects) - count_before
    own_bytes = round(place.size_bytes - bytes_before)
    grew_as_class = net.get(place.name.removeprefix(DRAGGED), 0) >= _NET_SHARE_MIN * more
    below: Iterable[Place] = place.below.values()
    if place.kind is not None and more >= COUNT_MIN and grew_as_class:
        same = [found for found in place.walk() if found.dragged == place.dragged]
        size = sum(found.size_bytes - before.get(found.path, (0, 0))[1] for found in same)
        if size >= BYTES_MIN:
            yield _Grown(place, more, round(size))
            below = _dragged_below(place)
    elif _is_container(place) and own_bytes >= CONTAINER_BYTES_MIN and more < COUNT_MIN:
        # Same number of containers, but their content, unseen by the collector, grew.
        yield _Grown(place, 0, own_bytes)
    for found in below:
        yield from _grown(found, before, net)


def _dragged_below(place: Place) -> list[Place]:
    """Return the topmost dragged places below one that is not."""
    if place.dragged:
        return []
    found: list[Place] = []
    stack = list(place.below.values())
    while stack:
        below = stack.pop()
        if below.dragged:
            found.append(below)
        else:
            stack += below.below.values()
    return found


def _is_container(place: Place) -> bool:
    """Whether its objects are containers, and few enough to identify the one that grew."""
    return place.kind in (list, dict, set, deque) and len(place.objects) <= _CONTAINERS_MAX


def _row(live: LivePaths, grown: _Grown) -> RetainedObjects | None:
    place, count = grown.place, grown.count
    if count:
        sampled = _some(place.objects[-count:])
    else:
        sampled = [max(place.objects, key=_length)]
        if live.weigh(sampled) < _NET_SHARE_MIN * grown.size_bytes:
            return None
    chains = Counter(shortened(live.chain(found)) for found in sampled)
    chain, times = chains.most_common(1)[0]
    example = next(found for found in sampled if shortened(live.chain(found)) == chain)
    holder, entries = _holder(live, place, chain, example if count else None)
    return RetainedObjects(
        type_name=grown.type_name,
        count=count,
        size_bytes=grown.size_bytes,
        path=place.path,
        holder=holder,
        entries=entries if count else _length(example),
        chain=chain,
        chain_share=times / len(sampled),
        dragged=False,
        item_type="" if count else _commonest_item(example),
    )


def _dragged_rows(live: LivePaths, grown: Sequence[_Grown]) -> list[RetainedObjects]:
    """Return one row per class: objects held by neighbour pointers have no single place."""
    rows = []
    for name in sorted({found.type_name for found in grown}):
        alike = [found for found in grown if found.type_name == name]
        sampled = _some([o for found in alike for o in found.place.objects[-found.count :]])
        chains = [live.chain(found) for found in sampled]
        last = Counter(chain[-1] for chain in chains if chain)
        shapes = Counter(map(shortened, chains))
        chain, times = shapes.most_common(1)[0]
        rows.append(
            RetainedObjects(
                type_name=name,
                count=sum(found.count for found in alike),
                size_bytes=sum(found.size_bytes for found in alike),
                path=max(alike, key=lambda found: found.count).place.path,
                holder=last.most_common(1)[0][0] if last else "",
                entries=0,
                chain=chain,
                chain_share=times / len(sampled),
                dragged=True,
            )
        )
    return rows


def shortened(chain: Sequence[str]) -> tuple[str, ...]:
    """Shorten ``chain`` so that each walk along one class's own pointers appears once.

    Repeated ``TreeNode.children -> dict[*]`` becomes one; a run of neighbour pointers becomes
    ``TreeNode.(full_prev|parent)``.
    """
    short: list[str] = []
    position = 0
    while position < len(chain):
        run = _neighbour_run(chain, position)
        if len(run) > 1:
            owner = run[0].rpartition(".")[0]
            names = sorted({edge.rpartition(".")[2] for edge in run})
            short.append(f"{owner}.({'|'.join(names)})" if len(names) > 1 else run[0])
            position += len(run)
        elif len(short) >= _PAIR and tuple(short[-_PAIR:]) == tuple(chain[position : position + 2]):
            position += _PAIR
        else:
            short.append(chain[position])
            position += 1
    return tuple(short)


def _neighbour_run(chain: Sequence[str], start: int) -> list[str]:
    """Return the edges from ``start`` on that are neighbour pointers of one class."""
    owner = chain[start].rpartition(".")[0]
    run: list[str] = []
    for edge in chain[start:]:
        holder, _, name = edge.rpartition(".")
        if holder != owner or not is_neighbour(name):
            break
        run.append(edge)
    return run


def _some(objects: Sequence[object]) -> list[object]:
    draw = random.Random(len(objects))
    return draw.sample(objects, min(_CHAINS_SAMPLED, len(objects)))


def _holder(
    live: LivePaths, place: Place, chain: Sequence[str], example: object
) -> tuple[str, int]:
    """Return the attribute that holds everything at ``place``, and the length of its container."""
    if not chain:
        return place.path.rpartition(STEP)[0], 0
    if example is None:
        return chain[-1], 0
    # A container has no attribute of its own: the edge before names its owner.
    owner = next((edge for edge in reversed(chain) if "[" not in edge), chain[-1])
    return owner, max(0, _length(live.holder_of(example)))


def _commonest_item(container: object) -> str:
    items: Sequence[object] = ()
    if isinstance(container, dict):
        items = list(container.values())
    elif isinstance(container, list | tuple | set | deque):
        items = list(container)
    kinds = Counter(type(item).__qualname__ for item in items)
    return kinds.most_common(1)[0][0] if kinds else ""


def _length(found: object) -> int:
    return len(found) if isinstance(found, list | dict | set | tuple | deque) else -1
