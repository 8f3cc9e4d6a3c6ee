from __future__ import annotations

from typing import Any

import pytest

from hybridbench.engine.cache.base import DecLockRefParams, MatchPrefixParams
from hybridbench.engine.engine import Engine
from hybridbench.engine.req import Req
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.engine.scheduler.release import RequestRelease
from tests.builders import (
    assert_nothing_lost,
    make_attention_engine,
    make_engine,
    make_req,
)

PROMPT = list(range(1, 21))


def _running_engine(**changes: Any) -> tuple[Engine, Req]:
    """Return an engine and its request, which has decoded two tokens and left the batch."""
    engine = make_engine(check_level="off", **changes)
    engine.submit("r", PROMPT, SamplingParams(max_new_tokens=50))
    for _ in range(2):
        engine.step()
    [req] = engine.scheduler.running
    engine.scheduler.running = []
    return engine, req


@pytest.mark.parametrize("cache", ["radix", "chunk"])
@pytest.mark.parametrize("is_insert", [True, False])
def test_whatever_the_way_out_everything_comes_back(cache: str, is_insert: bool) -> None:
    engine, req = _running_engine(cache=cache)

    RequestRelease(engine.pools).release(req, is_insert=is_insert)

    assert req.kv.is_empty
    assert_nothing_lost(engine)
    assert {stats.protected for stats in engine.pool_stats().values()} == {0}
    assert engine.pool_stats()["req"].available == 6


def test_a_finished_request_leaves_its_kv_and_state_in_the_tree() -> None:
    engine, req = _running_engine()
    committed = req.kv.kv_committed_len

    RequestRelease(engine.pools).release(req, is_insert=True)

    assert engine.pool_stats()["kv"].evictable == committed == 21
    assert engine.pool_stats()["mamba"].evictable == 2


def test_an_aborted_prefill_leaves_only_what_was_shared_before() -> None:
    engine, req = _running_engine()

    RequestRelease(engine.pools).release(req, is_insert=False)

    assert engine.pool_stats()["kv"].evictable == 20
    assert engine.pool_stats()["mamba"].evictable == 1


def test_positions_of_a_step_that_never_ran_are_freed_and_not_cached() -> None:
    engine, req = _running_engine()
    assert engine.scheduler._builder.decode([req]) is not None

    RequestRelease(engine.pools).release(req, is_insert=True)

    assert engine.pool_stats()["kv"].evictable == 21
    assert_nothing_lost(engine)


@pytest.mark.parametrize("cache", ["radix", "chunk"])
@pytest.mark.parametrize("is_insert", [True, False])
def test_a_step_that_never_ran_shares_its_page_with_what_is_kept(
    cache: str, is_insert: bool
) -> None:
    """Freeing its position alone would free the page under the committed tokens."""
    engine = make_attention_engine(16, cache=cache, check_level="off")
    engine.submit("r", list(range(30)), SamplingParams(max_new_tokens=50))
    for _ in range(6):
        engine.step()
    [req] = engine.scheduler.running
    assert engine.scheduler._builder.decode([req]) is not None
    assert (req.kv.kv_committed_len, req.kv.kv_allocated_len) == (35, 36)
    engine.scheduler.running = []

    RequestRelease(engine.pools).release(req, is_insert=is_insert)

    assert req.kv.is_empty
    assert_nothing_lost(engine)
    kept = {("radix", True): 32, ("radix", False): 16}.get((cache, is_insert), 0)
    assert engine.pool_stats()["kv"].evictable == kept
    assert engine.pool_stats()["kv"].available == 256 - kept


def test_a_request_that_only_matched_gives_back_its_slot_and_its_lock() -> None:
    engine = make_engine(check_level="off")
    engine.generate([PROMPT], SamplingParams(max_new_tokens=1))
    req = make_req("r", [*PROMPT, 30])
    key = req.matchable_key()
    match = engine.pools.tree_cache.match_prefix(MatchPrefixParams(key, cow_mamba=True, req=req))
    req.kv.last_node = match.last_device_node
    engine.pools.tree_cache.inc_lock_ref(match.last_device_node)
    req.kv.lock_receipt = DecLockRefParams()
    assert req.kv.mamba_pool_idx is not None

    RequestRelease(engine.pools).release(req, is_insert=False)

    assert req.kv.is_empty
    assert_nothing_lost(engine)
    assert engine.pool_stats()["kv"].protected == 0


def test_releasing_twice_changes_nothing() -> None:
    engine, req = _running_engine()
    release = RequestRelease(engine.pools)
    release.release(req, is_insert=True)
    before = engine.pool_stats()

    release.release(req, is_insert=True)

    assert engine.pool_stats() == before
