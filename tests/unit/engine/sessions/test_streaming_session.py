"""How turns begin and end, and what their session holds, on every cache."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from hybridbench.engine.cache.base import MatchPrefixParams
from hybridbench.engine.engine import Engine
from hybridbench.engine.events import EngineEvent, EventKind
from hybridbench.engine.memory.owners import REQ, SESSION
from hybridbench.engine.req import Req
from hybridbench.engine.sampling_params import SamplingParams
from tests.builders import (
    NANO_MODEL,
    assert_idle_and_clean,
    assert_nothing_lost,
    make_attention_engine,
    make_engine,
    make_tracking_engine,
    make_window_engine,
    nano_model,
    run_to_idle,
)
from tests.drafters import HalfRightDrafter

PARAMS = SamplingParams(max_new_tokens=6, ignore_eos=True)
FIRST = list(range(1, 21))
MAKERS: dict[str, Callable[[], Engine]] = {
    "hybrid": make_engine,
    "hybrid, no reuse": lambda: make_engine(cache="chunk"),
    "hybrid, unified tree": lambda: make_engine(cache="unified"),
    "pages of 16, unified tree": lambda: make_attention_engine(16, cache="unified"),
    "pages of 1": lambda: make_attention_engine(1),
    "pages of 16": lambda: make_attention_engine(16),
    "pages of 64": lambda: make_attention_engine(64, chunked_prefill_size=64),
    "track buffers": make_tracking_engine,
    "track buffers, pages of 16": lambda: make_tracking_engine(16),
    "pages of 16, no reuse": lambda: make_attention_engine(16, cache="chunk"),
}
on_every_cache = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())


def turn(engine: Engine, rid: str, tokens: list[int]) -> list[int]:
    engine.submit(rid, tokens, PARAMS, session_id="s")
    [end] = [event for event in run_to_idle(engine) if event.ends_request]
    assert end.kind is EventKind.FINISHED, end.reason
    return list(end.output_ids)


def with_one_turn(make: Callable[[], Engine]) -> tuple[Engine, list[int]]:
    """Return an engine with an idle session after one turn, and the tokens of that turn."""
    engine = make()
    engine.open_session("s")
    return engine, [*FIRST, *turn(engine, "first", FIRST)]


def held(engine: Engine) -> dict[str, int]:
    return {pool: stats.session_held for pool, stats in engine.pool_stats().items()}


def expected(make: Callable[[], Engine], prompt: list[int]) -> list[int]:
    return make().generate([prompt], PARAMS)[0]


def abort_at(engine: Engine, rid: str, tokens: list[int], steps: int) -> list[EngineEvent]:
    """Submit a turn, abort it after ``steps`` steps, and run to the end."""
    engine.submit(rid, tokens, PARAMS, session_id="s")
    for _ in range(steps):
        engine.step()
    assert engine.abort(rid)
    return [event for event in run_to_idle(engine) if event.ends_request]


@on_every_cache
def test_an_idle_session_holds_its_row_its_state_and_what_it_computed_itself(
    make: Callable[[], Engine],
) -> None:
    engine, said = with_one_turn(make)

    page = engine.config.page_size
    [slot] = engine.pools.sessions.slots.values()
    # All but the last token of the answer, which the next turn computes.
    assert slot.kv.kv_committed_len == slot.kv.kv_allocated_len == len(said) - 1
    own = -(-(len(said) - 1) // page) * page - slot.kv.cache_protected_len
    assert held(engine)["kv"] == own > 0
    assert held(engine)["req"] == 1
    # Plus its track buffer, if requests have one.
    states = 1 + engine.config.track_buffer_size
    assert held(engine).get("mamba", states) == states
    assert engine.pools.req_to_token_pool.held(SESSION) == 1
    assert engine.pools.token_to_kv_pool_allocator.held(SESSION) == own
    assert engine.pools.req_to_token_pool.held(REQ) == 0
    assert engine.check_invariants(idle=True) == []
    assert_nothing_lost(engine)


@on_every_cache
def test_a_close_gives_everything_back_and_unlocks_the_tree(make: Callable[[], Engine]) -> None:
    engine, _ = with_one_turn(make)
    assert not engine.flush_cache()

    engine.close_session("s")

    assert_idle_and_clean(engine)
    assert engine.counters.lock_calls == engine.counters.unlock_calls
    assert engine.flush_cache()
    assert all(stats.available == stats.total for stats in engine.pool_stats().values())


@on_every_cache
def test_while_a_turn_runs_nothing_is_counted_twice(make: Callable[[], Engine]) -> None:
    engine, said = with_one_turn(make)
    before = held(engine)
    engine.submit("second", [30, 31, 32], PARAMS, session_id="s")
    assert held(engine) == before

    engine.step()

    assert set(held(engine).values()) == {0}
    sessions = engine.pools.sessions
    # Without the rows in flight, sessions also count what they have lent to turns.
    assert sessions.session_held_req_count() == 1
    assert sessions.session_held_tokens() == engine.pool_stats()["kv"].in_flight > 0
    assert_nothing_lost(engine)
    events = [event for event in run_to_idle(engine) if event.ends_request]
    assert list(events[0].output_ids) == expected(make, [*said, 30, 31, 32])


@on_every_cache
def test_an_abort_before_the_match_leaves_the_slot_alone(make: Callable[[], Engine]) -> None:
    engine, said = with_one_turn(make)
    before = held(engine)

    [end] = abort_at(engine, "second", [30, 31], steps=0)

    assert end.kind is EventKind.ABORTED
    assert held(engine) == before
    assert engine.counters.session_abort_queued == 1
    assert turn(engine, "third", [40]) == expected(make, [*said, 40])
    assert engine.counters.session_restores == 1


@on_every_cache
def test_an_abort_in_the_first_turn_leaves_nothing_and_an_open_session(
    make: Callable[[], Engine],
) -> None:
    engine = make()
    engine.open_session("s")

    [end] = abort_at(engine, "first", FIRST, steps=3)

    assert end.kind is EventKind.ABORTED
    assert len(end.output_ids) > 0
    assert set(held(engine).values()) == {0}
    assert engine.pools.sessions.slots == {}
    assert_idle_and_clean(engine)
    # The aborted turn is not in the session's history.
    assert turn(engine, "second", [40, 41]) == expected(make, [40, 41])


@on_every_cache
def test_an_abort_in_a_later_turn_releases_the_slot_and_keeps_what_was_said(
    make: Callable[[], Engine],
) -> None:
    engine, said = with_one_turn(make)

    abort_at(engine, "second", [30, 31], steps=3)

    assert set(held(engine).values()) == {0}
    assert engine.counters.session_abort_decode == 1
    assert_idle_and_clean(engine)
    assert turn(engine, "third", [40]) == expected(make, [*said, 40])
    assert engine.counters.session_restores == 1


@on_every_cache
def test_an_abort_between_chunks_does_the_same(make: Callable[[], Engine]) -> None:
    engine, said = with_one_turn(make)
    chunk = engine.config.chunked_prefill_size
    assert chunk is not None
    long = [(7 * i) % 40 for i in range(min(chunk + 8, 128 - len(said) - 8))]

    abort_at(engine, "second", long, steps=1)

    assert engine.counters.session_abort_prefill == (len(long) > chunk)
    assert set(held(engine).values()) == {0}
    assert_idle_and_clean(engine)
    assert turn(engine, "third", [40]) == expected(make, [*said, 40])


@on_every_cache
def test_an_input_that_is_too_long_leaves_the_slot_alone(make: Callable[[], Engine]) -> None:
    engine, said = with_one_turn(make)
    before = held(engine)
    engine.submit("second", [1] * 500, PARAMS, session_id="s")

    assert [event.kind for event in run_to_idle(engine)] == [EventKind.REJECTED]

    assert held(engine) == before
    assert engine.counters.session_rejected_turns == 1
    assert turn(engine, "third", [40]) == expected(make, [*said, 40])


def _retracted(make: Callable[[], Engine]) -> tuple[Engine, list[int]]:
    """Return an engine with a second turn retracted after two tokens, and the first turn's text."""
    engine, said = with_one_turn(make)
    engine.submit("second", [30, 31], PARAMS, session_id="s")
    for _ in range(2):
        engine.step()
    engine.scheduler._retract_one()
    return engine, said


