"""The laws of sessions detect what they are meant to: they name the right pool."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hybridbench.engine.engine import Engine
from hybridbench.engine.memory.owners import OwnershipError
from hybridbench.engine.req import Req, Session
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.engine.scheduler.audit import ViolationKind
from hybridbench.engine.scheduler.pool_stats import PoolStatsObserver
from hybridbench.engine.scheduler.prefill import PrefillAdder
from hybridbench.engine.sessions.session_controller import SessionController
from hybridbench.engine.sessions.session_slot import SessionSlot
from hybridbench.engine.sessions.streaming_session import StreamingSession
from tests.builders import make_attention_engine, make_engine, run_to_idle
from tests.laws.session_script import PAGED, ReferenceTokens, SessionRun

PARAMS = SamplingParams(max_new_tokens=6, ignore_eos=True)
FIRST = list(range(1, 21))


def nothing(*args: object, **kwargs: object) -> None:
    """Do nothing: replaces a method."""


def with_idle_session(make: Callable[..., Engine] = make_engine) -> Engine:
    engine = make(check_level="off")
    engine.open_session("s")
    engine.submit("first", FIRST, PARAMS, session_id="s")
    run_to_idle(engine)
    return engine


def residuals(engine: Engine) -> dict[str, int]:
    return {name: s.residual for name, s in engine.pool_stats().items() if s.residual}


@pytest.mark.parametrize(
    ("method", "lost"),
    [
        ("_free_slot_mamba", {"mamba": 1}),
        ("_free_slot_kv", {"kv": 5}),
        ("_free_slot_row", {"req": 1}),
    ],
)
def test_what_a_close_does_not_free_is_a_residual_of_its_pool(
    monkeypatch: pytest.MonkeyPatch, method: str, lost: dict[str, int]
) -> None:
    monkeypatch.setattr(StreamingSession, method, nothing)
    engine = with_idle_session()
    assert residuals(engine) == {}

    engine.close_session("s")

    assert residuals(engine) == lost
    kinds = {v.kind for v in engine.check_invariants(idle=True) + engine.audit()}
    assert kinds == {ViolationKind.RESIDUAL, ViolationKind.LEDGER}


def test_a_lock_that_a_close_forgets_stays_at_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StreamingSession, "_unlock_slot", nothing)
    engine = with_idle_session()
    assert engine.audit() == []

    engine.close_session("s")

    kinds = {v.kind for v in engine.check_invariants(idle=True)}
    assert kinds == {ViolationKind.LOCKED_AT_IDLE}
    assert {v.kind for v in engine.audit()} == {ViolationKind.TREE}


def test_without_the_tail_give_back_overwritten_positions_are_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(StreamingSession, "_free_tail", nothing)
    engine = with_idle_session(make_attention_engine)
    session = engine.scheduler.sessions.get("s")
    assert session is not None
    # The next turn then shares 23 of 25 positions, as if two tokens had not been committed.
    del session.tokens[-3:]

    engine.submit("second", [30], PARAMS, session_id="s")
    run_to_idle(engine)

    assert residuals(engine) == {"kv": 2}


def test_a_tail_that_is_freed_from_inside_a_page_takes_committed_tokens_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unaligned(self: StreamingSession, slot: SessionSlot, prefix_len: int) -> None:
        tail = self._indices(slot.kv.row, prefix_len, slot.kv.kv_allocated_len)
        self.token_to_kv_pool_allocator.free(tail)

    monkeypatch.setattr(StreamingSession, "_free_tail", unaligned)
    engine = with_idle_session(lambda **changes: make_attention_engine(16, **changes))
    session = engine.scheduler.sessions.get("s")
    assert session is not None
    del session.tokens[-3:]

    engine.submit("second", [30], PARAMS, session_id="s")
    engine.step()

    kinds = {violation.kind for violation in engine.audit()}
    assert ViolationKind.LEDGER in kinds


def test_a_refused_turn_that_is_not_taken_back_waits_with_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(StreamingSession, "take_back", lambda self, req: True)
    monkeypatch.setattr(Req, "forget_match", nothing)
    engine = with_idle_session()
    # While another request runs, the turn is not given up for lack of room.
    engine.submit("other", [40, 41], PARAMS)
    engine.step()
    monkeypatch.setattr(PrefillAdder, "_has_room", lambda self, req, prompt_len: False)
    engine.submit("second", [30], PARAMS, session_id="s")

    engine.step()

    assert engine.pool_stats()["mamba"].waiting_held == 1
    kinds = {violation.kind for violation in engine.check_invariants(idle=False)}
    assert ViolationKind.WAITING_HELD in kinds


def test_sessions_that_are_not_counted_look_like_a_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StreamingSession, "session_held_mamba_slots", lambda self, active=None: 0)

    engine = with_idle_session()

    assert residuals(engine) == {"mamba": 1}


def test_a_lent_record_that_is_counted_twice_is_a_negative_residual(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(PoolStatsObserver, "active_pool_idxs", lambda self, admitted: set())
    engine = with_idle_session()
    engine.submit("second", [30], PARAMS, session_id="s")

    engine.step()

    assert {name: count < 0 for name, count in residuals(engine).items()} == {
        "kv": True, "mamba": True, "req": True,
    }  # fmt: skip


def test_without_a_hand_over_the_ledger_and_the_holder_disagree(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(StreamingSession, "_hand_over", nothing)

    engine = with_idle_session()

    assert residuals(engine) == {}
    assert {violation.kind for violation in engine.audit()} == {ViolationKind.LEDGER}
    with pytest.raises(OwnershipError, match="not SESSION"):
        engine.close_session("s")


def test_an_aborted_turn_that_keeps_its_slot_says_the_wrong_thing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The slot then has tokens of an aborted turn, and the next turn reads them."""

    def keep(self: StreamingSession, req: Req) -> None:
        assert req.session is not None
        slot = SessionSlot(req.session.session_id)
        slot.save_from_req(req)
        self._hand_over(slot.kv, 1, 3)  # type: ignore[arg-type]
        self.slots[slot.session_id] = slot

    monkeypatch.setattr(StreamingSession, "_give_up", keep)
    # Otherwise the controller would notice that the slot holds more than the conversation.
    monkeypatch.setattr(StreamingSession, "cached_len", lambda self, session_id: 0)
    wrong = 0
    for at in range(3, 20):
        run = SessionRun(PAGED)
        for _ in range(at):
            run.step()
        session = run.engine.scheduler.sessions.get("s")
        if session is None or session.req is None:
            continue
        run.engine.abort(session.req.rid)
        try:
            run.run()
            ReferenceTokens().check(PAGED, run)
        except AssertionError:
            wrong += 1

    assert wrong > 0


def test_a_close_that_does_not_wait_takes_the_kv_from_under_the_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = with_idle_session()
    engine.submit("second", [30], PARAMS, session_id="s")
    engine.step()
    monkeypatch.setattr(Session, "is_inflight", False)

    with pytest.raises(AssertionError, match="released under a turn"):
        engine.close_session("s")


def test_a_deferred_close_that_is_forgotten_leaves_the_session_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SessionController, "_close_deferred", nothing)
    engine = with_idle_session()
    engine.submit("second", [30], PARAMS, session_id="s")
    engine.step()
    engine.close_session("s")

    run_to_idle(engine)

    # The close is not retried: the session takes no turn and keeps its slots.
    assert "s" in engine.scheduler.sessions
    assert engine.pool_stats()["mamba"].session_held == 1
