from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from hybridbench.engine.engine import Engine
from hybridbench.engine.events import EngineEvent, EventKind
from hybridbench.engine.front_end import FrontEnd
from hybridbench.engine.memory.owners import REQ, TREE
from hybridbench.engine.req import FinishKind, FinishReason, Req, ReqKv
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.engine.scheduler.audit import InvariantViolation, ViolationKind
from hybridbench.engine.scheduler.prefill import AddReqResult, PrefillAdder
from hybridbench.engine.scheduler.release import RequestRelease
from hybridbench.engine.scheduler.scheduler import Scheduler
from hybridbench.engine.scheduler.waiting import WaitingRules
from hybridbench.foundation.clock import FakeClock
from tests.builders import make_attention_engine, make_engine


def _engine_with_two_running() -> Engine:
    engine = make_engine(check_level="off")
    for i in range(2):
        engine.submit(f"r{i}", [i + 1, 5, 6], SamplingParams(max_new_tokens=20))
    engine.step()
    return engine


def _only(found: list[InvariantViolation]) -> InvariantViolation:
    [violation] = found
    return violation


def _append_past_the_limit(self: Req, token_id: int) -> None:
    self.output_ids.append(token_id)
    if len(self.output_ids) > self.sampling_params.max_new_tokens:
        self.finished_reason = FinishReason(FinishKind.LENGTH)


def _append_past_a_stop(self: Req, token_id: int) -> None:
    if self.output_ids and self.output_ids[-1] in self.stop_token_ids:
        self.finished_reason = FinishReason(FinishKind.STOP)
    self.output_ids.append(token_id)


def _append_and_end_early(self: Req, token_id: int) -> None:
    self.output_ids.append(token_id)
    self.finished_reason = FinishReason(FinishKind.LENGTH)


def _append_and_stop_at_any(self: Req, token_id: int) -> None:
    self.output_ids.append(token_id)
    self.finished_reason = FinishReason(FinishKind.STOP)


def test_a_busy_engine_balances_in_every_pool() -> None:
    engine = _engine_with_two_running()
    for _ in range(5):
        engine.step()
        stats = engine.pool_stats()
        assert engine.check_invariants(idle=False) == []
        assert (stats["mamba"].in_flight, stats["req"].in_flight) == (2, 2)
        # The tree holds both prompts, which are locked; the requests own what they decoded.
        assert stats["kv"].protected == 6
        assert stats["kv"].in_flight == 2 * (engine.scheduler.running[0].kv.kv_committed_len - 3)


def test_lost_slots_are_named_without_asking_the_ledger() -> None:
    engine = _engine_with_two_running()
    lost_states = engine.pools.mamba_allocator.alloc(2, REQ)
    lost_tokens = engine.pools.token_to_kv_pool_allocator.alloc(3, REQ)
    assert lost_states is not None
    assert lost_tokens is not None

    found = {violation.pool: violation for violation in engine.check_invariants(idle=False)}

    assert found["mamba"].slots == tuple(sorted(lost_states))
    assert found["kv"].slots == tuple(sorted(lost_tokens.tolist()))
    assert "mamba pool: 2 unaccounted" in found["mamba"].message
    assert str(lost_states[0]) in found["mamba"].message
    assert set(found) == {"mamba", "kv"}


def test_a_slot_counted_twice_is_a_negative_residual() -> None:
    engine = _engine_with_two_running()
    [first, _] = engine.scheduler.running
    engine.pools.mamba_allocator.free([first.kv.state_slot], REQ)

    violation = _only(engine.check_invariants(idle=False))

    assert (violation.kind, violation.pool) == (ViolationKind.RESIDUAL, "mamba")
    assert "1 counted twice" in violation.message
    assert engine.pool_stats()["mamba"].residual == -1


def test_a_waiting_request_that_holds_something_is_named() -> None:
    engine = _engine_with_two_running()
    req = engine.scheduler.running.pop()
    engine.scheduler.waiting_queue.append(req)

    found = engine.check_invariants(idle=False)

    assert {violation.kind for violation in found} == {ViolationKind.WAITING_HELD}
    assert {violation.pool for violation in found} == {"mamba", "req", ""}
    assert all("r1" in violation.message for violation in found)


