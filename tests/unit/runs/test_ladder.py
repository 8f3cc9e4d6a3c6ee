"""When the ladder is climbed, what is asked on it, how a person can hold it up."""

from __future__ import annotations

import signal

import pytest

from hybridbench.records.verdict import VerdictKind
from hybridbench.runs.ladder import Ladder, LadderTerms
from hybridbench.runs.status import RunStatus
from hybridbench.runs.steps import SoakExtras, SoakSteps
from hybridbench.targets import messages as m
from tests.unit.runs.fakes import FakeJudge, FakeTarget, FakeView, Resting
from tests.unit.runs.soaks import FakeSoak, make_plan, make_soak, with_target


def soak_with_ladder(
    terms: LadderTerms, judge: FakeJudge, view: FakeView | None = None
) -> tuple[FakeSoak, Resting, SoakSteps]:
    soak = make_soak(make_plan(duration_s=100.0), view)
    target = Resting(soak.clock)
    with_target(soak, target)
    ladder = Ladder(terms, soak.loop, soak.parts, judge)
    steps = SoakSteps(make_plan(duration_s=100.0), soak.loop, soak.parts, SoakExtras(ladder=ladder))
    return soak, target, steps


@pytest.mark.parametrize(
    ("mode", "kind", "climbs"),
    [
        ("auto", VerdictKind.LEAK, True),
        ("auto", VerdictKind.CLEAN, False),
        ("always", VerdictKind.CLEAN, True),
        ("never", VerdictKind.LEAK, False),
    ],
)
def test_the_mode_and_the_verdict_so_far_decide(mode: str, kind: VerdictKind, climbs: bool) -> None:
    soak, target, steps = soak_with_ladder(LadderTerms(mode), FakeJudge(kind))
    steps.run()

    rungs = [message.rungs for message in target.diagnoses()]
    baseline = [["rest", "rehearse", "survey"]] if mode != "never" else []
    end = [["rest", "trim", "survey"], ["collect", "flush", "device"]]
    assert rungs == baseline + end * climbs
    assert ("diagnosis" in soak.sink.kinds()) == climbs
    assert target.count(m.Reclaim) == (not climbs)
    assert ("diagnosis_baseline" in soak.sink.kinds()) == (mode != "never")


def test_the_baseline_is_taken_once_at_the_first_rest_before_traffic_goes_on() -> None:
    _, target, steps = soak_with_ladder(LadderTerms("always"), FakeJudge(VerdictKind.CLEAN))
    steps.run()

    kinds = [type(message).__name__ for message in target.posted]
    first = kinds.index("Checkpoint")
    assert kinds[first : first + 3] == ["Checkpoint", "Diagnose", "Resume"]


def test_the_last_survey_gets_the_tables_of_the_first_and_they_are_not_stored() -> None:
    soak, target, steps = soak_with_ladder(LadderTerms("always"), FakeJudge(VerdictKind.CLEAN))
    steps.run()

    last = target.diagnoses()[1]
    assert (last.paths, last.classes) == ({"Engine": (1, 50)}, {"Engine": 1})
    for data in (*soak.sink.data_of("diagnosis"), *soak.sink.data_of("diagnosis_baseline")):
        assert isinstance(data["survey"], dict)
        assert not {"paths", "classes"} & set(data["survey"])


def test_what_comes_back_is_told_in_the_order_of_the_shorter_reclaim_too() -> None:
    soak, _, steps = soak_with_ladder(LadderTerms("always"), FakeJudge(VerdictKind.CLEAN))
    steps.run()

    # rest 1000, trim 900; collect 800, flush 700: each gave 100.
    assert soak.sink.data_of("reclaim") == [
        {
            "at_rest_bytes": 1000,
            "after_trim_bytes": 900,
            "after_flush_bytes": 800,
            "after_collect_bytes": 700,
        }
    ]


def test_a_leak_is_held_between_looking_and_destroying_and_the_worker_is_kept_alive() -> None:
    judge = FakeJudge(VerdictKind.LEAK)
    soak, target, steps = soak_with_ladder(LadderTerms("auto", hold_s=600.0), judge)
    steps.run()

    (hold,) = soak.sink.data_of("hold")
    assert hold == {"pid": target.pid, "seconds": 600.0}
    assert any("py-spy dump --pid 4242" in note for note in soak.view.notes)
    kinds = [type(message).__name__ for message in target.posted]
    _, looked, destroyed = (index for index, kind in enumerate(kinds) if kind == "Diagnose")
    # One word every few seconds, or the watchdog would bury it.
    assert kinds[looked:destroyed].count("Counters") >= 600 / 30
    assert "diagnosis" in soak.sink.kinds()


def test_a_signal_ends_the_hold_and_not_the_run() -> None:
    interrupted: list[float] = []

    def interrupt(status: RunStatus) -> None:
        holding = "hold" in soak.sink.kinds() and "diagnosis" not in soak.sink.kinds()
        if holding and status.elapsed_s > 150 and not interrupted:
            interrupted.append(status.elapsed_s)
            soak.interrupts.on_signal(signal.SIGINT, None)

    soak, _, steps = soak_with_ladder(
        LadderTerms("auto", hold_s=1e6), FakeJudge(VerdictKind.LEAK), FakeView(interrupt)
    )
    steps.run()

    assert soak.interrupts.exit_code is None
    assert "diagnosis" in soak.sink.kinds()
    assert soak.clock.monotonic_s() < 1e5


def test_without_a_leak_nothing_is_held() -> None:
    soak, _, steps = soak_with_ladder(
        LadderTerms("always", hold_s=600.0), FakeJudge(VerdictKind.CLEAN)
    )
    steps.run()

    assert soak.sink.data_of("hold") == []


def test_a_worker_that_does_not_answer_leaves_a_note() -> None:
    soak, target, steps = soak_with_ladder(LadderTerms("always"), FakeJudge(VerdictKind.CLEAN))
    target.post = lambda message: FakeTarget.post(target, message)  # type: ignore[method-assign]
    steps.run()

    assert {"text": "the diagnosis was not answered in time"} in soak.sink.data_of("note")
