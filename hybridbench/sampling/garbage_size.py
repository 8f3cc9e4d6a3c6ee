"""Estimate how many bytes freeing a set of objects would release, with all that only they hold.

For a node that holds a token list, an index array and a tensor, ``sys.getsizeof`` returns a hundred
bytes, although it keeps kilobytes.  The collector does not track ints, strings, arrays and tuples
of these, so they are found through their holders.  An object that also has other holders counts as
a share: its size divided by its references.  That needs no global bookkeeping, adds up to the true
size when all holders are garbage, and becomes negligible for interned values.
"""

from __future__ import annotations

import gc
import random
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hybridbench.records.heap import TypeCount
from hybridbench.sampling.forked_child import MemoryRange
from hybridbench.sampling.tensor_storage import TensorStorages

_ATOMS = frozenset({int, float, complex, bool, str, bytes, type(None)})
_MANY = 48
_OBJECTS_SIZED_MAX = 150_000
_REFERENCES_SIZED_MAX = 6_000_000
_DEPTH_MAX = 40
# An untracked object of at least this size gets its own entry instead of being counted by shares.
_LARGE_BYTES = 4096


@dataclass(frozen=True)
class GarbageSize:
    """All garbage by type, largest first; ``exact`` is False if bytes come from a sample."""

    types: tuple[TypeCount, ...]
    exact: bool

    @property
    def total_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.types)


def garbage_size(
    garbage: Sequence[object], storages: TensorStorages, excluded: Sequence[MemoryRange] = ()
) -> GarbageSize:
    """Size ``garbage``, in any process, without changing anything.

    Args:
        garbage: tracked objects held only by each other (and the caller's sequence).
        storages: the tensors of the whole heap, to recognise storages shared with live tensors.
        excluded: memory that outlives any garbage and must not be read (pools).
    """
    sizer = _Sizer(excluded)
    total = len(garbage)
    order: Iterable[int] = range(total)
    if total > _OBJECTS_SIZED_MAX:
        # Random, not every k-th: in node, list, node, list that would pick only one of the two.
        order = random.Random(total).sample(range(total), _OBJECTS_SIZED_MAX)
    sized: Counter[type] = Counter()
    sums: dict[type, float] = {}
    for index in order:
        kind = type(garbage[index])
        sums[kind] = sums.get(kind, 0.0) + sizer.bytes_of(garbage[index])
        sized[kind] += 1
        if sizer.references > _REFERENCES_SIZED_MAX:
            break
    counts = Counter(map(type, garbage))
    exact = sum(sized.values()) == total
    for kind, size_bytes in sizer.large_bytes(exact=exact):
        sums[kind] += size_bytes
    for kind, size_bytes in storages.bytes_only_held_by(garbage).items():
        sums[kind] = sums.get(kind, 0.0) + size_bytes * sized[kind] / counts[kind]
    return GarbageSize(_by_type(counts, sized, sums), exact=exact)


def _by_type(
    counts: Mapping[type, int], sized: Mapping[type, int], sums: Mapping[type, float]
) -> tuple[TypeCount, ...]:
    rows = []
    for kind, count in counts.items():
        part = sized[kind]
        # A type too rare to be sampled at all takes next to no memory.
        size_bytes = sums[kind] * count / part if part else 0.0
        rows.append(TypeCount(type_name(kind), count, round(size_bytes)))
    return tuple(sorted(rows, key=lambda row: (-row.size_bytes, -row.count, row.type_name)))


def type_name(kind: type) -> str:
    """``module.Class``, or ``Class`` for builtins."""
    module = kind.__module__
    return kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"


@dataclass
class _Large:
    """An untracked object large enough for its own entry, and how often garbage refers to it."""

    item: object
    kind: type  # of the garbage first seen to hold it
    size_bytes: float
    seen: int = 0


