"""Operator actions during traffic: pauses that end by themselves, and abort-all."""

from __future__ import annotations

import math

from hybridbench.records.messages import AbortAll, ContinueGeneration, PauseGeneration
from hybridbench.workload.settings import Controls


class ControlPlan:
    """Decides which control is due; times are seconds of traffic, so a drain delays all of them."""

    def __init__(self, controls: Controls) -> None:
        self._controls = controls
        self._pause_s = _or_never(controls.pause_every_s)
        self._abort_all_s = _or_never(controls.abort_all_every_s)
        self._continue_s = math.inf

    def due(self, time_s: float) -> AbortAll | PauseGeneration | ContinueGeneration | None:
        """Return what is due at ``time_s``, one at a time, in order of time."""
        if self.next_s() > time_s:
            return None
        controls = self._controls
        if self._continue_s <= time_s:
            self._continue_s = math.inf
            return ContinueGeneration()
        if self._pause_s <= time_s:
            # Count from now, so that missed actions are not made up for.
            self._pause_s = time_s + _or_never(controls.pause_every_s)
            self._continue_s = time_s + controls.pause_for_s
            return PauseGeneration(controls.pause_mode)
        self._abort_all_s = time_s + _or_never(controls.abort_all_every_s)
        return AbortAll()

    def next_s(self) -> float:
        """Return when the next action is due; infinity for never."""
        return min(self._continue_s, self._pause_s, self._abort_all_s)


def _or_never(every_s: float | None) -> float:
    return math.inf if every_s is None else every_s
