from __future__ import annotations

from functools import cache
from statistics import fmean

import pytest

from hybridbench.records.messages import Submit
from hybridbench.workload.actions import WaitUntil, Workload
from hybridbench.workload.scenario import Scenario
from hybridbench.workload.step_paced import StepPaced, is_step_paced
from tests.unit.workload.profiles import base, churn
from tests.unit.workload.server import Server

VOCAB = 4096
Asked = list[tuple[str, int, int]]


class Recording(Server):
    """Records the id and lengths of each request; prompt tokens depend on the server's answers."""

    def __init__(self, *, running: int, chunk: int, seed: int) -> None:
        super().__init__(running=running, chunk=chunk, context=512, seed=seed)
        self.asked: Asked = []
        self.under_way: list[int] = []

    def _submit(self, workload: Workload, submit: Submit) -> None:
        self.asked.append((submit.rid, len(submit.input_ids), submit.sampling.max_new_tokens))
        super()._submit(workload, submit)

    def _step(self, workload: Workload) -> None:
        self.under_way.append(len(self._all()))
        super()._step(workload)


def served(workload: Workload, *, running: int = 12, chunk: int = 64, seed: int = 0) -> Recording:
    server = Recording(running=running, chunk=chunk, seed=seed)
    server.drive(workload, steps=1500)
    return server


def step_paced() -> StepPaced:
    return StepPaced(Scenario(churn(), VOCAB))


@cache
def served_fast() -> Asked:
    return served(step_paced(), running=16, chunk=512).asked


@pytest.mark.parametrize(("running", "chunk"), [(12, 16), (16, 64), (5, 64)])
def test_engines_of_any_speed_are_asked_the_same(running: int, chunk: int) -> None:
    fast = served_fast()
    other = served(step_paced(), running=running, chunk=chunk, seed=1).asked

    common = min(len(fast), len(other))
    assert common > 400
    assert fast[:common] == other[:common]


def test_without_steps_engines_of_different_speed_are_asked_different_things() -> None:
    fast = served(Scenario(churn(), VOCAB), running=16, chunk=512).asked
    slow = served(Scenario(churn(), VOCAB), running=5, chunk=64).asked

    assert fast[:400] != slow[:400]


def test_the_engine_is_kept_about_as_busy_as_by_the_same_loop_in_seconds() -> None:
    # Prompts fit into one chunk, as if most of each were cached.
    stepped = served(step_paced(), running=16, chunk=512)
    plain = served(Scenario(churn(), VOCAB), running=16, chunk=512)

    assert fmean(stepped.under_way) > 0.85 * fmean(plain.under_way)
    assert max(stepped.under_way) <= 16 + 1  # a request and its double


def test_every_way_a_request_can_end_happens_where_it_was_meant_to() -> None:
    workload = step_paced()
    server = Recording(running=12, chunk=64, seed=0)

    server.drive(workload, steps=6000)

    counts = workload.counts()
    assert counts["submitted"] > 3000
    assert server.ended["queued"] >= counts["abort_queued"] - 1 > 100
    assert server.ended["prefill"] > 0.9 * counts["abort_prefill"] > 60
    assert counts["abort_decode"] > 60
    # Includes aborts and disconnects; a request that finishes before its cut is not cut.
    assert server.ended["decode"] > 0.6 * counts["abort_decode"]
    assert counts["disconnect"] > 40
    assert server.overlong_refused == counts["overlong"] > 50
    assert server.duplicates_refused > 0.9 * counts["duplicate_ids"] > 50


def test_after_a_pause_all_ends_and_nothing_new_comes_until_it_goes_on() -> None:
    workload = step_paced()
    server = Recording(running=12, chunk=64, seed=0)
    server.drive(workload, steps=100)

    workload.pause(server.now_s)
    asked = len(server.asked)
    server.drive(workload, steps=100)

    # A pause holds back everything except the duplicate of a request that was cut short.
    assert len(server.asked) <= asked + 1
    assert workload.in_flight == 0
    assert not server.waiting
    assert not server.running
    assert workload.next_action(server.now_s) == WaitUntil(None)

    workload.resume(server.now_s)
    server.drive(workload, steps=100)
    assert len(server.asked) > asked + 50


def test_a_step_paced_workload_describes_its_time_as_steps() -> None:
    assert step_paced().describe()["time"] == "steps"
    assert step_paced().describe()["kind"] == "profile"


@pytest.mark.parametrize(
    "clock",
    [
        "sessions: {share: 0.5}",
        "aborts: {queue_timeout: 2s}",
        "controls: {pause_every: 20s, pause_for: 1s}",
        "controls: {abort_all_every: 20s}",
    ],
)
def test_traffic_with_timed_features_is_not_step_paced(clock: str) -> None:
    assert is_step_paced(base())
    assert not is_step_paced(base(clock))


@pytest.mark.parametrize(
    "arrival",
    [
        "{process: poisson, rate: 10}",
        "{process: closed, concurrency: 8, bursts: {every: 10s, length: 1s, factor: 2}}",
        "{process: closed, concurrency: 8, ramp: {over: 60s}}",
        "{process: closed, concurrency: 8, think: 1s}",
    ],
)
def test_timed_arrivals_are_not_step_paced(arrival: str) -> None:
    profile = churn()
    text = f"name: t\narrival: {arrival}\npromise: [{{rss: 2GiB/h, collectible: 1GiB/h}}]\n"
    assert is_step_paced(profile)
    assert not is_step_paced(type(profile).from_yaml_text(text, "t.yaml"))
