"""The laws detect errors in saving states: each mechanism is broken in turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hybridbench.engine.engine import Engine
from hybridbench.engine.memory.mamba_pool import MambaPool
from hybridbench.engine.memory.owners import TRACK, Owner
from hybridbench.engine.memory.req_to_token import NOT_TAKEN, HybridReqToTokenPool, RowHolder
from hybridbench.engine.model_runner import ModelRunner
from hybridbench.engine.models import step
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.engine.scheduler.audit import ViolationKind
from hybridbench.engine.scheduler.tracking import StateTracker
from hybridbench.engine.sessions import streaming_session
from tests.builders import (
    NANO_MODEL,
    assert_idle_and_clean,
    make_tracking_engine,
    nano_model,
    run_to_idle,
)
from tests.drafters import HalfRightDrafter

TWO: dict[str, Any] = {"enable_overlap_schedule": True}
DRAFTS: dict[str, Any] = {
    "drafter": HalfRightDrafter(NANO_MODEL.vocab_size),
    "speculative_num_draft_tokens": 6,
}
LAZY: dict[str, Any] = {**TWO, "mamba_scheduler_strategy": "extra_buffer_lazy"}
DOCUMENT = [(7 * i) % 48 for i in range(40)]
# Many tokens depend on the prefix's state, so that a wrong state changes some of them.
ANSWER = SamplingParams(max_new_tokens=12, ignore_eos=True)
LONG_ANSWER = SamplingParams(max_new_tokens=40, ignore_eos=True)


def _outputs(engine: Engine, way: str) -> list[list[int]]:
    """Return outputs of texts that later continue from a saved state, if the engine saves any.

    "prefill": a document, then others that begin with it; "decode": a short prompt with a long
    answer, then a second turn over both; "branch": prompts that fork where no state is saved.
    """
    if way == "decode":
        [first] = engine.generate([[1, 2, 3]], LONG_ANSWER)
        return [first, *engine.generate([[1, 2, 3, *first, 9]], ANSWER)]
    if way == "branch":
        others = [[*DOCUMENT[:20], t, *range(20)] for t in (31, 32, 33)]
        return [engine.generate([prompt], ANSWER)[0] for prompt in (DOCUMENT, *others)]
    first = engine.generate([DOCUMENT], ANSWER)[0]
    return [first, *engine.generate([[*DOCUMENT, 3], [*DOCUMENT, 4, 5]], ANSWER)]


def _expected(way: str) -> list[list[int]]:
    return _outputs(make_tracking_engine(cache="chunk", model=nano_model()), way)


def _hits(engine: Engine) -> int:
    return engine.counters.cow_copies


@pytest.mark.parametrize("changes", [{}, DRAFTS, TWO, LAZY], ids=["one", "drafts", "two", "lazy"])
@pytest.mark.parametrize("way", ["prefill", "decode", "branch"])
def test_a_state_that_was_saved_is_continued_from_and_changes_no_token(
    way: str, changes: dict[str, Any]
) -> None:
    engine = make_tracking_engine(model=nano_model(), **changes)

    outputs = _outputs(engine, way)

    assert outputs == _expected(way)
    assert _hits(engine) > 0
    assert_idle_and_clean(engine)


def _no_copies_in_prefill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "_tracked", lambda batch, device: (None, None))


def _no_copies_in_decode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModelRunner, "_track_decoded", lambda self, batch: None)


def _no_copies_from_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        MambaPool, "track_mamba_state_after_verify", lambda self, slots, places, steps: None
    )
    _no_copies_in_decode(monkeypatch)


def _copies_from_one_place_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant: saves the state after the chain's next token, which may be a rejected draft."""
    healthy = MambaPool.track_mamba_state_after_verify

    def late(self: MambaPool, slots: list[int], places: list[int], steps: list[int]) -> None:
        healthy(self, slots, places, [min(step + 1, 5) for step in steps])

    monkeypatch.setattr(MambaPool, "track_mamba_state_after_verify", late)


def _copies_one_token_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant: saves a right state but records another length for it."""
    healthy = StateTracker.decode

    def late(self: StateTracker, reqs: Any, seq_lens: list[int]) -> Any:
        return healthy(self, reqs, [length - 1 for length in seq_lens])

    monkeypatch.setattr(StateTracker, "decode", late)


def _never_flips(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant: keeps the buffer entry that was not written."""

    def complete(self: HybridReqToTokenPool, req: RowHolder, seqlen: int) -> None:
        req.kv.mamba_last_track_seqlen = seqlen

    monkeypatch.setattr(HybridReqToTokenPool, "complete_track", complete)


