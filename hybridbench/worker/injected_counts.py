"""What injected defects did: in all, before the engine was steady, up to the last idle time."""

from __future__ import annotations

from collections.abc import Sequence

from hybridbench.defects.defect import Defect
from hybridbench.defects.truth import OWNER_LEDGER
from hybridbench.engine.engine import Engine
from hybridbench.records.messages import InjectedTruth


class InjectedCounts:
    """Reads the defects' own counts, and what the allocators' account would have refused."""

    def __init__(self, engine: Engine, defects: Sequence[Defect] = ()) -> None:
        self._engine = engine
        self._defects = defects
        self._at_idle: dict[str, dict[str, int]] = {}
        self._before_steady: dict[str, dict[str, int]] = {}

    def mark_steady(self) -> None:
        """Keep the counts of this moment, from which on trends are judged."""
        self._before_steady = self._counts()

    def mark_idle(self) -> None:
        """Keep the counts of this moment, at which a checkpoint finds the engine idle.

        What a defect does afterwards no checkpoint of an idle engine can show: a leak may keep the
        engine from ever being idle again.
        """
        self._at_idle = self._counts()

    def message(self) -> InjectedTruth | None:
        """Everything for the parent; None where nothing is injected and every owner is checked."""
        counts = self._counts()
        if not counts:
            return None
        return InjectedTruth(counts, self._at_idle or counts, self._before_steady)

    def _counts(self) -> dict[str, dict[str, int]]:
        counts = {defect.slug: defect.truth.counts() for defect in self._defects}
        if not self._engine.config.check_owners:
            counts[OWNER_LEDGER] = self._engine.pools.objections()
        return counts
