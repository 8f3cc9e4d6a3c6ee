"""The parent's side of the leak diagnosis: a baseline early on, the stages at the end.

The results become two events of the run, ``diagnosis_baseline`` and ``diagnosis``, for the analysis
to interpret.  With ``--on-leak hold`` a leaking worker is held between the read-only stages and the
destructive ones, so that the user can inspect it in its leaked state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from hybridbench.foundation.units import format_duration
from hybridbench.records.events import DiagnosisBaseline, DiagnosisStages, Hold, Reclaim
from hybridbench.records.finding import VerdictKind
from hybridbench.records.heap import Survey, SurveyRecord
from hybridbench.records.messages import Diagnose, Diagnosis
from hybridbench.records.verdict import Verdict
from hybridbench.runs.interim import Judge
from hybridbench.runs.wire_loop import Question, WireLoop

_BASELINE_STAGES: Final = ("rest", "rehearse", "survey")
_HARMLESS_STAGES: Final = ("rest", "trim", "survey")
_DESTRUCTIVE_STAGES: Final = ("collect", "flush", "device")
_PATIENCE_S = 150.0
_JUDGE_PATIENCE_S = 120.0


class LeakDiagnosis:
    """The diagnosis of one run, called by the steps of the soak.

    Args:
        mode: when to run the stages: "auto" (if the run so far is a LEAK), "always" or "never".
        hold_s: how long a leaking worker is kept alive before anything in it is destroyed.
    """

    def __init__(self, mode: str, hold_s: float, loop: WireLoop, judge: Judge) -> None:
        self._mode = mode
        self._hold_s = hold_s
        self._loop = loop
        self._judge = judge
        self._baseline_question: Question[Diagnosis] | None = None
        self._baseline: Diagnosis | None = None

    def take_baseline(self) -> None:
        """Survey the worker at its first idle checkpoint; a forked child preserves that moment.

        Later calls only store the answer.
        """
        if self._mode == "never":
            return
        if self._baseline_question is None:
            request = self._request(_BASELINE_STAGES)
            self._baseline_question = self._loop.post(request, Diagnosis)
        self._record_baseline()

    def run(self) -> bool:
        """Run the stages if ``mode`` asks for it; False if nothing was done.

        Raises:
            WorkerLostError: the worker died; what was recorded before is kept.
        """
        self._record_baseline()
        leaks = self._leaks()
        if self._mode == "never" or (self._mode == "auto" and not leaks):
            if leaks:
                self._hold()
            return False
        loop = self._loop
        loop.samples_wanted = False
        loop.context.view.note("diagnosing: scanning the idle worker's heap")
        unharmed = loop.ask(self._request(_HARMLESS_STAGES), Diagnosis, _PATIENCE_S)
        if leaks:
            self._hold()
        destroyed = loop.ask(self._request(_DESTRUCTIVE_STAGES), Diagnosis, _PATIENCE_S)
        if unharmed is None or destroyed is None:
            loop.context.recorder.note("the worker did not answer the diagnosis in time")
            return False
        self._record(unharmed, destroyed, "leak" if leaks else "always")
        return True

    def _leaks(self) -> bool:
        if self._mode != "auto" and not self._hold_s:
            return False
        self._judge.start()
        verdict: Verdict | None = None

        def judged() -> bool:
            nonlocal verdict
            verdict = self._judge.collect()
            return verdict is not None or not self._judge.busy

        try:
            self._loop.run_until(
                lambda: judged() or self._judge.could_run_s > _JUDGE_PATIENCE_S, math.inf
            )
        finally:
            self._judge.close()
        return verdict is not None and verdict.kind is VerdictKind.LEAK

    def _hold(self) -> None:
        """Keep the worker unchanged until the time is up or the user continues."""
        if not self._hold_s:
            return
        loop = self._loop
        pid, interrupts = loop.target.pid, loop.context.interrupts
        loop.context.view.note(
            f"LEAK: the worker (pid {pid}) stays up for {format_duration(self._hold_s)}, idle and "
            f"unchanged.  Reach it with `py-spy dump --pid {pid}`, `gdb -p {pid}` or "
            f"/proc/{pid}/smaps; press Ctrl-C to end the wait and write the report."
        )
        loop.context.recorder.event(Hold(pid, self._hold_s))
        is_ended_by_user = loop.interrupt_from_now()
        loop.run_until(is_ended_by_user, loop.now_s + self._hold_s)
        if is_ended_by_user():
            # That interrupt ended the wait, not the run.
            interrupts.first = None

    def _request(self, stages: Sequence[str]) -> Diagnose:
        base = None if self._baseline is None else self._baseline.survey
        probe_id = self._loop.new_probe_id()
        if base is None or "survey" not in stages:
            return Diagnose(probe_id, list(stages))
        return Diagnose(probe_id, list(stages), base.paths, base.classes)

    def _record_baseline(self) -> None:
        question = self._baseline_question
        if question is None or question.answer is None or self._baseline is not None:
            return
        baseline = self._baseline = question.answer
        survey = baseline.survey or SurveyRecord("not asked for")
        event = DiagnosisBaseline(
            stages=tuple(baseline.stages),
            rehearsal=tuple(survey.rehearsal),
            survey=_stored(survey),
        )
        self._loop.context.recorder.at(baseline.t_s, event)

    def _record(self, unharmed: Diagnosis, destroyed: Diagnosis, trigger: str) -> None:
        readings = [*unharmed.stages, *destroyed.stages]
        survey = unharmed.survey or SurveyRecord("not asked for")
        recorder = self._loop.context.recorder
        # Use the time of the survey; a long hold may have followed.
        event = DiagnosisStages(trigger, tuple(readings), _stored(survey), tuple(unharmed.sites))
        recorder.at(unharmed.t_s, event)
        given = _reclaimed({reading.name: reading.private_bytes for reading in readings})
        if given is not None:
            recorder.at(unharmed.t_s, given)


def _reclaimed(after: Mapping[str, int]) -> Reclaim | None:
    """Convert the readings to the order of the shorter ``reclaim``: cache, then garbage.

    The amounts are those of the stages; only the order of subtraction differs.
    """
    if not {"rest", "trim", "collect", "flush"} <= set(after):
        return None
    flushed = after["trim"] - (after["collect"] - after["flush"])
    return Reclaim(
        at_rest_bytes=after["rest"],
        after_trim_bytes=after["trim"],
        after_flush_bytes=flushed,
        after_collect_bytes=after["flush"],
    )


def _stored(survey: SurveyRecord) -> Survey:
    """Convert everything but the tables, which only the next survey needs."""
    return msgspec.convert(survey, Survey, from_attributes=True)
