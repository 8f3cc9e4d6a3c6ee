"""When a leak is diagnosed, what each stage requests, and how a person can pause it."""

from __future__ import annotations

import signal

import pytest

from hybridbench.records import messages as m
from hybridbench.records.codec import by_name
from hybridbench.records.events import DiagnosisBaseline, DiagnosisStages, Hold, Note, Reclaim
from hybridbench.records.finding import VerdictKind
from hybridbench.records.verdict import Verdict
from hybridbench.runs.interrupts import SecondSignalError
from hybridbench.runs.leak_diagnosis import LeakDiagnosis
from hybridbench.runs.status import RunStatus
from hybridbench.runs.steps import SoakSteps
from tests.unit.runs.fakes import FakeJudge, FakeTarget, FakeView, Resting
from tests.unit.runs.soaks import FakeSoak, make_plan, make_soak, with_target


def diagnosed_soak(
    mode: str, judge: FakeJudge, view: FakeView | None = None, hold_s: float = 0.0
) -> tuple[FakeSoak, Resting, SoakSteps]:
    soak = make_soak(make_plan(duration_s=100.0), view)
    target = Resting(soak.clock)
    with_target(soak, target)
    diagnosis = LeakDiagnosis(mode, hold_s, soak.loop, judge)
    steps = SoakSteps(make_plan(duration_s=100.0), soak.loop, diagnosis=diagnosis)
    return soak, target, steps


@pytest.mark.parametrize(
    ("mode", "kind", "is_run"),
    [
        ("auto", VerdictKind.LEAK, True),
        ("auto", VerdictKind.CLEAN, False),
        ("always", VerdictKind.CLEAN, True),
        ("never", VerdictKind.LEAK, False),
    ],
)
def test_the_mode_and_the_verdict_so_far_decide(mode: str, kind: VerdictKind, is_run: bool) -> None:
    soak, target, steps = diagnosed_soak(mode, FakeJudge(kind))
    steps.run()

    stages = [message.stages for message in target.diagnoses()]
    baseline = [["rest", "rehearse", "survey"]] if mode != "never" else []
    end = [["rest", "trim", "survey"], ["collect", "flush", "device"]]
    assert stages == baseline + end * is_run
    assert ("diagnosis" in soak.sink.kinds()) == is_run
    assert target.count(m.Reclaim) == (not is_run)
    assert ("diagnosis_baseline" in soak.sink.kinds()) == (mode != "never")


def test_a_second_signal_leaves_no_judge_behind() -> None:
    class Interrupted(FakeJudge):
        closed = False

        def collect(self) -> Verdict:
            raise SecondSignalError

        def close(self) -> None:
            self.closed = True

    judge = Interrupted(VerdictKind.LEAK)
    _, _, steps = diagnosed_soak("auto", judge)
    with pytest.raises(SecondSignalError):
        steps.run()

    assert judge.closed


def test_the_baseline_is_taken_once_at_the_first_rest_before_traffic_goes_on() -> None:
    _, target, steps = diagnosed_soak("always", FakeJudge(VerdictKind.CLEAN))
    steps.run()

    kinds = [type(message).__name__ for message in target.posted]
    first = kinds.index("Checkpoint")
    assert kinds[first : first + 3] == ["Checkpoint", "Diagnose", "Resume"]


def test_the_last_survey_gets_the_tables_of_the_first_and_they_are_not_stored() -> None:
    soak, target, steps = diagnosed_soak("always", FakeJudge(VerdictKind.CLEAN))
    steps.run()

    last = target.diagnoses()[1]
    assert (last.paths, last.classes) == ({"Engine": (1, 50)}, {"Engine": 1})
    (stages,) = soak.sink.all_events(DiagnosisStages)
    (baseline,) = soak.sink.all_events(DiagnosisBaseline)
    for event in (stages, baseline):
        assert not {"paths", "classes", "rehearsal"} & set(by_name(event.survey))


def test_what_comes_back_is_told_in_the_order_of_the_shorter_reclaim_too() -> None:
    soak, _, steps = diagnosed_soak("always", FakeJudge(VerdictKind.CLEAN))
    steps.run()

    # 1000 idle, 900 after trim, 800 after collect, 700 after flush: each step released 100.
    (given,) = soak.sink.all_events(Reclaim)
    assert given == Reclaim(1000, 900, 800, 700, t_s=given.t_s)


def test_a_leak_is_held_between_looking_and_destroying_and_the_worker_is_kept_alive() -> None:
    judge = FakeJudge(VerdictKind.LEAK)
    soak, target, steps = diagnosed_soak("auto", judge, hold_s=600.0)
    steps.run()

    (hold,) = soak.sink.all_events(Hold)
    assert (hold.pid, hold.seconds) == (target.pid, 600.0)
    assert any("py-spy dump --pid 4242" in note for note in soak.view.notes)
    kinds = [type(message).__name__ for message in target.posted]
    _, looked, destroyed = (index for index, kind in enumerate(kinds) if kind == "Diagnose")
    # At least one message every 30 s; otherwise the worker would be given up as hung.
    assert kinds[looked:destroyed].count("Counters") >= 600 / 30
    assert "diagnosis" in soak.sink.kinds()


def test_a_signal_ends_the_hold_and_not_the_run() -> None:
    interrupted: list[float] = []

    def interrupt(status: RunStatus) -> None:
        holding = "hold" in soak.sink.kinds() and "diagnosis" not in soak.sink.kinds()
        if holding and status.elapsed_s > 150 and not interrupted:
            interrupted.append(status.elapsed_s)
            soak.interrupts.on_signal(signal.SIGINT, None)

    soak, _, steps = diagnosed_soak(
        "auto", FakeJudge(VerdictKind.LEAK), FakeView(interrupt), hold_s=1e6
    )
    steps.run()

    assert soak.interrupts.exit_code is None
    assert "diagnosis" in soak.sink.kinds()
    assert soak.clock.monotonic_s() < 1e5


def test_without_a_leak_nothing_is_held() -> None:
    soak, _, steps = diagnosed_soak("always", FakeJudge(VerdictKind.CLEAN), hold_s=600.0)
    steps.run()

    assert soak.sink.all_events(Hold) == []


def test_a_worker_that_does_not_answer_leaves_a_note() -> None:
    soak, target, steps = diagnosed_soak("always", FakeJudge(VerdictKind.CLEAN))
    target.post = lambda message: FakeTarget.post(target, message)  # type: ignore[method-assign]
    steps.run()

    assert "the worker did not answer the diagnosis in time" in [
        n.text for n in soak.sink.all_events(Note)
    ]
