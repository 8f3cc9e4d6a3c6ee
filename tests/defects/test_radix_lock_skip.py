"""bytedance-iaas/sglang#508 in a whole engine: the lower half of a split node stays locked."""

from __future__ import annotations

import random

from hybridbench.defects.inject import injected
from hybridbench.defects.pr0508_radix_lock_skip import DEFECT
from hybridbench.engine.engine import Engine
from hybridbench.engine.sampling_params import SamplingParams
from hybridbench.engine.scheduler.audit import ViolationKind
from tests.builders import assert_idle_and_clean, make_attention_engine, run_to_idle

PAGE = 4


def overlaps(count: int = 12, seed: int = 7) -> Engine:
    """Serve prompts that diverge from one cached text at different points."""
    rng = random.Random(seed)
    engine = make_attention_engine(PAGE, kv_tokens=128 * PAGE, check_level="off")
    text = [rng.randrange(48) for _ in range(60)]
    engine.generate([text], SamplingParams(max_new_tokens=1))
    for index in range(count):
        prompt = [*text[: rng.randint(6, 56)], 40 + index % 8, index]
        engine.submit(f"r{index}", prompt, SamplingParams(max_new_tokens=2, ignore_eos=True))
        run_to_idle(engine)
    return engine


def test_a_healthy_engine_cuts_nodes_and_leaves_no_lock() -> None:
    engine = overlaps()

    assert engine.counters.node_splits > 3
    assert_idle_and_clean(engine)


def test_with_the_defect_the_tokens_below_each_cut_stay_protected_and_none_is_missing() -> None:
    DEFECT.truth.clear()
    with injected(DEFECT):
        engine = overlaps()
        stats = engine.pool_stats()["kv"]
        found = engine.check_invariants(idle=True)

    truth = DEFECT.truth.counts()
    assert truth["splits"] == engine.counters.node_splits
    assert truth["locks_lost"] > 0
    assert stats.protected == truth["tokens_protected"] > 0
    assert stats.residual == 0
    assert any(v.kind is ViolationKind.LOCKED_AT_IDLE and v.pool == "kv" for v in found)


def test_a_match_locks_more_than_it_found_and_its_own_insert_cuts_the_node() -> None:
    with injected(DEFECT):
        engine = make_attention_engine(PAGE, kv_tokens=128 * PAGE, check_level="off")
        engine.generate([list(range(1, 29))], SamplingParams(max_new_tokens=1))
        engine.submit("r", [*range(1, 21), 44, 45], SamplingParams(max_new_tokens=8))
        engine.step()
        # All 28 tokens are one node; 20 of them matched.
        assert engine.pool_stats()["kv"].protected == 28
        run_to_idle(engine)

    assert engine.counters.node_splits == 1
    assert engine.pool_stats()["kv"].protected == 28 - 20


def test_the_defect_changes_no_token() -> None:
    def outputs() -> list[list[int]]:
        prompts = [[1, 2, 3, 4, 5, 6, 7, 8, 9 + i % 3, i] for i in range(6)]
        engine = make_attention_engine(PAGE, check_level="off")
        return engine.generate(prompts, SamplingParams(max_new_tokens=4))

    healthy = outputs()
    with injected(DEFECT):
        assert outputs() == healthy


def test_after_the_defect_a_new_engine_is_healthy_again() -> None:
    with injected(DEFECT):
        overlaps(4)

    assert_idle_and_clean(overlaps(4))