@on_every_cache
def test_a_retracted_turn_goes_on_where_it_was(make: Callable[[], Engine]) -> None:
    engine, said = _retracted(make)
    assert_nothing_lost(engine)
    assert held(engine)["req"] == 1
    computed = engine.counters.prompt_tokens

    [end] = [event for event in run_to_idle(engine) if event.ends_request]

    assert list(end.output_ids) == expected(make, [*said, 30, 31])
    assert engine.counters.prompt_tokens - computed == 1
    assert engine.counters.session_retracts == 1


@on_every_cache
def test_a_retracted_turn_that_is_aborted_takes_the_grown_slot_along(
    make: Callable[[], Engine],
) -> None:
    engine, said = _retracted(make)

    engine.abort("second")
    run_to_idle(engine)

    assert engine.counters.session_abort_queued == 1
    assert set(held(engine).values()) == {0}
    assert_idle_and_clean(engine)
    assert turn(engine, "third", [40]) == expected(make, [*said, 40])


def _matched(engine: Engine, prompt: list[int]) -> Req:
    """Return a turn of "s" that is matched, but neither admitted nor refused yet."""
    req = Req("probe", prompt, PARAMS)
    engine.scheduler.sessions.begin_req("s", req)
    key = req.matchable_key()
    result = engine.pools.match_prefix(MatchPrefixParams(key, cow_mamba=True, req=req))
    req.kv.prefix_indices = result.device_indices
    return req