@pytest.mark.parametrize(
    ("break_it", "way", "changes"),
    [
        (_no_copies_in_prefill, "prefill", {}),
        (_no_copies_in_prefill, "branch", TWO),
        (_no_copies_in_decode, "decode", {}),
        (_copies_one_token_late, "decode", {}),
        (_no_copies_from_chains, "decode", DRAFTS),
        (_copies_from_one_place_on, "decode", DRAFTS),
        (_never_flips, "prefill", TWO),
        (_never_flips, "decode", TWO),
    ],
)
def test_a_wrong_copy_changes_tokens(
    break_it: Callable[[pytest.MonkeyPatch], None],
    way: str,
    changes: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = _expected(way)
    break_it(monkeypatch)
    engine = make_tracking_engine(model=nano_model(), **changes)

    outputs = _outputs(engine, way)

    assert _hits(engine) > 0
    assert outputs != expected


def test_a_track_buffer_that_is_not_given_back_is_a_residual_that_names_its_slots(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost: list[int] = []

    def forget(
        self: HybridReqToTokenPool, req: RowHolder, keep_idx: int | None, owner: Owner
    ) -> None:
        """Drop the buffer without freeing it; in sglang#26941 a stale reference remained."""
        buffer = req.kv.mamba_ping_pong_track_buffer or []
        lost.extend(slot for idx, slot in enumerate(buffer) if idx != keep_idx)
        req.kv.mamba_ping_pong_track_buffer = None

    monkeypatch.setattr(HybridReqToTokenPool, "_free_track_buffer", forget)
    engine = make_tracking_engine(check_level="off", **TWO)

    engine.generate([DOCUMENT], ANSWER)

    [violation] = engine.check_invariants(idle=True)
    assert (violation.kind, violation.pool) == (ViolationKind.RESIDUAL, "mamba")
    assert violation.slots == tuple(sorted(lost))
    assert len(lost) == 1


def test_a_donated_slot_that_the_buffer_goes_on_naming_has_two_holders(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        HybridReqToTokenPool, "donate_mamba_ping_pong_slot", lambda self, req, new_slot: new_slot
    )
    engine = make_tracking_engine(check_level="off")
    engine.submit("r", DOCUMENT, ANSWER)

    while not engine.counters.track_donations:
        engine.step()

    kinds = {violation.kind for violation in engine.audit() if violation.pool == "mamba"}
    assert kinds == {ViolationKind.ALIAS, ViolationKind.LEDGER}


def test_a_lazy_slot_that_stays_after_its_copy_is_a_ledger_violation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def complete(self: HybridReqToTokenPool, req: RowHolder, seqlen: int) -> None:
        """Clear the previous entry without freeing its slot."""
        idx = req.kv.mamba_next_track_idx
        other = 1 - idx
        assert req.kv.mamba_ping_pong_track_buffer is not None
        if req.kv.mamba_ping_pong_track_buffer[other] != NOT_TAKEN:
            self.set_mamba_ping_pong_slot(req, idx, NOT_TAKEN)
            req.kv.mamba_next_track_idx = other
        req.kv.mamba_last_track_seqlen = seqlen

    monkeypatch.setattr(HybridReqToTokenPool, "complete_track", complete)
    engine = make_tracking_engine(check_level="off", **LAZY)

    engine.generate([[1, 2, 3]], LONG_ANSWER)

    found = {(violation.kind, violation.pool) for violation in engine.check_invariants(idle=True)}
    assert (ViolationKind.RESIDUAL, "mamba") in found


def test_a_buffer_that_the_map_does_not_name_is_found_between_two_steps() -> None:
    engine = make_tracking_engine(check_level="off", **TWO)
    engine.submit("r", DOCUMENT, ANSWER)
    engine.step()
    engine.step()
    assert engine.check_invariants(idle=False) == []
    rows = engine.pools.hybrid_rows
    assert rows is not None

    rows.req_index_to_mamba_ping_pong_track_buffer_mapping[:, 0] = 3

    [violation] = engine.check_invariants(idle=False)
    assert (violation.kind, violation.pool) == (ViolationKind.ALIAS, "mamba")
    assert "request r saves states in" in violation.message


def test_a_buffer_that_a_session_takes_over_must_be_booked_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streaming_session, "track_buffer_owner", lambda holder: TRACK)
    engine = make_tracking_engine(check_level="off", **TWO)
    engine.open_session("chat")
    engine.submit("turn", DOCUMENT, ANSWER, session_id="chat")
    run_to_idle(engine)

    kinds = {violation.kind for violation in engine.audit() if violation.pool == "mamba"}
    assert kinds == {ViolationKind.LEDGER}


def test_a_closed_session_gives_its_track_buffer_back() -> None:
    engine = make_tracking_engine(**TWO)
    engine.open_session("chat")
    engine.submit("turn", DOCUMENT, ANSWER, session_id="chat")
    run_to_idle(engine)
    assert engine.pool_stats()["mamba"].session_held == 3

    engine.close_session("chat")
    run_to_idle(engine)

    assert engine.pool_stats()["mamba"].session_held == 0
    assert_idle_and_clean(engine)
