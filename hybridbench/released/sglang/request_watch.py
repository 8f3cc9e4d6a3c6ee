"""Count what running requests free or save themselves: window slots and states."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hybridbench.engine.counters import EngineCounters
from hybridbench.released.sglang.accounts import Structures
from hybridbench.released.sglang.rust_core import RustCoreWatch
from hybridbench.released.sglang.trees import TreeWatch


class _RequestWatch:
    """Counts a tree's changes; subclasses add those of the requests, from step to step."""

    def __init__(
        self, tree: TreeWatch | RustCoreWatch, structures: Structures, counters: EngineCounters
    ) -> None:
        self._tree = tree
        self._of = structures
        self._counters = counters
        self._seen: dict[str, int] = {}  # by rid

    def sizes(self) -> Mapping[str, int]:
        """Number of nodes at the last walk."""
        return self._tree.sizes()


class WindowWatch(_RequestWatch):
    """Also counts window slots that requests free: positions that their windows have passed.

    ``_seen`` has the first of a request's own positions that has a slot in the window pool.
    """

    def look(self) -> None:
        """Add the changes since the last call to the counters."""
        self._tree.look()
        before, self._seen = self._seen, {}
        for req in self._of.admitted():
            held = self._of.held(req)
            if held.row is None:
                continue
            own = self._of.row(held.row)[held.kv_from : held.kv_until]
            has_slot = np.flatnonzero(self._of.window_of(own).numpy() > 0)
            begins = held.kv_from + int(has_slot[0]) if has_slot.size else held.kv_until
            self._seen[req.rid] = begins
            # Slots that the tree has taken since were not freed.
            freed = begins - max(before.get(req.rid, 0), held.kv_from)
            if freed > 0:
                self._counters.swa_releases += 1
                self._counters.swa_released_tokens += freed


class TrackWatch(_RequestWatch):
    """Also counts the states that track buffers save, and those that the tree takes from them.

    ``_seen`` has the length at which a request's last state was saved, in tokens.
    """

    def look(self) -> None:
        """Add the changes since the last call to the counters."""
        self._tree.look()
        self._counters.track_donations += self._tree.gained
        before, self._seen = self._seen, {}
        for req in self._of.admitted():
            length = self._of.tracked_until(req)
            if length is not None:
                self._seen[req.rid] = length
                self._counters.states_tracked += length != before.get(req.rid)
