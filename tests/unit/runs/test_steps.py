"""The steps of a soak, on a fake clock."""

from __future__ import annotations

import signal

import pytest

from hybridbench.records import messages as m
from hybridbench.records.events import (
    Checkpoint,
    Interrupted,
    Note,
    Phase,
    Reclaim,
    Steady,
    WorkloadFailed,
)
from hybridbench.runs.loop import WorkerLostError
from hybridbench.runs.status import RunStatus
from tests.unit.runs.fakes import FakeView
from tests.unit.runs.soaks import make_plan, make_soak


def test_a_run_warms_up_until_steady_then_looks_at_checkpoints_and_ends_on_time() -> None:
    soak = make_soak(make_plan(duration_s=100.0))
    soak.target.steady_at_s = soak.clock.monotonic_s() + 15.0
    soak.steps.run()

    phases = soak.sink.phases()
    assert phases[:6] == ["warmup", "steady", "drain", "idle", "resume", "steady"]
    assert phases[-3:] == ["drain", "idle", "done"]
    steady_s = soak.sink.all_events(Steady)[0].t_s
    assert steady_s == pytest.approx(15.0, abs=0.5)
    # At the start of the steady part, every 20 s, and at the end; none just before the end.
    indices = [checkpoint.index for checkpoint in soak.sink.all_events(Checkpoint)]
    assert indices == [0, 1, 2, 3, 4]
    assert all(checkpoint.idle for checkpoint in soak.sink.all_events(Checkpoint))
    audits = [p.audit for p in soak.target.posted if isinstance(p, m.Checkpoint)]
    assert audits == [False, False, False, False, True]
    assert soak.sink.events[-1].t_s == pytest.approx(100.0, abs=3.0)
    assert soak.target.count(m.Shutdown) == 1


def test_samples_and_heap_scans_keep_their_cadence_and_their_times_rise() -> None:
    soak = make_soak(make_plan(duration_s=100.0))
    soak.target.steady_at_s = soak.clock.monotonic_s() + 10.0
    soak.steps.run()

    scanned = [t for t, _, values in soak.sink.samples if "gc_collectible_bytes" in values]
    others = [t for t, _, values in soak.sink.samples if "gc_collectible_bytes" not in values]
    sampled = [values for _, _, values in soak.sink.samples if "events.finishes" in values]
    counted = [values for _, _, values in soak.sink.samples if "gc_collectible_bytes" in values]
    assert scanned == sorted(set(scanned))
    assert others == sorted(set(others))
    assert 95 <= len(sampled) <= 104
    assert len(counted) >= 20
    assert sampled[-1]["events.finishes"] > 500
    assert sum("requests_per_s" in values for values in sampled) == len(sampled) - 1


def test_a_run_that_never_gets_steady_goes_on_without_the_event() -> None:
    soak = make_soak(make_plan(duration_s=100.0))
    soak.steps.run()

    assert "steady" not in soak.sink.kinds()
    began_s = next(phase.t_s for phase in soak.sink.all_events(Phase) if phase.name == "steady")
    assert began_s == pytest.approx(40.0, abs=1.0)


def test_steadiness_that_comes_late_is_recorded_when_it_comes() -> None:
    soak = make_soak(make_plan(duration_s=100.0))
    soak.target.steady_at_s = soak.clock.monotonic_s() + 70.0
    soak.steps.run()

    assert [steady.t_s for steady in soak.sink.all_events(Steady)] == [pytest.approx(70.0, abs=2.0)]


def test_the_first_signal_ends_the_run_in_order_with_a_last_checkpoint() -> None:
    def interrupt(status: RunStatus) -> None:
        if status.elapsed_s > 30 and soak.interrupts.first is None:
            soak.interrupts.on_signal(signal.SIGINT, None)

    soak = make_soak(make_plan(duration_s=1000.0), FakeView(interrupt))
    soak.steps.run()

    assert [event.signal for event in soak.sink.all_events(Interrupted)] == ["SIGINT"]
    assert soak.sink.phases()[-3:] == ["drain", "idle", "done"]
    assert soak.sink.kinds().index("interrupted") < len(soak.sink.kinds()) - 4
    assert len(soak.sink.all_events(Checkpoint)) >= 1
    assert soak.sink.events[-1].t_s < 40
    assert "a second signal stops at once" in soak.view.notes[0]


@pytest.mark.parametrize("after_s", [2.0, 30.0], ids=["in the warm-up", "in the judged part"])
def test_a_workload_that_fails_ends_the_run_in_order_and_says_why_once(after_s: float) -> None:
    def fail(status: RunStatus) -> None:
        if status.elapsed_s > after_s:
            soak.workload.failure = "a.jsonl:301: not JSON."

    soak = make_soak(make_plan(duration_s=1000.0), FakeView(fail))
    soak.target.steady_at_s = soak.clock.monotonic_s() + 15.0
    soak.steps.run()

    assert [event.text for event in soak.sink.all_events(WorkloadFailed)] == [
        "a.jsonl:301: not JSON."
    ]
    assert soak.sink.phases()[-3:] == ["drain", "idle", "done"]
    assert soak.sink.events[-1].t_s < after_s + 20
    assert len(soak.sink.all_events(Checkpoint)) >= 1
    assert soak.sink.all_events(Reclaim)
    assert "a.jsonl:301" in soak.view.notes[0]


