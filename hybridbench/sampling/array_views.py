"""Find small views that keep large arrays alive, grouped by the attribute that holds them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from hybridbench.records.heap import ViewedStorage
from hybridbench.sampling.edge_names import edge_name
from hybridbench.sampling.forked_child import MemoryRange

# A view of a smaller array, or of most of an array, keeps little memory besides its own.
_STORAGE_BYTES_MIN = 4096
_VIEW_SHARE_MAX = 0.25
_ROWS_REPORTED = 4


@dataclass
class _Views:
    """The views held by one attribute, and the sizes of the arrays they are part of, by address."""

    count: int = 0
    size_bytes: int = 0
    storages: dict[int, int] = field(default_factory=dict)


class ArrayViews:
    """All small views of large arrays found during a walk over the heap.

    Args:
        excluded: memory ranges whose arrays are ignored (pools).
    """

    def __init__(self, excluded: Sequence[MemoryRange]) -> None:
        self._excluded = excluded
        self._by_holder: dict[str, _Views] = {}

    def met(self, holder: object, referent: object) -> None:
        """Handle a reference from ``holder`` to an object that the collector does not track."""
        if type(referent) is np.ndarray:
            self._add(holder, referent)
        elif type(referent) is dict:
            # A dict of untracked values is untracked too; it may be an instance's dict.
            for value in referent.values():
                if type(value) is np.ndarray:
                    self._add(holder, value)

    def _add(self, holder: object, array: np.ndarray) -> None:
        storage = array.base
        if not isinstance(storage, np.ndarray) or storage.nbytes < _STORAGE_BYTES_MIN:
            return
        if array.nbytes > _VIEW_SHARE_MAX * storage.nbytes or self._is_excluded(storage):
            return
        views = self._by_holder.setdefault(edge_name(holder, array), _Views())
        views.count += 1
        views.size_bytes += array.nbytes
        views.storages[id(storage)] = storage.nbytes

    def rows(self) -> list[ViewedStorage]:
        """Return one row per attribute, those that keep most memory first."""
        rows = [
            ViewedStorage(
                holder=holder,
                views=views.count,
                view_bytes=views.size_bytes,
                storages=len(views.storages),
                storage_bytes=sum(views.storages.values()),
            )
            for holder, views in self._by_holder.items()
        ]
        return sorted(rows, key=lambda row: row.storage_bytes, reverse=True)[:_ROWS_REPORTED]

    def _is_excluded(self, storage: np.ndarray) -> bool:
        address = storage.__array_interface__["data"][0]
        return any(part.overlaps(address, storage.nbytes) for part in self._excluded)
