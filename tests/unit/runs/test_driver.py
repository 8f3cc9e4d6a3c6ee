from __future__ import annotations

from collections.abc import Sequence

import pytest

from hybridbench.foundation.clock import FakeClock
from hybridbench.records import messages as m
from hybridbench.records.answers import pack_tokens
from hybridbench.runs.driver import Driver
from hybridbench.workload.actions import WaitUntil
from tests.unit.runs.fakes import FakeTarget, FakeWorkload


def test_actions_become_messages_in_their_order_until_there_is_nothing_to_do() -> None:
    workload, target = FakeWorkload(concurrency=2), FakeTarget(FakeClock())
    workload.actions = [m.Abort("x"), m.Disconnect("y")]
    driver = Driver(workload, target)

    assert driver.pump(1.0) is None
    assert [type(message).__name__ for message in target.posted] == [
        "Abort",
        "Disconnect",
        "Submit",
        "Submit",
    ]
    submitted = target.posted[2]
    assert isinstance(submitted, m.Submit)
    assert (submitted.rid, submitted.input_ids) == ("r1", [1, 2, 3, 4])
    assert submitted.sampling == m.Sampling(max_new_tokens=2)


def test_what_the_workload_asks_for_goes_to_the_worker_as_it_is() -> None:
    workload, target = FakeWorkload(concurrency=0), FakeTarget(FakeClock())
    asked: list[m.Request] = [
        m.OpenSession("s", 2.5),
        m.CloseSession("s"),
        m.AbortAll(),
        m.PauseGeneration("retract"),
        m.ContinueGeneration(),
    ]
    workload.actions = list(asked)

    Driver(workload, target).pump(1.0)

    assert target.posted == asked


def test_the_time_of_the_next_action_is_handed_on() -> None:
    workload = FakeWorkload(concurrency=0)
    workload.actions = [WaitUntil(7.5)]

    assert Driver(workload, FakeTarget(FakeClock())).pump(1.0) == 7.5


def test_an_endless_workload_does_not_keep_the_loop_for_ever() -> None:
    workload = FakeWorkload(concurrency=10**9)

    assert Driver(workload, FakeTarget(FakeClock())).pump(3.0) == 3.0
    assert workload.in_flight < 10_000


def test_feedback_comes_in_the_order_in_which_things_happen_to_a_request() -> None:
    workload = FakeWorkload()
    driver = Driver(workload, FakeTarget(FakeClock()))
    finished = m.Ended("a", [5, 6], "length", 3, 0, 0.1, 0.01)
    aborted = m.Ended("b", [], "aborted by its client", 3, 0, None, None)
    driver.on_step_events(
        m.StepEvents(1.0, 1, ["a"], ["a"], [finished], [m.Rejected("a", "twice")], [aborted])
    )

    assert workload.told == [
        ("rejected", "a"),
        ("admitted", "a"),
        ("first_token", "a"),
        ("length", "a"),
        ("aborted by its client", "b"),
    ]
    counts = driver.counts
    assert (counts.finished, counts.aborted, counts.rejected) == (1, 1, 1)


def test_an_answer_gets_the_prompt_of_its_client_while_its_request_is_in_flight() -> None:
    workload = FakeWorkload()
    driver = Driver(workload, FakeTarget(FakeClock()))
    answer = m.FinishedAnswer("r1", False, 0, pack_tokens([1, 2]), pack_tokens([5]), [])
    assert driver.as_sent(answer) == answer

    driver.pump(0.0)

    assert driver.as_sent(answer).prompt == pack_tokens([1, 2, 3, 4])


def test_an_answer_gets_the_temperature_and_seed_of_its_client_until_its_request_has_ended() -> (
    None
):
    greedy = m.Sampling(4, temperature=0.8, top_k=1, seed=6)
    sent = [m.Submit("a", [1], m.Sampling(4, temperature=0.8, seed=5)), m.Submit("b", [1], greedy)]
    workload = FakeWorkload(0)
    workload.actions += sent
    driver = Driver(workload, FakeTarget(FakeClock()))
    answer = m.FinishedAnswer("a", False, 0, b"", b"", [], temperature=0.3, seed=1)
    other = m.FinishedAnswer("b", False, 0, b"", b"", [], temperature=0.3, seed=1)

    driver.pump(0.0)

    meant = [driver.as_sent(one) for one in (answer, other)]
    assert [(one.temperature, one.seed) for one in meant] == [(0.8, 5), (0.0, 6)]
    ended = m.Ended("a", [5], "length", 1, 0, None, None)
    driver.on_step_events(m.StepEvents(1.0, 1, [], [], [ended], [], []))
    assert driver.as_sent(answer).seed == 1


def ended(answer: m.Ended, logprobs: Sequence[m.TokenLogprobs] = ()) -> m.StepEvents:
    """The events of a step in which a request finished."""
    return m.StepEvents(
        1.0, 1, [], [], [answer], [], [], logprobs={answer.rid: list(logprobs)} if logprobs else {}
    )


_STOPS = m.Sampling(4, ignore_eos=False, stop_token_ids=(9,))


