from __future__ import annotations

from dataclasses import replace
from typing import Any

from hybridbench.engine.req import FinishKind, FinishReason, Req
from hybridbench.engine.scheduler.waiting import (
    DISPLACED,
    QUEUE_FULL,
    WAITED_TOO_LONG,
    WaitingRules,
)
from hybridbench.foundation.clock import FakeClock
from hybridbench.foundation.engine_config import EngineConfig
from tests.builders import make_req


def _rules(clock: FakeClock | None = None, **changes: Any) -> WaitingRules:
    return WaitingRules(replace(EngineConfig(), **changes), (clock or FakeClock()).monotonic_s)


def _queue(*priorities: int) -> list[Req]:
    queue = [make_req(f"r{i}") for i in range(len(priorities))]
    for arrival, (req, priority) in enumerate(zip(queue, priorities, strict=True)):
        req.arrival, req.priority = arrival, priority
    return queue


def _refused(rules: WaitingRules, queue: list[Req]) -> tuple[str, str] | None:
    req = rules.too_many(queue[-1], queue)
    if req is None:
        return None
    assert req.to_abort is not None
    return req.rid, req.to_abort.message


def test_larger_priorities_go_first_unless_the_smaller_are_to() -> None:
    low, high = _queue(1, 5)
    plain = _rules()
    larger_first = _rules(enable_priority_scheduling=True)
    smaller_first = _rules(enable_priority_scheduling=True, schedule_low_priority_values_first=True)

    assert plain.rank(low) == plain.rank(high)
    assert larger_first.rank(high) < larger_first.rank(low)
    assert smaller_first.rank(low) < smaller_first.rank(high)


def test_without_a_limit_nobody_is_refused() -> None:
    assert _refused(_rules(), _queue(*range(100))) is None


def test_a_full_queue_refuses_the_newest_whatever_its_priority() -> None:
    rules = _rules(max_queued_requests=2)

    assert _refused(rules, _queue(0, 0)) is None
    assert _refused(rules, _queue(0, 0, 9)) == ("r2", QUEUE_FULL)


def test_with_priorities_a_full_queue_refuses_the_least_important_that_came_last() -> None:
    rules = _rules(max_queued_requests=3, enable_priority_scheduling=True)

    assert _refused(rules, _queue(1, 0, 0, 5)) == ("r2", DISPLACED)
    assert _refused(rules, _queue(1, 0, 0, 0)) == ("r3", QUEUE_FULL)
    assert _refused(rules, _queue(1, 2, 3, 1)) == ("r3", QUEUE_FULL)


def test_a_retracted_request_gives_no_place_beyond_the_limit_to_a_newcomer() -> None:
    rules = _rules(max_queued_requests=2, enable_priority_scheduling=True)
    queue = _queue(0, 1, 0, 9)
    for req in (queue[0], queue[2]):
        req.is_retracted = True

    assert _refused(rules, queue) == ("r1", DISPLACED)
    assert _refused(rules, [queue[0], queue[2], queue[3]]) == ("r3", QUEUE_FULL)


def test_who_is_leaving_anyway_takes_no_place_in_the_queue() -> None:
    rules = _rules(max_queued_requests=2, enable_priority_scheduling=True)
    queue = _queue(5, 0, 5)
    queue[1].to_abort = FinishReason(FinishKind.ABORT, "aborted by its client")

    assert _refused(rules, queue) is None


def test_who_waited_longer_than_it_may_is_named_once_and_no_sooner() -> None:
    clock = FakeClock()
    rules = _rules(clock, req_waiting_timeout_s=2.0)
    queue = _queue(0, 0)
    rules.entered(queue[0])
    clock.advance(1.0)
    rules.entered(queue[1])

    clock.advance(1.0)
    assert rules.overdue(queue) == []
    clock.advance(0.5)
    assert rules.overdue(queue) == [queue[0]]
    assert queue[0].to_abort is not None
    assert queue[0].to_abort.message == WAITED_TOO_LONG
    assert rules.overdue(queue) == []
    clock.advance(1.0)
    assert rules.overdue(queue) == [queue[1]]


def test_a_request_that_is_sent_back_begins_to_wait_anew() -> None:
    clock = FakeClock()
    rules = _rules(clock, req_waiting_timeout_s=2.0)
    [req] = _queue(0)
    rules.entered(req)
    clock.advance(5.0)
    rules.entered(req)

    assert rules.overdue([req]) == []
    clock.advance(2.5)
    assert rules.overdue([req]) == [req]


def test_nobody_looks_at_the_queue_before_the_first_can_be_overdue() -> None:
    class Untouchable(list[Req]):
        def __iter__(self) -> Any:
            raise AssertionError("the queue was walked")

    clock = FakeClock()
    rules = _rules(clock, req_waiting_timeout_s=2.0)
    [req] = _queue(0)
    rules.entered(req)
    clock.advance(1.9)

    assert rules.overdue(Untouchable([req])) == []
    assert _rules().overdue(Untouchable([req])) == []
