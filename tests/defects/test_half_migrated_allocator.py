"""sglang#27256 in a whole engine: states that the tree evicts go to an unused free list."""

from __future__ import annotations

import pytest

from hybridbench.defects.inject import injected
from hybridbench.defects.pr27256_half_migrated_allocator import DEFECT
from hybridbench.engine.engine import Engine
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.engine.scheduler.audit import ViolationKind
from tests.builders import assert_idle_and_clean, make_engine, run_to_idle

PARAMS = SamplingParams(max_new_tokens=4, ignore_eos=True)


def chats(cache: str, kv_tokens: int) -> Engine:
    """Serve distinct prompts; with a small KV pool, the tree must evict."""
    engine = make_engine(cache=cache, kv_tokens=kv_tokens, mamba_slots=64, check_fatal=False)
    for index in range(12):
        engine.submit(f"r{index}", [index, *range(1, 12)], PARAMS)
        run_to_idle(engine)
    return engine


def test_a_healthy_tree_evicts_and_loses_nothing() -> None:
    engine = chats("unified", kv_tokens=60)

    assert engine.counters.evict_leaf > 0
    assert_idle_and_clean(engine)


@pytest.mark.parametrize(("cache", "kv_tokens"), [("unified", 400), ("radix", 60)])
def test_nothing_is_lost_where_nothing_is_evicted_or_another_tree_evicts(
    cache: str, kv_tokens: int
) -> None:
    with injected(DEFECT):
        assert_idle_and_clean(chats(cache, kv_tokens))


def test_with_the_defect_the_residual_is_what_the_tree_evicted_slot_by_slot() -> None:
    DEFECT.truth.clear()
    with injected(DEFECT):
        engine = chats("unified", kv_tokens=60)
        stats = engine.pool_stats()["mamba"]

    assert stats.residual == DEFECT.truth.counts()["slots_dropped"] > 0
    assert any(v.kind is ViolationKind.RESIDUAL and v.pool == "mamba" for v in engine.violations)
