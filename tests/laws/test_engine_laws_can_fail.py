"""The laws detect what they are meant to: with one release removed, they name the right pool."""

from __future__ import annotations

import pytest

from hybridbench.engine.engine import Engine
from hybridbench.engine.memory.req_to_token import HybridReqToTokenPool
from hybridbench.engine.req import Req
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.engine.scheduler.audit import ViolationKind
from hybridbench.engine.scheduler.prefill import PrefillAdder
from hybridbench.engine.scheduler.release import RequestRelease
from tests.builders import assert_idle_and_clean, make_engine, run_to_idle

SYSTEM = list(range(1, 13))


def _squeezed_engine() -> Engine:
    """A step prefills 8 tokens, so a long prompt leaves no budget for the requests behind it."""
    return make_engine(chunked_prefill_size=8, check_level="off")


def _prefix_hits_that_are_refused(engine: Engine) -> None:
    """Put r0 between two chunks; r1 hits the system prompt, takes a slot, and is refused."""
    params = SamplingParams(max_new_tokens=4)
    engine.generate([SYSTEM], params)
    engine.submit("r0", [*SYSTEM, *range(13, 40)], params)
    engine.submit("r1", [*SYSTEM, 40, 41, 42], params)
    engine.submit("r2", [*SYSTEM, 43, 44, 45], params)
    engine.step()
    engine.step()


def test_a_refused_request_holds_nothing_between_steps() -> None:
    engine = _squeezed_engine()

    _prefix_hits_that_are_refused(engine)

    assert engine.counters.refusals > 0
    assert engine.pool_stats()["mamba"].waiting_held == 0
    assert engine.check_invariants(idle=False) == []


def test_without_its_give_back_a_refused_request_is_named_with_the_state_pool(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(PrefillAdder, "_return_unadmitted", lambda self, req: None)
    engine = _squeezed_engine()

    _prefix_hits_that_are_refused(engine)

    stats = engine.pool_stats()["mamba"]
    assert (stats.waiting_held, stats.residual) == (1, 0)
    [violation] = engine.check_invariants(idle=False)
    assert (violation.kind, violation.pool) == (ViolationKind.WAITING_HELD, "mamba")
    assert len(violation.slots) == 1
    assert "r1" in violation.message


def test_the_slot_of_a_refused_request_comes_back_when_it_is_admitted_or_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(PrefillAdder, "_return_unadmitted", lambda self, req: None)
    engine = _squeezed_engine()
    _prefix_hits_that_are_refused(engine)

    engine.abort("r1")
    run_to_idle(engine)

    assert_idle_and_clean(engine)


def test_a_state_slot_that_is_not_given_back_is_a_residual_that_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept: list[int] = []

    def keep(self: HybridReqToTokenPool, req: Req) -> None:
        """Drop the request's slot without freeing it."""
        assert req.kv.mamba_pool_idx is not None
        kept.append(req.kv.mamba_pool_idx)
        req.kv.mamba_pool_idx = None

    monkeypatch.setattr(HybridReqToTokenPool, "free_mamba_cache", keep)
    engine = make_engine(cache="chunk", check_level="off")

    engine.generate([[1, 2, 3], [4, 5, 6]], SamplingParams(max_new_tokens=2))

    assert len(kept) == 2
    [violation] = engine.check_invariants(idle=True)
    assert (violation.kind, violation.pool) == (ViolationKind.RESIDUAL, "mamba")
    assert violation.slots == tuple(sorted(kept))
    assert engine.pool_stats()["mamba"].residual == 2


def test_a_row_that_is_not_given_back_is_a_residual_that_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(RequestRelease, "_give_back_row", lambda self, req: None)
    engine = make_engine(check_level="off")

    engine.generate([[1, 2, 3]], SamplingParams(max_new_tokens=2))

    [violation] = engine.check_invariants(idle=True)
    assert (violation.kind, violation.pool) == (ViolationKind.RESIDUAL, "req")
    assert len(violation.slots) == 1


def test_kv_that_is_not_given_back_is_a_residual_and_a_lock_that_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def keep(self: RequestRelease, req: Req, *, is_insert: bool) -> None:
        """Release neither KV nor lock."""

    monkeypatch.setattr(RequestRelease, "_give_back_kv", keep)
    monkeypatch.setattr(RequestRelease, "_unlock", lambda self, req: None)
    engine = make_engine(check_level="off")

    engine.generate([[1, 2, 3, 4, 5]], SamplingParams(max_new_tokens=3))

    found = {(violation.kind, violation.pool) for violation in engine.check_invariants(idle=True)}
    assert (ViolationKind.RESIDUAL, "kv") in found
    assert (ViolationKind.LOCKED_AT_IDLE, "kv") in found
    assert (ViolationKind.LOCKED_AT_IDLE, "mamba") in found


def test_two_holders_of_one_slot_are_found_though_the_sum_balances() -> None:
    engine = make_engine(check_level="off", max_running_requests=2)
    for i in range(2):
        engine.submit(f"r{i}", [i + 1, i + 2, i + 3], SamplingParams(max_new_tokens=8))
    engine.step()
    first, second = engine.scheduler.running

    second.kv.mamba_pool_idx = first.kv.mamba_pool_idx

    assert engine.pool_stats()["mamba"].residual == 0
    kinds = {violation.kind for violation in engine.audit() if violation.pool == "mamba"}
    assert kinds == {ViolationKind.ALIAS, ViolationKind.LEDGER}
