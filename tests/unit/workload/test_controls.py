"""Priorities by share, and operator controls in traffic time: pauses that end, and abort-all."""

from __future__ import annotations

from collections import Counter

from hybridbench.records.messages import AbortAll, ContinueGeneration, PauseGeneration, Submit
from hybridbench.workload.actions import Action, WaitUntil
from hybridbench.workload.draws import PriorityDraws
from hybridbench.workload.rng_streams import stream
from hybridbench.workload.scenario import Scenario
from tests.unit.workload.profiles import base

PRIORITIES = """\
engine: {enable_priority_scheduling: true}
priorities: [{value: 0, share: 0.5}, {value: 20, share: 0.25}]
"""
CONTROLS = "controls: {pause_every: 10s, pause_for: 2s, pause_mode: in_place, abort_all_every: 25s}"


def _controls(scenario: Scenario, until_s: int, start_s: int = 0) -> list[tuple[float, Action]]:
    """Poll once a second; return all actions but submissions and waits, with their times."""
    found: list[tuple[float, Action]] = []
    for now_s in range(start_s, until_s):
        while not isinstance(action := scenario.next_action(float(now_s)), WaitUntil):
            if not isinstance(action, Submit):
                found.append((now_s, action))
    return found


def test_priorities_come_by_their_shares_and_the_rest_brings_none_seed_1() -> None:
    draws = PriorityDraws(base(PRIORITIES).priorities, stream(1, "priorities"))

    counts = Counter(draws.draw() for _ in range(4000))

    assert set(counts) == {0, 20, None}
    assert 1900 < counts[0] < 2100
    assert 900 < counts[20] < 1100


def test_every_request_of_a_profile_with_priorities_brings_its_own() -> None:
    with_them, without = Scenario(base(PRIORITIES), 100), Scenario(base(), 100)

    drawn = [with_them.next_action(0.0) for _ in range(8)]
    plain = [without.next_action(0.0) for _ in range(8)]

    assert {action.priority for action in drawn if isinstance(action, Submit)} >= {0, 20}
    # Priorities have their own random stream, so nothing else changes.
    assert [a.input_ids for a in drawn if isinstance(a, Submit)] == [
        a.input_ids for a in plain if isinstance(a, Submit)
    ]
    assert {action.priority for action in plain if isinstance(action, Submit)} == {None}


def test_a_pause_comes_on_time_and_ends_by_itself() -> None:
    found = _controls(Scenario(base(CONTROLS), 100), 31)

    pause, go_on = PauseGeneration("in_place"), ContinueGeneration()
    assert found == [
        (10, pause), (12, go_on), (20, pause), (22, go_on), (25, AbortAll()), (30, pause),
    ]  # fmt: skip


def test_the_driver_is_woken_for_a_control_though_nothing_else_is_due() -> None:
    scenario = Scenario(base(CONTROLS), 100)
    while isinstance(action := scenario.next_action(0.0), Submit):
        pass

    assert action == WaitUntil(10.0)


def test_a_drain_delays_the_controls_and_turns_none() -> None:
    scenario = Scenario(base(CONTROLS), 100)
    assert _controls(scenario, 5) == []

    scenario.pause(5.0)
    assert _controls(scenario, 105, start_s=5) == []
    scenario.resume(105.0)

    assert _controls(scenario, 112, start_s=105)[0] == (110, PauseGeneration("in_place"))
