"""Blocks of traffic: a fixed number of requests, and no effect of one block on the next."""

from __future__ import annotations

from collections.abc import Sequence

from hybridbench.compare.traffic import BlockTraffic
from hybridbench.records.json_value import JsonValue
from hybridbench.records.messages import CloseSession, OpenSession, Submit
from hybridbench.workload.actions import Action, WaitUntil
from hybridbench.workload.build import build_workload
from hybridbench.workload.catalog import load_profile
from tests.unit.runs.fakes import SAMPLING

SMOKE = load_profile("smoke")


class Scripted:
    """A workload that plays ``actions`` and records the requests that finished."""

    def __init__(self, actions: Sequence[Action]) -> None:
        self.actions = list(actions)
        self.in_flight = 0
        self.refusal = ""
        self.finished: list[str] = []
        self.paused = False

    @property
    def failure(self) -> str:
        return ""

    def next_action(self, now_s: float) -> Action:
        if self.paused or not self.actions:
            return WaitUntil(None)
        action = self.actions.pop(0)
        self.in_flight += isinstance(action, Submit)
        return action

    def pause(self, now_s: float) -> None:
        self.paused = True

    def resume(self, now_s: float) -> None:
        self.paused = False

    def on_admitted(self, rid: str) -> None: ...
    def on_first_token(self, rid: str, now_s: float) -> None: ...

    def on_finished(self, rid: str, output_ids: Sequence[int], reason: str, now_s: float) -> None:
        self.finished.append(rid)
        self.in_flight -= 1

    def on_rejected(self, rid: str, reason: str) -> None: ...
    def prompt_of(self, rid: str) -> None: ...
    def counts(self) -> dict[str, int]:
        return {}

    def describe(self) -> dict[str, JsonValue]:
        return {}


def submits(count: int) -> list[Action]:
    return [Submit(f"r{n}", [1, 2], SAMPLING) for n in range(count)]


def drained(traffic: BlockTraffic, now_s: float = 0.0) -> list[Action]:
    """Return its actions up to its first wait."""
    wanted: list[Action] = []
    while not isinstance(action := traffic.next_action(now_s), WaitUntil):
        wanted.append(action)
    return wanted


def test_a_block_ends_after_its_requests_and_not_before_the_last_has_ended() -> None:
    traffic, inner = BlockTraffic(), Scripted(submits(5))

    traffic.begin(inner, 3, "1.")
    wanted = drained(traffic)
    ended_early = traffic.done
    for action in wanted:
        assert isinstance(action, Submit)
        traffic.on_finished(action.rid, [7], "length", 1.0)

    assert [a.rid for a in wanted if isinstance(a, Submit)] == ["1.r0", "1.r1", "1.r2"]
    assert not ended_early
    assert traffic.done
    assert inner.finished == ["r0", "r1", "r2"]


def test_what_is_told_of_an_earlier_block_does_not_reach_the_next() -> None:
    traffic, first, second = BlockTraffic(), Scripted(submits(1)), Scripted(submits(1))
    traffic.begin(first, 1, "1.")
    drained(traffic)

    traffic.begin(second, 1, "2.")
    drained(traffic)
    traffic.on_finished("1.r0", [7], "length", 2.0)

    assert second.finished == []
    assert not traffic.done


def test_sessions_that_a_block_leaves_open_are_closed_when_its_last_turn_has_ended() -> None:
    turn = Submit("r1", [1], SAMPLING, session_id="s1")
    traffic = BlockTraffic()
    traffic.begin(Scripted([OpenSession("s1"), turn]), 1, "3.")

    before = drained(traffic)
    open_still = traffic.done
    traffic.on_finished("3.r1", [], "length", 1.0)
    after = drained(traffic)

    assert before[0] == OpenSession("3.s1")
    assert isinstance(before[1], Submit)
    assert before[1].session_id == "3.s1"
    assert not open_still
    assert after == [CloseSession("3.s1")]
    assert traffic.done


def test_a_closed_loop_of_a_profile_submits_the_same_prompts_for_the_same_seed() -> None:
    def block(seed: int) -> list[list[int]]:
        traffic = BlockTraffic()
        traffic.begin(build_workload(SMOKE, 256, None, seed), 9, "1.")
        return [a.input_ids for a in drained(traffic) if isinstance(a, Submit)]

    once, again, other = block(5), block(5), block(6)

    assert len(once) == 9
    assert once == again
    assert once != other


def test_stopping_an_endless_block_ends_it() -> None:
    traffic = BlockTraffic()
    traffic.begin(Scripted([]), None, "w.")
    endless = traffic.all_submitted

    traffic.stop()
    drained(traffic)

    assert not endless
    assert traffic.done