@on_every_cache
def test_a_refused_turn_can_be_matched_again_and_again(make: Callable[[], Engine]) -> None:
    engine, said = with_one_turn(make)
    before, sessions = held(engine), engine.pools.sessions
    req = _matched(engine, [*said, 30])

    for _ in range(3):
        found = req.kv.prefix_indices.tolist()
        assert (req.kv.kv_committed_len, len(found)) == (len(said) - 1, len(said) - 1)
        assert engine.pools.req_to_token_pool.held(REQ) == 1
        assert sessions.take_back(req)
        req.forget_match()
        assert req.kv.is_empty
        assert held(engine) == before
        assert_nothing_lost(engine)
        key = req.matchable_key()
        result = sessions.match_prefix(MatchPrefixParams(key, cow_mamba=True, req=req))
        req.kv.prefix_indices = result.device_indices
        assert found == req.kv.prefix_indices.tolist()

    assert sessions.take_back(req)
    assert not sessions.take_back(req)


@pytest.mark.parametrize(("page", "start", "freed"), [(1, 21, 4), (16, 21, 0), (16, 16, 16)])
def test_a_tail_is_freed_from_the_next_page_border_on(page: int, start: int, freed: int) -> None:
    """The slot has 25 tokens, 20 or 16 of them from the tree; the next turn shares ``start``."""
    engine, said = with_one_turn(lambda: make_attention_engine(page))
    before = held(engine)["kv"]
    [slot] = engine.pools.sessions.slots.values()
    assert slot.kv.kv_allocated_len == 25

    req = _matched(engine, said[: start + 1])

    assert (req.kv.kv_committed_len, req.kv.kv_allocated_len) == (start, start)
    events = engine.pools.sessions.session_events
    assert events.tail_frees == (freed > 0)
    engine.pools.sessions.take_back(req)
    assert before - held(engine)["kv"] == freed
    assert_nothing_lost(engine)


def test_what_lies_behind_an_answer_is_trimmed_when_it_ends() -> None:
    engine = make_attention_engine(1)
    engine.open_session("s")
    engine.submit("a", FIRST, PARAMS, session_id="s")
    for _ in range(3):
        engine.step()
    [req] = engine.scheduler.running
    # Like a drafter, allocate three more positions than are ever committed.
    drafted = engine.pools.token_to_kv_pool_allocator.alloc(4)
    assert drafted is not None
    end = req.kv.kv_allocated_len
    engine.pools.req_to_token_pool.write((req.kv.row, slice(end, end + 4)), drafted)
    req.kv.kv_allocated_len = end + 4

    engine.scheduler._retract_one()

    [slot] = engine.pools.sessions.slots.values()
    assert slot.kv.kv_allocated_len == end + 1
    assert engine.pools.sessions.session_events.overshoot_tokens == 3
    assert_nothing_lost(engine)


