"""The diagnosis ladder from the parent's side: a baseline early, the climb after the last look.

What it finds becomes two events of the run, ``diagnosis_baseline`` and ``diagnosis``; what they
come to is the analysis's business.  A leak under ``--on-leak hold`` waits between what only looks
and what destroys, so that a person meets the worker as the leak left it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from hybridbench.analysis.diagnosis import BASELINE_EVENT, EVENT
from hybridbench.records.json_value import JsonValue
from hybridbench.records.verdict import Verdict, VerdictKind
from hybridbench.runs.loop import LoopParts, SoakLoop
from hybridbench.targets.messages import Counters, Diagnose, Diagnosis
from hybridbench.targets.records import RungReading, SurveyRecord
from hybridbench.units import format_duration

MODES = ("auto", "always", "never")

_LOOKS = ["rest", "trim", "survey"]
_DESTROYS = ["collect", "flush", "device"]
_PATIENCE_S = 150.0
_JUDGE_PATIENCE_S = 120.0
# A worker that is only asked to wait must say a word now and then, or it counts as hung.
_KEEPALIVE_S = 5.0


class Judge(Protocol):
    """Judges what is recorded, in a process of its own; a ``runs.look.Looker``."""

    def start(self) -> None:
        """Begin."""
        ...

    def collect(self) -> Verdict | None:
        """The verdict, once there is one."""
        ...

    @property
    def busy(self) -> bool:
        """Whether it is at work."""
        ...

    def close(self) -> None:
        """Leave nothing behind."""
        ...


@dataclass(frozen=True)
class LadderTerms:
    """When the ladder is climbed, and for how long a leaking worker is kept alive before it.

    ``mode`` is "auto" (when the run so far is a LEAK), "always" or "never".
    """

    mode: str = "auto"
    hold_s: float = 0.0


class Ladder:
    """One for a run; its calls come from the steps of the soak."""

    def __init__(self, terms: LadderTerms, loop: SoakLoop, parts: LoopParts, judge: Judge) -> None:
        self._terms = terms
        self._loop = loop
        self._parts = parts
        self._judge = judge
        self._baseline_id: int | None = None
        self._baseline: Diagnosis | None = None

    def at_rest(self) -> None:
        """The worker rests at a checkpoint: survey it, the first time; its child takes the moment.

        Later calls store the answer.
        """
        if self._terms.mode == "never":
            return
        if self._baseline_id is None:
            self._baseline_id = self._post(["rest", "rehearse", "survey"])
        self._take_baseline()

    def climb(self) -> bool:
        """Climb if the terms ask for it; False if nothing was done.

        Raises:
            WorkerLostError: the worker died on the ladder; what was recorded stands.
        """
        self._take_baseline()
        leaks = self._leaks()
        if self._terms.mode == "never" or (self._terms.mode == "auto" and not leaks):
            if leaks:
                self._hold()
            return False
        self._loop.samples_wanted = False
        self._parts.view.note("asking the resting worker what it holds and what it would give back")
        looked = self._ask(_LOOKS)
        if leaks:
            self._hold()
        destroyed = self._ask(_DESTROYS)
        if looked is None or destroyed is None:
            self._parts.recorder.event("note", {"text": "the diagnosis was not answered in time"})
            return False
        self._record(looked, destroyed, "leak" if leaks else "always")
        return True

    def _leaks(self) -> bool:
        if self._terms.mode != "auto" and not self._terms.hold_s:
            return False
        self._judge.start()
        verdict: Verdict | None = None

        def judged() -> bool:
            nonlocal verdict
            verdict = self._judge.collect()
            return verdict is not None or not self._judge.busy

        self._wait(judged, _JUDGE_PATIENCE_S)
        self._judge.close()
        return verdict is not None and verdict.kind is VerdictKind.LEAK

    def _hold(self) -> None:
        """Keep the worker as it is until time is up or somebody says to go on."""
        if not self._terms.hold_s:
            return
        pid = self._parts.target.pid
        self._parts.view.note(
            f"LEAK: the worker (pid {pid}) is kept for {format_duration(self._terms.hold_s)}, at "
            f"rest and unchanged.  Reach it with `py-spy dump --pid {pid}`, `gdb -p {pid}` or "
            f"/proc/{pid}/smaps; Ctrl-C ends the wait and the run goes on to its report."
        )
        self._parts.recorder.event("hold", {"pid": pid, "seconds": self._terms.hold_s})
        interrupts = self._parts.interrupts
        asked_before = interrupts.first is not None
        self._wait(lambda: interrupts.first is not None and not asked_before, self._terms.hold_s)
        if not asked_before:
            # It ended the wait, not the run.
            interrupts.first = None

    def _post(self, rungs: Sequence[str]) -> int:
        probe_id = self._loop.new_probe_id()
        base = None if self._baseline is None else self._baseline.survey
        tables: tuple[Mapping[str, tuple[int, int]], Mapping[str, int]] = ({}, {})
        if base is not None and "survey" in rungs:
            tables = (base.paths, base.classes)
        self._parts.target.post(Diagnose(probe_id, list(rungs), dict(tables[0]), dict(tables[1])))
        return probe_id

    def _ask(self, rungs: Sequence[str]) -> Diagnosis | None:
        probe_id = self._post(rungs)
        self._wait(lambda: probe_id in self._loop.diagnoses, _PATIENCE_S)
        return self._loop.diagnoses.pop(probe_id, None)

    def _wait(self, done: Callable[[], bool], limit_s: float) -> None:
        loop, said_s = self._loop, self._loop.now_s

        def done_or_alive() -> bool:
            nonlocal said_s
            if loop.now_s - said_s >= _KEEPALIVE_S:
                said_s = loop.now_s
                self._parts.target.post(Counters(loop.new_probe_id()))
            return done()

        loop.run_until(done_or_alive, loop.now_s + limit_s)

    def _take_baseline(self) -> None:
        if self._baseline_id is None or self._baseline is not None:
            return
        self._baseline = self._loop.diagnoses.pop(self._baseline_id, None)
        if self._baseline is not None:
            survey = self._baseline.survey or SurveyRecord("not asked for")
            self._parts.recorder.at(
                self._baseline.t_s,
                BASELINE_EVENT,
                {
                    "rungs": _rungs(self._baseline.rungs),
                    "rehearsal": _rungs(survey.rehearsal),
                    "survey": _survey(survey),
                },
            )

    def _record(self, looked: Diagnosis, destroyed: Diagnosis, trigger: str) -> None:
        readings = [*looked.rungs, *destroyed.rungs]
        survey = looked.survey or SurveyRecord("not asked for")
        recorder = self._parts.recorder
        # Stamped with the look, which a long wait may have followed.
        recorder.at(
            looked.t_s,
            EVENT,
            {
                "trigger": trigger,
                "rungs": _rungs(readings),
                "survey": _survey(survey),
                "sites": [msgspec.structs.asdict(site) for site in looked.sites],
            },
        )
        given = _reclaimed({reading.name: reading.private_bytes for reading in readings})
        if given is not None:
            recorder.at(looked.t_s, "reclaim", given)


def _reclaimed(after: Mapping[str, int]) -> dict[str, JsonValue] | None:
    """The ladder's readings in the order that the shorter ``reclaim`` takes: cache, then garbage.

    The amounts are those of the ladder; only the order in which they are taken off differs.
    """
    if not {"rest", "trim", "collect", "flush"} <= set(after):
        return None
    flushed = after["trim"] - (after["collect"] - after["flush"])
    return {
        "at_rest_bytes": after["rest"],
        "after_trim_bytes": after["trim"],
        "after_flush_bytes": flushed,
        "after_collect_bytes": after["flush"],
    }


def _rungs(readings: Sequence[RungReading]) -> list[JsonValue]:
    return [msgspec.structs.asdict(reading) for reading in readings]


def _survey(survey: SurveyRecord) -> dict[str, JsonValue]:
    """Everything but the tables, which only the next survey needs."""
    plain: dict[str, JsonValue] = msgspec.structs.asdict(survey)
    for name in ("paths", "classes", "rehearsal"):
        plain.pop(name)
    plain["garbage_types"] = [msgspec.structs.asdict(row) for row in survey.garbage_types]
    plain["cycles"] = [msgspec.structs.asdict(row) for row in survey.cycles]
    plain["retained"] = [msgspec.structs.asdict(row) for row in survey.retained]
    return plain
