"""What injected defects did: since traffic began, before the engine was steady, up to the last idle
time.
"""

from __future__ import annotations

from collections.abc import Sequence

from hybridbench.defects.defect import Defect
from hybridbench.defects.truth import OWNER_LEDGER
from hybridbench.records.messages import InjectedTruth
from hybridbench.worker.port import ServedEngine


class InjectedCounts:
    """Reads the defects' own counts, and what the allocators' account would have refused."""

    def __init__(self, engine: ServedEngine, defects: Sequence[Defect] = ()) -> None:
        self._engine = engine
        self._defects = defects
        # Of the largest steps that were run once before any traffic: the event counters of a run
        # leave them out as well, or a rate for each event would be compared with one of others.
        self._before_traffic = self._counts()
        self._at_idle: dict[str, dict[str, int]] = {}
        self._before_steady: dict[str, dict[str, int]] = {}

    def mark_steady(self) -> None:
        """Keep the counts of this moment, from which on trends are judged."""
        self._before_steady = self._since_traffic()

    def mark_idle(self) -> None:
        """Keep the counts of this moment, at which a checkpoint finds the engine idle.

        What a defect does afterwards no checkpoint of an idle engine can show: a leak may keep the
        engine from ever being idle again.  What was lost before the traffic is missing there, too.
        """
        self._at_idle = self._counts()

    def message(self) -> InjectedTruth | None:
        """Everything for the parent; None where nothing is injected and every owner is checked."""
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
