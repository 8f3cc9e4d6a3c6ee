from __future__ import annotations

from hybridbench.workload.client_sessions import SessionPlan, Waiting
from tests.unit.workload.profiles import base


def plan_of(settings: str) -> SessionPlan:
    return SessionPlan(base(f"sessions: {{{settings}}}\n").sessions, seed=1)


def test_waiting_entries_are_returned_in_order_of_their_due_times() -> None:
    waiting: Waiting[str] = Waiting()
    for due_s, name in ((3.0, "c"), (1.0, "a"), (1.0, "b"), (9.0, "d")):
        waiting.add(due_s, name)

    assert waiting.next_s == 1.0
    assert waiting.due(0.5) == []
    assert waiting.due(3.0) == ["a", "b", "c"]
    assert (len(waiting), waiting.next_s) == (1, 9.0)
    assert waiting.due(None) == ["d"]
    assert waiting.next_s is None


def test_shares_decide_who_has_a_session_and_how_it_ends() -> None:
    plan = plan_of("share: 0.5, close_busy: 0.3, abandon: 0.2, timeout: 1s")

    drawn = [plan.draw() for _ in range(4000)]

    sessions = [session for session in drawn if session is not None]
    assert 0.46 < len(sessions) / len(drawn) < 0.54
    assert len({session.session_id for session in sessions}) == len(sessions)
    assert 0.26 < sum(s.close_busy for s in sessions) / len(sessions) < 0.34
    assert 0.16 < sum(s.abandoned for s in sessions) / len(sessions) < 0.24
    assert not any(session.close_busy and session.abandoned for session in sessions)
    assert not any(session.is_open for session in sessions)


def test_times_are_drawn_around_their_mean() -> None:
    plan = plan_of("share: 1.0, think: 2s, hold: 10s")

    thoughts = [plan.think_s() for _ in range(500)]

    assert 1.0 <= min(thoughts) < 1.1
    assert 2.9 < max(thoughts) < 3.0
    assert 5.0 <= plan.hold_s() < 15.0


def test_without_a_share_nothing_has_a_session() -> None:
    plan = plan_of("")

    assert [plan.draw() for _ in range(100)] == [None] * 100
