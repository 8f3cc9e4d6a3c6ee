"""The time after the planned end: traffic goes on while the verdict is open."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from hybridbench.analysis.stopping import Look, settled
from hybridbench.records.verdict import Verdict, VerdictKind
from hybridbench.runs.recorder import Recorder
from hybridbench.runs.status import RunStatus, View
from hybridbench.runs.stopping import Looks
from hybridbench.units import format_duration

# A look costs a second on another core; two that agree must be a minute apart.
_LOOK_EVERY_S = 30.0
_LOOKS_KEPT = 256
_FAILURES_MAX = 3
EXTENDED, EXTENSION_ENDED = "extended", "extension_ended"


class Extends(Protocol):
    """What the steps of a run ask once the planned time is over; answers at once."""

    @property
    def limit_s(self) -> float: ...
    def over(self) -> bool: ...
    def end(self) -> None: ...


@dataclass
class Extension:
    """Judges the run again and again beyond its planned end, until ``analysis.stopping`` is done.

    Args:
        limit_s: how long the run may go on, in seconds.
        looks: judges what is stored, as the run's end would.
        recorder: tells the time of the run, and gets an event as the extension begins and ends.
    """

    limit_s: float
    looks: Looks
    recorder: Recorder
    view: View
    status: RunStatus

    def __post_init__(self) -> None:
        self._seen: list[Look] = []
        self._next_s = self._asked_s = 0.0
        self._extended = self._settled = self._asked = False
        self._failed = 0

    def over(self) -> bool:
        """Whether the run may end now; the first call asks for the first look."""
        verdict = self.looks.collect()
        if verdict is not None:
            self._asked, self._failed = False, 0
            self._learn(Look(self._asked_s, verdict))
        elif self._asked and not self.looks.busy:
            # A machine that can start no process must not keep the run going for nothing.
            self._asked = False
            self._failed += 1
            self._settled = self._failed >= _FAILURES_MAX
        now_s = self.recorder.now_s
        if not self._settled and not self.looks.busy and now_s >= self._next_s:
            self._next_s, self._asked_s = now_s + _LOOK_EVERY_S, now_s
            self._asked = True
            self.looks.start()
        return self._settled

    def end(self) -> None:
        """Traffic has ended, settled or not; leave no process behind."""
        self.looks.close()
        if self._extended:
            self.recorder.event(EXTENSION_ENDED, {"settled": self._settled})

    def _learn(self, look: Look) -> None:
        # Where many looks were taken, the later ones are what a decision rests on.
        self._seen = [*self._seen, _lean(look)][-_LOOKS_KEPT:]
        reason = settled(self._seen)
        self._settled = reason is not None
        if reason is not None and self._extended:
            self.view.note(f"decided, ending: {reason.sentence}")
        if self._settled or self._extended:
            return
        self._extended = True
        why = look.verdict.headline.partition(": ")[2]
        self.recorder.event(EXTENDED, {"limit_s": self.limit_s, "text": why})
        self.status.duration_s += self.limit_s
        word = "undecided" if look.verdict.kind is VerdictKind.INCONCLUSIVE else "to be confirmed"
        self.view.note(f"{word}, extending by up to {format_duration(self.limit_s)}: {why}")


def _lean(look: Look) -> Look:
    """A look without its charts: a night of looks must not fill the harness's memory."""
    metrics = tuple(
        replace(m, fit_t_s=(), fit_value=(), band_lower=(), band_upper=())
        for m in look.verdict.metrics
    )
    verdict: Verdict = replace(look.verdict, metrics=metrics)
    return Look(look.t_s, verdict)
