"""Count the window slots that running requests free: positions that their windows have passed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hybridbench.engine.counters import EngineCounters
from hybridbench.released.sglang.accounts import Structures
from hybridbench.released.sglang.generations import Held
from hybridbench.released.sglang.rust_core import RustCoreWatch
from hybridbench.released.sglang.trees import TreeWatch


class WindowWatch:
    """Counts a tree's changes, and from step to step the window slots that requests freed."""

    def __init__(
        self, tree: TreeWatch | RustCoreWatch, structures: Structures, counters: EngineCounters
    ) -> None:
        self._tree = tree
        self._of = structures
        self._counters = counters
        # By rid: the first of the request's own positions that has a slot in the window pool.
        self._begins: dict[str, int] = {}

    def sizes(self) -> Mapping[str, int]:
        """Number of nodes at the last walk."""
        return self._tree.sizes()

    def look(self) -> None:
        """Add the changes since the last call to the counters."""
        self._tree.look()
        before, now = self._begins, {}
        for req in self._of.admitted():
            held = self._of.held(req)
            if held.row is None:
                continue
            own = self._of.row(held.row)[held.kv_from : held.kv_until]
            now[req.rid] = begins = self._first_in_window(held, own)
            # Slots that the tree has taken since were not freed.
            freed = begins - max(before.get(req.rid, 0), held.kv_from)
            if freed > 0:
                self._counters.swa_releases += 1
                self._counters.swa_released_tokens += freed
        self._begins = now

    def _first_in_window(self, held: Held, own: Any) -> int:
        has_slot = np.flatnonzero(self._of.window_of(own).numpy() > 0)
        return held.kv_from + int(has_slot[0]) if has_slot.size else held.kv_until