def test_an_engine_that_cannot_be_drained_is_a_note_and_has_no_checkpoint() -> None:
    soak = make_soak(make_plan(duration_s=60.0))
    soak.target.service_s = 10_000.0
    soak.steps.run()

    assert soak.sink.all_events(Checkpoint) == []
    notes = [note.text for note in soak.sink.all_events(Note)]
    assert "not idle after 120 s of draining" in notes[0]


def test_an_engine_that_finishes_nothing_after_a_failed_drain_is_not_waited_for_again() -> None:
    soak = make_soak(make_plan(duration_s=60.0))
    soak.target.service_s = 10_000.0
    soak.steps.run()

    # A full drain at the first checkpoint; the one at the end is cut short and not reported.
    notes = [note.text for note in soak.sink.all_events(Note)]
    assert len([text for text in notes if "draining" in text]) == 1
    assert soak.target.count(m.Drain) == 2
    assert soak.loop.context.recorder.now_s < 60.0 + 120.0 + 30.0


def test_a_signal_ends_a_drain_that_takes_long() -> None:
    def interrupt(status: RunStatus) -> None:
        if soak.target.count(m.Drain) and soak.interrupts.first is None:
            signalled_s.append(soak.loop.context.recorder.now_s)
            soak.interrupts.on_signal(signal.SIGINT, None)

    signalled_s: list[float] = []
    soak = make_soak(make_plan(duration_s=60.0), FakeView(interrupt))
    soak.target.service_s = 10_000.0
    soak.steps.run()

    assert soak.loop.context.recorder.now_s < signalled_s[0] + 30.0
    assert not [note for note in soak.sink.all_events(Note) if "draining" in note.text]


def test_a_worker_that_falls_silent_is_given_up_after_the_watchdogs_limit() -> None:
    def fall_silent(status: RunStatus) -> None:
        soak.target.silent = soak.target.silent or status.elapsed_s > 20

    soak = make_soak(make_plan(duration_s=1000.0), FakeView(fall_silent))
    with pytest.raises(WorkerLostError, match=r"no message from the worker for 3\d s") as lost:
        soak.steps.run()

    assert lost.value.reason == "hang"
    # A heap scan requested meanwhile was allowed to stop the engine for half a minute.
    assert soak.loop.context.recorder.now_s == pytest.approx(54.0, abs=4.0)
    # While it was silent, the kernel's numbers were still sampled.
    late = [values for t_s, _, values in soak.sink.samples if t_s > 25]
    assert len(late) >= 5
    assert not any("events.finishes" in values for values in late)


def test_a_worker_that_is_starved_or_stopped_for_two_minutes_is_not_hung() -> None:
    """The time in which it could have run is below the watchdog's limit."""
    soak = make_soak(make_plan(duration_s=400.0))
    begun_s = soak.clock.monotonic_s()

    def could_run_s() -> float:
        passed_s = soak.clock.monotonic_s() - begun_s
        soak.target.silent = 20.0 < passed_s < 140.0
        return passed_s - 0.8 * min(max(passed_s - 20.0, 0.0), 120.0)

    soak.target.could_run_s = could_run_s  # type: ignore[method-assign]
    soak.steps.run()

    assert soak.sink.phases()[-1] == "done"


def test_a_worker_that_is_asked_for_a_heap_survey_may_be_silent_for_longer() -> None:
    soak = make_soak()
    soak.target.silent = True
    survey = m.Diagnose(soak.loop.new_probe_id(), ["survey"])

    assert soak.loop.ask(survey, m.Diagnosis, 100.0) is None

    with pytest.raises(WorkerLostError, match="no message from the worker"):
        soak.loop.run_until(lambda: False, soak.loop.now_s + 60.0)


def test_a_loop_that_hangs_while_its_thread_answers_is_given_up() -> None:
    def hang(status: RunStatus) -> None:
        if status.elapsed_s > 10:
            soak.target.step_age_s = 31.0

    soak = make_soak(make_plan(duration_s=1000.0), FakeView(hang))
    with pytest.raises(WorkerLostError, match=r"no engine step for 3\d s"):
        soak.steps.run()


def test_a_worker_that_dies_in_the_middle_is_lost() -> None:
    def die(status: RunStatus) -> None:
        soak.target.gone = status.elapsed_s > 10

    soak = make_soak(make_plan(duration_s=1000.0), FakeView(die))
    with pytest.raises(WorkerLostError) as lost:
        soak.steps.run()
    assert lost.value.reason == "exit"


def test_a_worker_that_closes_the_wire_after_its_goodbye_is_not_lost() -> None:
    soak = make_soak(make_plan(duration_s=60.0))
    post = soak.target.post

    def post_and_go(message: m.ToWorker) -> None:
        post(message)
        soak.target.gone = soak.target.gone or isinstance(message, m.Shutdown)

    soak.target.post = post_and_go  # type: ignore[method-assign]
    soak.steps.run()
    assert soak.sink.phases()[-1] == "done"
