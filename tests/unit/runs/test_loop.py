from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from hybridbench.foundation.clock import FakeClock
from hybridbench.records import messages as m
from hybridbench.records.answers import pack_tokens
from hybridbench.records.events import (
    ClockJump,
    EngineLog,
    EngineViolation,
    Gap,
    ProbeLeftOut,
    RequestRefused,
)
from hybridbench.runs.loop import WorkerLostError
from tests.unit.runs.fakes import scan_reply
from tests.unit.runs.soaks import FakeSoak, make_soak

if TYPE_CHECKING:
    from hybridbench.runs.answer_check import AnswerCheck


def turn(soak: FakeSoak, *messages: m.FromWorker, turns: int = 1) -> None:
    soak.target.extra = list(messages)
    for _ in range(turns):
        soak.loop.turn(soak.clock.monotonic_s() + 1.0)


def test_the_worker_that_gives_up_says_why() -> None:
    soak = make_soak()

    with pytest.raises(WorkerLostError, match="the engine loop failed: KeyError"):
        turn(soak, m.Fatal("the engine loop failed: KeyError", "trace"))


def test_log_lines_and_violations_become_events() -> None:
    soak = make_soak()
    record = m.ViolationRecord("residual", "kv", "2 unaccounted", [1, 2])
    turn(soak, m.LogLine(501.0, "watchdog fired"), m.Violation(502.0, 5, record))

    assert [line.text for line in soak.sink.all_events(EngineLog)] == ["watchdog fired"]
    assert soak.sink.all_events(EngineViolation)[0].step == 5
    assert soak.loop.status.so_far == "possible leak: 2 unaccounted"


def test_requests_that_an_idle_engine_never_answered_are_counted_by_the_client() -> None:
    soak = make_soak()
    turn(soak, turns=3)
    soak.workload.live |= {"lost-1", "lost-2"}
    soak.loop.drain(5.0)
    soak.loop.post_checkpoint(0, audit=False)
    turn(soak, turns=3)
    soak.workload.live.clear()
    soak.loop.post_checkpoint(1, audit=False)
    turn(soak, turns=3)

    (found,) = soak.sink.all_events(EngineViolation)
    assert (found.kind, found.count, found.checkpoint) == ("unanswered", 2, 0)
    assert found.message == "2 requests have no answer, but the engine is idle"


def test_requests_sent_after_a_checkpoint_are_not_unanswered_when_its_reply_is_late() -> None:
    soak = make_soak()
    soak.loop.drain(5.0)
    soak.loop.post_checkpoint(0, audit=False)
    soak.loop.resume()
    soak.workload.live.add("sent after it")
    soak.loop.driver.pause(soak.clock.monotonic_s())
    turn(soak, turns=3)

    assert soak.sink.all_events(EngineViolation) == []


def test_an_engine_that_was_not_drained_may_still_answer() -> None:
    soak = make_soak()
    soak.workload.live.add("still computed")
    soak.target.silent = True
    assert not soak.loop.drain(0.5)
    soak.target.silent = False
    soak.loop.post_checkpoint(0, audit=False)
    turn(soak, turns=3)

    assert soak.sink.all_events(EngineViolation) == []


def test_the_first_valid_request_that_is_refused_becomes_an_event() -> None:
    soak = make_soak()
    turn(soak, turns=3)
    soak.workload.refusal = "temperature is 0.0; it must be more than 0"
    turn(soak, *[m.StepEvents(502.0, 1, [], [], [], [m.Rejected("r1", "")], [])] * 2, turns=3)

    refused = soak.sink.all_events(RequestRefused)
    assert [one.text for one in refused] == ["temperature is 0.0; it must be more than 0"]


def test_the_reference_gets_the_prompt_that_was_sent_not_what_the_engine_made_of_it() -> None:
    soak, seen = make_soak(), list[m.FromWorker]()
    soak.loop.answers = cast(
        "AnswerCheck", SimpleNamespace(take=seen.append, pump=lambda: None, finish=lambda: None)
    )
    turn(soak)
    altered = m.FinishedAnswer("r1", False, 0, pack_tokens([1, 2]), pack_tokens([5]), [])

    turn(soak, altered)

    [answer] = [one for one in seen if isinstance(one, m.FinishedAnswer)]
    assert answer.prompt == pack_tokens([1, 2, 3, 4])


def test_a_law_that_is_broken_with_every_step_does_not_fill_the_disk() -> None:
    soak = make_soak()
    record = m.ViolationRecord("residual", "kv", "2 unaccounted", [1, 2])
    turn(soak, *[m.Violation(502.0, step, record) for step in range(5000)])

    assert len(soak.sink.all_events(EngineViolation)) == 100


def test_no_second_heap_scan_is_asked_for_while_one_is_open() -> None:
    soak = make_soak()
    soak.target.silent = True
    turn(soak, turns=20)
    soak.clock.advance(20.0)
    turn(soak, turns=20)
    assert soak.target.count(m.ScanHeap) == 1
    assert not soak.loop.no_scan_open()

    soak.target.silent = False
    turn(soak, turns=40)
    assert soak.target.count(m.ScanHeap) >= 2