@pytest.mark.parametrize(
    ("asked", "output_ids", "reason", "fault"),
    [
        (m.Sampling(4), [5, 6, 7, 8], "length", None),
        (m.Sampling(4), [5, 6, 7, 8, 9], "length", "asked for 4 tokens at most and got 5"),
        (m.Sampling(4), [5, 6], "length", "asked for 4 tokens and got 2, cut off for their number"),
        (m.Sampling(4), [5, 6], "stop", "asked for no stop token, and its answer ended at one"),
        (m.Sampling(4), [5, 6], "aborted by its client", None),
        (_STOPS, [5, 9], "stop", None),
        (_STOPS, [5, 2], "stop", None),  # 2 may be the model's own
        (_STOPS, [5, 9, 7, 8], "length", "got 2 more tokens after the first of its stop tokens"),
    ],
)
def test_an_answer_must_end_where_its_client_asked(
    asked: m.Sampling, output_ids: list[int], reason: str, fault: str | None
) -> None:
    workload = FakeWorkload(0)
    workload.actions = [m.Submit("a", [1], asked)]
    driver = Driver(workload, FakeTarget(FakeClock()))
    driver.pump(0.0)

    found = driver.faults_of(ended(m.Ended("a", output_ids, reason, 1, 0, None, None)))

    assert [fault is not None and fault in one for one in found] == [True] * (fault is not None)


@pytest.mark.parametrize(
    ("temperature", "logprob", "best", "fault"),
    [
        (0.0, -0.5, [(5, -0.5), (7, -2.0)], None),
        (0.0, -0.5, [(7, -0.5), (5, -0.5)], None),  # equally probable
        (0.0, -0.5, [(7, -0.5), (9, -2.0)], "its greedy output token 1 is not the likeliest"),
        (0.0, -2.0, [(7, -0.5), (5, -2.0)], "its greedy output token 1 is not the likeliest"),
        (1.0, -2.0, [(7, -0.5), (5, -2.0)], None),
        (1.0, -3.0, [(7, -0.5), (9, -2.0)], None),
        (1.0, -0.5, [(7, -0.5), (5, -2.0)], "two different logprobs of output token 1"),
        (1.0, -0.1, [(7, -0.5), (9, -2.0)], "two different logprobs of output token 1"),
        (1.0, -0.1, [], "got 1 tokens and the logprobs of 0"),
    ],
)
def test_logprobs_must_be_those_of_the_answer(
    temperature: float, logprob: float, best: list[tuple[int, float]], fault: str | None
) -> None:
    workload = FakeWorkload(0)
    workload.actions = [m.Submit("a", [1], m.Sampling(1, temperature=temperature, logprobs=2))]
    driver = Driver(workload, FakeTarget(FakeClock()))
    driver.pump(0.0)
    said = [m.TokenLogprobs(logprob, best)] if best else []

    found = driver.faults_of(ended(m.Ended("a", [5], "length", 1, 0, None, None), said))

    assert [fault is not None and fault in one for one in found] == [True] * (fault is not None)


@pytest.mark.parametrize(
    ("sent", "reused", "is_fault"),
    [
        (["a"], 20, True),
        (["a"], 0, False),
        (["b"], 20, True),
        (["a", "a"], 20, False),
        ([""], 20, False),
    ],
)
def test_a_tenants_first_prompt_of_its_kind_reuses_nothing(
    sent: list[str], reused: int, is_fault: bool
) -> None:
    prompt, workload = list(range(30)), FakeWorkload(0)
    workload.actions = [m.Submit("other", prompt, m.Sampling(1), extra_key="other tenant")]
    workload.actions += [
        m.Submit(f"r{i}", prompt, m.Sampling(1), extra_key=key) for i, key in enumerate(sent)
    ]
    driver = Driver(workload, FakeTarget(FakeClock()))
    driver.pump(0.0)

    found = driver.faults_of(ended(m.Ended("r0", [5], "length", 30, reused, None, None)))

    assert [f"its client {sent[0]} got 20 tokens from the cache" in one for one in found] == (
        [True] * is_fault
    )


@pytest.mark.parametrize(
    ("known", "computed", "is_fault"), [(True, 4, False), (True, 9, True), (False, 9, False)]
)
def test_an_answer_follows_the_prompt_that_its_client_sent(
    known: bool, computed: int, is_fault: bool
) -> None:
    workload = FakeWorkload(1)
    driver = Driver(workload, FakeTarget(FakeClock()))
    driver.pump(0.0)
    rid = "r1" if known else "of another"

    found = driver.faults_of(ended(m.Ended(rid, [5, 6], "length", computed, 0, None, None)))

    said = ["request r1: its client sent a prompt of 4 tokens, and it was one of 9"]
    assert found == (said if is_fault else [])


def test_pausing_twice_is_pausing_once() -> None:
    workload = FakeWorkload()
    driver = Driver(workload, FakeTarget(FakeClock()))
    driver.pause(0.0)
    driver.pause(1.0)
    assert workload.paused
    driver.resume(2.0)
    driver.resume(3.0)
    assert not workload.paused
