"""Count the states that track buffers save, and those that the tree takes from them."""

from __future__ import annotations

from collections.abc import Mapping

from hybridbench.engine.counters import EngineCounters
from hybridbench.released.sglang.accounts import Structures
from hybridbench.released.sglang.rust_core import RustCoreWatch
from hybridbench.released.sglang.trees import TreeWatch


class TrackWatch:
    """Counts a tree's changes, and the states that the track buffers of requests save for it."""

    def __init__(
        self, tree: TreeWatch | RustCoreWatch, structures: Structures, counters: EngineCounters
    ) -> None:
        self._tree = tree
        self._of = structures
        self._counters = counters
        # By rid: the length at which the last state was saved, in tokens.
        self._saved: dict[str, int] = {}

    def sizes(self) -> Mapping[str, int]:
        """Number of nodes at the last walk."""
        return self._tree.sizes()

    def look(self) -> None:
        """Add the changes since the last call to the counters."""
        self._tree.look()
        self._counters.track_donations += self._tree.gained
        before, self._saved = self._saved, {}
        for req in self._of.admitted():
            length = self._of.tracked_until(req)
            if length is not None:
                self._saved[req.rid] = length
                self._counters.states_tracked += length != before.get(req.rid)
