"""A target that is only observed, from its start to a report."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from hybridbench.cli.render import render
from hybridbench.errors import ExitCode, RunDirectoryError
from hybridbench.labels import labelled
from hybridbench.metrics import MEMORY
from hybridbench.records.events import Crash, Phase, ProcessStarted, StoppedEarly
from hybridbench.records.stored_verdict import read_verdict
from hybridbench.records.verdict import Verdict, VerdictKind
from hybridbench.rundir.cut import read_cut_run
from hybridbench.rundir.layout import MANIFEST, REPORT_MARKDOWN, VERDICT
from hybridbench.rundir.reader import read_run
from hybridbench.runs.observed import ObservedUnderSoak
from hybridbench.runs.plan import RunPlan, SoakOutcome
from hybridbench.runs.soak import soak
from hybridbench.targets.target import Capability, Observe
from tests.scenarios.observed_target import ObservedProgram

SHOWS = (Capability.PROCESS_MEMORY, Capability.EVENT_COUNTERS)
CORE = labelled(MEMORY, {"role": "engine_core"})


def observed(
    store: Path, length_s: float, launch: Callable[[Path], Observe] = ObservedProgram
) -> tuple[SoakOutcome, int, Verdict]:
    """A run of the program, judged: its outcome, the exit code, the verdict."""
    plan = RunPlan(name="a server", store=store, duration_s=length_s, ui="none")
    outcome = soak(ObservedUnderSoak(plan, launch, SHOWS))
    code = render(outcome.run_dir)
    return outcome, code, read_verdict(outcome.run_dir / VERDICT)


def test_a_server_of_two_processes_gets_a_verdict_and_a_report(tmp_path: Path) -> None:
    outcome, code, verdict = observed(tmp_path, 32.0)

    record, page = read_run(outcome.run_dir), (outcome.run_dir / REPORT_MARKDOWN).read_text()
    assert not outcome.crashed
    assert code == verdict.exit_code == ExitCode.INCONCLUSIVE  # half a minute decides nothing
    assert not verdict.failures
    assert {e.role for e in record.all_events(ProcessStarted)} == {"front_end", "engine_core"}
    assert [phase.name for phase in record.all_events(Phase)] == ["boot", "observe", "done"]
    judged = {result.metric for result in verdict.metrics}
    assert {CORE, labelled(MEMORY, {"role": "front_end"})} <= judged
    core = next(result for result in verdict.metrics if result.metric == CORE)
    assert core.rate_per_hour is not None
    assert core.rate_per_hour.lower > 0
    assert core.rate_per_request is not None
    assert "private memory of engine\\_core" in page
    assert "requests\\_total" in page
    # What nobody could see is said, and nothing is made up in its place.
    shown = page[page.index("## What could not be seen") :]
    assert "the engine's own checks" in shown
    assert "without idle checkpoints" in shown
    manifest = json.loads((outcome.run_dir / MANIFEST).read_text())
    assert manifest["target"]["kind"] == "observed"
    assert manifest["seed"] is None
    with pytest.raises(RunDirectoryError, match="cannot be resumed"):
        read_cut_run(outcome.run_dir)


def test_a_target_that_ends_in_order_ends_the_run(tmp_path: Path) -> None:
    outcome, _, verdict = observed(tmp_path, 60.0, partial(ObservedProgram, seconds=3.0))

    stopped = read_run(outcome.run_dir).all_events(StoppedEarly)
    assert [event.reason for event in stopped] == ["target-ended"]
    assert verdict.kind is not VerdictKind.CRASHED


def test_a_target_that_fails_is_a_crash(tmp_path: Path) -> None:
    outcome, code, verdict = observed(
        tmp_path, 60.0, partial(ObservedProgram, seconds=3.0, exit_code=7)
    )

    (crash,) = read_run(outcome.run_dir).all_events(Crash)
    assert outcome.crashed
    assert (code, verdict.kind) == (ExitCode.CRASHED, VerdictKind.CRASHED)
    assert "exit code 7" in crash.detail


@pytest.mark.soak
def test_the_process_that_leaks_is_found_with_what_drives_it(tmp_path: Path) -> None:
    _, code, verdict = observed(tmp_path, 420.0, partial(ObservedProgram, per_request=10_000))

    (leak,) = [f for f in verdict.findings if f.verdict is VerdictKind.LEAK]
    assert code == ExitCode.LEAK
    assert not verdict.failures
    assert "per request" in verdict.headline
    assert leak.subject == CORE
    per_request = next(rate for rate in leak.rates if rate.per not in ("h", "s"))
    assert per_request.value == pytest.approx(10_000, rel=0.1)