class _Sizer:
    def __init__(self, excluded: Sequence[MemoryRange]) -> None:
        self._excluded = excluded
        self._large: dict[int, _Large] = {}
        self._kind: type = object
        self.references = 0
        self._loop_extra = _references_added_by_a_loop()
        self._map_extra = _references_added_by_a_map()

    def bytes_of(self, holder: object) -> float:
        """Return the size of ``holder`` and its share of the small untracked objects below it."""
        self._kind = type(holder)
        return sys.getsizeof(holder, 0) + self._held_by(holder, 0)

    def large_bytes(self, *, exact: bool) -> Iterable[tuple[type, float]]:
        """Yield the types and sizes of large objects that only garbage holds.

        If only part of the garbage was sampled, other large objects count by the share of their
        references that was seen.
        """
        for large in self._large.values():
            # One reference is our own entry's, one is the argument's.
            holders = sys.getrefcount(large.item) - _OWN_REFERENCES
            if large.seen >= holders:
                yield large.kind, large.size_bytes
            elif not exact:
                yield large.kind, large.size_bytes * large.seen / holders

    def _held_by(self, holder: object, depth: int) -> float:
        referents = gc.get_referents(holder)
        self.references += len(referents)
        if len(referents) > _MANY and _ATOMS.issuperset(set(map(type, referents))):
            return self._atoms_share(referents)
        total = 0.0
        for referent in referents:
            if not gc.is_tracked(referent) and not self._is_large(referent):
                holders = max(1, sys.getrefcount(referent) - self._loop_extra)
                total += self._untracked_bytes(referent, depth) / holders
        return total

    def _is_large(self, found: object) -> bool:
        """Whether ``found`` is large; if so, create its entry, or count one more reference."""
        size_bytes = sys.getsizeof(found, 0)
        if size_bytes < _LARGE_BYTES:
            return False
        large = self._large.get(id(found))
        if large is None:
            large = self._large[id(found)] = _Large(found, self._kind, size_bytes)
            if type(found) not in _ATOMS and not isinstance(found, np.ndarray):
                large.size_bytes += self._held_by(found, 0)
        large.seen += 1
        return True

    def _atoms_share(self, atoms: list[object]) -> float:
        sizes = np.fromiter(map(sys.getsizeof, atoms), dtype=np.float64, count=len(atoms))
        holders = np.fromiter(map(sys.getrefcount, atoms), dtype=np.float64, count=len(atoms))
        return float((sizes / np.maximum(1.0, holders - self._map_extra)).sum())

    def _untracked_bytes(self, found: object, depth: int) -> float:
        if isinstance(found, np.ndarray):
            return self._array_bytes(found)
        size_bytes = float(sys.getsizeof(found, 0))
        if type(found) not in _ATOMS and depth < _DEPTH_MAX:
            size_bytes += self._held_by(found, depth + 1)
        return size_bytes

    def _array_bytes(self, array: np.ndarray) -> float:
        size_bytes = float(sys.getsizeof(array, 0))
        base = array.base
        if not isinstance(base, np.ndarray) or self._is_excluded(base):
            return size_bytes
        # A view keeps its whole base array alive, however small the view is.
        if not self._is_large(base):
            holders = max(1, sys.getrefcount(base) - self._loop_extra)
            size_bytes += self._array_bytes(base) / holders
        return size_bytes

    def _is_excluded(self, array: np.ndarray) -> bool:
        address = array.__array_interface__["data"][0]
        return any(part.overlaps(address, array.nbytes) for part in self._excluded)


_OWN_REFERENCES = 2


def _references_added_by_a_loop() -> int:
    """Measure the extra references ``getrefcount`` sees in ``_held_by``; versions differ."""
    only_holder = [object()]
    for referent in gc.get_referents(only_holder):
        return sys.getrefcount(referent) - 1
    raise AssertionError("a list refers to what it holds")


def _references_added_by_a_map() -> int:
    only_holder = [object()]
    referents = gc.get_referents(only_holder)
    return next(map(sys.getrefcount, referents)) - 1
