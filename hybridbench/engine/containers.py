"""The lengths of the lists, tables and sets that the engine's lasting objects have as attributes.

They need no declaration, so a new one that is never emptied is counted as well.
"""

from __future__ import annotations

from collections import deque
from typing import Final

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


def long_containers(root: object) -> dict[str, int]:
    """Lengths by class and attribute, of all that ``root`` reaches through attributes alone.

    The longest counts if several objects of a class have the attribute.
    """
    package = __name__.rpartition(".")[0]
    lengths: dict[str, int] = {}
    seen, to_visit = {id(root)}, [root]
    while to_visit:
        holder = to_visit.pop()
        for name, value in vars(holder).items():
            kind = type(value)
            if isinstance(value, _CONTAINERS):
                where = f"{type(holder).__name__}.{name}"
                if len(value) >= _LONG and where not in _BOUNDED:
                    lengths[where] = max(len(value), lengths.get(where, 0))
            elif (
                kind.__module__.startswith(package)
                and _PASSING.isdisjoint(base.__name__ for base in kind.__mro__)
                and kind.__dictoffset__
                and id(value) not in seen
            ):
                seen.add(id(value))
                to_visit.append(value)
    return lengths
