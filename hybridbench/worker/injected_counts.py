"""Counts of what injected defects did: since traffic began, before the engine was steady, and up to
the last idle checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence

from hybridbench.defects.defect import Defect
from hybridbench.defects.truth import OWNER_LEDGER
from hybridbench.records.messages import InjectedTruth
from hybridbench.worker.port import ServedEngine


class InjectedCounts:
    """Reads the defects' own counts, and what the allocators' ledger would have refused."""

    def __init__(self, engine: ServedEngine, defects: Sequence[Defect] = ()) -> None:
        self._engine = engine
        self._defects = defects
        # The counts from the warm-up at the largest shapes.  The run's event counters exclude the
        # warm-up as well, so that rates per event can be compared.
        self._before_traffic = self._counts()
        self._at_idle: dict[str, dict[str, int]] = {}
        self._before_steady: dict[str, dict[str, int]] = {}

    def mark_steady(self) -> None:
        """Keep the current counts; trends are judged from here on."""
        self._before_steady = self._since_traffic()

    def mark_idle(self) -> None:
        """Keep the current counts, at a checkpoint that finds the engine idle.

        No idle checkpoint can show what a defect does later: a leak may keep the engine from ever
        being idle again.  Counts from before the traffic are included, because those slots are
        missing at a checkpoint as well.
        """
        self._at_idle = self._counts()

    def message(self) -> InjectedTruth | None:
        """Return everything for the parent; None if nothing is injected and owners are checked."""
        counts = self._counts()
        if not counts:
            return None
        return InjectedTruth(self._since_traffic(), self._at_idle or counts, self._before_steady)

    def _since_traffic(self) -> dict[str, dict[str, int]]:
        return {
            slug: {
                name: count - self._before_traffic[slug].get(name, 0)
                for name, count in named.items()
            }
            for slug, named in self._counts().items()
        }

    def _counts(self) -> dict[str, dict[str, int]]:
        counts = {defect.slug: defect.truth.counts() for defect in self._defects}
        if not self._engine.config.check_owners:
            counts[OWNER_LEDGER] = self._engine.objections()
        return counts