@pytest.mark.parametrize("new", [[], [30]])
def test_a_state_that_has_the_last_token_in_is_used_only_if_something_follows(
    new: list[int],
) -> None:
    engine = make_engine()
    engine.open_session("s")
    # Make the history one token shorter than the text that the state includes.
    first = turn(engine, "first", FIRST)
    session = engine.scheduler.sessions.get("s")
    assert session is not None
    del session.tokens[-1:]
    said = [*FIRST, *first][:-1]

    second = turn(engine, "second", new)

    assert second == expected(make_engine, [*said, *new])
    assert engine.counters.session_restores == bool(new)


@pytest.mark.parametrize(("page", "freed"), [(1, 1), (16, 0)])
def test_a_turn_pushed_back_under_a_step_in_flight_frees_the_token_that_is_computed_again(
    page: int, freed: int
) -> None:
    """The step in flight had already computed that token: the tail of sglang#22862."""

    def make() -> Engine:
        return make_attention_engine(page, enable_overlap_schedule=True)

    engine, said = with_one_turn(make)
    engine.submit("second", [30, 31], PARAMS, session_id="s")
    for _ in range(3):
        engine.step()
    assert engine.scheduler.in_flight is not None
    engine.scheduler._retract_one()
    engine.step()
    assert_nothing_lost(engine)

    [end] = [event for event in run_to_idle(engine) if event.ends_request]

    assert list(end.output_ids) == expected(make, [*said, 30, 31])
    assert engine.counters.late_tokens > 0
    assert engine.pools.sessions.session_events.tail_tokens == freed
    engine.close_session("s")
    assert_idle_and_clean(engine)


AHEAD: dict[str, Callable[[], Engine]] = {
    "own states": lambda: make_engine(model=nano_model(), enable_overlap_schedule=True),
    "track buffers": lambda: make_tracking_engine(model=nano_model(), enable_overlap_schedule=True),
    "guesses": lambda: make_engine(
        model=nano_model(),
        enable_overlap_schedule=True,
        drafter=HalfRightDrafter(NANO_MODEL.vocab_size),
    ),
    "guesses, pages of 16": lambda: make_tracking_engine(
        16,
        model=nano_model(),
        enable_overlap_schedule=True,
        drafter=HalfRightDrafter(NANO_MODEL.vocab_size),
    ),
}
on_every_order = pytest.mark.parametrize("make", AHEAD.values(), ids=AHEAD.keys())


def plain_engine() -> Engine:
    return make_engine(model=nano_model())


def state_of(engine: Engine, slot: int) -> list[torch.Tensor]:
    cache = engine.pools.mamba_pool.mamba_cache
    return [cache.conv[0][:, slot].clone(), cache.temporal[:, slot].clone()]


def state_after(text: list[int]) -> list[torch.Tensor]:
    """Return the state that one prefill of ``text`` computes without overlap or sessions."""
    engine = make_engine(model=nano_model(), cache="chunk", chunked_prefill_size=None)
    engine.submit("whole", text, PARAMS)
    engine.step()
    [req] = engine.scheduler.running
    return state_of(engine, req.kv.state_slot)


@on_every_order
@pytest.mark.parametrize("steps", [3, 4, 5])
def test_a_late_token_is_not_in_the_state_that_a_turn_pushed_back_goes_on_from(
    make: Callable[[], Engine], steps: int
) -> None:
    engine, said = with_one_turn(make)
    engine.submit("second", [30, 31], PARAMS, session_id="s")
    for _ in range(steps):
        engine.step()
    assert engine.scheduler.in_flight is not None
    [req] = engine.scheduler.running
    text = [*said, 30, 31, *req.output_ids]

    engine.scheduler._retract_one()

    [slot] = engine.pools.sessions.slots.values()
    assert slot.kv.kv_committed_len == len(text) - 1 < slot.kv.kv_allocated_len
    kept = state_of(engine, slot.kv.state_slot)
    for mine, theirs in zip(kept, state_after(text[:-1]), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)
    [end] = [event for event in run_to_idle(engine) if event.ends_request]
    assert list(end.output_ids) == expected(plain_engine, [*said, 30, 31])
    assert engine.pools.sessions.session_events.releases == 0
    engine.close_session("s")
    assert_idle_and_clean(engine)


