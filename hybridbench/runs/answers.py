"""Decide whether a run's answers are checked, and record the result once the worker has ended."""

from __future__ import annotations

from pathlib import Path

import msgspec

from hybridbench.foundation.clock import Clock
from hybridbench.foundation.units import format_duration
from hybridbench.records.events import AnswersCompared
from hybridbench.records.messages import Ready
from hybridbench.runs.answer_check import CORE_SHARE, AnswerCheck
from hybridbench.runs.answer_tally import Sizes
from hybridbench.runs.plan import SoakPlan
from hybridbench.runs.wire_loop import WireLoop
from hybridbench.targets.bundled import BundledTarget, WorkerLaunch
from hybridbench.targets.target import Capability


def answer_check_of(
    plan: SoakPlan, ready: Ready, clock: Clock, share: float = CORE_SHARE
) -> AnswerCheck | None:
    """Return the check for the answers of the worker that sent ``ready``; None if none is possible.

    The reference may use ``share`` of a core during the run.
    """
    if not plan.compares_answers or Capability.ANSWERS not in ready.capabilities:
        return None
    profile, program = plan.profile, plan.program
    sizes = Sizes(profile.pools.page_size, profile.engine.mamba_track_interval)

    def launch(stderr_path: Path) -> BundledTarget:
        return BundledTarget(WorkerLaunch(stderr_path, program=program))

    return AnswerCheck(plan.start_message(), sizes, clock, launch, share)


def record_answers(loop: WireLoop, limit_s: float) -> None:
    """Recompute the rest of the sample and record the overall result; a limit of 0 does neither.

    If the worker was lost, the rest is skipped, because recording its end comes first.
    """
    if not limit_s:
        return
    counts, recorder = loop.driver.counts, loop.context.recorder
    if loop.answers is None:
        found = AnswersCompared(left_out={"not-measured": counts.finished})
    else:
        left_s = limit_s if recorder.phase == "done" else 0.0
        waiting = loop.answers.waiting
        if waiting and left_s and not loop.interrupted:
            said = f"recomputing {waiting} answers with a reference"
            loop.context.view.note(f"{said}, for {format_duration(left_s)} at most")
        found = loop.answers.finish(left_s, lambda: loop.interrupted)
    aborted = {"aborted": counts.aborted} if counts.aborted else {}
    left_out = {**found.left_out, **aborted}
    recorder.event(msgspec.structs.replace(found, left_out=left_out))