def test_an_expensive_heap_scan_is_asked_for_more_seldom() -> None:
    soak = make_soak()
    turn(soak, scan_reply(99, 500.0, stop_s=0.6, child_s=0.5))

    assert soak.loop.scan_pace.interval_s == pytest.approx(100.0, rel=0.8)
    assert soak.loop.scan_pace.interval_s > 20


def test_a_heap_scan_that_only_waited_for_a_processor_is_asked_for_as_often() -> None:
    soak, other = make_soak(), make_soak()
    turn(soak, scan_reply(99, 500.0, stop_s=0.6, stop_cpu_s=0.003))
    turn(other)

    assert soak.loop.scan_pace.interval_s == other.loop.scan_pace.interval_s


def test_a_reply_that_comes_after_its_sample_was_closed_is_dropped() -> None:
    soak = make_soak()
    soak.target.silent = True
    turn(soak, turns=30)
    before = len(soak.sink.samples)
    soak.target.silent = False
    turn(soak)

    assert before >= 1
    assert len({t_s for t_s, _, _ in soak.sink.samples}) == len(soak.sink.samples)


def test_latencies_of_a_late_reply_are_stored_with_the_next_sample() -> None:
    soak = make_soak()
    turn(soak, turns=4)
    late = m.CountersReply(-1, soak.clock.monotonic_s(), True, True, 0.0, 1, {}, {"ttft": {9: 3}})
    turn(soak, late, turns=30)

    assert [counts for _, counts in soak.sink.latencies] == [{"ttft": {9: 3}}]


def test_a_loop_that_stood_still_reports_the_gap() -> None:
    soak = make_soak()
    turn(soak, turns=10)
    soak.clock.advance(42.0)
    turn(soak, turns=3)

    gaps = soak.sink.all_events(Gap)
    assert len(gaps) == 1
    assert gaps[0].seconds == pytest.approx(42.0, abs=2.0)


def test_a_heap_scan_that_holds_the_engine_beyond_its_budget_is_given_up_once_and_told() -> None:
    soak = make_soak()
    soak.loop.scan_pace.stall_max_s = 0.1
    for probe_id in range(1, 5):
        turn(soak, scan_reply(probe_id, 501.0 + probe_id, stop_s=0.5))

    (told,) = soak.sink.all_events(ProbeLeftOut)
    assert told.metrics == ("gc_collectible_bytes",)
    assert soak.loop.scan_pace.given_up


def test_a_report_is_written_once_for_a_signal_and_the_run_goes_on() -> None:
    soak = make_soak()
    written: list[float] = []
    write = lambda: written.append(soak.loop.now_s)  # noqa: E731
    soak.loop.context = replace(soak.loop.context, on_report_wanted=write)
    soak.interrupts.report_wanted = True

    soak.loop.run_until(lambda: False, soak.loop.now_s + 5.0)

    assert len(written) == 1
    assert not soak.loop.interrupted


def test_a_loop_that_takes_no_samples_sleeps_as_long_as_it_may() -> None:
    soak = make_soak()
    soak.loop.samples_wanted = False
    soak.workload.paused = True
    turns = 0

    def count() -> bool:
        nonlocal turns
        turns += 1
        return False

    soak.loop.run_until(count, soak.loop.now_s + 60.0)

    assert turns < 1000


def test_a_question_is_asked_and_answered_while_traffic_goes_on() -> None:
    soak = make_soak()

    flushed = soak.loop.ask(m.Flush(), m.Flushed, patience_s=5.0)

    assert flushed is not None
    assert flushed.done
    turn(soak, turns=20)
    assert soak.target.count(m.Submit) > 2


def test_a_question_without_an_answer_in_time_is_given_up_and_its_late_answer_is_dropped() -> None:
    soak = make_soak()
    soak.target.silent = True
    assert soak.loop.ask(m.Drain(), m.Drained, patience_s=5.0) is None

    soak.target.silent = False
    turn(soak, m.Drained(506.0))
    question = soak.loop.post(m.Flush(), m.Flushed)
    turn(soak, m.Drained(507.0), turns=2)

    assert question.answer is not None


def test_each_diagnosis_answers_the_request_with_its_number() -> None:
    soak = make_soak()
    first = soak.loop.post(m.Diagnose(soak.loop.new_probe_id(), ["rest"]), m.Diagnosis)
    second = soak.loop.post(m.Diagnose(soak.loop.new_probe_id(), ["trim"]), m.Diagnosis)
    turn(soak, m.Diagnosis(2, 501.0, []))

    assert first.answer is None
    assert second.answer is not None
    assert second.answer.t_s == 501.0


class TwoClocks(FakeClock):
    """A fake clock whose wall clock can be set."""

    ahead_s = 0.0

    def wall_s(self) -> float:
        return super().wall_s() + self.ahead_s


def test_a_jump_of_the_wall_clock_is_told_once_with_its_sign_and_a_slew_is_not() -> None:
    clock = TwoClocks(start_s=500.0)
    soak = make_soak(clock=clock)
    for ahead_s in (1.0, 2.0, 42.0, 42.0, 12.0):
        clock.ahead_s = ahead_s
        turn(soak, turns=20)

    jumps = [jump.seconds for jump in soak.sink.all_events(ClockJump)]
    assert jumps == [pytest.approx(40.0), pytest.approx(-30.0)]
