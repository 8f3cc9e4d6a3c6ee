"""The engine's own checks pass on healthy programs and report any planted imbalance at once.

This holds in every pool while requests run; upstream's busy check omits the state pool.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from hybridbench.engine.cache.mamba_radix_cache import MambaRadixCache
from hybridbench.engine.cache.tree import PrefixTree
from hybridbench.engine.engine import Engine
from hybridbench.engine.memory.ledger import OwnerLedger
from hybridbench.engine.memory.owners import REQ
from hybridbench.engine.memory.slots import SlotAllocator
from hybridbench.engine.scheduler.audit import SlotAudit, ViolationKind
from tests.builders import make_attention_engine, make_engine
from tests.engine_programs import EngineProgram

ENGINES: dict[str, Callable[[], Engine]] = {
    "hybrid": lambda: make_engine(mamba_slots=12, kv_tokens=240, check_level="off"),
    "no reuse": lambda: make_engine(
        mamba_slots=12, kv_tokens=240, cache="chunk", check_level="off"
    ),
    "pages of 16": lambda: make_attention_engine(16, kv_tokens=320, check_level="off"),
}
KINDS = ("hybrid", "no reuse", "pages of 16")


def _busy_program(name: str, seed: int) -> EngineProgram:
    """Return a program stopped when at least two requests run and some wait."""
    program = EngineProgram(ENGINES[name](), random.Random(seed), longest_output=20)
    for _ in range(400):
        if len(program.live) < 12:
            program.submit()
        program.step()
        engine = program.engine
        free = engine.pools.req_to_token_pool.available_size()
        if len(engine.scheduler.running) > 1 and engine.waiting_requests and free:
            return program
    raise AssertionError("the engine is never busy")


@pytest.mark.parametrize("name", KINDS)
def test_the_sums_say_what_a_walk_over_every_holder_says(name: str) -> None:
    program = EngineProgram(ENGINES[name](), random.Random(7), longest_output=20)
    engine, pools = program.engine, program.engine.pools
    audit = SlotAudit(pools)
    busy_steps = 0
    for _ in range(250):
        if len(program.live) < 10 and program.rng.random() < 0.5:
            program.submit()
        program.step()
        admitted = engine.scheduler.admitted()
        busy_steps += len(admitted) > 1
        held = pools.tree_cache.tree_slots()
        in_tree = {"kv": len(held.kv_indices), "mamba": len(held.mamba_slots), "req": 0}
        for pool, stats in engine.pool_stats().items():
            walked = sum(len(audit.req_slots(pool, req)) for req in admitted)
            assert stats.in_flight == stats.uncached == walked, (pool, stats)
            assert stats.evictable + stats.protected == in_tree[pool], (pool, stats)
            assert stats.used == stats.total - stats.available - stats.evictable
            assert stats.used == stats.protected + stats.in_flight, (pool, stats)
            assert stats.usage == stats.used / stats.total
        assert engine.check_invariants(idle=engine.is_idle) == []
    assert busy_steps > 50


def _lost_token(engine: Engine) -> str:
    assert engine.pools.token_to_kv_pool_allocator.alloc(engine.pools.page_size) is not None
    return "kv"


def _lost_state(engine: Engine) -> str:
    assert engine.pools.mamba_allocator.alloc(1) is not None
    return "mamba"


def _lost_row(engine: Engine) -> str:
    assert engine.pools.req_to_token_pool.rows.alloc(1, REQ) is not None
    return "req"


def _token_freed_under_a_request(engine: Engine) -> str:
    holder = max(engine.scheduler.running, key=lambda req: req.kv.held_len(engine.pools.page_size))
    slots = SlotAudit(engine.pools).req_slots("kv", holder)
    engine.pools.token_to_kv_pool_allocator.free(slots[-1:])
    return "kv"


def _state_freed_under_a_request(engine: Engine) -> str:
    engine.pools.mamba_allocator.free([engine.scheduler.running[0].kv.state_slot])
    return "mamba"


def _row_freed_under_a_request(engine: Engine) -> str:
    engine.pools.req_to_token_pool.rows.free([engine.scheduler.running[0].kv.row], REQ)
    return "req"


def _tree_miscounts_tokens(engine: Engine) -> str:
    tree = engine.pools.tree_cache
    assert isinstance(tree, PrefixTree)
    tree.full_evictable_size_ += 1
    return "kv"


def _tree_miscounts_states(engine: Engine) -> str:
    tree = engine.pools.tree_cache
    assert isinstance(tree, MambaRadixCache)
    tree.mamba_protected_size_ -= 1
    return "mamba"


def _waiting_request_keeps_a_state(engine: Engine) -> str:
    slots = engine.pools.mamba_allocator.alloc(1)
    assert slots is not None
    engine.scheduler.waiting_queue[-1].kv.mamba_pool_idx = slots[0]
    return "mamba"


def _waiting_request_keeps_a_row(engine: Engine) -> str:
    rows = engine.pools.req_to_token_pool.rows.alloc(1, REQ)
    assert rows is not None
    engine.scheduler.waiting_queue[0].kv.req_pool_idx = rows[0]
    return "req"


def _two_requests_share_a_state(engine: Engine) -> str:
    first, second = engine.scheduler.running[:2]
    rows = engine.pools.hybrid_rows
    assert rows is not None
    second.kv.mamba_pool_idx = first.kv.state_slot
    rows.req_index_to_mamba_index_mapping[second.kv.row] = first.kv.state_slot
    return "mamba"


EVERYWHERE = (_lost_token, _lost_row, _token_freed_under_a_request, _row_freed_under_a_request,
              _waiting_request_keeps_a_row)  # fmt: skip
WITH_STATES = (_lost_state, _state_freed_under_a_request, _waiting_request_keeps_a_state,
               _two_requests_share_a_state)  # fmt: skip
PLANTED = [
    *((name, plant) for name in KINDS for plant in EVERYWHERE),
    *((name, plant) for name in ("hybrid", "no reuse") for plant in WITH_STATES),
    ("hybrid", _tree_miscounts_tokens),
    ("pages of 16", _tree_miscounts_tokens),
    ("hybrid", _tree_miscounts_states),
]


@pytest.mark.parametrize(
    ("name", "plant"), PLANTED, ids=[f"{name}: {plant.__name__[1:]}" for name, plant in PLANTED]
)
def test_a_planted_imbalance_is_seen_in_its_pool_while_requests_run(
    name: str, plant: Callable[[Engine], str]
) -> None:
    for seed in range(5):
        engine = _busy_program(name, seed).engine
        if plant in WITH_STATES and not engine.pools.mamba_allocator.available_size():
            engine.pools.make_mamba_room(1)
        if plant is _lost_token:
            engine.pools.make_kv_room(engine.pools.page_size)
        assert engine.check_invariants(idle=False) == []

        pool = plant(engine)

        found = engine.check_invariants(idle=False)
        assert {violation.pool for violation in found if violation.pool != "tree"} == {pool}
        assert found[0].kind in (
            ViolationKind.RESIDUAL, ViolationKind.WAITING_HELD, ViolationKind.ALIAS,
        )  # fmt: skip


def test_a_healthy_check_asks_nobody_to_walk_a_pool_or_the_tree(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its cost depends only on the requests: it must not walk a pool, a tree or a ledger."""
    engine = _busy_program("hybrid", 1).engine

    def walked(*args: object, **kwargs: object) -> None:
        raise AssertionError("a healthy check walked something of the pool's size")

    monkeypatch.setattr(SlotAudit, "_claims", walked)
    monkeypatch.setattr(SlotAudit, "missing_slots", walked)
    monkeypatch.setattr(PrefixTree, "iter_nodes", walked)
    monkeypatch.setattr(PrefixTree, "tree_slots", walked)
    monkeypatch.setattr(OwnerLedger, "numbers_of", walked)
    monkeypatch.setattr(SlotAllocator, "slots_of", walked)

    assert engine.check_invariants(idle=False) == []