def test_a_waiting_request_that_keeps_its_match_is_reported_in_the_same_step() -> None:
    engine = make_engine(max_running_requests=1, check_fatal=False)
    for i in range(2):
        engine.submit(f"r{i}", [i + 1, 5, 6], SamplingParams(max_new_tokens=20))
    engine.step()
    [waiting], [running] = engine.scheduler.waiting_queue, engine.scheduler.running
    waiting.kv.last_node = running.kv.last_node

    engine.step()

    assert _only(engine.violations).kind is ViolationKind.WAITING_HELD
    assert "1 waiting request(s) (r1) refer to tree nodes" in engine.violations[0].message
    assert engine.counters.invariant_violations == 1


@pytest.mark.parametrize(
    ("chunk", "most", "name"),
    [(4, 64, "chunked_prefill_size is 4"), (None, 4, "max_prefill_tokens is 4")],
)
def test_a_prefill_step_above_its_budget_is_reported(
    chunk: int | None, most: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(chunked_prefill_size=chunk, max_prefill_tokens=most, check_fatal=False)
    for i in range(2):
        engine.submit(f"r{i}", [i + 1, 5, 6], SamplingParams(max_new_tokens=2))
    engine.step()
    assert engine.violations == []
    engine.abort_all()
    while engine.has_work:
        engine.step()
    monkeypatch.setattr(PrefillAdder, "_chunk_len", lambda self, extend_len: extend_len)
    monkeypatch.setattr(PrefillAdder, "_in_pages", lambda self, tokens: min(1, tokens))
    for i in range(2):
        engine.submit(f"s{i}", [i + 7, 8, 9], SamplingParams(max_new_tokens=2))

    engine.step()

    violation = _only(engine.violations)
    assert violation.kind is ViolationKind.LIMIT
    assert violation.message == f"a prefill step of 2 request(s) has 6 tokens, but {name}"


def test_a_request_that_waits_beyond_the_time_out_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = FakeClock()
    engine = make_engine(
        clock=clock, max_running_requests=1, req_waiting_timeout_s=5.0, check_fatal=False
    )
    for rid in ("runs", "waits"):
        engine.submit(rid, [1, 5, 6], SamplingParams(max_new_tokens=9))
    # A thread that waits uses no processor time, so only the wall clock tells how long.
    monkeypatch.setattr(FakeClock, "thread_cpu_s", lambda self: 0.0)
    monkeypatch.setattr(WaitingRules, "overdue", lambda self, waiting_queue: [])
    engine.step()
    clock.advance(4.9)
    engine.step()
    assert engine.violations == []

    clock.advance(0.2)
    engine.step()

    violation = _only(engine.violations)
    assert violation.kind is ViolationKind.LIMIT
    assert violation.message == (
        "1 request(s) (waits) waited longer than req_waiting_timeout, 5 s, and were not aborted"
    )


def test_a_prompt_that_is_not_cut_may_be_longer_than_a_step() -> None:
    engine = make_engine(chunked_prefill_size=None, max_prefill_tokens=4)

    engine.generate([[1, 2, 3, 4, 5, 6]], SamplingParams(max_new_tokens=2))

    assert engine.violations == []


@pytest.mark.parametrize("chunk", [None, 4])
def test_a_request_that_is_passed_over_although_there_is_room_is_reported(
    monkeypatch: pytest.MonkeyPatch, chunk: int | None
) -> None:
    healthy = PrefillAdder._match_and_add

    def but_one(self: PrefillAdder, req: Req) -> AddReqResult:
        return AddReqResult.CONTINUE if req.rid == "lost" else healthy(self, req)

    monkeypatch.setattr(PrefillAdder, "_match_and_add", but_one)
    engine = make_engine(chunked_prefill_size=chunk, check_fatal=False)
    engine.submit("first", [1, 2, 3], SamplingParams(max_new_tokens=4))
    engine.submit("second", [7, 8, 9], SamplingParams(max_new_tokens=4))
    for _ in range(4):
        engine.step()
    assert engine.violations == []

    engine.submit("lost", [4, 5, 6], SamplingParams(max_new_tokens=2))
    engine.step()

    violation = _only(engine.violations)
    assert violation.kind is ViolationKind.PASSED_OVER
    assert (
        violation.message == "1 waiting request(s) were not admitted although nothing refused them"
    )


def test_a_queue_that_waits_for_rows_although_some_are_free_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = make_engine(max_running_requests=2, check_fatal=False)
    for i in range(3):
        engine.submit(f"r{i}", [i + 1, 5, 6], SamplingParams(max_new_tokens=2))
    for _ in range(2):
        engine.step()
    assert engine.violations == []
    while engine.has_work:
        engine.step()
    monkeypatch.setattr(PrefillAdder, "rem_rows", lambda self: 0)
    engine.submit("late", [4, 5, 6], SamplingParams(max_new_tokens=2))

    engine.step()

    assert _only(engine.violations).kind is ViolationKind.PASSED_OVER


def test_a_request_that_ended_with_its_match_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RequestRelease, "_forget", lambda self, req: None)
    engine = make_engine(check_fatal=False)

    engine.generate([[1, 2, 3]], SamplingParams(max_new_tokens=2))

    violation = _only(engine.violations)
    assert violation.kind is ViolationKind.ENDED_HELD
    assert violation.message == (
        "1 request(s) that ended (generate-0-0) still hold slots, tree nodes or their session"
    )


