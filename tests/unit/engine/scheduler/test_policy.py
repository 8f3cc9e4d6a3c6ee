from __future__ import annotations

import pytest

from hybridbench.engine.req import Req
from hybridbench.engine.scheduler.policy import LPM_LONGEST_QUEUE, SchedulePolicy
from hybridbench.foundation.engine_config import SchedulePolicyName
from tests.builders import make_req


def _queue(count: int) -> list[Req]:
    """Return requests named by arrival, newest first."""
    queue = [make_req(f"r{i}") for i in reversed(range(count))]
    for req in queue:
        req.arrival = int(req.rid[1:])
    return queue


def _rids(queue: list[Req]) -> list[str]:
    return [req.rid for req in queue]


def test_first_come_is_first_served_whatever_is_cached() -> None:
    queue = _queue(4)

    SchedulePolicy("fcfs", lambda req: req.arrival).sort(queue)

    assert _rids(queue) == ["r0", "r1", "r2", "r3"]


def test_the_longest_cached_prefix_goes_first_and_ties_by_arrival() -> None:
    cached = {"r0": 0, "r1": 5, "r2": 9, "r3": 5}
    queue = _queue(4)

    SchedulePolicy("lpm", lambda req: cached[req.rid]).sort(queue)

    assert _rids(queue) == ["r2", "r1", "r3", "r0"]


@pytest.mark.parametrize("policy", ["fcfs", "lpm"])
def test_priority_goes_before_everything_the_policy_looks_at(policy: SchedulePolicyName) -> None:
    rank = {"r0": 2, "r1": 1, "r2": 2, "r3": 1}
    cached = {"r0": 9, "r1": 0, "r2": 0, "r3": 0}
    queue = _queue(4)

    SchedulePolicy(policy, lambda req: cached[req.rid], lambda req: rank[req.rid]).sort(queue)

    assert _rids(queue) == ["r1", "r3", "r0", "r2"]


def test_a_long_queue_is_served_by_arrival_without_matching() -> None:
    queue = _queue(LPM_LONGEST_QUEUE + 1)

    def never(req: Req) -> int:
        raise AssertionError(f"{req.rid} was matched")

    SchedulePolicy("lpm", never).sort(queue)

    assert queue[0].rid == "r0"


@pytest.mark.parametrize("count", [0, 1])
def test_nothing_to_sort_matches_nothing(count: int) -> None:
    def never(req: Req) -> int:
        raise AssertionError(f"{req.rid} was matched")

    SchedulePolicy("lpm", never).sort(_queue(count))