@on_every_order
def test_a_surplus_step_is_not_in_the_state_that_the_next_turn_goes_on_from(
    make: Callable[[], Engine],
) -> None:
    engine, said = with_one_turn(make)

    [slot] = engine.pools.sessions.slots.values()
    assert (slot.kv.kv_committed_len, slot.kv.kv_allocated_len) == (len(said) - 1, len(said))
    for mine, theirs in zip(
        state_of(engine, slot.kv.state_slot), state_after(said[:-1]), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)
    assert turn(engine, "second", []) == expected(plain_engine, said)
    assert engine.counters.session_restores == 1


@on_every_order
def test_a_turn_whose_prefill_is_in_flight_is_pushed_back_one_step_later(
    make: Callable[[], Engine],
) -> None:
    engine, said = with_one_turn(make)
    engine.submit("second", [30, 31], PARAMS, session_id="s")
    engine.step()

    assert not engine.scheduler._retract_one()
    engine.step()
    assert engine.scheduler._retract_one()

    [end] = [event for event in run_to_idle(engine) if event.ends_request]
    assert list(end.output_ids) == expected(plain_engine, [*said, 30, 31])
    assert engine.pools.sessions.session_events.releases == 0


@on_every_order
def test_a_turn_that_a_pause_pushes_back_under_its_prefill_begins_anew(
    make: Callable[[], Engine],
) -> None:
    """The state includes the prompt's last token, which must be recomputed for its logits."""
    engine, said = with_one_turn(make)
    engine.submit("second", [30, 31], PARAMS, session_id="s")
    engine.step()
    engine.pause_generation("retract")
    engine.continue_generation()

    [end] = [event for event in run_to_idle(engine) if event.ends_request]

    assert list(end.output_ids) == expected(plain_engine, [*said, 30, 31])
    assert engine.pools.sessions.session_events.releases == 1
    engine.close_session("s")
    assert_idle_and_clean(engine)


def test_a_session_only_appends() -> None:
    engine, said = with_one_turn(make_attention_engine)

    with pytest.raises(AssertionError, match="append-only"):
        _matched(engine, said[:10])


def test_a_session_whose_window_has_left_its_prefix_behind_is_not_resumed() -> None:
    """The window KV of its prefix is free, and lowering the mark would only hide that."""
    engine, said = with_one_turn(make_window_engine)
    record = engine.pools.sessions.slots["s"].kv
    assert record.swa_evicted_seqlen < record.kv_committed_len
    record.swa_evicted_seqlen = len(said) + 1

    with pytest.raises(AssertionError, match="the window has left"):
        _matched(engine, said)


def test_idle_sessions_give_way_when_nobody_could_run_otherwise() -> None:
    """Two idle sessions hold both rows; a new request evicts one instead of waiting for a close."""
    engine = make_engine(max_running_requests=2)
    for name in ("s", "t"):
        engine.open_session(name)
        engine.submit(name, FIRST, PARAMS, session_id=name)
    said = {e.rid: [*FIRST, *e.output_ids] for e in run_to_idle(engine) if e.ends_request}

    assert engine.generate([[40, 41]], PARAMS) == [expected(make_engine, [40, 41])]

    assert engine.counters.session_evictions == 1
    # "s" was idle longest and was evicted; both sessions continue, "s" from the beginning.
    assert list(engine.pools.sessions.slots) == ["t"]
    for name in ("s", "t"):
        engine.submit(f"{name}2", [33], PARAMS, session_id=name)
        [end] = [event for event in run_to_idle(engine) if event.ends_request]
        assert list(end.output_ids) == expected(make_engine, [*said[name], 33])


def test_a_turn_needs_no_row_beside_its_sessions() -> None:
    engine = make_engine(max_running_requests=2)
    for name in ("s", "t"):
        engine.open_session(name)
        engine.submit(name, FIRST, PARAMS, session_id=name)
    run_to_idle(engine)
    assert engine.pools.free_rows() == 0

    for name in ("s", "t"):
        engine.submit(f"{name}2", [33], PARAMS, session_id=name)
    engine.step()

    assert len(engine.scheduler.running) == 2
    assert engine.counters.session_evictions == 0
