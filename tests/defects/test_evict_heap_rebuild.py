"""sglang#38454 in a whole engine: the same victims, but each eviction looks at every leaf."""

from __future__ import annotations

import random

import pytest

from hybridbench.defects.inject import injected
from hybridbench.defects.pr38454_evict_heap_rebuild import DEFECT, TRUTH
from hybridbench.engine.engine import Engine
from hybridbench.engine.sampling_params import SamplingParams
from tests.builders import (
    assert_idle_and_clean,
    make_attention_engine,
    make_engine,
    run_to_idle,
)

KINDS = pytest.mark.parametrize("kind", ["attention", "hybrid"])


def engine_of(kind: str, kv_tokens: int) -> Engine:
    if kind == "hybrid":
        return make_engine(kv_tokens=kv_tokens, mamba_slots=100, check_level="off")
    return make_attention_engine(kv_tokens=kv_tokens, check_level="off")


def short_prompts(engine: Engine, requests: int) -> None:
    """Serve unique prompts of eight tokens, one after the other."""
    rng = random.Random(5)
    params = SamplingParams(max_new_tokens=1, ignore_eos=True)
    for index in range(requests):
        engine.submit(f"r{index}", [rng.randrange(48) for _ in range(8)], params)
        run_to_idle(engine)


def leaves_looked_at(kind: str, kv_tokens: int) -> float:
    """Return the average number of leaves that an eviction puts in its heap."""
    TRUTH.clear()
    with injected(DEFECT):
        engine = engine_of(kind, kv_tokens)
        short_prompts(engine, kv_tokens // 8 + 20)
    counts = TRUTH.counts()
    assert counts["heaps_built"] == engine.counters.evict_calls > 10
    assert_idle_and_clean(engine)
    return counts["leaves_heaped"] / counts["heaps_built"]


@KINDS
def test_the_work_of_an_eviction_grows_with_the_leaves(kind: str) -> None:
    few, many = leaves_looked_at(kind, 100), leaves_looked_at(kind, 400)

    assert many > 3 * few


@KINDS
def test_the_victims_are_those_of_the_healthy_engine(kind: str) -> None:
    def what_is_left() -> list[tuple[int, int]]:
        engine = engine_of(kind, 200)
        short_prompts(engine, 80)
        assert engine.counters.nodes_evicted > 50
        return [(node.id, len(node.value)) for node in engine.pools.tree_cache.iter_nodes()]

    healthy = what_is_left()
    with injected(DEFECT):
        defective = what_is_left()

    assert defective == healthy


@KINDS
def test_a_healthy_engine_builds_no_heap_before_and_after(kind: str) -> None:
    TRUTH.clear()
    short_prompts(engine_of(kind, 100), 20)
    before = TRUTH.counts()
    with injected(DEFECT):
        short_prompts(engine_of(kind, 100), 20)
    with_defect = TRUTH.counts()
    short_prompts(engine_of(kind, 100), 20)

    assert before == {}
    assert with_defect["heaps_built"] > 0
    assert TRUTH.counts() == with_defect


def test_the_defect_changes_no_token() -> None:
    def outputs() -> list[list[int]]:
        engine = engine_of("attention", 200)
        short_prompts(engine, 40)
        return engine.generate([[1, 2, 3], [4, 5, 6]], SamplingParams(max_new_tokens=5))

    healthy = outputs()
    with injected(DEFECT):
        assert outputs() == healthy