@pytest.mark.parametrize(
    ("broken", "fault"),
    [
        (_append_past_the_limit, "has 3 tokens, but max_new_tokens is 2"),
        (_append_past_a_stop, "goes on for 1 token(s) after a stop token"),
        (_append_and_end_early, "ends for its length after 1 token(s), but max_new_tokens is 2"),
        (_append_and_stop_at_any, "ends for a stop token, but has none"),
    ],
)
def test_an_answer_that_does_not_end_where_it_should_is_reported(
    monkeypatch: pytest.MonkeyPatch, broken: Callable[[Req, int], None], fault: str
) -> None:
    params = SamplingParams(max_new_tokens=2, ignore_eos=True)
    [[first, _]] = make_engine().generate([[1, 2, 3]], params)
    stopping = SamplingParams(max_new_tokens=2, stop_token_ids=(first,))
    params = stopping if broken is _append_past_a_stop else params
    monkeypatch.setattr(Req, "append_token", broken)
    engine = make_engine(check_fatal=False)

    engine.generate([[1, 2, 3]], params)

    violation = _only(engine.violations)
    assert violation.kind is ViolationKind.ANSWER
    assert violation.message == (
        f"1 answer(s) are not what their requests asked for: generate-0-0 {fault}"
    )


def test_an_answer_with_the_tokens_of_another_request_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    healthy = FrontEnd.ended

    def ended(self: FrontEnd, req: Req, kind: EventKind) -> list[EngineEvent]:
        return [replace(event, output_ids=(7, 7)) for event in healthy(self, req, kind)]

    monkeypatch.setattr(FrontEnd, "ended", ended)
    engine = make_engine(check_fatal=False)

    engine.generate([[1, 2, 3]], SamplingParams(max_new_tokens=2))

    assert "generate-0-0 has other tokens than" in _only(engine.violations).message


def test_an_idle_engine_whose_front_end_still_waits_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = make_engine()
    engine.submit("r0", [1, 2, 3], SamplingParams(max_new_tokens=2))
    monkeypatch.setattr(Scheduler, "_let_go", lambda self, req, stage, outcome: None)
    engine.abort("r0")
    assert engine.check_invariants(idle=engine.is_idle) == []
    engine.step()

    violation = _only(engine.check_invariants(idle=engine.is_idle))

    assert violation.kind is ViolationKind.UNANSWERED
    assert violation.message == (
        "the front end has entries of 1 request, but the engine has no request"
    )


def test_a_request_in_flight_at_idle_is_a_violation() -> None:
    engine = _engine_with_two_running()

    kinds = {violation.kind for violation in engine.check_invariants(idle=True)}

    assert kinds == {ViolationKind.IN_FLIGHT_AT_IDLE, ViolationKind.LOCKED_AT_IDLE}


def test_a_tree_that_contradicts_itself_is_reported_at_idle() -> None:
    engine = make_engine(check_level="off")
    engine.generate([[1, 2, 3]], SamplingParams(max_new_tokens=2))
    node = next(engine.pools.tree_cache.iter_nodes())
    node.full_lock_ref = -1

    found = engine.check_invariants(idle=True)

    assert ViolationKind.TREE in {violation.kind for violation in found}


def test_the_audit_is_silent_on_a_healthy_engine() -> None:
    engine = _engine_with_two_running()

    assert engine.audit() == []


def test_the_audit_sees_a_slot_with_two_holders() -> None:
    engine = _engine_with_two_running()
    first, second = engine.scheduler.running
    table = engine.pools.req_to_token_pool.req_to_token
    engine.step()

    table[second.kv.row, 3] = table[first.kv.row, 3]

    assert engine.check_invariants(idle=False) == []
    aliases = [v for v in engine.audit() if v.kind is ViolationKind.ALIAS]
    assert _only(aliases).slots == (int(table[first.kv.row, 3]),)
    assert "r0" in aliases[0].message
    assert "r1" in aliases[0].message


def test_the_audit_sees_a_record_that_the_ledger_denies() -> None:
    engine = _engine_with_two_running()
    slot = engine.scheduler.running[0].kv.state_slot
    engine.pools.mamba_allocator.transfer([slot], REQ, TREE)

    messages = [violation.message for violation in engine.audit()]

    assert any(f"[{slot}] claimed by REQ" in message for message in messages)
    assert any(f"[{slot}] held by TREE in the ledger" in message for message in messages)


def test_the_audit_sees_a_prefix_that_is_no_longer_the_trees() -> None:
    engine = _engine_with_two_running()
    req = engine.scheduler.running[0]
    table = engine.pools.req_to_token_pool.req_to_token

    table[req.kv.row, 0] = 200

    assert any(
        "which the tree no longer holds" in violation.message for violation in engine.audit()
    )


def test_an_empty_record_costs_a_waiting_request_nothing() -> None:
    engine = _engine_with_two_running()
    engine.submit("w", [9, 9], SamplingParams(max_new_tokens=2))

    assert engine.scheduler.waiting_queue[0].kv == ReqKv()
    assert engine.pool_stats()["mamba"].waiting_held == 0


def test_a_lost_page_is_named_token_by_token() -> None:
    engine = make_attention_engine(16, check_level="off")
    engine.submit("r0", [1] * 20, SamplingParams(max_new_tokens=20))
    engine.step()
    assert engine.check_invariants(idle=False) == []
    lost = engine.pools.token_to_kv_pool_allocator.alloc(16, REQ)
    assert lost is not None

    violation = _only(engine.check_invariants(idle=False))

    assert violation.slots == tuple(lost.tolist())
    assert "kv pool: 16 unaccounted" in violation.message


def test_the_audit_sees_a_position_that_left_its_page() -> None:
    engine = make_attention_engine(16, check_level="off")
    engine.submit("r0", [1] * 20, SamplingParams(max_new_tokens=20))
    engine.step()
    assert engine.audit() == []
    [req] = engine.scheduler.running
    table = engine.pools.req_to_token_pool.req_to_token

    table[req.kv.row, 18] += 1

    assert [violation.message for violation in engine.audit()] == [
        f"kv pool: request r0 has [{table[req.kv.row, 18]}] out of place in their pages"
    ]


def test_a_row_that_maps_to_another_state_than_the_request_holds_is_an_alias() -> None:
    engine = _engine_with_two_running()
    first, second = engine.scheduler.running
    mapping = engine.pools.hybrid_rows
    assert mapping is not None

    mapping.req_index_to_mamba_index_mapping[second.kv.row] = first.kv.state_slot

    violation = _only(engine.check_invariants(idle=False))
    assert (violation.kind, violation.pool) == (ViolationKind.ALIAS, "mamba")
    assert f"request r1 holds {second.kv.state_slot}" in violation.message
    assert f"slot {first.kv.state_slot} is in several rows" in violation.message


def test_a_state_that_two_requests_hold_is_an_alias_though_the_map_agrees() -> None:
    engine = _engine_with_two_running()
    first, second = engine.scheduler.running
    mapping = engine.pools.hybrid_rows
    assert mapping is not None

    second.kv.mamba_pool_idx = first.kv.mamba_pool_idx
    mapping.req_index_to_mamba_index_mapping[second.kv.row] = first.kv.state_slot

    violation = _only(engine.check_invariants(idle=False))
    assert violation.message.endswith(f"slot {first.kv.state_slot} is in several rows")
